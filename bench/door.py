"""A check inside the agent, from bytes to bytes: the listener, the routes, the decision, counters.

    .venv/bin/python -m bench.door [--rounds 40] [--against PATH]

No socket: what the kernel and the event loop take is left out, so that a microsecond of ours can
be seen on a busy machine. CPU time, batches of all cases in turns. `--against` names another
checkout of this project, which answers the same bytes in the same rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = 500
CATEGORY = "billing:archive:nightly"
HEADERS = " HTTP/1.1\r\nHost: 127.0.0.1:8090\r\n\r\n"
FRENO = "GET /check/{name}/postgres/main" + HEADERS
NATIVE = "GET /v1/check?app={name}&database=main" + HEADERS
FORMS = {"freno's form": FRENO, "native form": NATIVE}
RULES = 1_000


def cases() -> dict[str, tuple[str, bool, bool, bool]]:
    """Name → request, whether each has a new client name, is rejected, has a rule."""
    found = {}
    for form, request in FORMS.items():
        found[f"{form}, the same request"] = request, False, False, False
        found[f"{form}, no request like another"] = request, True, False, False
        found[f"{form}, no request like another, a rule on its category"] = (
            request, True, False, True,
        )  # fmt: skip
        found[f"{form}, rejected, the same request"] = request, False, True, False
        found[f"{form}, rejected, no request like another"] = request, True, True, False
    return found


# --- one checkout, in a process of its own -------------------------------------------------


class _Transport:
    """Keeps nothing."""

    written = b""

    def write(self, data: bytes) -> None:
        self.written = data

    def get_extra_info(self, _name: str) -> Any:
        return ("127.0.0.1", 1)

    def is_closing(self) -> bool:
        return False


def _door(*, breached: bool, ruled: bool) -> tuple[Any, _Transport]:
    from bench.decide import board, rules
    from headgate.base.clock import Dice, SystemClock
    from headgate.check.checker import Checker
    from headgate.check.demand import Demands
    from headgate.check.model import Idleness
    from headgate.check.routes import NAMED, CheckRoutes
    from headgate.history.recorder import Recorder
    from headgate.http.listener import Handlers, Limits, Listener
    from headgate.metrics.samples import Sample
    from headgate.rules.matching import Rule, book_of

    clock = SystemClock()
    demands = Demands(clock)
    demands.open("main", Idleness())
    health = board(0.5, clock)
    if breached:
        health.push("main", "lag", Sample(99.0, clock.now().mono_s))
    recorder = Recorder(max_clients=1000)
    dice = Dice().roll
    checker = Checker(health, recorder, demands, clock, dice, anonymous_may_pass=False)
    mine = [Rule("mine", "nightly", 1e-9, 1e12)] if ruled else []
    checker.rules = book_of([*rules(RULES).rules, *mine])
    handlers = Handlers(CheckRoutes(checker).prepare, None, NAMED)  # type: ignore[arg-type]
    listener = Listener(handlers, Limits(100, 65536, 10.0, 75.0))
    connection, transport = listener(), _Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection.data_received, transport


def _requests(form: str, *, new: bool) -> Callable[[int], list[bytes]]:
    def made(start: int) -> list[bytes]:
        numbers = range(start, start + CALLS)
        return [form.format(name=f"job{n if new else 0}:{CATEGORY}").encode() for n in numbers]

    return made


async def answer() -> None:
    """A batch of each case for each line of stdin; its µs on stdout."""
    made = []
    for form, new, breached, ruled in cases().values():
        receive, transport = _door(breached=breached, ruled=ruled)
        made.append((receive, transport, _requests(form, new=new), breached))
    gc.collect()
    gc.freeze()  # As the agent does when it has started.
    start = 0
    print("ready", flush=True)
    for _ in iter(sys.stdin.readline, ""):
        taken = []
        for receive, transport, requests, breached in made:
            batch = requests(start)
            began = time.process_time()
            for request in batch:
                receive(request)
            taken.append((time.process_time() - began) / CALLS * 1e6)
            assert (b" 429 " if breached else b" 200 ") in transport.written[:20], transport.written
        start += CALLS
        print(json.dumps(taken), flush=True)


# --- rounds --------------------------------------------------------------------------------


class Checkout:
    def __init__(self, source: Path) -> None:
        path = os.pathsep.join([str(source / "src"), str(Path(__file__).parents[1])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.door", "--answer"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def round(self) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        taken: list[float] = json.loads(self._line())
        return taken

    def close(self) -> None:
        self._process.communicate(timeout=20)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return line or sys.exit("the measured process ended")


def measured(checkouts: list[Checkout], rounds: int) -> Iterator[list[list[float]]]:
    """Of each checkout: the µs of each case, in each round."""
    for checkout in checkouts:  # Warm: the interpreter specializes what it has seen.
        for _ in range(5):
            checkout.round()
    for _ in range(rounds):
        yield [checkout.round() for checkout in checkouts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        asyncio.run(answer())
        return
    here = Path(__file__).parents[1]
    checkouts = [Checkout(given.against or here), Checkout(here)]
    rounds = list(measured(checkouts, given.rounds))
    for checkout in checkouts:
        checkout.close()
    for n, name in enumerate(cases()):
        before = statistics.median(r[0][n] for r in rounds)
        after = statistics.median(r[1][n] for r in rounds)
        ratio = statistics.median(r[0][n] / r[1][n] for r in rounds)
        print(f"{name:62} {before:6.2f} {after:6.2f}  {ratio:.2f}")


if __name__ == "__main__":
    main()
