"""The views that are lists: rules, the past, explain, the fleet, a proxy, and budgets. Pure.

Each is what a command shows, with the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace
from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text

from headgate.budgets.api import PatternDoc, StateDoc
from headgate.check.api import AuditDoc, RejectionDoc
from headgate.check.reasons import duration
from headgate.cli.documents import plain
from headgate.cli.render import STYLES, Canvas, drawn, local_time, note_text, text_of
from headgate.present.budgets import policy_view, prediction_tone, violations_view
from headgate.present.changes import NOTHING_CHANGED, audit_change
from headgate.present.fleet import fleet_view
from headgate.present.history import NO_REJECTION
from headgate.present.metrics import rejection_text
from headgate.present.proxy import proxy_view, sessions_view
from headgate.present.rules import NO_RULE, RuleRow, not_here, rows_of, rule_view
from headgate.present.view import DASH
from headgate.rules.api import RuleDoc, RulesDoc
from headgate.tui.layout import (
    Fitted,
    ScreenColumn,
    ScreenPage,
    ScreenRow,
    ViewRequest,
    dated,
    fit,
    header,
    listed,
    missing,
    row,
)
from headgate.tui.paint import Line, Lines, Ruler
from headgate.tui.sources import BudgetedDatabase, LastAnswer, Scene

T = TypeVar("T")

# --- rules -------------------------------------------------------------------------------------

RULE_COLUMNS = (
    ScreenColumn("id", 4, 24, 3),
    ScreenColumn("target", 10, 28, 1),
    ScreenColumn("what", 16, 100, 2),
    ScreenColumn("left", 8, 11, 4, right=True),
    ScreenColumn("by", 8, 16, 6),
    ScreenColumn("why", 12, 36, 7),
    ScreenColumn("clients", 7, 7, 5, right=True),
)


def draw_rules(scene: Scene, ask: ViewRequest) -> ScreenPage:
    told = scene.of("rules")
    found = told.value
    if not isinstance(found, RulesDoc):
        return ScreenPage(missing(told, "rules"))
    rules = rows_of(rule for rule in found.rules if _mentions(rule, ask.filter))
    fixed = [*dated(told, ask), *(note_text(not_here(one)) for one in found.rejected)]
    if not rules:
        none = f"no rule matches {ask.filter!r}" if found.rules else NO_RULE
        return ScreenPage([*fixed, Text(none, style="dim")])
    head, rows = listed(
        RULE_COLUMNS, [(rule.doc.id, _rule_cells(rule)) for rule in rules], ask.canvas.width
    )
    chosen = next((rule for rule in rules if rule.doc.id == ask.chosen), rules[0])
    return ScreenPage([*fixed, head], rows, tail=[drawn(rule_view(chosen.doc), ask.canvas)])


def _mentions(rule: RuleDoc, wanted: str) -> bool:
    about = f"{rule.id} {rule.target} {rule.kind} {rule.created_by} {rule.reason}".lower()
    return all(word in about for word in wanted.lower().split())


def _rule_cells(rule: RuleRow) -> Sequence[str | Text]:
    doc = rule.doc
    style = "bold red" if doc.loud else "yellow" if doc.suspended else ""
    word = "" if doc.state == "in_force" else f"{doc.state.upper()} "
    clients = DASH if doc.clients_total is None else f"{doc.clients_total:,}"
    target = Text(plain(doc.target), style=style or "bold")
    what = Text(plain(f"{word}{rule.says}"), style=style)
    return doc.id, target, what, rule.left, doc.created_by, rule.why, clients


# --- rejections and audit ------------------------------------------------------------------------

REJECTION_COLUMNS = (
    ScreenColumn("when", 8, 8, 2),
    ScreenColumn("client", 12, 32, 1),
    ScreenColumn("database", 6, 14, 5),
    ScreenColumn("verdict", 8, 18, 4),
    ScreenColumn("why", 16, 200, 3),
)
AUDIT_COLUMNS = (
    ScreenColumn("when", 12, 12, 2),
    ScreenColumn("who", 6, 16, 3),
    ScreenColumn("what", 8, 18, 1),
    ScreenColumn("on", 8, 28, 4),
    ScreenColumn("change", 12, 200, 5),
)


def draw_past(scene: Scene, ask: ViewRequest) -> ScreenPage:
    lists = [_rejection_rows(scene.of("rejections"), ask), _audit_rows(scene.of("audit"), ask)]
    (head, rows), (other_head, others) = lists if ask.tab == 0 else reversed(lists)
    tail = [*other_head, Lines([[Segment("  "), *one.draw()] for one in others])]
    if not rows:
        return ScreenPage([*head, Text(), *tail])
    return ScreenPage(head, rows, tail=tail)


def _rejection_rows(
    told: LastAnswer, ask: ViewRequest
) -> tuple[list[RenderableType], list[ScreenRow]]:
    if told.value is None:
        return missing(told, "rejections"), []
    found = _matching(told.value.rejections, ask.filter)
    title: RenderableType = Text(f"rejected lately: {len(found):,}", style="bold")
    if not found:
        return [title, Text(f"  {NO_REJECTION}", style="dim")], []
    items = [(f"r{n} {one.at}", _rejection_cells(one)) for n, one in enumerate(found)]
    head, rows = listed(REJECTION_COLUMNS, items, ask.canvas.width)
    return [*dated(told, ask), title, head], rows


def _rejection_cells(one: RejectionDoc) -> Sequence[str]:
    said = one.answer
    told = (said.app, said.database, said.verdict, rejection_text(said))
    return local_time(one.at, "%H:%M:%S"), *told


def _audit_rows(told: LastAnswer, ask: ViewRequest) -> tuple[list[RenderableType], list[ScreenRow]]:
    if told.value is None:
        return missing(told, "audit"), []
    found = _matching(told.value.audit, ask.filter)
    title: RenderableType = Text(f"changed lately: {len(found):,}", style="bold")
    if not found:
        return [title, Text(f"  {NOTHING_CHANGED}", style="dim")], []
    items = [(f"a{n} {one.at}", _audit_cells(one, ask)) for n, one in enumerate(found)]
    head, rows = listed(AUDIT_COLUMNS, items, ask.canvas.width)
    return [*dated(told, ask), title, head], rows


def _audit_cells(one: AuditDoc, ask: ViewRequest) -> Sequence[str | Text]:
    at = local_time(one.at, "%d %b %H:%M")
    return at, one.who, one.action, one.target, text_of(audit_change(one), ask.canvas)


def _matching(found: Sequence[T], wanted: str) -> Sequence[T]:
    words = wanted.lower().split()
    return [one for one in found if all(word in str(one).lower() for word in words)]


# --- explain -----------------------------------------------------------------------------------


def draw_explain(scene: Scene, ask: ViewRequest) -> ScreenPage:
    if ask.explained is None:
        words = "Enter, then a client and a database: etl:nightly main; or: select 1 @main"
        return ScreenPage([Text(words, style="dim")])
    return ScreenPage(lines=Ruler(ask.canvas.width).lines(ask.explained(ask.canvas)))


# --- the fleet ---------------------------------------------------------------------------------


def draw_fleet(scene: Scene, ask: ViewRequest) -> ScreenPage:
    told = scene.of("fleet")
    if told.value is None:
        return ScreenPage(missing(told, "the fleet"))
    fleet, is_part = told.value
    shown = replace(fleet, shards=_matching(fleet.shards, ask.filter))
    view = fleet_view(shown, shards_only=is_part or bool(ask.filter))
    lines = Ruler(ask.canvas.width).lines(drawn(view, ask.canvas))
    return ScreenPage(dated(told, ask), lines=lines)


# --- a proxy -----------------------------------------------------------------------------------


def draw_proxy(scene: Scene, ask: ViewRequest) -> ScreenPage:
    found = scene.picture.proxy
    if found is None:
        return ScreenPage([Text("waiting for the proxy's first answer", style="dim")])
    lines = Ruler(ask.canvas.width).lines(drawn(proxy_view(found), ask.canvas))
    return ScreenPage(lines=lines)


def draw_sessions(scene: Scene, ask: ViewRequest) -> ScreenPage:
    told = scene.of("sessions")
    if told.value is None:
        return ScreenPage(missing(told, "sessions"))
    shown = replace(told.value, sessions=_matching(told.value.sessions, ask.filter))
    lines = Ruler(ask.canvas.width).lines(drawn(sessions_view(shown), ask.canvas))
    return ScreenPage(dated(told, ask), lines=lines)


# --- budgets -----------------------------------------------------------------------------------

MAX_PATTERNS = 20


def draw_budgets(scene: Scene, ask: ViewRequest) -> ScreenPage:
    told = scene.of("budgets")
    if told.value is None:
        return ScreenPage(missing(told, "budgets"))
    if not told.value:
        none = "no database has traffic control: [databases.NAME.traffic] gives it one"
        return ScreenPage([Text(none, style="dim")])
    parts: list[RenderableType] = list(dated(told, ask))
    shown = [one for one in told.value if ask.filter.lower() in one.policy.database.lower()]
    if not shown:
        return ScreenPage([Text(f"no database matches {ask.filter!r}", style="dim")])
    for one in shown:
        parts += [*_one_controlled(one, ask.canvas), Text()]
    return ScreenPage(lines=Ruler(ask.canvas.width).lines(*parts[:-1]))


def _one_controlled(one: BudgetedDatabase, canvas: Canvas) -> list[RenderableType]:
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
    ScreenColumn("statement", 20, 200, 1),
    ScreenColumn("CPU", 8, 8, 2, right=True),
    ScreenColumn("now", 7, 7, 5, right=True),
    ScreenColumn("calls", 7, 9, 4, right=True),
    ScreenColumn("each", 8, 8, 6, right=True),
    ScreenColumn("off by", 6, 6, 3, right=True),
    ScreenColumn("budgets", 8, 20, 7),
)


def _statements(state: StateDoc, canvas: Canvas) -> list[RenderableType]:
    """Those that cost most, and how far off their estimates are."""
    if not state.patterns:
        why = f": {plain(state.fault)}" if state.fault else ""
        return [Text(f"no statement was measured{why}", style="dim")]
    fitted = fit(STATEMENT_COLUMNS, canvas.width)
    shown = state.patterns[:MAX_PATTERNS]
    lines = Lines([_statement(pattern, fitted, canvas) for pattern in shown])
    left = state.patterns_total - len(shown)
    more = [Text(f"and {left:,} that cost less", style="dim")] if left > 0 else []
    return [header(fitted), lines, *more]


def _statement(pattern: PatternDoc, fitted: Sequence[Fitted], canvas: Canvas) -> Line:
    nothing = canvas.marks.nothing
    style = STYLES[prediction_tone(pattern)]
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
