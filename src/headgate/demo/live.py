"""The demo in a terminal: `headgate top` with a strip of scenes, a view of the whole, and keys.

keys, the page ──► Tour ──► scenes/            a scene at a time, in a thread
keys ──► Director ──► handover.py, stage.py  between scenes: one change at a time, in a thread
Stage ──look──► Frame ──► the screen ──► tui/  whose other views show the primary's agent
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from headgate.cli.api import NO_HEADERS, Api, SocketTransport, find_target
from headgate.client.http1 import Response
from headgate.demo import postgres
from headgate.demo.agents import LAG_THRESHOLD_S, SHARD
from headgate.demo.handover import NEVER, How, PrimarySwitch, SwitchThread, fail_over, switch_over
from headgate.demo.jobs import DASHBOARD, EXPORT
from headgate.demo.scenes import SCENES
from headgate.demo.scenes.failover import step_words
from headgate.demo.show import bar, rejection_words
from headgate.demo.stage import Crowd, Desk, Frame, Stage, StageMember
from headgate.demo.tour import PageHint, Tour, TourServer, Whither, score
from headgate.tui.layout import ScreenPage, View, ViewRequest
from headgate.tui.paint import Ruler
from headgate.tui.poller import Poller
from headgate.tui.session import Guide, ScreenSession
from headgate.tui.sources import Scene
from headgate.tui.views import VIEWS

# --- the screen ----------------------------------------------------------------------------
# What the demo adds to the live screen: a strip with the scene, and a view of the shard. Pure.

HINTS = ("n next", "b back", "c scene", "p promote", "f fail over", "d delay", "a checks on/off")
CUES = {"n": "", "b": "", "c": "scene: ", "p": "", "f": "", "d": "", "a": ""}
PAGE = "the page  "
IN_PAGE = "in the page  "
INDENT = len("   ") + len(IN_PAGE)
ELSEWHERE = "in another terminal: headgate status --url"
NAME_WIDTH = 21
ROOMY = 4
"""Lines for the strip from which on it has the newest event."""


@dataclass(frozen=True, slots=True)
class DemoEvent:
    at_s: float
    """Since the demo began."""
    text: str


@dataclass(frozen=True, slots=True)
class Playing:
    """The scene that is on."""

    number: int
    of: int
    title: str
    says: str
    watch: str
    looks: tuple[PageHint, ...]
    busy: bool
    waits_for: str = ""
    """What it goes on to at a key; empty while it does not wait for one."""


@dataclass(frozen=True, slots=True)
class DemoView:
    frame: Frame
    frame_s: float
    events: tuple[DemoEvent, ...]
    playing: Playing
    changing: PrimarySwitch | None
    slow: str | None
    """The replica that is slowed down."""
    slow_for_s: float | None
    """None: for as long as the scene is on."""
    page: str
    """Where a browser is signed in with one click."""
    url: str
    """Of the agent to look at with the command line."""


def strip(shown: DemoView, room: int) -> list[Text]:
    """Above every view: which scene is on, what to look at, and what happened last."""
    playing = shown.playing
    head = Text().append(f"scene {playing.number} of {playing.of}  ", "bold cyan")
    head.append(playing.title, "bold")
    busy = playing.busy and not playing.waits_for
    head.append(f"   {_then(playing)}", "yellow" if busy else "dim")
    lines = [head, Text().append("look at  ", "bold cyan").append(_look(shown), "cyan")]
    lines += [_event(event) for event in shown.events[-1:]] if room > ROOMY else []
    return [_one_line(line) for line in lines]


def body(shown: DemoView, width: int) -> list[Text]:
    """The view: what the scene is about, the shard as its three agents say, the jobs, events."""
    parts: list[Sequence[Text]] = [
        [Text(shown.playing.says)],
        [*_tree(shown, width), Text("jobs", "bold"), *_desks(shown)],
        [*_looks(shown.playing.looks, width), *_page(shown.page, width)],
        [Text("what happened", "bold"), *(_event(event) for event in reversed(shown.events))],
        [Text(f"{ELSEWHERE} {shown.url}", "dim")],
    ]
    says, *others = parts
    return [*says, *(_one_line(line) for part in others for line in (Text(), *part))]


def _one_line(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _looks(looks: Sequence[PageHint], width: int) -> list[Text]:
    """As many on a line as fit: what is cut off is not looked at."""
    lines = [Text("   ").append(IN_PAGE, "bold cyan")]
    room = width - lines[0].cell_len
    for look in looks:
        shown = Text().append(_brief(look.path), "cyan").append(f" {look.text}   ", "dim")
        if shown.cell_len - len("   ") > room and lines[-1].cell_len > INDENT:
            lines.append(Text(" " * INDENT))
            room = width - INDENT
        lines[-1].append_text(shown)
        room -= shown.cell_len
    return lines


def _then(playing: Playing) -> str:
    if playing.waits_for:
        return f"press n: {playing.waits_for}"
    if playing.busy:
        return "playing …"
    last = playing.number == playing.of
    return "the last one: c 1 begins again" if last else "press n for the next"


def _brief(path: str) -> str:
    """Without what a link of the page fills in."""
    return path.partition("?")[0].partition("#")[0]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# --- the shard ---------------------------------------------------------------------------------


def _tree(shown: DemoView, width: int) -> Iterator[Text]:
    leader = shown.frame.leader
    head = Text("shard ").append(SHARD, "bold").append("  ")
    if leader is not None:
        yield head.append(f"● {leader}'s agent decides for it", "green")
    elif silent := [seat.name for seat in shown.frame.seats if not seat.standing]:
        yield head.append(
            f"✖ no agent decides for it: {silent[0]}'s agent does not answer", "bold red"
        )
    elif any(seat.role == "primary" for seat in shown.frame.seats):
        yield head.append("WARMING UP: its new primary's agent listens to all first", "yellow")
    else:
        yield head.append("✖ NO PRIMARY, so no agent may decide for it", "bold red")
    seats = sorted(shown.frame.seats, key=lambda seat: seat.role != "primary")
    for seat in seats:
        branch = "└─ " if seat is seats[-1] else "├─ "
        line = Text().append(branch, "dim").append(f"{seat.name}  ", "bold")
        line.append_text(_seat(seat, width))
        if seat.name == shown.slow:
            rest = "" if shown.slow_for_s is None else f" for another {shown.slow_for_s:.0f} s"
            line.append(f"  slowed down{rest}", "dim")
        yield line


def _seat(seat: StageMember, width: int) -> Text:
    if seat.role is None:
        return Text(f"○ {seat.why}", "bold magenta")
    text = Text(f"{seat.role:<9}")
    if seat.role == "primary":
        return text.append(f"takes writes, timeline {seat.term}", "" if seat.leads else "yellow")
    if seat.lag_s is None:
        return text.append(f"lag not known: {seat.why or 'not measured yet'}", "magenta")
    text.append(f"lag {seat.lag_s:5.2f} s  ").append_text(bar(seat.lag_s, min(40, width // 3)))
    if seat.lag_s > LAG_THRESHOLD_S:
        text.rstrip()
        text.append(f" ✖ above {LAG_THRESHOLD_S:g} s", "bold red")
    return text.append(f"  {seat.why}" if seat.why else "", "magenta")


# --- the jobs ----------------------------------------------------------------------------------


def _desks(shown: DemoView) -> Iterator[Text]:
    for desk in shown.frame.desks:
        yield _desk(desk, shown.frame_s)
    crowd = shown.frame.crowd
    if crowd is not None:
        yield _dashboard(crowd)
    if crowd is not None and crowd.rogues:
        yield _rogue(crowd)


def _desk(desk: Desk, frame_s: float) -> Text:
    line = Text("   ").append(f"{desk.name:<{NAME_WIDTH}}", "bold")
    pace = f"{desk.chunks / frame_s:3.0f} chunks/s"
    if not desk.asks:
        return line.append(f"{pace}  does not check", "red")
    if desk.rejected_for_s is None and desk.unthrottled:
        return line.append(f"{pace}  no agent answers: it goes on UNTHROTTLED, as set", "magenta")
    if desk.rejected_for_s is None:
        return line.append(f"{pace}  ").append(f"OK by {_teller(desk)}", "green")
    reason = desk.heard.reason if desk.heard else rejection_words(desk)
    return line.append(f"THROTTLED {desk.rejected_for_s:.1f} s  {reason}", "yellow")


def _dashboard(crowd: Crowd) -> Text:
    line = Text("   ").append(f"{DASHBOARD:<{NAME_WIDTH}}", "bold")
    if crowd.p95_s is None:
        return line.append("critical: nothing read just now", "magenta")
    return line.append(f"critical: reads take {crowd.p95_s * 1000:.0f} ms (p95)")


def _rogue(crowd: Crowd) -> Text:
    line = Text("   ").append(f"{EXPORT:<{NAME_WIDTH}}", "bold red")
    line.append(f"{crowd.rogues} sessions, never checks: {crowd.rogue_done} statements done")
    if crowd.rogue_blocked:
        line.append(f", {crowd.rogue_blocked} blocked by its budget (SQLSTATE 53000)", "red")
    return line


def _teller(desk: Desk) -> str:
    if not desk.told_by:
        return "no agent yet"
    sent = f", named by {desk.home}'s" if desk.told_by != desk.home else ""
    return f"{desk.told_by}'s agent{sent}"


# --- words -------------------------------------------------------------------------------------


def _event(event: DemoEvent) -> Text:
    return Text().append(f"   {_clock(event.at_s):>5}  ", "dim").append(event.text)


def _page(address: str, width: int) -> list[Text]:
    """Whole, on as many lines as it takes: cut short it signs nobody in."""
    if len(PAGE) + len(address) <= width:
        return [Text().append(PAGE, "bold").append(address, "underline")]
    return [Text(address[at : at + width], "underline") for at in range(0, len(address), width)]


def _look(shown: DemoView) -> str:
    frame, change = shown.frame, shown.changing
    held = [desk for desk in frame.desks if desk.rejected_for_s is not None]
    if change is not None:
        return _look_at_change(change)
    if shown.slow_for_s is not None and not all(desk.asks for desk in frame.desks):
        return "the replicas: the jobs do not check now; a slow replica falls behind"
    if shown.slow_for_s is not None and held:
        return "the jobs: both are throttled, by the replica that is furthest behind"
    if shown.slow_for_s is not None:
        return f"{shown.slow}: its lag climbs to {LAG_THRESHOLD_S:g} s, then jobs are throttled"
    return shown.playing.watch


def _look_at_change(change: PrimarySwitch) -> str:
    if change.promoting_at == NEVER:
        return "the jobs: there is no primary, and no agent admits them"
    if change.led_at == NEVER:
        return f"{change.new.name}: the primary; its agent waits for all members' reports first"
    if change.rejoined_at == NEVER:
        return f"{change.old.name}: it comes back as a replica of {change.new.name}"
    return f"the jobs: {change.new.name}'s agent answers them now"


# --- the session ---------------------------------------------------------------------------

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
            done = change.handover
            self._tell(
                f"{done.new.name}'s agent led {done.leads_after_s:.2f} s later; "
                f"{len(done.between)} answers until then, wrong OKs: {len(done.wrong)}"
            )
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

        def alone(stage: Stage, handover: PrimarySwitch) -> None:
            """The page may ask for a scene meanwhile: it begins when the change is over."""
            with stage.hands:
                how(stage, handover)

        change = SwitchThread(alone, self.stage, handover)
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
