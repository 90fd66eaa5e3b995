"""The view of budgets: how full, what they block, and what statements cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from headgate.cli.render import Canvas, drawn, plain
from headgate.present.budgets import policy_view, violations_view
from headgate.tui.layout import Ask, Column, Fitted, Page, dated, fit, header, missing, row
from headgate.tui.paint import Ruler
from headgate.tui.sources import Controlled, Scene
from headgate.wire.budgets import PatternDoc, StateDoc
from headgate.wire.reasons import duration

MAX_PATTERNS = 20


def draw(scene: Scene, ask: Ask) -> Page:
    told = scene.of("budgets")
    if told.value is None:
        return Page(missing(told, "budgets"))
    if not told.value:
        none = "no database has traffic control: [databases.NAME.traffic] gives it one"
        return Page([Text(none, style="dim")])
    parts: list[RenderableType] = list(dated(told, ask))
    shown = [one for one in told.value if ask.filter.lower() in one.policy.database.lower()]
    if not shown:
        return Page([Text(f"no database matches {ask.filter!r}", style="dim")])
    for one in shown:
        parts += [*_one_controlled(one, ask.canvas), Text()]
    return Page(lines=Ruler(ask.canvas.width).lines(*parts[:-1]))


def _one_controlled(one: Controlled, canvas: Canvas) -> list[RenderableType]:
    policy = one.policy
    parts: list[RenderableType] = [drawn(policy_view(policy, one.rates), canvas)]
    shares = {one.name: one.cpu_share for one in policy.budgets if one.cpu_share is not None}
    if shares:
        told = ", ".join(f"{plain(name)} {share:.0%}" for name, share in shares.items())
        parts.append(Text(f"share of the server's CPU now: {told}"))
    if one.violations is not None and one.violations.budgets:
        parts += [Text(), drawn(violations_view(one.violations), canvas)]
    if one.state is not None:
        parts += [Text(), *_statements(one.state, canvas)]
    return [*parts, *(Text(plain(fault), style="yellow") for fault in one.faults)]


STATEMENT_COLUMNS = (
    Column("statement", 20, 200, 1),
    Column("CPU", 8, 8, 2, right=True),
    Column("now", 7, 7, 5, right=True),
    Column("calls", 7, 9, 4, right=True),
    Column("each", 8, 8, 6, right=True),
    Column("off by", 6, 6, 3, right=True),
    Column("budgets", 8, 20, 7),
)


def _statements(state: StateDoc, canvas: Canvas) -> list[RenderableType]:
    """Those that cost most, and how far off their estimates are."""
    if not state.patterns:
        why = f": {plain(state.fault)}" if state.fault else ""
        return [Text(f"no statement was measured{why}", style="dim")]
    fitted = fit(STATEMENT_COLUMNS, canvas.width)
    lines: list[RenderableType] = [header(fitted)]
    shown = state.patterns[:MAX_PATTERNS]
    lines += [_statement(pattern, fitted, canvas) for pattern in shown]
    left = state.patterns_total - len(shown)
    return [*lines, *([Text(f"and {left:,} that cost less", style="dim")] if left > 0 else [])]


def _statement(pattern: PatternDoc, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    nothing = canvas.marks.nothing
    style = "bold red" if pattern.error >= 1 else "yellow" if pattern.error >= 0.5 else ""
    cells = (
        Text(plain(" ".join((pattern.text or "").split())) or f"query {plain(pattern.query_id)}"),
        Text(duration(pattern.cpu_total_ms / 1000)),
        Text(nothing if pattern.cpu_share is None else f"{pattern.cpu_share:.0%}"),
        Text(f"{pattern.calls:,}"),
        Text(duration(pattern.cpu_mean_ms / 1000)),
        Text(nothing if pattern.k is None else f"{pattern.error:.0%}", style=style),
        Text(plain(", ".join(pattern.budgets or ())) or nothing, style="dim"),
    )
    return row(fitted, cells)
