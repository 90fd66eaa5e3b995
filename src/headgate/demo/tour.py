"""The scenes, one at a time: what steps through them, and what each has shown.

    keys, the page, the script ──go──► Tour ──play──► scenes/ ──► Stage
    Stage ──look──► Frame ──► ScenePlay: a scene waits for what it wants to see

A scene plays in a thread of its own, so that the display goes on. It can be cut short wherever it
waits; the next one then arranges the stage as it needs it. Where a person watches, a scene pauses
at what would be over before it can be looked at, until they go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import psycopg

from headgate.demo.servers import ServerFailed
from headgate.demo.stage import Frame, Stage

PATIENCE_S = 60.0
"""How much longer a scene waits, on a busy machine, for what it wants to see."""
WAKE_S = 0.1
LONGEST_PAUSE_S = 300.0
"""Then a scene goes on automatically, so that what it counts meanwhile does not grow forever."""

Whither: TypeAlias = int | Literal["next", "back", "again"]


class Cut(Exception):
    """The user wants another scene, or to leave."""


@dataclass(frozen=True, slots=True)
class PageHint:
    """What to look at, and on which page of the agent's."""

    text: str
    path: str
    agent: str = ""
    """Whose page, as its URL; the one's that speaks for the shard, unless said."""


@dataclass(frozen=True, slots=True)
class Promise:
    text: str
    kept: bool
    tried: bool = True
    """False: it could not be, here; neither kept nor broken."""


@dataclass(frozen=True, slots=True)
class TourScene:
    title: str
    says: Callable[[Stage], str]
    """What happens, in one to three lines of a terminal."""
    watch: str
    """What to look at in the terminal."""
    looks: Callable[[Stage], Sequence[PageHint]]
    """For the present stage: what was rejected, and when, is known only afterwards."""
    play: Callable[[ScenePlay], Sequence[Promise]]


@dataclass(slots=True)
class ScenePlay:
    """One playing of a scene."""

    stage: Stage
    pace: float
    tell: Callable[[str], None]
    pauses: bool = False
    """A person watches, and says when to go on."""
    frames: list[Frame] = field(default_factory=list)
    waits_for: str = ""
    """What comes when they go on; empty while it does not wait for them."""
    _cut: threading.Event = field(default_factory=threading.Event)
    _on: threading.Event = field(default_factory=threading.Event)

    def watch(
        self, at_least_s: float, until: Callable[[list[Frame]], bool] = lambda frames: True
    ) -> list[Frame]:
        """What is seen for some seconds, and for as many more as it takes to come to that."""
        first, began_at = len(self.frames), time.monotonic()
        while (lasted_s := time.monotonic() - began_at) < at_least_s + PATIENCE_S:
            seen = self.frames[first:]
            if lasted_s >= at_least_s * self.pace and seen and until(seen):
                break
            if self._cut.wait(WAKE_S):
                raise Cut
        return self.frames[first:]

    def pause(self, then: str) -> None:
        """Pause until the person who watches goes on to `then`; at once where nobody watches."""
        if not self.pauses:
            return
        self._on.clear()
        self.waits_for, ends = then, time.monotonic() + LONGEST_PAUSE_S
        try:
            while not self._on.wait(WAKE_S) and time.monotonic() < ends:
                if self._cut.is_set():
                    raise Cut
        finally:
            self.waits_for = ""

    def go_on(self) -> None:
        self._on.set()

    def cut(self) -> None:
        self._cut.set()


class Tour:
    """Which scene is on, which one is wanted, and what the ones before have promised."""

    def __init__(
        self,
        stage: Stage,
        scenes: Sequence[TourScene],
        tell: Callable[[str], None],
        pace: float = 1.0,
        *,
        pauses: bool = False,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_begin`: what has to be done before a scene, whichever way it was started."""
        self.stage = stage
        self.scenes = scenes
        self.promises: dict[int, Sequence[Promise]] = {}
        """By number, of those that were played to their end."""
        self.failure = ""
        """Why the last one could not be played."""
        self._tell = tell
        self._pace = pace
        self._pauses = pauses
        self._on_begin = on_begin
        self._now = 0
        self._wanted: int | None = None
        self._run: ScenePlay | None = None
        self._leaving = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._play_all, name="tour", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """Of the scene that is on or wanted, from 1; 0 before the first."""
        with self._change:
            return self._wanted or self._now

    @property
    def scene(self) -> TourScene:
        return self.scenes[max(1, self.number) - 1]

    @property
    def busy(self) -> bool:
        with self._change:
            return self._run is not None or self._wanted is not None

    @property
    def waits_for(self) -> str:
        """What the scene goes on to at "next"; empty where "next" is another scene."""
        with self._change:
            return self._run.waits_for if self._run is not None and not self._wanted else ""

    @property
    def done(self) -> bool:
        """Whether the last one was played to its end."""
        return self.number == len(self.scenes) and not self.busy

    def go(self, whither: Whither) -> int:
        """Have a scene played, now; returns which. One that plays is cut short; one that waits
        for the person who watches goes on."""
        with self._change:
            run = self._run
            if whither == "next" and run is not None and run.waits_for and not self._wanted:
                run.go_on()
                return self._now
            self._wanted = number_of(whither, self._wanted or self._now, len(self.scenes))
            if self._run is not None:
                self._run.cut()
            self._change.notify_all()
            return self._wanted

    def hear(self, frame: Frame) -> None:
        run = self._run
        if run is not None:
            run.frames.append(frame)

    def leave(self, within_s: float = 60.0) -> None:
        """Nothing starts a server after this."""
        self.stage.leaving.set()
        with self._change:
            self._leaving = True
            if self._run is not None:
                self._run.cut()
            self._change.notify_all()
        self._thread.join(within_s)

    def document(self) -> dict[str, Any]:
        """As the page has it."""
        return {
            "scene": self.number,
            "scenes": [
                {
                    "n": n,
                    "title": scene.title,
                    "says": scene.says(self.stage),
                    "look": [self._look(look) for look in scene.looks(self.stage)],
                }
                for n, scene in enumerate(self.scenes, 1)
            ],
            "busy": self.busy,
            "waits_for": self.waits_for,
            "done": self.done,
        }

    def _look(self, look: PageHint) -> dict[str, str]:
        """Looking needs no signing in; the token to change things with goes into no document."""
        agent = look.agent or self.stage.speaker.url
        return {"text": look.text, "path": look.path, "agent": agent}

    def _play_all(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._leaving or self._wanted is not None)
                if self._leaving:
                    return
                self._now, self._wanted = self._wanted or 1, None
                self._run = run = ScenePlay(self.stage, self._pace, self._tell, self._pauses)
                number = self._now
            self._play(number, run)
            with self._change:
                self._run = None

    def _play(self, number: int, run: ScenePlay) -> None:
        self.failure = ""
        self.promises.pop(number, None)
        try:
            with self.stage.hands:
                self._on_begin()
                self.promises[number] = tuple(self.scenes[number - 1].play(run))
        except Cut:
            return
        except (ServerFailed, psycopg.Error, OSError) as error:
            self.failure = f"scene {number} could not be played: {error}"
            if not self._leaving:
                self._tell(self.failure)


def score(promises: Sequence[Promise]) -> str:
    tried = [promise for promise in promises if promise.tried]
    told = f"{sum(promise.kept for promise in tried)} of {len(tried)} promises kept"
    left_out = len(promises) - len(tried)
    return f"{told}, {left_out} not tried" if left_out else told


def number_of(whither: Whither, now: int, last: int) -> int:
    """Within what there is: before the first is the first, after the last is the last."""
    match whither:
        case "next":
            wanted = now + 1
        case "back":
            wanted = now - 1
        case "again":
            wanted = now
        case _:
            wanted = whither
    return min(max(1, wanted), last)
