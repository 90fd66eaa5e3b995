"""Change the primary under load, and keep the truth about it.

Pollers check at every agent for its shard without a pause. An OK is wrong if, for the whole
time between the check and its answer, the server of the agent that gave it was not the primary:
after the old one was gone, or before the promotion of the new one began.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import psycopg

from headgate.demo import postgres
from headgate.demo.agents import TIMEOUT_S, DemoAgent
from headgate.demo.postgres import PostgresServer, ServerDown, SwitchStep
from headgate.demo.servers import ServerFailed
from headgate.demo.stage import SHARD_DOC, Stage

ASK = "/v1/check?app=demo:witness&database=main&metrics=shard/lag"
PAUSE_S = 0.03
DEAD_FOR_S = 2.0
"""Until the failure is noticed and a replica is promoted."""
LONGEST_DEAD_S = 600.0
BACK_AFTER_S = 1.5
LONGEST_S = 120.0
"""What each part of a change may take on a busy machine."""
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class SwitchCheck:
    agent: str
    asked_at: float
    heard_at: float
    verdict: str
    why: str
    leads: bool


Hear: TypeAlias = Callable[[SwitchCheck], None]


@contextmanager
def watching(agents: Iterable[DemoAgent], hear: Hear) -> Iterator[None]:
    """A thread per agent checks there until the end of the block."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_poll, args=(agent, hear, stop), daemon=True) for agent in agents
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _poll(agent: DemoAgent, hear: Hear, stop: threading.Event) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", agent.port, timeout=TIMEOUT_S)) as line:
        while not stop.wait(PAUSE_S):
            try:
                hear(_ask(agent, line))
            except (OSError, http.client.HTTPException):
                line.close()


def _ask(agent: DemoAgent, line: http.client.HTTPConnection) -> SwitchCheck:
    asked_at = time.monotonic()
    line.request("GET", ASK)
    answer = json.loads(line.getresponse().read())
    heard_at = time.monotonic()
    line.request("GET", SHARD_DOC)
    doc = json.loads(line.getresponse().read())
    why = next((str(m["cause"]) for m in answer["metrics"] if m["cause"]), "")
    leads = doc["state"] == "leading" and doc["warming_up"] is None
    return SwitchCheck(agent.name, asked_at, heard_at, answer["verdict"], why, leads)


def _done() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True)
class PrimarySwitch:
    """One change of primary; times are monotonic, and NEVER until they come."""

    old: PostgresServer
    new: PostgresServer
    gone_at: float = NEVER
    promoting_at: float = NEVER
    promoted_at: float = NEVER
    led_at: float = NEVER
    """When the new primary's agent first said that it leads."""
    admits_at: float = NEVER
    """When it first gave an OK."""
    rejoined_at: float = NEVER
    told: list[SwitchCheck] = field(default_factory=list)
    noticed: threading.Event = field(default_factory=_done)
    """Cleared by a caller that wants to look at a shard without a primary first."""
    on_step: Callable[[SwitchStep], None] = lambda step: None
    on_trouble: Callable[[str], None] = lambda words: None

    def tell(self, step: SwitchStep) -> None:
        now = time.monotonic()
        if step is not SwitchStep.GONE or self.gone_at == NEVER:
            self.on_step(step)
        match step:
            case SwitchStep.GONE:
                self.gone_at = min(self.gone_at, now)  # A dead one may be killed again.
            case SwitchStep.PROMOTING:
                self.promoting_at = now
            case SwitchStep.PROMOTED:
                self.promoted_at = now
            case SwitchStep.REJOINED:
                self.rejoined_at = now

    @property
    def leads_after_s(self) -> float:
        return max(0.0, self.led_at - self.promoted_at)

    @property
    def wrong(self) -> list[SwitchCheck]:
        return [told for told in self.told if told.verdict == "OK" and self._is_wrong(told)]

    def _is_wrong(self, told: SwitchCheck) -> bool:
        if told.agent == self.old.name:
            return told.asked_at > self.gone_at
        return told.agent != self.new.name or told.heard_at < self.promoting_at

    @property
    def between(self) -> list[SwitchCheck]:
        """Checks sent after the old primary was gone, and answered before the new one led."""
        return [t for t in self.told if self.gone_at < t.asked_at and t.heard_at < self.led_at]

    @property
    def rejections(self) -> Counter[str]:
        """The rejections in between, in words."""
        return Counter(_words(told) for told in self.between if told.verdict != "OK")

    def hear(self, told: SwitchCheck) -> None:
        self.told.append(told)
        if told.agent != self.new.name or told.heard_at < self.promoting_at:
            return
        if told.leads:
            self.led_at = min(self.led_at, told.heard_at)
        if told.verdict == "OK":
            self.admits_at = min(self.admits_at, told.heard_at)

    @property
    def is_over(self) -> bool:
        return self.admits_at < NEVER and self.rejoined_at < NEVER


def _words(told: SwitchCheck) -> str:
    if told.verdict == "WRONG_AGENT":
        return "wrong agent"
    return (told.why or told.verdict).replace("_", " ")


def switch_over(stage: Stage, handover: PrimarySwitch) -> None:
    """An operator's change: the old one stops, the new one takes over, all others follow."""
    others = _others(stage, handover)
    _change(
        stage,
        handover,
        lambda: postgres.switch_over(handover.old, handover.new, others, tell=handover.tell),
    )


def fail_over(stage: Stage, handover: PrimarySwitch) -> None:
    """The primary dies by SIGKILL. It is noticed after a while, and it comes back later.

    The replica with most of its log takes over, once a check was rejected in between.
    """

    def change() -> None:
        # What it has to recover afterwards is not what is shown: seconds of it, not a minute.
        postgres.checkpoint(handover.old)
        handover.old.kill()
        handover.tell(SwitchStep.GONE)
        stage.leaving.wait(DEAD_FOR_S)
        handover.noticed.wait(LONGEST_DEAD_S)
        _wait_for(stage, lambda: bool(handover.rejections))
        _promote_another(stage, handover)
        stage.primary = handover.new
        stage.leaving.wait(BACK_AFTER_S)
        postgres.rejoin(handover.old, handover.new)
        handover.tell(SwitchStep.REJOINED)

    _change(stage, handover, change)


def _promote_another(stage: Stage, handover: PrimarySwitch) -> None:
    """The next one where that which has most dies as well: it is brought back with the others."""
    while True:
        handover.new = postgres.most_advanced(stage.replicas)
        try:
            others = _others(stage, handover)
            postgres.fail_over(handover.old, handover.new, others, tell=handover.tell)
        except ServerDown as failure:
            if handover.new.is_running():
                raise
            handover.on_trouble(str(failure))
        else:
            return


def _others(stage: Stage, handover: PrimarySwitch) -> list[PostgresServer]:
    return [server for server in stage.replicas if server is not handover.new]


def _change(stage: Stage, handover: PrimarySwitch, change: Callable[[], None]) -> None:
    stage.release()  # A replica that is slowed down could not be promoted in time.
    with watching(stage.agents.values(), handover.hear):
        change()
        stage.primary = handover.new
        _wait_for(stage, lambda: handover.is_over)


def _wait_for(stage: Stage, is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONGEST_S
    while not is_so() and time.monotonic() < ends:
        if stage.leaving.wait(PAUSE_S):
            return


How: TypeAlias = Callable[[Stage, PrimarySwitch], None]


class SwitchThread(threading.Thread):
    """A change of primary, in a thread beside the display."""

    def __init__(self, how: How, stage: Stage, handover: PrimarySwitch) -> None:
        super().__init__(name="change of primary", daemon=True)
        self.handover = handover
        self._how = how
        self._stage = stage
        self._failure: ServerFailed | psycopg.Error | None = None

    def run(self) -> None:
        try:
            self._how(self._stage, self.handover)
        except (ServerFailed, psycopg.Error) as failure:
            self._failure = failure

    def finish(self) -> None:
        """Waits for it, and tells how it failed if it did."""
        self.join()
        if self._failure is not None:
            names = f"{self.handover.old.name} to {self.handover.new.name}"
            raise ServerFailed(f"the change from {names} failed: {self._failure}")
