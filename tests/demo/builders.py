"""Frames, promises and a stage without servers, for tests of what the demo makes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from headgate.demo.agents import DemoAgent, Tokens
from headgate.demo.jobs import DemoJob, JobAnswer
from headgate.demo.stage import Crowd, Desk, Frame, SceneFacts, Scenery, Stage, StageMember
from headgate.demo.tour import PageHint, Promise, ScenePlay, TourScene
from headgate.demo.traffic import Enforcement, Traffic

NAMES = ("db-a", "db-b", "db-c")


def seat(name: str, role: str | None = "replica", lag_s: float | None = 0.0) -> StageMember:
    leads = role == "primary"
    lag = None if leads or role is None else lag_s
    return StageMember(name, role, lag, standing="leading" if leads else "following", term=1)


def heard(verdict: str = "OK", *, admitted: bool = True, unthrottled: bool = False) -> JobAnswer:
    return JobAnswer(0.0, 0.1, admitted, verdict, "because", "", unthrottled)


def desk(
    name: str = "etl:nightly",
    *,
    chunks: int = 10,
    held_s: float | None = None,
    told_by: str = "db-a",
    last: JobAnswer | None = None,
) -> Desk:
    told = last or heard(admitted=held_s is None)
    return Desk(name, "db-a", True, chunks, held_s, told, told_by)


def frame(
    at: float, desks: Sequence[Desk] = (), *, lag_s: float | None = 0.0, rogues: int = 0
) -> Frame:
    """db-a is the primary; db-c lags."""
    seats = (seat("db-a", "primary"), seat("db-b"), seat("db-c", lag_s=lag_s))
    crowd = Crowd(p95_s=0.01, critical_blocked=0, rogues=rogues, rogue_done=3, rogue_blocked=rogues)
    return Frame(at, seats, tuple(desks), crowd)


class Named(NamedTuple):
    name: str


@dataclass
class EmptyStage:
    """As far as a tour looks at it."""

    agents: Mapping[str, DemoAgent] = field(
        default_factory=lambda: {
            name: DemoAgent(name, 20_000 + n, Path("/nowhere"), "token")
            for n, name in enumerate(NAMES)
        }
    )
    replicas: Sequence[Named] = (Named("db-b"), Named("db-c"))
    traffic: Traffic = field(default_factory=lambda: Traffic(Enforcement.EXTENSION, ""))
    tokens: Tokens = field(default_factory=Tokens.new)
    brake: None = None
    speaker_is_up: bool = True
    found: SceneFacts = field(default_factory=SceneFacts)
    look: Callable[[], Frame] = lambda: frame(0)
    arrange: Callable[[Scenery], None] = lambda scenery: None
    primary: Named = field(default_factory=lambda: Named("db-a"))
    jobs: Sequence[DemoJob] = ()
    held_back: list[str] = field(default_factory=list)
    """What was done to replicas, in turn."""
    leaving: threading.Event = field(default_factory=threading.Event)
    hands: threading.Lock = field(default_factory=threading.Lock)

    @property
    def speaker(self) -> DemoAgent:
        return self.agents["db-a"]

    def sign_in_url(self, token: str) -> str:
        return f"{self.speaker.url}/sign-in#{token}"

    def slow_down(self, replica: Named, share: float) -> None:
        self.held_back.append(replica.name)

    def release(self) -> None:
        self.held_back.append("")


def empty_stage(**given: Any) -> Stage:
    return cast(Stage, replace(EmptyStage(), **given))


def scene(title: str, *, waits_s: float = 0.0, kept: bool = True) -> TourScene:
    def play(run: ScenePlay) -> Sequence[Promise]:
        if waits_s:
            run.watch(waits_s, lambda frames: False)
        return [Promise(f"{title} happened", kept)]

    looks = (PageHint("it", "/clients"),)
    return TourScene(title, lambda stage: f"{title}.", "the tree", lambda stage: looks, play)
