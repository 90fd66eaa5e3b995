"""A timeline as a page. Pure, as render.py is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.history import MOSTLY
from headgate.cli.render import Canvas, plain_table
from headgate.cli.words import plain
from headgate.errors import BadDocument
from headgate.wire.history import BinDoc, ChildDoc, RunsDoc, SpanDoc, SumsDoc, TimelineDoc
from headgate.wire.reasons import duration

BAR_CELLS = 24
MAX_CHILDREN = 15
MORE_CLIENTS = (
    "There are more clients than were looked at one by one: those that asked least are told as "
    "`other` (of --json, the last). All sums are exact."
)
REASON_WORDS = {
    "metric": "by metrics",
    "dice": "by dice",
    "held": "held",
    "paced": "paced",
    "budget": "over budget",
    "other": "for other reasons",
}


def timeline_page(timeline: TimelineDoc, canvas: Canvas, zone: tzinfo | None) -> RenderableType:
    if not timeline.total.checks:
        span = _span_text(timeline.since, timeline.until, canvas, zone)
        return Text(f"{plain(timeline.app)}: nobody asked, {span}", style="dim")
    parts: list[RenderableType] = [_head(timeline, canvas, zone), Text()]
    parts += [Text.assemble("  ", _span_line(s, zone)) for s in timeline.spans]
    if timeline.more_spans:
        told = f"  and {timeline.more_spans:,} more times, in each of which less was refused"
        parts.append(Text(told, style="dim"))
    if timeline.runs is not None and (told := runs_text(timeline.runs)):
        style = "bold yellow" if timeline.runs.unusual else "dim"
        parts.append(Text(f"  {told}", style=style))
    if not timeline.spans:
        parts.append(Text("  at no time was it mostly throttled", style="green"))
    parts += [Text(), Padding(_bars(timeline.bins, canvas, zone), (0, 0, 0, 2))]
    if [child.client for child in timeline.children] != [timeline.app]:
        parts += [Text(), children_table(timeline.children)]
    if not timeline.whole:
        parts.append(Text(MORE_CLIENTS, style="yellow"))
    return Group(*parts)


def _head(timeline: TimelineDoc, canvas: Canvas, zone: tzinfo | None) -> Text:
    total = timeline.total
    head = Text().append(plain(timeline.app), style="bold")
    head.append(f"  {_span_text(timeline.since, timeline.until, canvas, zone)}  ", style="dim")
    head.append(f"{total.checks:,} checks, {percent(total.refused_share)} refused")
    if told := reasons_text(total):
        head.append(f" ({told})")
    if total.exempted:
        head.append(f"; {total.exempted:,} admitted by exemption", style="yellow")
    return head


def runs_text(runs: RunsDoc) -> str:
    """Only where there are runs to compare with (R91)."""
    if runs.usual_minutes is None:
        return ""
    words = "has been running for" if runs.ongoing else "ran for"
    usual = f"its {runs.earlier} runs before took {duration(runs.usual_minutes * 60)} on average"
    longest = f"{duration(runs.longest_minutes * 60)} at most"
    what = f"{words} {duration(runs.minutes * 60)}; {usual}, {longest}"
    return f"far longer than usual: {what}" if runs.unusual else what


def reasons_text(sums: SumsDoc) -> str:
    """Each kind of refusal apart, as a share of all checks (R91)."""
    counts = sorted(sums.by_reason.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{percent(count / sums.checks)} {REASON_WORDS.get(reason, plain(reason))}"
        for reason, count in counts
        if count
    )


def _span_line(span: SpanDoc, zone: tzinfo | None) -> Text:
    begin, end = times_of(span.since, span.until, zone)
    line = Text().append("mostly throttled", style="bold red")
    line.append(f" between {begin} and {end} by {plain(span.mostly_by)}", style="bold")
    return line.append(f"  ({percent(span.share)} of {span.sums.checks:,} checks)")


def _bars(bins: Sequence[BinDoc], canvas: Canvas, zone: tzinfo | None) -> Table:
    table = plain_table("from", "refused", "", "checks", "by", right=frozenset({"checks", ""}))
    last_day = None
    for one in bins:
        at, sums = time_of(one.at, zone), one.sums
        shown = f"{at:%H:%M}" if at.date() == last_day else f"{at:%d %b %H:%M}"
        last_day = at.date()
        by = ", ".join(f"{plain(b.by)} {percent(b.count / sums.checks)}" for b in sums.by[:3])
        table.add_row(
            Text(shown),
            _bar(sums.refused_share, canvas),
            Text(percent(sums.refused_share)),
            Text(f"{sums.checks:,}"),
            Text(by, style="dim"),
        )
    return table


def _bar(share: float, canvas: Canvas) -> Text:
    """Full: every check was refused."""
    marks = canvas.marks
    cells = round(share * BAR_CELLS) or int(share > 0)
    style = "bold red" if share >= MOSTLY else "yellow"
    text = Text().append(marks.full * cells, style=style)
    return text.append(marks.track * (BAR_CELLS - cells), style="dim")


def children_table(children: Sequence[ChildDoc]) -> RenderableType:
    table = plain_table("client", "checks", "refused", "by", right=frozenset({"checks", "refused"}))
    for child in children[:MAX_CHILDREN]:
        sums = child.sums
        by = ", ".join(f"{plain(b.by)} {percent(b.count / sums.refused)}" for b in sums.by[:3])
        share = Text(percent(sums.refused_share), style="red" if sums.refused else "")
        table.add_row(Text(plain(child.client)), Text(f"{sums.checks:,}"), share, Text(by))
    left = len(children) - MAX_CHILDREN
    more = [Text(f"and {left} more; --json lists them", style="dim")] if left > 0 else []
    return Group(table, *more)


def percent(share: float) -> str:
    if 0 < share < 0.01:
        return "<1 %"
    return f"{min(share, 0.99) if share < 1 else 1:.0%}".replace("%", " %")


def time_of(text: str, zone: tzinfo | None) -> datetime:
    """None: of this machine, as its clocks were set on that day."""
    try:
        return datetime.fromisoformat(text).astimezone(zone)
    except ValueError:
        raise BadDocument("timeline", f"says {text!r}, which is no time") from None


def _span_text(since: str, until: str, canvas: Canvas, zone: tzinfo | None) -> str:
    return canvas.marks.dash.join(times_of(since, until, zone))


def times_of(since: str, until: str, zone: tzinfo | None) -> tuple[str, str]:
    """The day is said where there are two."""
    begin, end = time_of(since, zone), time_of(until, zone)
    if begin.date() == end.date():
        return f"{begin:%H:%M}", f"{end:%H:%M}"
    return f"{begin:%d %b %H:%M}", f"{end:%d %b %H:%M}"
