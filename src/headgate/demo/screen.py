"""What the demo adds to the live screen: a strip with the scene, and a view of the shard. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from headgate.demo.agents import LAG_THRESHOLD_S, SHARD
from headgate.demo.crowd import DASHBOARD, EXPORT
from headgate.demo.handover import NEVER, PrimarySwitch
from headgate.demo.show import bar, rejection_words
from headgate.demo.stage import Crowd, Desk, Frame, StageMember
from headgate.demo.tour import PageHint

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
