"""Rules: a row, a list, one of them, a change, and what they make of one client. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headgate.base.units import share_of
from headgate.check.reasons import duration
from headgate.present.view import (
    BREAK,
    DASH,
    Block,
    Cell,
    Line,
    Note,
    Said,
    Table,
    Tone,
    columns,
    line,
    outcome,
)
from headgate.present.words import advice_of, ago, moment, rest_of
from headgate.rules.api import ExplainDoc, MatchDoc, RuleDoc, RulesDoc

WIDE = 80
MAX_NAMED = 4
NO_RULE = "no rule is in force: only the metrics apply"
_ORDER = {"suspended": 1, "in_force": 2, "waiting": 3, "ended": 4}


TOLD = frozenset(
    {"id", "target", "kind", "says", "ratio", "order", "metrics", "thresholds", "justification"}
    | {"ceiling", "reason", "database", "schedule", "created_at", "created_by", "expires_at"}
    | {"left_s", "state", "next_at", "suspended", "lifted_by", "pair", "clients", "clients_total"}
    | {"advice", "revision", "reach", "n", "reached", "copies"}
)
"""Fields that have a place of their own; any other is shown by its name."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    doc: RuleDoc

    @property
    def state(self) -> Said:
        """In a word; what others pay for, and what stops a client, is loud."""
        doc = self.doc
        if doc.state == "ended":
            return Said("lifted" if doc.lifted_by else "ended", "quiet")
        if doc.state == "in_force" and doc.kind in _KINDS_TOLD:
            return _KINDS_TOLD[doc.kind]
        tones: Mapping[str, Tone] = {"in_force": "good", "suspended": "warned"}
        return Said(doc.state.replace("_", " "), tones.get(doc.state, ""))

    @property
    def says(self) -> str:
        doc = self.doc
        is_told = not doc.database or f" on {doc.database}" in doc.says
        return doc.says if is_told else f"{doc.says} on {doc.database}"

    @property
    def schedule(self) -> str:
        return schedule_text(self.doc.schedule)

    @property
    def why(self) -> str:
        justified = f"{self.doc.justification}: " if self.doc.justification else ""
        return f"{justified}{self.doc.reason}"

    @property
    def left(self) -> str:
        return left_text(self.doc.left_s)

    @property
    def life_s(self) -> float:
        return max(1.0, _wall_s(self.doc.expires_at) - _wall_s(self.doc.created_at))

    @property
    def named(self) -> Sequence[str]:
        return self.doc.clients[:MAX_NAMED]

    @property
    def unnamed(self) -> int:
        return (self.doc.clients_total or 0) - len(self.named)

    @property
    def applies_to(self) -> str:
        """Its clients; of one for the fleet, those of other agents are not known here."""
        doc = self.doc
        if doc.clients_total is None:
            return "not known: this agent has no database"
        if not doc.clients_total:
            whom = "at this agent lately; other agents are not known" if doc.reach else "lately"
            return f"no client that checked {whom}"
        more = f" and {self.unnamed:,} more" if self.unnamed > 0 else ""
        named = f"{', '.join(self.named)}{more}"
        return f"{named}, of those that checked at this agent" if doc.reach else named

    @property
    def others(self) -> list[tuple[str, str]]:
        return rest_of(self.doc, TOLD)

    @property
    def exemption(self) -> Note:
        """Said above all else."""
        doc = self.doc
        where = f" on {doc.database}" if doc.database else ""
        what = f"{doc.target} from {', '.join(doc.metrics) or 'every metric'}{where}"
        limit = "" if doc.ceiling is None else f", up to {doc.ceiling:g} times a threshold"
        return Note("exempt", "bad", f"{what}{limit}, by {doc.created_by} ({self.why})")


_KINDS_TOLD = {"exempt": Said("! exempt", "bad"), "hold": Said("hold, in force", "warned")}


def rows_of(rules: Iterable[RuleDoc]) -> list[RuleRow]:
    """What others pay for comes first; two that were set together stay together."""
    docs = list(rules)
    targets = {doc.id: doc.target for doc in docs}

    def place(doc: RuleDoc) -> tuple[bool, int, str, str, str]:
        pair = doc.pair if doc.pair and doc.pair in targets else doc.id
        first = min(doc.target, targets[pair])
        return (not doc.loud, _ORDER.get(doc.state, 5), first, min(doc.id, pair), doc.target)

    return [RuleRow(doc) for doc in sorted(docs, key=place)]


def not_here(told: str) -> Note:
    return Note("not in force here", "bad", f"rule {told}")


def left_text(left_s: float) -> str:
    """To the second while it is short. static/rules.js counts on in the same words."""
    left = round(left_s)
    if left >= 86_400:
        return f"{left // 86_400} d {left % 86_400 // 3600} h"
    if left >= 3600:
        return f"{left // 3600} h {left % 3600 // 60:02} min"
    return f"{left // 60} min {left % 60:02} s" if left >= 60 else f"{left} s"


def schedule_text(schedule: Mapping[str, Any] | None) -> str:
    if schedule is None:
        return ""
    days = ",".join(schedule["days"])
    return f"{days} {schedule['from']}-{schedule['to']} {schedule['zone']}"


def _wall_s(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


# --- as blocks ----------------------------------------------------------------------------------


def rules_view(found: RulesDoc) -> list[Block]:
    rejected = [not_here(told) for told in found.rejected]
    if not found.rules:
        return [line(Said(NO_RULE, "quiet")), *rejected]
    rows = rows_of(found.rules)
    loud = [row for row in rows if row.doc.loud]
    told = [note for doc in found.rules for note in advice_of(doc.advice)]
    exempt = [Note("exempt", "bad", f"{row.exemption.says}; {row.left} left") for row in loud]
    return [*exempt, _table(rows), *rejected, *told]


def _table(rows: Sequence[RuleRow]) -> Table:
    reach = ["reach"] if any(row.doc.reach for row in rows) else []
    names = columns(
        *("id", *reach, "target", "what", "left", "by", "why", "clients"),
        right=("left", "clients"),
        by=WIDE,
        why=WIDE,
        clients=WIDE,
    )
    return Table(names, [_cells(row, with_reach=bool(reach)) for row in rows])


def _cells(row: RuleRow, *, with_reach: bool) -> list[Cell]:
    doc = row.doc
    tone: Tone = "quiet" if doc.state == "ended" else "bad" if doc.loud else ""
    reach = [Said(doc.reach or "this agent", "info" if doc.reach else "quiet")]
    clients = f"{doc.clients_total:,}" if doc.clients_total else DASH
    about: list[Cell] = [Said(doc.target, tone), _what(row, tone), _left(row)]
    return [doc.id, *(reach if with_reach else ()), *about, doc.created_by, row.why, clients]


def _what(row: RuleRow, tone: Tone = "") -> Line:
    only = f"; only {row.schedule}" if row.schedule else ""
    suspended = row.doc.suspended
    more = (BREAK, Said(f"SUSPENDED: {suspended}", "warned")) if suspended else ()
    return line(Said(f"{row.says}{only}", tone), *more)


def _left(row: RuleRow) -> str:
    if row.doc.state == "ended":
        return f"lifted by {row.doc.lifted_by}" if row.doc.lifted_by else "ended"
    return f"{row.left}, waits" if row.doc.state == "waiting" else row.left


def rule_view(doc: RuleDoc) -> list[Block]:
    head = line(Said(doc.id, "strong"), "  ", RuleRow(doc).state)
    return [head, *_facts(RuleRow(doc)), *advice_of(doc.advice)]


def _facts(row: RuleRow) -> Iterator[Block]:
    doc = row.doc
    yield _what(row)
    if doc.reach is not None:
        yield line(f"set for {doc.reach}, revision {doc.n}")
    ends = _left(row) if doc.state == "ended" else f"ends in {row.left}"
    yield line(f"{ends}, at {moment(doc.expires_at)}")
    if doc.next_at is not None:
        yield line(f"next window begins at {moment(doc.next_at)}")
    by = f"set by {doc.created_by} at {moment(doc.created_at)}"
    yield line(f"{by}: {row.why}" if row.why else by)
    if doc.pair is not None:
        yield line(f"set, and lifted, together with {doc.pair}")
    yield from (line(f"{name}: {value}") for name, value in row.others)
    yield line(f"applies to: {row.applies_to}")


def rule_changed_view(rule: RuleDoc, done: str, **how: Any) -> list[Block]:
    return changed_view(RulesDoc([rule]), done, **how)


def changed_view(
    found: RulesDoc, done: str, *, dry_run: bool, reached: str = "", past: str = ""
) -> list[Block]:
    """`reached`: the agents of the fleet, or who has it in the shard. `past`: what would have
    been otherwise, had it been there."""
    blocks: list[Block] = []
    for doc in found.rules:
        blocks.append(outcome(done, doc.id, dry_run=dry_run))
        blocks += [*_facts(RuleRow(doc)), *advice_of(doc.advice)]
    return [*blocks, *(line(told) for told in (reached, past) if told)]


# --- what they make of one client ---------------------------------------------------------------


def chance_text(doc: ExplainDoc) -> str:
    """Where dice have a say: nothing is thrown for an explanation. Empty where they have none."""
    if doc.odds is None:
        return ""
    by = f" (rule {doc.rule})" if doc.rule is not None else ""
    return f"with a chance of {share_of(doc.odds)}{by}"


def matched_view(matched: Sequence[MatchDoc]) -> list[Block]:
    if not matched:
        return [line(Said("no rule matches this client", "quiet"))]
    rows: list[list[Cell]] = []
    for match in matched:
        tone: Tone = "" if match.state == "applies" else "quiet"
        cells = (match.rule, match.target, match_state(match), match.says)
        rows.append([Said(cell, tone) for cell in cells])
    return [Table(columns("rule", "on", "state", "what"), rows)]


def match_state(match: MatchDoc) -> str:
    if match.ended_s_ago is not None:
        return f"ended {ago(match.ended_s_ago)}"
    if match.by is not None:
        return f"shadowed by {match.by}"
    left = f", {duration(match.left_s)} left" if match.left_s is not None else ""
    return f"{match.state}{left}"
