"""The demo in a terminal: the shard as it is now, scenes to step through, and keys to break it.

keys, the page ──► Tour ──► scenes/            a scene at a time, in a thread
keys ──► Director ──► handover.py, replica.py  between scenes: one change at a time, in a thread
Stage ──look──► Frame ──► screen.py ──► the terminal
"""

from __future__ import annotations

import sys
import time
from collections import deque

from rich.console import Console
from rich.live import Live

from headgate.demo import postgres
from headgate.demo.handover import Change, Handover, How, fail_over, switch_over
from headgate.demo.keys import HANGUP, Keys
from headgate.demo.scenes import SCENES
from headgate.demo.scenes.failover import step_words
from headgate.demo.screen import Event, Playing, View, draw
from headgate.demo.stage import Frame, Stage
from headgate.demo.tour import Tour, Whither, score
from headgate.demo.tourserver import TourServer

FRAME_S = 0.3
LAG_SHARE = 0.6
LAG_S = 25.0
LEAVE = frozenset({"q", "\x03", HANGUP})
STEPS: dict[str, Whither] = {"n": "next", " ": "next", "b": "back"}
BREAKS = frozenset({"p", "k", "l", "a"})


def can_show() -> bool:
    """Whether there is a terminal to draw on, and to press keys in."""
    there = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return there and not Console().is_dumb_terminal


def play(stage: Stage, total_s: float, guide: TourServer) -> int:
    director = Director(stage)
    guide.begin(director.tour)
    try:
        director.tour.go(1)
        _run(director, time.monotonic() + total_s)
    finally:
        director.leave()
    print("ended; nothing is left behind", flush=True)
    return 0


def _run(director: Director, ends: float) -> None:
    console = Console(highlight=False)
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as screen:
        frame, due = director.stage.look(), time.monotonic()
        while time.monotonic() < ends:
            director.tend()
            screen.update(draw(director.view(frame), *console.size), refresh=True)
            key = keys.pressed(due - time.monotonic())
            if key in LEAVE:
                return
            if key:
                director.press(key)
                continue
            before, frame = frame, director.stage.look()
            due = max(due + FRAME_S, time.monotonic())
            director.note(before, frame)


class Director:
    """What the keys do, and what came of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._began_at = time.monotonic()
        self._events: deque[Event] = deque(maxlen=12)
        self._change: Change | None = None
        self._lag_ends_at: float | None = None
        self._frame_s = FRAME_S
        self._led_by: str | None = None
        self._told = 0
        """The scene whose outcome was told last."""
        self.tour = Tour(stage, SCENES, self._tell, pauses=True, on_begin=self._begin_scene)

    def view(self, frame: Frame) -> View:
        now = time.monotonic()
        return View(
            frame,
            frame_s=self._frame_s,
            since_s=now - self._began_at,
            events=tuple(self._events),
            playing=self._playing(),
            changing=self._change.handover if self._change else None,
            slow=self.stage.brake.replica.name if self.stage.brake else None,
            slow_for_s=None if self._lag_ends_at is None else self._lag_ends_at - now,
            page=self.stage.sign_in_url(self.stage.tokens.operator),
            url=self.stage.speaker.url,
        )

    def _playing(self) -> Playing:
        tour, scene = self.tour, self.tour.scene
        return Playing(
            number=max(1, tour.number),
            of=len(tour.scenes),
            title=scene.title,
            says=scene.says(self.stage),
            watch=scene.watch,
            looks=tuple(scene.looks(self.stage)),
            busy=tour.busy,
            waits_for=tour.waits_for,
        )

    def note(self, before: Frame, after: Frame) -> None:
        self._frame_s = max(0.05, after.at - before.at)
        self.tour.hear(after)
        led_by, self._led_by = self._led_by, after.leader or self._led_by
        if self._led_by != led_by and led_by is not None:
            self._tell(f"{self._led_by}'s agent speaks for the shard: its page is the one below")

    def press(self, key: str) -> None:
        if key in STEPS or (key.isdecimal() and 1 <= int(key) <= len(self.tour.scenes)):
            self._step(STEPS[key] if key in STEPS else int(key))
        elif key in BREAKS:
            self._break(key)

    def _step(self, whither: Whither) -> None:
        if self._change is not None:
            self._tell("one thing at a time: the primary is being changed")
            return
        self.tour.go(whither)

    def _begin_scene(self) -> None:
        """In the tour's thread: the page may have asked for it, in the midst of anything."""
        if self._lag_ends_at is not None:
            self._end_lag()
        self._told = 0

    def _break(self, key: str) -> None:
        if self._change is not None:
            self._tell("one thing at a time: the primary is being changed")
        elif self.tour.busy:
            self._tell(f"{key}: once scene {self.tour.number} has played")
        else:
            does = {"p": self._promote, "k": self._kill, "l": self._lag, "a": self._toggle_asking}
            does[key]()

    def tend(self) -> None:
        """What is due without a key."""
        self._end_lag_in_time()
        change = self._change
        if change is not None and not change.is_alive():
            self._change = None
            change.finish()
            self._tell(_outcome(change.handover))
        if not self.tour.busy and self.tour.number != self._told:
            self._told = self.tour.number
            self._tell_promises()

    def _tell_promises(self) -> None:
        promises = self.tour.promises.get(self._told, ())
        for promise in promises:
            if promise.tried and not promise.kept:
                self._tell(f"NOT AS PROMISED: {promise.text}")
        if promises:
            self._tell(f"scene {self._told}: {score(promises)}")

    def leave(self) -> None:
        """Nothing starts a server after this."""
        self.tour.leave()
        if self._change is not None:
            self._change.join()

    def _promote(self) -> None:
        old = self.stage.primary
        new = self.stage.replicas[self.stage.shard.index(old) % len(self.stage.replicas)]
        self._tell(f"p: {old.name} is stopped in order, {new.name} takes over")
        self._begin(switch_over, Handover(old, new))

    def _kill(self) -> None:
        old, new = self.stage.primary, postgres.most_advanced(self.stage.replicas)
        self._tell(f"k: {old.name} dies by SIGKILL; whoever has most of its log takes over")
        self._begin(fail_over, Handover(old, new))

    def _begin(self, how: How, handover: Handover) -> None:
        if self._lag_ends_at is not None:
            self._end_lag()
        handover.on_step = lambda step: self._tell(step_words(step, handover))
        self._change = Change(_alone(how), self.stage, handover)
        self._change.start()

    def _lag(self) -> None:
        replica = self.stage.replicas[-1]
        self._tell(f"l: {replica.name} replays {LAG_SHARE:.0%} of what the jobs write, {LAG_S:g} s")
        self.stage.slow_down(replica, LAG_SHARE)
        self._lag_ends_at = time.monotonic() + LAG_S

    def _end_lag_in_time(self) -> None:
        """By whoever has the stage to themselves: a scene's own brake is not ours to release."""
        if not self.stage.hands.acquire(blocking=False):
            return
        try:
            if self._lag_ends_at is not None and time.monotonic() >= self._lag_ends_at:
                self._end_lag()
        finally:
            self.stage.hands.release()

    def _end_lag(self) -> None:
        self._lag_ends_at = None
        self.stage.release()
        self._tell("the replica has its full strength back")

    def _toggle_asking(self) -> None:
        asks = not self.stage.jobs[0].asks
        for job in self.stage.jobs:
            job.asks = asks
        self._tell(f"a: the jobs {'ask again' if asks else 'ask nobody any more'}")

    def _tell(self, text: str) -> None:
        self._events.append(Event(time.monotonic() - self._began_at, text))


def _alone(how: How) -> How:
    """The page may ask for a scene meanwhile: it begins when the change is over."""

    def change(stage: Stage, handover: Handover) -> None:
        with stage.hands:
            how(stage, handover)

    return change


def _outcome(handover: Handover) -> str:
    between = handover.between
    wrong = len(handover.wrong)
    return (
        f"{handover.new.name}'s agent led {handover.leads_after_s:.2f} s later; "
        f"{len(between)} answers until then, wrong OKs: {wrong}"
    )
