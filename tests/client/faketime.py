"""A clock that moves only when someone sleeps, and dice with known faces."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FakeTime:
    now_s: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)
