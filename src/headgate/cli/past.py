"""`explain --at`: what a minute of the past tells, and what it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

import typer

from headgate.cli.history import instant

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.cli.render import Canvas
    from headgate.wire.history import MetricMinuteDoc
    from headgate.wire.past import PastDoc


def moment(text: str, now: datetime, zone: tzinfo | None = None) -> str:
    """`07:10`, `yesterday`, `2026-03-01T07:10`, `90m`, as the agent wants it."""
    at = instant(text, now, zone)
    if at is None or at > now:
        raise typer.BadParameter(
            f"{text!r} is no time in the past: 90m, 07:10 or 2026-03-01T07:10", param_hint="--at"
        )
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def past_page(document: Mapping[str, Any], canvas: Canvas, zone: tzinfo | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from headgate.cli.documents import read
    from headgate.cli.timeline import children_table, time_of
    from headgate.cli.views import drawn
    from headgate.cli.words import plain
    from headgate.present.rules import matched_view
    from headgate.wire.past import PastDoc

    past = read(PastDoc, document)
    begin, end = time_of(past.at, zone), time_of(past.until, zone)
    head = Text().append(f"{plain(past.app)} on {plain(past.database)}", style="bold")
    head.append(f"  {begin:%d %b %H:%M}{canvas.marks.dash}{end:%H:%M}", style="dim")
    parts: list[RenderableType] = [head, *(Text(f"  {plain(told)}") for told in past.told)]
    parts += _elsewhere(past, zone)
    if past.clients:
        parts += [Text(), children_table(past.clients)]
    if past.metrics:
        parts += [Text(), _metrics(past.metrics, canvas)]
    parts += [Text(), drawn(matched_view(past.matched), canvas)]
    parts += [Text(), *(Text(f"not known: {plain(u)}", style="dim") for u in past.unknown)]
    return Group(*parts)


def _elsewhere(past: PastDoc, zone: tzinfo | None) -> list[RenderableType]:
    from rich.text import Text

    from headgate.cli.timeline import time_of

    words = (("last before", past.asked_before), ("first after", past.asked_after))
    return [
        Text(f"  it asked {word} that at {time_of(at, zone):%H:%M}") for word, at in words if at
    ]


def _metrics(metrics: Sequence[MetricMinuteDoc], canvas: Canvas) -> RenderableType:
    from rich.text import Text

    from headgate.cli.render import plain_table
    from headgate.cli.timeline import percent
    from headgate.cli.words import plain

    right = frozenset({"lowest", "mean", "highest", "threshold", "breached"})
    table = plain_table(
        *("metric", "lowest", "mean", "highest", "threshold", "breached"), right=right
    )
    for m in metrics:
        values = (m.low, m.mean, m.high, m.threshold)
        shown = [canvas.marks.nothing if v is None else f"{v:.4g}" for v in values]
        share = canvas.marks.nothing if m.breached_share is None else percent(m.breached_share)
        style = "red" if m.breached_share else ""
        table.add_row(Text(plain(m.metric)), *map(Text, shown), Text(share, style=style))
    return table
