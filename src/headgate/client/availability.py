"""Whether an agent answers at all, remembered from one question to the next.

A long outage must not cost every piece of work its full bounded wait again (R49): an
outage goes on until somebody answers, or until nobody has asked for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Outage:
    since_s: float
    """Monotonic: when the first question was asked that nobody answered."""
    last_s: float
    asks: int
    detail: str

    @property
    def lasted_s(self) -> float:
        return self.last_s - self.since_s


class Availability:
    """Shared by threads without a lock: `outage` is replaced, never edited, and a lost
    update only makes an outage look one question shorter."""

    def __init__(self, agent: str, forget_after_s: float) -> None:
        self.outage: Outage | None = None
        self._agent = agent
        self._forget_after_s = forget_after_s
        self._unthrottled = 0

    def answered(self) -> None:
        outage, self.outage = self.outage, None
        if self._unthrottled and outage is not None:
            self._log("%s answers again after %.1f s; pieces of work run without it: %d",
                      outage.lasted_s, self._unthrottled)  # fmt: skip
            self._unthrottled = 0

    def unanswered(self, asked_s: float, now_s: float, detail: str) -> Outage:
        known = self.outage
        if known is None or asked_s - known.last_s > self._forget_after_s:
            outage = Outage(asked_s, now_s, 1, detail)
        else:
            outage = replace(known, last_s=now_s, asks=known.asks + 1, detail=detail)
        self.outage = outage
        return outage

    def gone_ahead(self, outage: Outage) -> None:
        """A piece of work starts without a throttler (R55)."""
        if not self._unthrottled:
            self._log("%s has not answered for %.1f s (%s); work goes on unthrottled",
                      outage.lasted_s, outage.detail)  # fmt: skip
        self._unthrottled += 1

    def _log(self, message: str, *fields: object) -> None:
        # Imported here: most jobs never get to log a line.
        import logging

        logging.getLogger("headgate.client").warning(message, self._agent, *fields)
