"""What the extension costs a statement: CPU of the backend, as a ratio to a server without it.

.venv/bin/python -m bench.pg_overhead [--rounds 200] [--quick] [--json PATH] [--major 18]

One client process and a connection per variant, each variant a server of its own, everything on
one CPU. A round asks each variant a block of look-ups, in random order; its ratio is to the plain
server of the same round. The second plain server shows what the method cannot tell apart. Beside
the median stands the ratio of the quickest tenth, which other work on the machine disturbs least.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.fixtures.pgkits import ExtendedServer, Kit

from bench import pg_kit, pg_policies
from bench.pg_kit import Workbench
from bench.pg_policies import Document
from bench.pg_wire import Wire, bound, simple
from bench.report import Chosen, Goal, Report, chosen_of, options, percentile, quartiles, say

BLOCK = 200
GENERATIONS, SITTINGS = 4, 2
"""Servers are started anew for each generation, and connections are opened anew for each of its
sittings: where the pages of a server or a session lie is a matter of luck."""
TAGS = "/*action='show',controller='orders',tenant='acme'*/"
LOOK_UP = f"SELECT abalance FROM pgbench_accounts WHERE aid = $1 {TAGS}"
USER, APPLICATION = "web", "checkout"
PLAIN, PLAIN_AGAIN, YARDSTICK = "plain", "plain again (A/A)", "pg_stat_statements"
OFF, IDLE = "pg_headgate, off", "pg_headgate, no policy"
UNCONCERNED = "10,000 rules, none applies to the session"
OTHER_TAGS = "10,000 rules on tags, none matches"
FEW, MANY = "100 rules, 3 budgets match", "10,000 rules, 3 budgets match"
PROTOCOLS = ("prepared", "simple")


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    preload: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    policy: Document | None = None


def variants() -> list[Variant]:
    web = pg_policies.Matching(USER, APPLICATION, ("controller", "orders"))
    off = {"pg_headgate.enabled": "off"}
    return [
        Variant(PLAIN),
        Variant(PLAIN_AGAIN),
        Variant(YARDSTICK, "pg_stat_statements"),
        Variant(OFF, "pg_headgate", off, pg_policies.matching(10_000, web)),
        Variant(IDLE, "pg_headgate"),
        Variant(UNCONCERNED, "pg_headgate", policy=pg_policies.of_others(10_000)),
        Variant(OTHER_TAGS, "pg_headgate", policy=pg_policies.on_tags(10_000)),
        Variant(FEW, "pg_headgate", policy=pg_policies.matching(100, web)),
        Variant(MANY, "pg_headgate", policy=pg_policies.matching(10_000, web)),
    ]


@dataclass(slots=True)
class Case:
    """A variant under one protocol, and what its blocks took, round by round."""

    variant: Variant
    protocol: str
    ns: list[float] = field(default_factory=list)

    def measure(self, wire: Wire, messages: Sequence[bytes]) -> None:
        before = pg_kit.cpu_ns(wire.pid)
        for message in messages:
            wire.ask(message)
        self.ns.append((pg_kit.cpu_ns(wire.pid) - before) / len(messages))


Cases = Mapping[tuple[str, str], Case]
"""By variant and protocol."""


def block(protocol: str, dice: random.Random) -> list[bytes]:
    keys = [dice.randrange(1, pg_kit.ROWS + 1) for _ in range(BLOCK)]
    if protocol == "prepared":
        return [bound("look_up", key) for key in keys]
    return [simple(LOOK_UP.replace("$1", str(key))) for key in keys]


def connect(server: ExtendedServer, cpu: int) -> Wire:
    path = pg_kit.socket_of(server)
    wire = Wire(path, user=USER, database="postgres", application_name=APPLICATION)
    pg_kit.pin(wire.pid, cpu)
    wire.prepare("look_up", LOOK_UP)
    for message in block("prepared", random.Random(1)) + block("simple", random.Random(2)):
        wire.ask(message)
    return wire


def sit(running: Mapping[str, ExtendedServer], cases: list[Case], rounds: int, cpu: int) -> None:
    wires = {name: connect(server, cpu) for name, server in running.items()}
    dice = random.Random()
    for _ in range(rounds):
        messages = {protocol: block(protocol, dice) for protocol in PROTOCOLS}
        dice.shuffle(cases)
        for case in cases:
            case.measure(wires[case.variant.name], messages[case.protocol])
    for wire in wires.values():
        wire.close()


def start(bench: Workbench, variant: Variant, using: Kit | None = None) -> ExtendedServer:
    server = bench.server(preload=variant.preload, settings=variant.settings, using=using)
    with pg_kit.session(server) as opened:
        pg_kit.make_roles(opened, USER)
    if variant.policy is not None:
        pg_kit.publish(server, variant.policy)
    return server


def measured(chosen: Chosen, rounds: int) -> Cases:
    cpu = max(os.sched_getaffinity(0))
    made = variants()
    cases = [Case(variant, protocol) for variant in made for protocol in PROTOCOLS]
    for number in range(GENERATIONS):
        with pg_kit.workbench(chosen) as bench:
            running = {variant.name: start(bench, variant) for variant in made}
            with undisturbed(cpu):
                for _ in range(SITTINGS):
                    sit(running, cases, max(2, rounds // GENERATIONS // SITTINGS), cpu)
            for variant in made:
                prove(running[variant.name], variant)
        say(f"{(number + 1) * rounds // GENERATIONS} of {rounds} rounds")
    return {(case.variant.name, case.protocol): case for case in cases}


@contextmanager
def undisturbed(cpu: int) -> Iterator[None]:
    """We are on one CPU, too, and nothing is collected meanwhile."""
    before = os.sched_getaffinity(0)
    pg_kit.pin(0, cpu)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setaffinity(0, before)


def prove(server: ExtendedServer, variant: Variant) -> None:
    """That what was measured is what the row says."""
    if variant.name not in (FEW, MANY):
        return
    counts = pg_kit.readings(server).budgets
    busy = [name for name, count in counts.items() if count.admitted > BLOCK]
    assert len(busy) == 3, f"{variant.name}: {len(busy)} budgets counted, not 3: {busy}"


def ratios(cases: Cases, name: str, protocol: str) -> list[float]:
    plain = cases[PLAIN, protocol].ns
    return [mine / theirs for mine, theirs in zip(cases[name, protocol].ns, plain, strict=True)]


def quickest_ns(cases: Cases, name: str, protocol: str) -> float:
    return percentile(cases[name, protocol].ns, 0.1)


def row(cases: Cases, name: str) -> list[str]:
    cells = [name]
    for protocol in PROTOCOLS:
        low, middle, high = quartiles(ratios(cases, name, protocol))
        plain_us = statistics.median(cases[PLAIN, protocol].ns) / 1000
        quick = quickest_ns(cases, name, protocol) / quickest_ns(cases, PLAIN, protocol)
        cells += [f"{middle:.3f} ({low:.3f}–{high:.3f})", f"{quick:.3f}"]
        cells += [f"{(middle - 1) * plain_us:+.2f}"]
    return cells


def goals(cases: Cases) -> list[Goal]:
    found = {}
    for name, protocol in cases:
        low, middle, high = quartiles(ratios(cases, name, protocol))
        found[name, protocol] = Goal(f"{protocol}: {name}", middle, None, spread=(low, high))
    # What the method cannot tell apart: at least 1 %, on a machine that is shared.
    again = [found[PLAIN_AGAIN, protocol].figure or 0.0 for protocol in PROTOCOLS]
    blur = 1 + max(0.01, *(abs(1 - figure) for figure in again))
    made = []
    for protocol in PROTOCOLS:
        yardstick = found[YARDSTICK, protocol].figure
        bounds = {PLAIN_AGAIN: None, YARDSTICK: None, MANY: yardstick, FEW: yardstick}
        bounds |= {UNCONCERNED: 1.01, IDLE: blur, OFF: blur}
        made += [replace(found[name, protocol], goal=most) for name, most in bounds.items()]
    return made


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    chosen = chosen_of(given)
    cases = measured(chosen, GENERATIONS * SITTINGS * 2 if chosen.quick else given.rounds)
    report = Report("pg_overhead", chosen)
    head = ["backend CPU"]
    first = [PLAIN]
    for protocol in PROTOCOLS:
        head += [f"{protocol}, × plain (quartiles)", "quickest tenth", "µs"]
        each_us = statistics.median(cases[PLAIN, protocol].ns) / 1000
        first += ["1", "1", f"{each_us:.1f} each"]
    names = [variant.name for variant in variants() if variant.name != PLAIN]
    report.show("Backend CPU per look-up", head, [first, *(row(cases, name) for name in names)])
    report.goals = goals(cases)
    report.end()


if __name__ == "__main__":
    main()
