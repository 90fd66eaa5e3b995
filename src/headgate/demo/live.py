"""The demo in a terminal: the shard as it is now, and keys to break it.

keys ──► Director ──► handover.py, replica.py       one change at a time, in a thread
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
from headgate.demo.postgres import Step
from headgate.demo.screen import Event, View, draw
from headgate.demo.stage import Frame, Stage

FRAME_S = 0.3
LAG_SHARE = 0.6
LAG_S = 25.0
LEAVE = frozenset({"q", "\x03", HANGUP})


def can_show() -> bool:
    """Whether there is a terminal to draw on, and to press keys in."""
    there = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return there and not Console().is_dumb_terminal


def play(stage: Stage, total_s: float) -> int:
    for job in stage.jobs:
        job.asks = True
        job.start()
    print("measuring what the jobs write …", flush=True)
    stage.measure_full_rate()
    director = Director(stage)
    try:
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
        self._tell("the shard is up; both jobs ask before each chunk")

    def view(self, frame: Frame) -> View:
        now = time.monotonic()
        return View(
            frame,
            frame_s=self._frame_s,
            since_s=now - self._began_at,
            events=tuple(self._events),
            changing=self._change.handover if self._change else None,
            slow=self.stage.brake.replica.name if self.stage.brake else None,
            slow_for_s=(self._lag_ends_at or now) - now,
            url=self.stage.agents[frame.leader or self.stage.primary.name].url,
        )

    def note(self, before: Frame, after: Frame) -> None:
        self._frame_s = max(0.05, after.at - before.at)
        if after.leader not in (None, before.leader) and before.leader is not None:
            self._tell(f"{after.leader}'s agent speaks for the shard")

    def press(self, key: str) -> None:
        if key == "a":
            self._toggle_asking()
        elif key in ("p", "k", "l") and self._change is not None:
            self._tell("one thing at a time: the primary is being changed")
        elif key == "p":
            self._promote()
        elif key == "k":
            self._kill()
        elif key == "l":
            self._lag()

    def tend(self) -> None:
        """What is due without a key."""
        if self._lag_ends_at is not None and time.monotonic() >= self._lag_ends_at:
            self._end_lag()
        change = self._change
        if change is not None and not change.is_alive():
            self._change = None
            change.finish()
            self._tell(_outcome(change.handover))

    def leave(self) -> None:
        """Nothing starts a server after this."""
        self.stage.leaving.set()
        if self._change is not None:
            self._change.join()

    def _promote(self) -> None:
        old = self.stage.primary
        new = self.stage.replicas[self.stage.shard.index(old) % len(self.stage.replicas)]
        self._tell(f"p: {old.name} is stopped in order, {new.name} takes over")
        self._begin(switch_over, Handover(old, new))

    def _kill(self) -> None:
        old, new = self.stage.primary, postgres.most_advanced(self.stage.replicas)
        self._tell(f"k: {old.name} dies by SIGKILL; {new.name} will take over once it is noticed")
        self._begin(fail_over, Handover(old, new))

    def _begin(self, how: How, handover: Handover) -> None:
        if self._lag_ends_at is not None:
            self._end_lag()
        handover.on_step = lambda step: self._tell(
            _STEPS[step].format(old=handover.old.name, new=handover.new.name)
        )
        self._change = Change(how, self.stage, handover)
        self._change.start()

    def _lag(self) -> None:
        replica = self.stage.replicas[-1]
        self._tell(f"l: {replica.name} replays {LAG_SHARE:.0%} of what the jobs write, {LAG_S:g} s")
        self.stage.slow_down(replica, LAG_SHARE)
        self._lag_ends_at = time.monotonic() + LAG_S

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


_STEPS = {
    Step.GONE: "{old} is gone: nobody may speak for the shard",
    Step.PROMOTING: "{new} is told to take over",
    Step.PROMOTED: "{new} takes writes",
    Step.REJOINED: "{old} is back, as a replica of {new}",
}


def _outcome(handover: Handover) -> str:
    between = handover.between
    wrong = len(handover.wrong)
    return (
        f"{handover.new.name}'s agent led {handover.leads_after_s:.2f} s later; "
        f"{len(between)} answers until then, wrong OKs: {wrong}"
    )
