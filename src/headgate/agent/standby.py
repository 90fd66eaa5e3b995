"""Stand by for another agent of the same host: active–passive (R52, R53).

The passive one sends everybody to the active one, which it asks for a sign of life a few
times within `takeover_after_s`. When there is none for that long, it answers by itself, and
steps back once the other has answered twice. Both may answer for a moment: each measures
the same database, so neither is wrong, and both show it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from headgate.agent.checker import Checker
from headgate.agent.demand import Demands
from headgate.agent.ports import Clock
from headgate.errors import PeerFailed

log = structlog.get_logger()

LOOKS_PER_TAKEOVER = 4
STEP_BACK_AFTER = 2
KEEPER = "standby"


class Standby:
    def __init__(
        self,
        url: str,
        look: Callable[[], Awaitable[None]],
        checker: Checker,
        demands: Demands,
        clock: Clock,
        *,
        takeover_after_s: float,
        warm: bool,
    ) -> None:
        self.url = url
        self._look = look
        """Returns if the active agent answered, else raises PeerFailed."""
        self._checker = checker
        self._demands = demands
        self._clock = clock
        self._takeover_after_s = takeover_after_s
        self._warm = warm
        self._silent_since: float | None = None
        self._answers = 0
        self.passive = False
        self.since = clock.now()
        self.fault = ""
        """Why the active agent did not answer last."""
        self.takeovers_total = 0
        self.on_change: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Active until the other has been seen: a host without an answer is the worse mistake."""
        while True:
            await self.look_once()
            await self._clock.sleep(self._takeover_after_s / LOOKS_PER_TAKEOVER)

    async def look_once(self) -> None:
        began = self._clock.now().mono_s
        try:
            await self._look()
        except PeerFailed as error:
            self._unanswered(began, error.detail)
        else:
            self._answered()

    def _answered(self) -> None:
        self.fault, self._silent_since = "", None
        self._answers += 1
        first_look = not self.takeovers_total and not self.passive
        if not self.passive and (first_look or self._answers >= STEP_BACK_AFTER):
            self._become(passive=True)

    def _unanswered(self, asked_at: float, detail: str) -> None:
        self.fault, self._answers = detail, 0
        self._silent_since = asked_at if self._silent_since is None else self._silent_since
        silent_s = self._clock.now().mono_s - self._silent_since
        if self.passive and silent_s >= self._takeover_after_s:
            self.takeovers_total += 1
            self._become(passive=False)
            self._demands.wake_all(self._clock.now().mono_s)  # Its clients are on their way.

    def _become(self, *, passive: bool) -> None:
        log.warning("standby.changed", passive=passive, active=self.url, detail=self.fault)
        self.passive, self.since = passive, self._clock.now()
        self._checker.active_agent = self.url if passive else ""
        self._demands.keep_awake(KEEPER, on=passive and self._warm)
        self.on_change()
