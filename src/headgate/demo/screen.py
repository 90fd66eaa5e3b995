"""The shard as a tree, the jobs, what happened, what to look at: one terminal full. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from rich.console import Group
from rich.text import Text

from headgate.demo.agents import LAG_THRESHOLD_S, SHARD
from headgate.demo.handover import NEVER, Handover
from headgate.demo.show import bar, refusal_words
from headgate.demo.stage import Desk, Frame, Seat

KEYS = {
    "p": "promote",
    "k": "kill the primary",
    "l": "lag",
    "a": "ask or not",
    "q": "quit",
}
NAME_WIDTH = 17
FIXED_LINES = 19
MIN_EVENTS = 2


@dataclass(frozen=True, slots=True)
class Event:
    at_s: float
    """Since the demo began."""
    text: str


@dataclass(frozen=True, slots=True)
class View:
    frame: Frame
    frame_s: float
    since_s: float
    events: tuple[Event, ...]
    changing: Handover | None
    slow: str | None
    """The replica that is held back."""
    slow_for_s: float
    url: str
    """Of the agent to look at with the command line."""


def draw(view: View, width: int, height: int) -> Group:
    room = max(MIN_EVENTS, height - FIXED_LINES)
    lines = list(
        chain(
            [_title(view, width), Text()],
            _tree(view, width),
            [Text(), Text("jobs", "bold")],
            *(_desk(desk, view.frame_s) for desk in view.frame.desks),
            [Text(), Text("what happened", "bold")],
            (_event(event) for event in view.events[-room:]),
            [Text(), Text().append("look at  ", "bold cyan").append(_look(view), "cyan"), Text()],
            [_keys(), Text(f"in another terminal: headgate status --url {view.url}", "dim")],
        )
    )
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:height])


def _title(view: View, width: int) -> Text:
    title = Text("Headgate: one shard, three real Postgres servers, an agent beside each", "bold")
    title.pad_right(max(0, width - title.cell_len - 6))
    return title.append(_clock(view.since_s).rjust(6), "dim")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# --- the shard ---------------------------------------------------------------------------------


def _tree(view: View, width: int) -> Iterator[Text]:
    leader = view.frame.leader
    head = Text("shard ").append(SHARD, "bold").append("  ")
    if leader is not None:
        yield head.append(f"● {leader}'s agent speaks for it", "green")
    elif any(seat.role == "primary" for seat in view.frame.seats):
        yield head.append("WARMING UP: its new primary's agent listens to all first", "yellow")
    else:
        yield head.append("✖ NO PRIMARY, so nobody may speak for it", "bold red")
    seats = sorted(view.frame.seats, key=lambda seat: seat.role != "primary")
    for seat in seats:
        branch = "└─ " if seat is seats[-1] else "├─ "
        line = Text().append(branch, "dim").append(f"{seat.name}  ", "bold")
        line.append_text(_seat(seat, width))
        if seat.name == view.slow:
            line.append(f"  held back for another {view.slow_for_s:.0f} s", "dim")
        yield line


def _seat(seat: Seat, width: int) -> Text:
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


def _desk(desk: Desk, frame_s: float) -> Iterator[Text]:
    line = Text("   ").append(f"{desk.name:<{NAME_WIDTH}}", "bold")
    pace = f"{desk.chunks / frame_s:3.0f} chunks/s"
    if not desk.asks:
        yield line.append(f"{pace}  asks nobody", "red")
        yield Text()
        return
    if desk.refused_for_s is None:
        yield line.append(f"{pace}  ").append(f"OK by {_teller(desk)}", "green")
        yield Text()
        return
    yield line.append(f"HELD {desk.refused_for_s:.1f} s  by {_teller(desk)}", "yellow")
    reason = desk.heard.reason if desk.heard else refusal_words(desk)
    yield Text(" " * (3 + NAME_WIDTH)).append(reason, "yellow")


def _teller(desk: Desk) -> str:
    if not desk.told_by:
        return "nobody yet"
    sent = f", where {desk.home}'s sent it" if desk.told_by != desk.home else ""
    return f"{desk.told_by}'s agent{sent}"


# --- words -------------------------------------------------------------------------------------


def _event(event: Event) -> Text:
    return Text().append(f"   {_clock(event.at_s):>5}  ", "dim").append(event.text)


def _keys() -> Text:
    text = Text()
    for key, does in KEYS.items():
        text.append(f" {key} ", "reverse").append(f" {does}  ")
    return text


def _look(view: View) -> str:
    frame, change = view.frame, view.changing
    asks = all(desk.asks for desk in frame.desks)
    held = [desk for desk in frame.desks if desk.refused_for_s is not None]
    if change is not None:
        return _look_at_change(change)
    if not asks:
        return "the replicas: nobody holds the jobs now; a slow one falls behind (l)"
    if held and (frame.lag_s or 0.0) > LAG_THRESHOLD_S:
        return "the jobs: both are held, by the replica that is furthest behind"
    if held:
        return "the jobs: held, and let go as soon as the whole shard is known to be healthy"
    if view.slow is not None:
        return f"{view.slow}: its lag climbs to {LAG_THRESHOLD_S:g} s, then the jobs are held"
    return "the tree: all is well. Press p, k or l, and watch who answers the jobs"


def _look_at_change(change: Handover) -> str:
    if change.promoting_at == NEVER:
        return "the jobs: there is no primary, and nobody tells them OK"
    if change.led_at == NEVER:
        return f"{change.new.name}: it is the primary; its agent asks all members before it speaks"
    if change.rejoined_at == NEVER:
        return f"{change.old.name}: it comes back as a replica of {change.new.name}"
    return f"the jobs: {change.new.name}'s agent answers them now"
