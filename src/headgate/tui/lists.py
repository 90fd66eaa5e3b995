"""The views that are lists: rules, the past, explain and the fleet. Pure.

Each is what a command shows, with the same functions: rules, refusals, audit, explain, fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from headgate.cli.fleet_pages import fleet_page
from headgate.cli.pages import setting_text
from headgate.cli.render import Canvas
from headgate.cli.views import drawn
from headgate.cli.words import local_time, plain
from headgate.present.rules import rule_view
from headgate.tui.layout import (
    MARK_CELLS,
    Ask,
    Column,
    Fitted,
    Page,
    Row,
    dated,
    fit,
    header,
    longest,
    missing,
    needing,
    row,
)
from headgate.tui.paint import Ruler
from headgate.tui.sources import Scene, Told
from headgate.wire.fleet_view import FleetDoc
from headgate.wire.reasons import duration
from headgate.wire.rules import RuleDoc, RulesDoc
from headgate.wire.status import AuditDoc, RefusalDoc

# --- rules -------------------------------------------------------------------------------------

RULE_COLUMNS = (
    Column("id", 4, 24, 3),
    Column("target", 10, 28, 1),
    Column("what", 16, 100, 2),
    Column("left", 8, 8, 4, right=True),
    Column("by", 8, 16, 6),
    Column("why", 12, 36, 7),
    Column("meets", 5, 7, 5, right=True),
)


def draw_rules(scene: Scene, ask: Ask) -> Page:
    told = scene.of("rules")
    found = told.value
    if not isinstance(found, RulesDoc):
        return Page(missing(told, "rules"))
    shown = [rule for rule in found.rules if _mentions(rule, ask.filter)]
    fixed = [*dated(told, ask), *(_not_here(one) for one in found.refused)]
    if not shown:
        none = "no rule is in force: everybody is judged by the metrics alone"
        if found.rules:
            none = f"no rule matches {ask.filter!r}"
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
    chosen = next((r for r in shown if r.id == ask.chosen), _sorted(shown)[0])
    fixed.append(Text("  ").append_text(header(fitted)))
    return Page(fixed, rows, tail=[drawn(rule_view(chosen), ask.canvas)])


def _sorted(rules: Sequence[RuleDoc]) -> list[RuleDoc]:
    """What others pay for first, then what ends soonest."""
    return sorted(rules, key=lambda r: (not r.loud, r.state != "in_force", r.left_s, r.id))


def _mentions(rule: RuleDoc, wanted: str) -> bool:
    about = f"{rule.id} {rule.target} {rule.kind} {rule.created_by} {rule.reason}".lower()
    return all(word in about for word in wanted.lower().split())


def _rule_row(rule: RuleDoc, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
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


# --- refusals and audit ------------------------------------------------------------------------

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


def draw_past(scene: Scene, ask: Ask) -> Page:
    lists = [_refusal_rows(scene.of("refusals"), ask), _audit_rows(scene.of("audit"), ask)]
    (head, rows), (other_head, others) = lists if ask.tab == 0 else reversed(lists)
    tail = [*other_head, *(Text("  ").append_text(one.draw()) for one in others)]
    if not rows:
        return Page([*head, Text(), *tail])
    return Page(head, rows, tail=tail)


def _refusal_rows(told: Told, ask: Ask) -> tuple[list[RenderableType], list[Row]]:
    if told.value is None:
        return missing(told, "refusals"), []
    words = ask.filter.lower().split()
    found = [one for one in told.value.refusals if all(word in str(one).lower() for word in words)]
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
    return [*dated(told, ask), head, Text("  ").append_text(header(fitted))], rows


def _refusal(one: RefusalDoc, fitted: Sequence[Fitted]) -> Text:
    said = {key: plain(str(getattr(one.answer, key) or "")) for key in _SAID}
    why = said["reason"].removeprefix(f"{said['database']}: ")
    cells = (local_time(one.at, "%H:%M:%S"), said["app"], said["database"], said["verdict"], why)
    return row(fitted, [Text(cell) for cell in cells])


_SAID = ("app", "database", "verdict", "reason")


def _audit_rows(told: Told, ask: Ask) -> tuple[list[RenderableType], list[Row]]:
    if told.value is None:
        return missing(told, "audit"), []
    words = ask.filter.lower().split()
    found = [one for one in told.value.audit if all(word in str(one).lower() for word in words)]
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
    return [*dated(told, ask), head, Text("  ").append_text(header(fitted))], rows


def _change(one: AuditDoc, fitted: Sequence[Fitted], canvas: Canvas) -> Text:
    cells = (local_time(one.at, "%d %b %H:%M"), one.who, one.action, one.target)
    shown = [Text(plain(cell)) for cell in cells]
    return row(fitted, [*shown, Text(_changed(one, canvas.marks.arrow))])


def _changed(one: AuditDoc, arrow: str) -> str:
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


# --- explain -----------------------------------------------------------------------------------


def draw_explain(scene: Scene, ask: Ask) -> Page:
    if ask.explained is None:
        words = "Enter, then a client and a database: etl:nightly main; or: select 1 @main"
        return Page([Text(words, style="dim")])
    return Page(lines=Ruler(ask.canvas.width).lines(ask.explained(ask.canvas)))


# --- the fleet ---------------------------------------------------------------------------------


def draw_fleet(scene: Scene, ask: Ask) -> Page:
    told = scene.of("fleet")
    if told.value is None:
        return Page(missing(told, "the fleet"))
    fleet, is_part = told.value
    shown = _matching(fleet, ask.filter)
    page = fleet_page(shown, ask.canvas, shards_only=is_part or bool(ask.filter))
    lines = Ruler(ask.canvas.width).lines(page)
    return Page(dated(told, ask), lines=lines)


def _matching(fleet: FleetDoc, wanted: str) -> FleetDoc:
    words = wanted.lower().split()
    about = ((one, f"{one.shard} {one.region} {one.condition} {one.why}") for one in fleet.shards)
    shown = [one for one, told in about if all(word in told.lower() for word in words)]
    return replace(fleet, shards=shown) if words else fleet
