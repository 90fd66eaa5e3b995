"""The demo in a terminal: `headgate top` with a strip of scenes, a view of the whole, and keys.

keys, the page ──► Tour ──► scenes/            a scene at a time, in a thread
keys ──► Director ──► handover.py, stage.py  between scenes: one change at a time, in a thread
Stage ──look──► Frame ──► screen.py ──► tui/   whose other views show the primary's agent
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from rich.console import Console

from headgate.cli.api import NO_HEADERS, Api, SocketTransport, find_target
from headgate.client.http1 import Response
from headgate.demo import postgres
from headgate.demo.handover import How, PrimarySwitch, SwitchThread, fail_over, switch_over
from headgate.demo.scenes import SCENES
from headgate.demo.scenes.failover import step_words
from headgate.demo.screen import CUES, HINTS, DemoEvent, DemoView, Playing, body, strip
from headgate.demo.stage import Frame, Stage
from headgate.demo.tour import Tour, Whither, score
from headgate.demo.tourserver import TourServer
from headgate.tui.layout import ScreenPage, View, ViewRequest
from headgate.tui.paint import Ruler
from headgate.tui.poller import Poller
from headgate.tui.session import Guide, ScreenSession
from headgate.tui.sources import Scene
from headgate.tui.views import VIEWS

FRAME_S = 0.3
POLL_S = 1.0
TIMEOUT_S = 5.0
LAG_SHARE = 0.6
LAG_S = 25.0
STEPS: dict[str, Whither] = {"n": "next", "b": "back"}
BREAKS = frozenset({"p", "f", "d", "a"})


def can_show() -> bool:
    """Whether there is a terminal to draw on, and to press keys in."""
    there = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return there and not Console().is_dumb_terminal


def play(stage: Stage, total_s: float, guide: TourServer) -> int:
    director, ends = Director(stage), time.monotonic() + total_s
    guide.begin(director.tour)
    api = speakers_api(stage)
    try:
        director.tour.go(1)
        with Poller(api, POLL_S) as poller, Looker(director) as looker:

            def goes_on() -> bool:
                api.url = stage.speaker.url
                director.tend()
                return time.monotonic() < ends

            shown = Guide(
                lambda _, room: strip(director.shown(looker.frame), room),
                HINTS,
                CUES,
                lambda cue: director.press(cue.key, cue.typed),
                goes_on,
            )
            views = views_of(lambda: director.shown(looker.frame))
            ScreenSession(Console(highlight=False), poller, api, views, "demo", shown).run()
    finally:
        director.leave()
    print("ended; nothing is left behind", flush=True)
    return 0


def views_of(shown: Callable[[], DemoView]) -> Mapping[str, View]:
    """The demo's own before those of `headgate top`."""

    def draw(_: Scene, ask: ViewRequest) -> ScreenPage:
        return ScreenPage(lines=Ruler(ask.canvas.width).lines(*body(shown(), ask.canvas.width)))

    about = "the scene, the shard as its three agents see it, the jobs, what happened"
    return {"demo": View("0", "demo", about, draw, is_own=True), **VIEWS}


class LeaderApi:
    """The way to the agent that speaks for the shard now: another one after a failover."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
    ) -> Response:
        return self._transport().request(method, path, body, headers)

    def at(self, address: object) -> SocketTransport | None:
        return self._transport().at(address)

    def _transport(self) -> SocketTransport:
        target = find_target(self._stage.speaker.url)
        return SocketTransport(target, self._stage.tokens.operator, TIMEOUT_S)


def speakers_api(stage: Stage) -> Api:
    return Api(LeaderApi(stage), stage.speaker.url)


class Looker:
    """Looks at the stage again and again, beside the screen: an agent may be slow to answer."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self.frame = director.stage.look()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looker", daemon=True)

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + FRAME_S, time.monotonic())
            before, self.frame = self.frame, self._director.stage.look()
            self._director.note(before, self.frame)


class Director:
    """What the keys do, and what came of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._began_at = time.monotonic()
        self._events: deque[DemoEvent] = deque(maxlen=12)
        self._change: SwitchThread | None = None
        self._lag_ends_at: float | None = None
        self._frame_s = FRAME_S
        self._led_by: str | None = None
        self._told = 0
        """The scene of the last outcome that was shown."""
        self.token = stage.tokens.operator
        """In the page's address."""
        self.tour = Tour(stage, SCENES, self._tell, pauses=True, on_begin=self._begin_scene)

    def shown(self, frame: Frame) -> DemoView:
        now = time.monotonic()
        return DemoView(
            frame,
            frame_s=self._frame_s,
            events=tuple(self._events),
            playing=self._playing(),
            changing=self._change.handover if self._change else None,
            slow=self.stage.brake.replica.name if self.stage.brake else None,
            slow_for_s=None if self._lag_ends_at is None else self._lag_ends_at - now,
            page=self.stage.sign_in_url(self.token),
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
            self._tell(f"{self._led_by}'s agent decides for the shard; the page is its own now")

    def press(self, key: str, typed: str = "") -> None:
        if key in STEPS:
            self._step(STEPS[key])
        elif typed.isdecimal() and 1 <= int(typed) <= len(self.tour.scenes):
            self._step(int(typed))
        elif key in BREAKS:
            self._break(key)
        else:
            self._tell(f"there are scenes 1 to {len(self.tour.scenes)}, and no {typed}")

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
            does = {"p": self._promote, "f": self._kill, "d": self._lag, "a": self._toggle_asking}
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
        self._begin(switch_over, PrimarySwitch(old, new))

    def _kill(self) -> None:
        old, new = self.stage.primary, postgres.most_advanced(self.stage.replicas)
        self._tell(f"f: {old.name} dies by SIGKILL; the replica with most of its log takes over")
        self._begin(fail_over, PrimarySwitch(old, new))

    def _begin(self, how: How, handover: PrimarySwitch) -> None:
        if self._lag_ends_at is not None:
            self._end_lag()
        handover.on_step = lambda step: self._tell(step_words(step, handover))
        change = SwitchThread(_alone(how), self.stage, handover)
        change.start()
        self._change = change  # Begun: what has not is taken for what has ended.

    def _lag(self) -> None:
        replica = self.stage.replicas[-1]
        self._tell(f"d: {replica.name} replays {LAG_SHARE:.0%} of what the jobs write, {LAG_S:g} s")
        self.stage.slow_down(replica, LAG_SHARE)
        self._lag_ends_at = time.monotonic() + LAG_S

    def _end_lag_in_time(self) -> None:
        """Only with the stage to ourselves: a scene's own brake is not ours to release."""
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
        self._tell(f"a: the jobs {'check again' if asks else 'no longer check'}")

    def _tell(self, text: str) -> None:
        self._events.append(DemoEvent(time.monotonic() - self._began_at, text))


def _alone(how: How) -> How:
    """The page may ask for a scene meanwhile: it begins when the change is over."""

    def change(stage: Stage, handover: PrimarySwitch) -> None:
        with stage.hands:
            how(stage, handover)

    return change


def _outcome(handover: PrimarySwitch) -> str:
    between = handover.between
    wrong = len(handover.wrong)
    return (
        f"{handover.new.name}'s agent led {handover.leads_after_s:.2f} s later; "
        f"{len(between)} answers until then, wrong OKs: {wrong}"
    )
