"""One client that declares a billion for each piece, among honest ones; a model, seconds to run.

.venv/bin/python -m bench.liar

The metric is the length of a queue that drains evenly, read once a second: not a delay, so
the pacer steers by its value alone. For lag see bench.herd --grid.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.report import table
from headgate.base.names import Identity, parse_identity
from headgate.check.health import Window, health_of, stand
from headgate.metrics.model import Builtin, MetricSpec
from headgate.metrics.samples import Sample
from headgate.pacing.pacer import Pacer

STEP_S, SECONDS, INTERVAL_S, WORK_S = 0.01, 120, 1.0, 0.02
PER_S, THRESHOLD = 50.0, 50.0
LIE, NEVER = 1e9, float("inf")
SPEC = MetricSpec(
    "queue", Builtin("queue"), THRESHOLD, interval_s=INTERVAL_S, pace=True, pace_target=0.8
)


@dataclass(slots=True)
class Asker:
    who: Identity
    cost: float
    asks_at: float
    admitted: int = 0


class Queue:
    def __init__(self, workers: int, lies_from: float) -> None:
        self.dice = random.Random(1)
        self.pacer, self.length, self.over, self.steps = Pacer(0.0), 0.0, 0, 0
        self.honest = [
            Asker(parse_identity(f"w{n}:work"), 1.0, self.dice.random()) for n in range(workers)
        ]
        self.liar = Asker(parse_identity("u7:liar"), LIE, lies_from)
        self._shut = False

    def run(self) -> None:
        per_reading = round(INTERVAL_S / STEP_S)
        for self.steps in range(1, int(SECONDS / STEP_S) + 1):
            now = self.steps * STEP_S
            self.length = max(0.0, self.length - PER_S * STEP_S)
            self.over += self.length > THRESHOLD
            if self.steps % per_reading == 0:
                self._read(now)
            for asker in (self.liar, *self.honest):
                if now >= asker.asks_at:
                    self._ask(asker, now)

    def _read(self, now: float) -> None:
        window = Window().push(Sample(self.length, now), keep=1)
        self.pacer.follow(health_of("main", {"queue": stand(SPEC, window)}), now)
        self._shut = self.length > THRESHOLD

    def _ask(self, asker: Asker, now: float) -> None:
        if self._shut:
            asker.asks_at = now + INTERVAL_S * (1 + self.dice.random())
            return
        wait_s = self.pacer.admit(asker.cost, now, self.dice.random(), asker.who)
        if wait_s is None:
            asker.admitted += 1
            self.length += 1.0
        asker.asks_at = now + (WORK_S if wait_s is None else wait_s)


def main() -> None:
    rows = []
    for workers in (10, 100):
        for name, lies_from in (("nobody", NEVER), ("from the start", 0.0), ("from 20 s on", 20.0)):
            queue = Queue(workers, lies_from)
            queue.run()
            done = sum(worker.admitted for worker in queue.honest) / (PER_S * SECONDS)
            over = queue.over / queue.steps
            rows.append(
                (f"{workers}", name, f"{over:.1%}", f"{done:.0%}", f"{queue.liar.admitted}")
            )
    print(table(("workers", "lies", "over", "of what is borne, the honest", "lies told"), rows))


if __name__ == "__main__":
    main()
