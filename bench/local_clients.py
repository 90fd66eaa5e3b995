"""Some of bench.local's clients, each with a stream of its own.   stdin: what to wait for"""

from __future__ import annotations

import json
import sys
import time

from headgate.client.circuit import Availability, Endpoints
from headgate.client.gate import system_dice
from headgate.client.local import LocalCheck, LocalGate
from headgate.client.local_feed import Feed
from headgate.client.question import make_asker
from headgate.client.target import Target, parse_target

POLL_S = 0.002


class OwnGate(LocalGate):
    """Shares its stream with nobody, as if it were alone in its process."""

    def __init__(self, app: str, target: Target) -> None:
        ways = Endpoints([target]), Availability(10.0, "closed")
        super().__init__(app, None, *ways, routes=None, dice=system_dice)
        self.feed = Feed(target, "main", app, None)
        self.feed.start()

    def home_feed(self, database: str, now_s: float) -> Feed | None:
        return self.feed


def made(url: str, number: int) -> LocalCheck:
    app, target = f"client{number}:bench", parse_target(url)
    gate = OwnGate(app, target)
    check = gate.open(make_asker(app, "main", target, None).may_write(()))
    assert check is not None
    return check


def until(checks: list[LocalCheck], admitted: bool) -> list[float]:
    """When each of them first decided so."""
    seen: dict[int, float] = {}
    while len(seen) < len(checks):
        for number, check in enumerate(checks):
            if number in seen:
                continue
            answer = check.quick()
            if answer is not None and answer.admitted is admitted:
                seen[number] = time.monotonic()
        time.sleep(POLL_S)
    return list(seen.values())


def main() -> None:
    checks = [made(sys.argv[1], number) for number in range(int(sys.argv[2]))]
    print(json.dumps(until(checks, admitted=True)), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            return
        print(json.dumps(until(checks, admitted=line.strip() == "until admitted")), flush=True)


if __name__ == "__main__":
    main()
