"""The view of budgets: how full, what they block, and what statements cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from headgate.cli.render import Canvas
from headgate.cli.views import drawn, fill_cell
from headgate.cli.words import plain
from headgate.present.budgets import policy_view, violations_view
from headgate.tui.layout import Ask, Column, Fitted, Page, dated, fit, header, missing, row
from headgate.tui.paint import Ruler
from headgate.tui.sources import Controlled, Scene
from headgate.wire.budgets import BudgetDoc, PatternDoc, PolicyDoc, StateDoc
from headgate.wire.reasons import duration

MAX_PATTERNS = 20
WHOLE_POLICY_COLUMNS = 80


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
    narrow = canvas.width < WHOLE_POLICY_COLUMNS and policy.budgets
    page = _narrow(policy, canvas) if narrow else [drawn(policy_view(policy, one.rates), canvas)]
    parts: list[RenderableType] = [*page]
    shares = {one.name: one.cpu_share for one in policy.budgets if one.cpu_share is not None}
    if shares:
        told = ", ".join(f"{plain(name)} {share:.0%}" for name, share in shares.items())
        parts.append(Text(f"of the server's CPU, of late: {told}"))
    if one.violations is not None and one.violations.budgets:
        parts += [Text(), drawn(violations_view(one.violations), canvas)]
    if one.state is not None:
        parts += [Text(), *_statements(one.state, canvas)]
    return [*parts, *(Text(plain(fault), style="yellow") for fault in one.faults)]


BUDGET_COLUMNS = (
    Column("budget", 8, 24, 1),
    Column("owed", 15, 15, 2),
    Column("refused", 7, 9, 3, right=True),
    Column("state", 9, 24, 4),
    Column("running", 7, 7, 5, right=True),
    Column("warned", 7, 9, 6, right=True),
)


def _narrow(policy: PolicyDoc, canvas: Canvas) -> list[RenderableType]:
    """Where the whole page would be folded: what is most telling of each budget, a line each."""
    fitted = fit(BUDGET_COLUMNS, canvas.width)
    head = Text(plain(policy.database), style="bold")
    cap = "" if policy.mode_cap == "enforce" else f"  NOTHING BEYOND {policy.mode_cap.upper()}"
    lines: list[RenderableType] = [head.append(cap, style="bold red")]
    lines += [Text(plain(told), style="bold red") for told in _policy_troubles(policy)]
    lines.append(header(fitted))
    full_first = sorted(policy.budgets, key=lambda one: (-(one.fill or 0.0), one.name))
    return [*lines, *(_budget_row(one, fitted, canvas) for one in full_first)]


def _policy_troubles(policy: PolicyDoc) -> Iterator[str]:
    if policy.is_off:
        yield "SWITCHED OFF AT THE SERVER"
    for outlet in policy.published:
        if outlet.fault is not None:
            yield f"NOT PUBLISHED to {outlet.where}: {outlet.fault}"
    if policy.refusal is not None:
        yield f"REFUSED BY THE SERVER: {policy.refusal}"
    if policy.read_fault is not None:
        yield f"counters unknown: {policy.read_fault}"


def _budget_row(budget: BudgetDoc, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    counts, nothing = budget.counts, canvas.marks.nothing
    refused = counts.blocked_total if counts is not None else None
    warned = counts.warned_total if counts is not None else None
    numbers = [nothing if n is None else f"{n:,}" for n in (refused, budget.running, warned)]
    cells = (
        Text(plain(budget.name)),
        fill_cell(budget.fill, canvas),
        Text(numbers[0], style="bold red" if refused else ""),
        Text(plain(budget.state)),
        Text(numbers[1]),
        Text(numbers[2]),
    )
    return row(fitted, cells)


STATEMENT_COLUMNS = (
    Column("statement", 20, 200, 1),
    Column("CPU", 8, 8, 2, right=True),
    Column("of late", 7, 7, 5, right=True),
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
