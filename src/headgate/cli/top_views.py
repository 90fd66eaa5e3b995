"""The views of `top`: what is known in, a page out. Pure.

Each is what a command shows, with the same functions: shard, rules, budget top, refusals, audit,
explain; clients are in top_clients.py, the overview is frame.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headgate.cli.frame import overview
from headgate.cli.pages import setting_text
from headgate.cli.render import INDENT, Canvas, database_blocks
from headgate.cli.top_clients import Wanted, clients_page
from headgate.cli.top_feed import Controlled, Pattern, Rules, Scene, ServerState, Told, Traced
from headgate.cli.top_layout import (
    MARK_CELLS,
    Column,
    Fitted,
    Page,
    Row,
    fit,
    header,
    longest,
    needing,
    row,
)
from headgate.cli.top_paint import Ruler
from headgate.cli.tree import curves, shard_tree
from headgate.cli.views import drawn, fill_cell
from headgate.cli.words import local_time, plain
from headgate.present.budgets import policy_view, violations_view
from headgate.present.metrics import UNSPOKEN
from headgate.present.rules import rule_view
from headgate.wire.budgets import BudgetDoc as Budget
from headgate.wire.budgets import PolicyDoc as PolicyView
from headgate.wire.reasons import duration
from headgate.wire.rules import RuleDoc as RuleRow
from headgate.wire.status import AuditDoc as AuditEntry
from headgate.wire.status import DatabaseDoc as Database
from headgate.wire.status import RefusalDoc as Refusal

MAX_PATTERNS = 20
WHOLE_POLICY_COLUMNS = 80
STALE_S = 15.0
"""After so long without a newer answer a list is dated."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a view is to show of the scene, and on what."""

    canvas: Canvas
    height: int
    now_s: float
    """Monotonic: for ages."""
    now: datetime
    wanted: Wanted
    tab: int = 0
    explained: Callable[[Canvas], RenderableType] | None = None


class View(NamedTuple):
    key: str
    name: str
    title: str
    sources: tuple[str, ...]
    draw: Callable[[Scene, Ask], Page]


# --- 1 overview --------------------------------------------------------------------------------


def _overview(scene: Scene, ask: Ask) -> Page:
    status = scene.view.status
    if status is None:
        return Page([Text("waiting for the agent's first answer", style="dim")])
    more = [*_rule_notes(scene.of("rules")), *_resting_note(status.databases), *_anew(scene, ask)]
    parts = overview(scene.view, status, ask.canvas, ask.height, more=more)
    return Page(lines=Ruler(ask.canvas.width).lines(*parts))


def _rule_notes(told: Told) -> list[Text]:
    found = told.value
    if not isinstance(found, Rules):
        return []
    here = [rule for rule in found.rules if rule.state == "in_force"]
    notes = [Text(f"rule refused here: {plain(one)}", style="bold red") for one in found.refused]
    if here:
        held = [rule for rule in here if rule.kind in ("hold", "ratio")]
        told_of = ", ".join(f"{plain(r.target)} ({plain(r.says)})" for r in held[:3])
        line = Text(no_wrap=True, overflow="ellipsis").append("rules  ", style="yellow")
        line.append(f"{len(here)} in force{f': {told_of}' if told_of else ''}; 4 shows them")
        notes.append(line)
    return notes


def _resting_note(databases: Sequence[Database]) -> list[Text]:
    resting = [one.database for one in databases if one.activity == "hibernating"]
    if not resting:
        return []
    names = plain(", ".join(resting[:5])) + (f" and {len(resting) - 5} more" * (len(resting) > 5))
    told = f"hibernating  {names}: nobody asks, so nothing is measured; w wakes"
    return [Text(told, style="bold blue")]


def _anew(scene: Scene, ask: Ask) -> list[Text]:
    at_s = scene.view.restarted_at_s
    if at_s is None or ask.now_s - at_s > 60:
        return []
    return [Text(f"the agent began anew {duration(ask.now_s - at_s)} ago", style="bold yellow")]


# --- 2 shard -----------------------------------------------------------------------------------


def _shards(scene: Scene, ask: Ask) -> Page:
    status = scene.view.status
    if status is None or not status.databases:
        none = "waiting for the agent's first answer" if status is None else "no database"
        return Page([Text(none, style="dim")])
    parts: list[RenderableType] = []
    for database in status.databases:
        parts += _database(database, scene, ask)
    return Page(lines=Ruler(ask.canvas.width).lines(*parts[1:]))


def _database(database: Database, scene: Scene, ask: Ask) -> list[RenderableType]:
    canvas, recent = ask.canvas, scene.view.recent
    blocks = database_blocks([_without_shard(database)], canvas, recent)
    shard = database.shard
    if shard is None:
        return blocks
    of_members = {
        name: values for (where, name), values in recent.items() if where == database.database
    }
    width = max(20, canvas.width - INDENT)
    tree = shard_tree(shard, canvas.marks, width, curves(of_members, width))
    return [*blocks, Padding(tree, (0, 0, 0, INDENT))]


def _without_shard(database: Database) -> Database:
    """Its tree is drawn below, with curves; why nobody may speak for it, the tree says."""
    if database.shard is None:
        return database
    quiet = [replace(m, detail="") if m.cause in UNSPOKEN else m for m in database.metrics]
    return replace(database, shard=None, metrics=quiet)


# --- 3 clients ---------------------------------------------------------------------------------


def _clients(scene: Scene, ask: Ask) -> Page:
    return clients_page(scene, ask.wanted, ask.canvas, ask.now)


# --- 4 rules -----------------------------------------------------------------------------------

RULE_COLUMNS = (
    Column("id", 4, 24, 3),
    Column("target", 10, 28, 1),
    Column("what", 16, 100, 2),
    Column("left", 8, 8, 4, right=True),
    Column("by", 8, 16, 6),
    Column("why", 12, 36, 7),
    Column("meets", 5, 7, 5, right=True),
)


def _rules(scene: Scene, ask: Ask) -> Page:
    told = scene.of("rules")
    found = told.value
    if not isinstance(found, Rules):
        return Page(_missing(told, "rules"))
    shown = [rule for rule in found.rules if _mentions(rule, ask.wanted.filter)]
    fixed = [*_dated(told, ask), *(_not_here(one) for one in found.refused)]
    if not shown:
        none = "no rule is in force: everybody is judged by the metrics alone"
        if found.rules:
            none = f"no rule matches {ask.wanted.filter!r}"
        return Page([*fixed, Text(none, style="dim")])
    columns = needing(
        RULE_COLUMNS,
        id=longest(rule.id for rule in shown),
        target=longest(rule.target for rule in shown),
        by=longest(rule.created_by for rule in shown),
        why=longest(rule.reason for rule in shown),
    )
    fitted = fit(columns, ask.canvas.width - MARK_CELLS)
    rows = [Row(rule.id, partial(_rule_row, rule, fitted, ask.canvas)) for rule in _sorted(shown)]
    chosen = next((r for r in shown if r.id == ask.wanted.chosen), _sorted(shown)[0])
    fixed.append(Text("  ").append_text(header(fitted)))
    return Page(fixed, rows, tail=[drawn(rule_view(chosen), ask.canvas)])


def _sorted(rules: Sequence[RuleRow]) -> list[RuleRow]:
    """What others pay for first, then what ends soonest."""
    return sorted(rules, key=lambda r: (not r.loud, r.state != "in_force", r.left_s, r.id))


def _mentions(rule: RuleRow, wanted: str) -> bool:
    about = f"{rule.id} {rule.target} {rule.kind} {rule.created_by} {rule.reason}".lower()
    return all(word in about for word in wanted.lower().split())


def _rule_row(rule: RuleRow, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    style = "bold red" if rule.loud else "yellow" if rule.suspended else ""
    word = "" if rule.state == "in_force" else f"{rule.state.upper()} "
    why = f"{rule.justification}: {rule.reason}" if rule.justification else rule.reason
    where = f" on {rule.database}" if rule.database and rule.database not in rule.says else ""
    meets = canvas.marks.nothing if rule.clients_total is None else f"{rule.clients_total:,}"
    cells = (
        Text(plain(rule.id), style="dim"),
        Text(plain(rule.target), style=style or "bold"),
        Text(plain(f"{word}{rule.says}{where}"), style=style),
        Text(duration(rule.left_s)),
        Text(plain(rule.created_by)),
        Text(plain(why)),
        Text(meets),
    )
    return row(fitted, cells)


def _not_here(told: str) -> Text:
    return Text().append("NOT IN FORCE HERE", style="bold red").append(f"  rule {plain(told)}")


# --- 5 budgets ---------------------------------------------------------------------------------


def _budgets(scene: Scene, ask: Ask) -> Page:
    told = scene.of("budgets")
    if told.value is None:
        return Page(_missing(told, "budgets"))
    if not told.value:
        none = "no database has traffic control: [databases.NAME.traffic] gives it one"
        return Page([Text(none, style="dim")])
    parts: list[RenderableType] = list(_dated(told, ask))
    for one in told.value:
        parts += [*_one_controlled(one, ask.canvas), Text()]
    return Page(lines=Ruler(ask.canvas.width).lines(*parts[:-1]))


def _one_controlled(one: Controlled, canvas: Canvas) -> list[RenderableType]:
    assert one.live.policy is not None
    policy, rates = one.live.policy, one.live.rates
    narrow = canvas.width < WHOLE_POLICY_COLUMNS and policy.budgets
    page = _narrow(policy, canvas) if narrow else [drawn(policy_view(policy, rates), canvas)]
    parts: list[RenderableType] = [*page]
    if one.shares:
        told = ", ".join(f"{plain(name)} {share:.0%}" for name, share in one.shares.items())
        parts.append(Text(f"of the server's CPU, of late: {told}"))
    if one.violations is not None and one.violations.budgets:
        parts += [Text(), drawn(violations_view(one.violations), canvas)]
    if one.state is not None:
        parts += [Text(), *_statements(one, one.state, canvas)]
    return [*parts, *(Text(plain(fault), style="yellow") for fault in one.faults)]


BUDGET_COLUMNS = (
    Column("budget", 8, 24, 1),
    Column("owed", 15, 15, 2),
    Column("refused", 7, 9, 3, right=True),
    Column("state", 9, 24, 4),
    Column("running", 7, 7, 5, right=True),
    Column("warned", 7, 9, 6, right=True),
)


def _narrow(policy: PolicyView, canvas: Canvas) -> list[RenderableType]:
    """Where the whole page would be folded: what is most telling of each budget, a line each."""
    fitted = fit(BUDGET_COLUMNS, canvas.width)
    head = Text(plain(policy.database), style="bold")
    cap = "" if policy.mode_cap == "enforce" else f"  NOTHING BEYOND {policy.mode_cap.upper()}"
    lines: list[RenderableType] = [head.append(cap, style="bold red")]
    lines += [Text(plain(told), style="bold red") for told in _policy_troubles(policy)]
    lines.append(header(fitted))
    full_first = sorted(policy.budgets, key=lambda one: (-(one.fill or 0.0), one.name))
    return [*lines, *(_budget_row(one, fitted, canvas) for one in full_first)]


def _policy_troubles(policy: PolicyView) -> Iterator[str]:
    if policy.is_off:
        yield "SWITCHED OFF AT THE SERVER"
    for outlet in policy.published:
        if outlet.fault is not None:
            yield f"NOT PUBLISHED to {outlet.where}: {outlet.fault}"
    if policy.refusal is not None:
        yield f"REFUSED BY THE SERVER: {policy.refusal}"
    if policy.read_fault is not None:
        yield f"counters unknown: {policy.read_fault}"


def _budget_row(budget: Budget, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
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


def _statements(one: Controlled, state: ServerState, canvas: Canvas) -> list[RenderableType]:
    """Those that cost most, and how far off their estimates are."""
    if not state.patterns:
        why = f": {plain(state.fault)}" if state.fault else ""
        return [Text(f"no statement was measured{why}", style="dim")]
    fitted = fit(STATEMENT_COLUMNS, canvas.width)
    lines: list[RenderableType] = [header(fitted)]
    shown = state.patterns[:MAX_PATTERNS]
    for pattern in shown:
        traced = one.traced.get(pattern.query_id, Traced())
        lines.append(_statement(pattern, traced, fitted, canvas))
    left = state.patterns_total - len(shown)
    return [*lines, *([Text(f"and {left:,} that cost less", style="dim")] if left > 0 else [])]


def _statement(pattern: Pattern, traced: Traced, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    nothing = canvas.marks.nothing
    style = "bold red" if pattern.error >= 1 else "yellow" if pattern.error >= 0.5 else ""
    cells = (
        Text(plain(" ".join(traced.text.split())) or f"query {plain(pattern.query_id)}"),
        Text(duration(pattern.cpu_total_ms / 1000)),
        Text(nothing if traced.cpu_share is None else f"{traced.cpu_share:.0%}"),
        Text(f"{pattern.calls:,}"),
        Text(duration(pattern.cpu_mean_ms / 1000)),
        Text(nothing if pattern.k is None else f"{pattern.error:.0%}", style=style),
        Text(plain(", ".join(traced.budgets)) or nothing, style="dim"),
    )
    return row(fitted, cells)


# --- 6 refusals and audit ----------------------------------------------------------------------

REFUSAL_COLUMNS = (
    Column("when", 8, 8, 2),
    Column("client", 12, 32, 1),
    Column("database", 6, 14, 5),
    Column("verdict", 8, 18, 4),
    Column("why", 16, 200, 3),
)
AUDIT_COLUMNS = (
    Column("when", 12, 12, 2),
    Column("who", 6, 16, 3),
    Column("what", 8, 18, 1),
    Column("on", 8, 28, 4),
    Column("change", 12, 200, 5),
)


def _past(scene: Scene, ask: Ask) -> Page:
    lists = [_refusal_rows(scene.of("refusals"), ask), _audit_rows(scene.of("audit"), ask)]
    (head, rows), (other_head, others) = lists if ask.tab == 0 else reversed(lists)
    tail = [*other_head, *(Text("  ").append_text(one.draw()) for one in others)]
    if not rows:
        return Page([*head, Text(), *tail])
    return Page(head, rows, tail=tail)


def _refusal_rows(told: Told, ask: Ask) -> tuple[list[RenderableType], list[Row]]:
    if told.value is None:
        return _missing(told, "refusals"), []
    words = ask.wanted.filter.lower().split()
    found = [one for one in told.value if all(word in str(one).lower() for word in words)]
    columns = needing(
        REFUSAL_COLUMNS,
        client=longest(one.answer.app for one in found),
        database=longest(one.answer.database for one in found),
    )
    fitted = fit(columns, ask.canvas.width - MARK_CELLS)
    head = Text(f"refused lately: {len(found):,}", style="bold")
    if not found:
        return [head, Text("  nobody was refused lately", style="dim")], []
    rows = [Row(f"r{n} {one.at}", partial(_refusal, one, fitted)) for n, one in enumerate(found)]
    return [*_dated(told, ask), head, Text("  ").append_text(header(fitted))], rows


def _refusal(one: Refusal, fitted: Sequence[Fitted]) -> Text:
    said = {key: plain(str(getattr(one.answer, key) or "")) for key in _SAID}
    why = said["reason"].removeprefix(f"{said['database']}: ")
    cells = (local_time(one.at, "%H:%M:%S"), said["app"], said["database"], said["verdict"], why)
    return row(fitted, [Text(cell) for cell in cells])


_SAID = ("app", "database", "verdict", "reason")


def _audit_rows(told: Told, ask: Ask) -> tuple[list[RenderableType], list[Row]]:
    if told.value is None:
        return _missing(told, "audit"), []
    words = ask.wanted.filter.lower().split()
    found = [one for one in told.value if all(word in str(one).lower() for word in words)]
    columns = needing(
        AUDIT_COLUMNS,
        who=longest(one.who for one in found),
        what=longest(one.action for one in found),
        on=longest(one.target for one in found),
    )
    fitted = fit(columns, ask.canvas.width - MARK_CELLS)
    head = Text(f"changed lately: {len(found):,}", style="bold")
    if not found:
        return [head, Text("  nothing was changed yet", style="dim")], []
    rows = [
        Row(f"a{n} {one.at}", partial(_change, one, fitted, ask.canvas))
        for n, one in enumerate(found)
    ]
    return [*_dated(told, ask), head, Text("  ").append_text(header(fitted))], rows


def _change(one: AuditEntry, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    cells = (local_time(one.at, "%d %b %H:%M"), one.who, one.action, one.target)
    shown = [Text(plain(cell)) for cell in cells]
    return row(fitted, [*shown, Text(_changed(one, canvas.marks.arrow))])


def _changed(one: AuditEntry, arrow: str) -> str:
    if one.after is None:
        return "removed"
    before = one.before if isinstance(one.before, Mapping) else {}
    after = one.after if isinstance(one.after, Mapping) else {}
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    told = ((key, before.get(key), after.get(key)) for key in keys)
    return "; ".join(
        f"{plain(key)}: {setting_text(old)} {arrow} {setting_text(new)}"
        if old is not None
        else f"{plain(key)}: {setting_text(new)}"
        for key, old, new in told
    )


# --- 7 explain ---------------------------------------------------------------------------------


def _explain(scene: Scene, ask: Ask) -> Page:
    if ask.explained is None:
        words = "Enter, then who asks, and where: etl:nightly main; or a statement: select 1 @main"
        return Page([Text(words, style="dim")])
    return Page(lines=Ruler(ask.canvas.width).lines(ask.explained(ask.canvas)))


# --- shared ------------------------------------------------------------------------------------


def _missing(told: Told, what: str) -> list[RenderableType]:
    if told.fault:
        return [Text(f"{what} cannot be shown: {plain(told.fault)}", style="bold yellow")]
    return [Text(f"asking for {what}", style="dim")]


def _dated(told: Told, ask: Ask) -> list[Text]:
    """Where the last answer is not the newest there should be."""
    if not told.fault or ask.now_s - told.at_s < STALE_S:
        return []
    ago = duration(ask.now_s - told.at_s)
    return [Text(f"below is what was said {ago} ago: {plain(told.fault)}", style="bold yellow")]


VIEWS: Mapping[str, View] = {
    one.name: one
    for one in (
        View("1", "overview", "overview", ("rules",), _overview),
        View("2", "shard", "shard", (), _shards),
        View("3", "clients", "clients", ("starvation",), _clients),
        View("4", "rules", "rules", ("rules",), _rules),
        View("5", "budgets", "budgets", ("budgets",), _budgets),
        View("6", "past", "past", ("refusals", "audit"), _past),
        View("7", "explain", "explain", (), _explain),
    )
}
BY_KEY = {view.key: view.name for view in VIEWS.values()}
