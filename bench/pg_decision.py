"""The decision alone: the C core without a server, 10 to 10,000 rules, 1 to 10 mask lengths.

.venv/bin/python -m bench.pg_decision [--rounds 301] [--quick] [--json PATH]

bench/pg_decision.c says what is timed. A hot loop flatters: after a context switch the caches are
cold, and the same decision takes some three times as long. What it costs a server's statement is
bench.pg_overhead's to say.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import pg_policies
from bench.pg_policies import Document
from bench.report import Goal, Report, chosen_of, options, say
from headgate.budgets.compiled import compile_policy
from headgate.budgets.parse import parse_policy

NATIVE = Path(__file__).parent.parent / "native"
SOURCE = Path(__file__).with_suffix(".c")
CALLS = 4096
WHO = pg_policies.Matching("web", "checkout", ("controller", "orders"))
COUNTS = (10, 100, 1_000, 10_000)
LENGTHS = (1, 3, 10)
NETWORKS = 1_000
KINDS = ("resolve", "match", "match_varied", "decide", "decide_varied")


class Timed(NamedTuple):
    """ns, and what the statement met."""

    budgets: int
    probes: int
    ns: Mapping[str, float]


def build(folder: Path) -> Path:
    program = folder / "pg_decision"
    core = sorted(str(path) for path in NATIVE.glob("*.c"))
    flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
    subprocess.run(["cc", *flags, "-o", str(program), str(SOURCE), *core, "-lm"], check=True)
    return program


def timed(documents: Mapping[str, Document], rounds: int) -> dict[str, Timed]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program, paths = build(folder), []
        for number, document in enumerate(documents.values()):
            paths.append(folder / f"{number}.hgp")
            paths[-1].write_bytes(compile_policy(parse_policy(document), 1))
        say(f"{rounds} rounds of {len(KINDS)} × {len(paths)} × {CALLS:,} calls")
        argv = [str(program), str(rounds), str(CALLS), *(str(path) for path in paths)]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=900)
    return dict(zip(documents, map(_timed, done.stdout.splitlines()), strict=True))


def _timed(line: str) -> Timed:
    said = json.loads(line)
    return Timed(said["budgets"], said["probes"], {kind: said[kind] for kind in KINDS})


def rows(found: Mapping[str, Timed]) -> list[list[str]]:
    return [
        [name, str(one.budgets), str(one.probes), *(f"{one.ns[kind]:.0f}" for kind in KINDS)]
        for name, one in found.items()
    ]


def _sum(ns: Mapping[str, float], kinds: Sequence[str]) -> float:
    return sum(ns[kind] for kind in kinds)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=301)
    given = parser.parse_args()
    chosen = chosen_of(given)
    rules = {f"{count:,} rules": pg_policies.matching(count, WHO) for count in COUNTS}
    networks = {
        f"{NETWORKS:,} networks, mask lengths: {count}": pg_policies.cidrs(count, NETWORKS)
        for count in LENGTHS
    }
    found = timed({**rules, **networks}, 5 if chosen.quick else given.rounds)
    report = Report("pg_decision", chosen)
    head = ("policy", "budgets met", "probes", "resolve, ns", "match, ns", "varied", "decide, ns",
            "varied")  # fmt: skip
    report.show("The decision alone, medians", head, rows(found))
    first, *_, last = (found[name].ns for name in rules)
    one, *_, ten = (found[name].ns for name in networks)
    report.goals = [
        Goal(f"{kind}: 10,000 rules to 10", last[kind] / first[kind], 1.10)
        for kind in ("decide", "decide_varied")
    ]
    report.goals += [
        Goal(f"{what}: 10 mask lengths to 1", _sum(ten, kinds) / _sum(one, kinds), 2.0)
        for what, kinds in (("decide", ("decide",)), ("first decision", ("resolve", "decide")))
    ]
    report.end()


if __name__ == "__main__":
    main()
