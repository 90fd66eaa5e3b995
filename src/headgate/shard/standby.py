"""Replace another agent of the same host when it fails: active–passive.

Standby         the settings say which agent is active; this one pings it
ElectedStandby  the fleet's store says which one leads (shard/election.py), this one pings it

The passive agent redirects all checks to the active one. A Standby pings it a few times within
`takeover_after_s`; without an answer for that long, it answers checks itself, and becomes passive
again once the other has answered twice. Both may answer for a moment: each measures the same
database, so neither is wrong, and both show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from headgate.base.ports import Clock
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.errors import PeerFailed
from headgate.metrics.samples import Instant
from headgate.shard.election import ElectionState, Elector, Office

log = structlog.get_logger()

LOOKS_PER_TAKEOVER = 4
STEP_BACK_AFTER = 2
KEEPER = "standby"


class HostDuty:
    """Whether this agent answers for its host, or sends everybody to another one."""

    def __init__(self, checker: Checker, demands: Demands, clock: Clock, *, warm: bool) -> None:
        self._checker = checker
        self._demands = demands
        self._clock = clock
        self._warm = warm
        self.passive = False
        self.since = clock.now()
        self.takeovers_total = 0
        self.on_change: Callable[[], None] = lambda: None

    @property
    def stands_since(self) -> Instant:
        """Since when what `words` says has been so."""
        return self.since

    def take_over(self, *, was_at: str, why: str) -> None:
        self.takeovers_total += 1
        self._become("", was_at, why)
        self._demands.wake_all(self._clock.now().mono_s)  # Its clients are on their way.

    def stand_by_for(self, url: str) -> None:
        self._become(url, url, "")

    def _become(self, active: str, other: str, detail: str) -> None:
        passive = bool(active)
        log.warning("standby.changed", passive=passive, active=other, detail=detail)
        self.passive, self.since = passive, self._clock.now()
        self._checker.active_agent = active
        self._demands.keep_awake(KEEPER, on=passive and self._warm)
        self.on_change()


class Standby(HostDuty):
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
        super().__init__(checker, demands, clock, warm=warm)
        self.url = url
        self._look = look
        """Returns if the active agent answered, else raises PeerFailed."""
        self._takeover_after_s = takeover_after_s
        self._silent_since: float | None = None
        self._answers = 0
        self.fault = ""
        """Why the active agent did not answer last."""

    def words(self, since: str) -> str:
        """`since`: how long it has been so."""
        if self.passive:
            return f"this agent is the standby of {self.url}, and sends checks there"
        fault = self.fault or "no ping yet"
        return f"this agent replaces {self.url}, which it has not seen for {since}: {fault}"

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
            self.fault, self._answers = error.detail, 0
            self._silent_since = began if self._silent_since is None else self._silent_since
            silent_s = self._clock.now().mono_s - self._silent_since
            if self.passive and silent_s >= self._takeover_after_s:
                self.take_over(was_at=self.url, why=error.detail)
            return
        self.fault, self._silent_since = "", None
        self._answers += 1
        if not self.passive and (not self.takeovers_total or self._answers >= STEP_BACK_AFTER):
            self.stand_by_for(self.url)

    async def leave(self) -> None:
        """At the end of the agent: nothing to announce."""


class ElectedStandby(HostDuty):
    """Passive while another is known to lead, and answers; active while this one does, or nobody
    can tell."""

    def __init__(
        self,
        elector: Elector,
        checker: Checker,
        demands: Demands,
        clock: Clock,
        *,
        warm: bool,
        look: Callable[[str], Awaitable[None]] | None = None,
        takeover_after_s: float = 2.0,
    ) -> None:
        """`look` returns if the agent at that address answered, else raises PeerFailed: the store
        tells who leads, not whether anybody reaches it."""
        super().__init__(checker, demands, clock, warm=warm)
        self._elector = elector
        self._look = look
        self._takeover_after_s = takeover_after_s
        self._silent = _Silence()
        self.url = ""
        """Answers of the last known leader, if it was another agent."""
        elector.watch(self._follow)

    @property
    def fault(self) -> str:
        """Why the store, or who leads by it, did not answer last."""
        return self._elector.state().fault or self._silent.fault

    @property
    def stands_since(self) -> Instant:
        return self.since if self._silent.is_given_up else self._elector.state().since

    @property
    def state(self) -> ElectionState:
        return self._elector.state()

    async def run(self) -> None:
        watching = asyncio.ensure_future(self._watch_leader())
        try:
            await self._elector.run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def look_once(self) -> None:
        await self._elector.round()

    async def leave(self) -> None:
        await self._elector.leave()

    def words(self, since: str) -> str:
        """`since`: how long it has been so."""
        pair, state = self._elector.name, self._elector.state()
        alone = f"no leader of the pair {pair} is known, since {since}"
        match state.office:
            case Office.LEADING:
                return f"this agent leads the pair {pair}, since {since}"
            case Office.FOLLOWING if self._silent.is_given_up:
                return (
                    f"{state.leader_url} leads the pair {pair} but does not answer: this agent "
                    f"answers alone, since {since} ({self._silent.fault})"
                )
            case Office.FOLLOWING:
                return f"{state.leader_url} leads the pair {pair}: this agent sends checks there"
            case Office.ALONE if state.obstacle:
                return f"this agent answers alone, since {since}: {state.obstacle}"
            case Office.ALONE:
                fault = state.fault or "no request yet"
                return f"{alone}: each agent answers alone until the store answers ({fault})"

    def _follow(self) -> None:
        state = self._elector.state()
        if state.leader_url != self._silent.url:
            self._silent = _Silence(state.leader_url)
        if state.office is Office.FOLLOWING and not self._silent.is_given_up:
            if not self.passive or self.url != state.leader_url:
                self.url = state.leader_url
                self.stand_by_for(state.leader_url)
        elif self.passive:
            why = state.fault or self._silent.fault or f"now {state.office.value}"
            self.take_over(was_at=self.url, why=why)

    # --- whether the one that leads is there -----------------------------------------------

    async def _watch_leader(self) -> None:
        while self._look is not None:
            await self._clock.sleep(self._takeover_after_s / LOOKS_PER_TAKEOVER)
            state = self._elector.state()
            if state.office is Office.FOLLOWING:
                await self._ask(state.leader_url, self._look)

    async def _ask(self, url: str, look: Callable[[str], Awaitable[None]]) -> None:
        began = self._clock.now().mono_s
        try:
            await look(url)
        except PeerFailed as error:
            fault = error.detail
        else:
            fault = ""
        if url != self._silent.url:
            return  # Another one leads meanwhile.
        after_s = self._takeover_after_s
        self._silent = self._silent.heard(fault, began, self._clock.now().mono_s, after_s)
        self._follow()


@dataclass(frozen=True, slots=True)
class _Silence:
    """How the agent at an address answers."""

    url: str = ""
    fault: str = ""
    since: float | None = None
    """Monotonic: when it first did not answer."""
    answers: int = 0
    is_given_up: bool = False

    def heard(self, fault: str, asked_at: float, now: float, after_s: float) -> _Silence:
        if not fault:
            answers = self.answers + 1
            return _Silence(
                self.url, "", None, answers, self.is_given_up and answers < STEP_BACK_AFTER
            )
        since = asked_at if self.since is None else self.since
        given_up = self.is_given_up or now - since >= after_s
        return _Silence(self.url, fault, since, 0, given_up)
