"""A line a moment: each server's lag, the leading agent, throttled jobs. Time runs downwards."""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text

from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.jobs import EXPORT
from headgate.demo.stage import Crowd, Desk, Frame, StageMember

SCALE_S = 5.0
BAR = 10
MARK = int(LAG_THRESHOLD_S / SCALE_S * BAR)
SEAT_WIDTH = 2 + 7 + BAR
DESK_WIDTH = 29
_console = Console(highlight=False, soft_wrap=True)


def show(text: Text) -> None:
    _console.print(text)


def header(frame: Frame) -> Text:
    text = Text()
    for seat in frame.seats:
        # The mark is above the threshold of the bars below it.
        text.append(f"{seat.name:<{7 + MARK}}▼ {LAG_THRESHOLD_S:g} s".ljust(SEAT_WIDTH), "bold")
    for desk in frame.desks:
        text.append(desk.name.ljust(DESK_WIDTH), "bold")
    return text


def line(frame: Frame) -> Text:
    text = Text()
    for seat in frame.seats:
        cell = seat_words(seat, BAR)
        cell.truncate(SEAT_WIDTH - 1)
        cell.pad_right(SEAT_WIDTH - cell.cell_len)
        text.append_text(cell)
    for desk in frame.desks:
        cell = desk_words(desk)
        cell.pad_right(max(0, DESK_WIDTH - cell.cell_len))
        text.append_text(cell)
    text.rstrip()
    return text


def crowd_line(crowd: Crowd) -> Text:
    text = Text("   ").append(f"{EXPORT}: {crowd.rogues} sessions, {crowd.rogue_done} done, ")
    text.append(f"{crowd.rogue_blocked} blocked", "red" if crowd.rogue_blocked else "")
    return text.append(f"; {latency_words(crowd)}")


def latency_words(crowd: Crowd) -> str:
    if crowd.p95_s is None:
        return "dashboard: nothing read just now"
    return f"dashboard: p95 {crowd.p95_s * 1000:.0f} ms"


def seat_words(seat: StageMember, cells: int) -> Text:
    if seat.role == "primary":
        if seat.leads:
            return Text("primary, leads", "bold green")
        return Text("primary, " + ("warming up" if seat.warming_up else "silent"), "yellow")
    if seat.role is None:
        return Text("does not answer", "bold magenta")
    if seat.lag_s is None:
        return Text(f"lag: {seat.why or 'no value yet'}", "magenta")
    return Text(f"{seat.lag_s:4.2f} s ").append_text(bar(seat.lag_s, cells))


def bar(lag_s: float, cells: int) -> Text:
    mark = int(LAG_THRESHOLD_S / SCALE_S * cells)
    filled = min(cells, round(lag_s / SCALE_S * cells))
    drawn = ("█" * filled).ljust(cells)
    if filled <= mark:
        drawn = f"{drawn[:mark]}│{drawn[mark + 1 :]}"
    return Text(drawn, "red" if lag_s > LAG_THRESHOLD_S else "green")


def desk_words(desk: Desk) -> Text:
    if desk.rejected_for_s is None:
        by = f", OK by {desk.told_by}" if desk.asks and desk.told_by else ""
        if desk.unthrottled:
            by = ", unthrottled"
        return Text(
            f"{desk.chunks} chunk{'' if desk.chunks == 1 else 's'}{by}", "" if desk.asks else "dim"
        )
    return Text(f"THROTTLED {desk.rejected_for_s:.1f} s: {rejection_words(desk)}", "yellow")


def rejection_words(desk: Desk) -> str:
    """Why, in few words: the whole reason is too long for a line."""
    heard = desk.heard
    if heard is None:
        return ""
    if heard.verdict == "REJECTED_BY_RATIO":
        return "rejected by a rule"
    if heard.verdict == "THRESHOLD_EXCEEDED":
        found = re.search(r"\(.*?(db-\w)", heard.reason)
        return f"lag of {found[1]}" if found else "lag"
    return (heard.cause or heard.verdict).replace("_", " ")
