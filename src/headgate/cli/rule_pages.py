"""Rules as pages: a table, one rule, a change, and what they make of one client. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.documents import read_list
from headgate.cli.render import Canvas, advice_line, plain_table
from headgate.cli.words import ago, plain
from headgate.wire.reasons import duration, share_of
from headgate.wire.rules import MatchDoc, RuleDoc, RulesDoc

NARROW = 80


def rules_page(found: RulesDoc, canvas: Canvas) -> RenderableType:
    rules, not_here = found.rules, [_refused_line(told) for told in found.refused]
    if not rules:
        none = "no rule is in force: everybody is judged by the metrics alone"
        return Group(Text(none, style="dim"), *not_here)
    exempt = [rule for rule in rules if rule.loud]
    parts: list[RenderableType] = [_exemption_line(rule) for rule in exempt]
    parts.append(_table(rules, canvas))
    told = (advice_line(advice) for rule in rules for advice in rule.advice)
    return Group(*parts, *not_here, *told)


def _refused_line(told: str) -> Text:
    return Text().append("NOT IN FORCE HERE", style="bold red").append(f"  rule {plain(told)}")


def _exemption_line(rule: RuleDoc) -> Text:
    line = Text().append("EXEMPT", style="bold red")
    line.append(f"  {plain(rule.target)} for another {duration(rule.left_s)}, by ")
    return line.append(f"{plain(rule.created_by)}: {_why(rule)}")


def _table(rules: Sequence[RuleDoc], canvas: Canvas) -> Table:
    wide = canvas.width >= NARROW
    far = ("reach",) if any(rule.reach for rule in rules) else ()
    columns = ("id", *far, "target", "what", "left", *(("by", "why", "meets") if wide else ()))
    table = plain_table(*columns, right=frozenset({"left", "meets"}))
    for rule in sorted(rules, key=lambda one: (one.state == "ended", one.target, one.id)):
        style = "dim" if rule.state == "ended" else "bold red" if rule.loud else ""
        reach = [Text(plain(rule.reach or "this agent"), style="cyan" if rule.reach else "dim")]
        cells = [Text(plain(rule.id)), *(reach if far else ())]
        cells += [Text(plain(rule.target), style=style), _what(rule), Text(_left(rule))]
        if wide:
            cells += [Text(plain(rule.created_by)), Text(_why(rule)), _meets(rule, canvas)]
        table.add_row(*cells)
    return table


def _what(rule: RuleDoc) -> Text:
    told = plain(rule.says)
    if rule.database and f" on {rule.database}" not in told:
        told += f" on {plain(rule.database)}"
    if rule.schedule is not None:
        told += f"; {schedule_text(rule.schedule)}"
    text = Text(told, style="dim" if rule.state == "ended" else "bold red" if rule.loud else "")
    if rule.suspended:
        text.append(f"\nSUSPENDED: {plain(rule.suspended)}", style="bold yellow")
    return text


def schedule_text(schedule: Mapping[str, Any]) -> str:
    days = ",".join(str(day) for day in schedule.get("days") or ())
    told = f"{days} {schedule.get('from')}-{schedule.get('to')} {schedule.get('zone')}"
    return f"only {plain(told)}"


def _left(rule: RuleDoc) -> str:
    if rule.state == "ended":
        return f"lifted by {plain(rule.lifted_by)}" if rule.lifted_by else "ended"
    left = duration(rule.left_s)
    return f"{left}, waits" if rule.state == "waiting" else left


def _why(rule: RuleDoc) -> str:
    because = f"{plain(rule.justification)}: " if rule.justification else ""
    return f"{because}{plain(rule.reason)}"


def _meets(rule: RuleDoc, canvas: Canvas) -> Text:
    return Text(f"{rule.clients_total:,}" if rule.clients_total else canvas.marks.nothing)


def rule_page(rule: RuleDoc, canvas: Canvas) -> RenderableType:
    head = Text().append(plain(rule.id), style="bold").append(f"  {plain(rule.state)}", style="dim")
    return Group(head, *_facts(rule, canvas), *(advice_line(advice) for advice in rule.advice))


def _facts(rule: RuleDoc, canvas: Canvas) -> list[RenderableType]:
    lines: list[RenderableType] = [_what(rule)]
    if rule.reach is not None:
        lines.append(Text(f"set for {plain(rule.reach)}, revision {rule.n}"))
    if rule.state == "ended":
        lines.append(Text(f"{_left(rule)}, at {plain(rule.expires_at)}"))
    else:
        lines.append(Text(f"ends in {duration(rule.left_s)}, at {plain(rule.expires_at)}"))
    if rule.next_at is not None:
        lines.append(Text(f"next window begins at {plain(rule.next_at)}"))
    by = f"set by {plain(rule.created_by)} at {plain(rule.created_at)}"
    lines.append(Text(f"{by}: {_why(rule)}" if _why(rule) else by))
    if rule.pair is not None:
        lines.append(Text(f"set, and lifted, together with {plain(rule.pair)}"))
    lines.append(Text(_meeting(rule)))
    return lines


def _meeting(rule: RuleDoc) -> str:
    """Of one for the fleet, who asks other agents is not known here."""
    if rule.clients_total is None:
        return "which clients it meets is not known to this agent: it has no database"
    if not rule.clients_total:
        whom = "this agent lately; others were not asked" if rule.reach else "lately"
        return f"meets nobody who asked {whom}"
    more = rule.clients_total - len(rule.clients)
    named = ", ".join(plain(client) for client in rule.clients)
    named = f"{named}{f' and {more:,} more' if more > 0 else ''}"
    return f"meets {named}, of those who asked this agent" if rule.reach else f"meets {named}"


def changed_page(
    rules: Sequence[RuleDoc],
    done: str,
    canvas: Canvas,
    *,
    dry_run: bool,
    reached: str = "",
    past: str = "",
) -> RenderableType:
    """`reached`: whom it meets in the fleet, or who has it in the shard. `past`: what would have
    been otherwise, had it been there."""
    parts: list[RenderableType] = []
    for rule in rules:
        word = Text()
        if dry_run:
            word.append(f"WOULD BE {done}", style="bold yellow")
        else:
            word.append(done, style="bold green")
        word.append(f"  {plain(rule.id)}")
        if dry_run:
            word.append("  (dry run: nothing was changed)", style="dim")
        parts += [word, *_facts(rule, canvas)]
        parts += [advice_line(advice) for advice in rule.advice]
    return Group(*parts, *(Text(line) for line in (reached, past) if line))


# --- explain -------------------------------------------------------------------------------


def chance_text(document: Mapping[str, Any]) -> str:
    """Where dice have a say: nothing is thrown for an explanation. Empty where they have none."""
    odds, rule = document.get("odds"), document.get("rule")
    if not isinstance(odds, int | float):
        return ""
    by = f" (rule {plain(rule)})" if isinstance(rule, str) else ""
    return f"with a chance of {share_of(float(odds))}{by}"


def matched_page(document: Mapping[str, Any]) -> list[RenderableType]:
    """Below an explanation: which rules are meant for the client, and what became of each.
    Nothing for an agent that knows no rules."""
    if "matched" not in document:
        return []
    matches = read_list(MatchDoc, document, "matched")
    if not matches:
        return [Text("no rule is meant for this client", style="dim")]
    parts: list[RenderableType] = []
    if document.get("admitted") is not True and (chance := chance_text(document)):
        parts.append(Text(f"and then dice: let through to the metrics {chance}"))
    if isinstance(told := document.get("fairness"), str):
        parts.append(Text(plain(told)))
    table = plain_table("rule", "on", "state", "what")
    for match in matches:
        style = "" if match.state == "applies" else "dim"
        cells = (match.rule, match.target, _standing(match), match.says)
        table.add_row(*(Text(plain(cell), style=style) for cell in cells))
    return [*parts, table]


def _standing(match: MatchDoc) -> str:
    if match.ended_s_ago is not None:
        return f"ended {ago(match.ended_s_ago)}"
    if match.by is not None:
        return f"shadowed by {match.by}"
    left = f", {duration(match.left_s)} left" if match.left_s is not None else ""
    return f"{match.state}{left}"
