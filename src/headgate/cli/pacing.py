"""Paced admission in words: one or two lines below a database."""

from __future__ import annotations

from rich.text import Text

from headgate.cli.words import plain
from headgate.wire.pacing import PaceDoc, SetPointDoc
from headgate.wire.reasons import quantity

MAX_NAMED = 3


def pace_lines(pace: PaceDoc | None) -> list[Text]:
    if pace is None:
        return []
    kept = ", ".join(_kept(point) for point in pace.set_points)
    begun = "slow start, " if pace.starting else ""
    line = Text().append("paced", style="bold cyan")
    line.append(f"  {begun}{per_s(pace.rate)} of cost released, to keep {kept}")
    return [line, *_waiting(pace)]


def _kept(point: SetPointDoc) -> str:
    name = point.metric if point.scope == "host" else f"{point.scope}/{point.metric}"
    share = point.set_point / point.threshold if point.threshold else 0.0
    at = quantity(point.set_point, plain(point.unit))
    return f"{plain(name)} near {at} ({share:.0%} of its threshold)"


def _waiting(pace: PaceDoc) -> list[Text]:
    if not pace.clients_total:
        return []
    named = ", ".join(plain(client) for client in pace.clients[:MAX_NAMED])
    more = pace.clients_total - min(MAX_NAMED, len(pace.clients))
    others = f" and {more:,} more" if more > 0 else ""
    return [Text(f"       last sent away to come back later: {named}{others}", style="cyan")]


def per_s(rate: float) -> str:
    shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    return f"{shown}/s"
