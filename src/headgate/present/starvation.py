"""Starved clients and rogue clients: what is wrong, why, and what to do about it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from headgate.history.api import RoguesDoc, StarvationDoc, SuspectDoc, starved_says, starved_why
from headgate.history.starvation import LOOK, Starved
from headgate.present.view import DASH, Block, Line, Note, Said, Step, Table, Tone, columns, line
from headgate.present.words import told_share

FOR = "30m"
MAX_SUSPECTS = 20
LOUD_SHARE = 0.05
"""Share of a database's activity from which on a rogue client is marked."""
NOBODY_STARVED = "no client is starved"
NO_ROGUES = "every client at work in the databases checks, as far as its sessions show"


# --- starved ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remedy:
    words: str
    href: str
    """Of the form that does it, filled in."""
    command: str = ""
    is_change: bool = True


@dataclass(frozen=True, slots=True)
class StarvedRow:
    doc: Starved
    word: str
    tone: Tone
    says: str
    why: str
    evidence: str
    remedies: tuple[Remedy, ...]

    @property
    def note(self) -> Note:
        steps = tuple(Step(one.words, one.command) for one in self.remedies if one.command)
        return Note(self.word, self.tone, f"{self.says}: {self.why}", steps)


def starved_rows(found: Iterable[Starved]) -> list[StarvedRow]:
    """Those above the waterline first, then the longest."""
    ordered = sorted(found, key=lambda one: (not one.alarming, -one.starved_s))
    return [_row(one) for one in ordered]


def _row(doc: Starved) -> StarvedRow:
    evidence = (
        f"{doc.metric} was above its threshold for {told_share(doc.breached_share)} of that time, "
        f"at {doc.mean_utilization:.1f} times it on average; {doc.rejections:,} checks were "
        "rejected"
    )
    return StarvedRow(
        doc=doc,
        word="starved" if doc.alarming else "waits",
        tone="bad" if doc.alarming else "warned",
        says=starved_says(doc),
        why=starved_why(doc),
        evidence=evidence,
        remedies=remedies(doc),
    )


def starvation_view(found: StarvationDoc) -> list[Block]:
    rows = starved_rows(found.starved)
    return [row.note for row in rows] or [line(Said(NOBODY_STARVED, "good"))]


def remedies(starved: Starved) -> tuple[Remedy, ...]:
    """The proposed one first; favoring the starved client is always one."""
    reason = f"starved by {starved.metric}"
    favor = Remedy(
        f"Favor {starved.client}",
        rule_form("favor", starved.client, starved.database, reason=reason),
        f"headgate favor {starved.client} --for {FOR} --reason {shlex.quote(reason)}",
    )
    proposed = _proposed(starved) if starved.proposal else None
    return (proposed, favor) if proposed is not None else (favor,)


def _proposed(starved: Starved) -> Remedy | None:
    command, where = starved.proposal, starved.database
    said = {"reason": f"{starved.client} is starved by it"}
    match shlex.split(command):
        case ["headgate", "rule", "lift", rule]:
            return Remedy(f"Lift rule {rule}", f"/rules/{quote(rule, safe='')}/lift", command)
        case ["headgate", "rule", "ratio", target, ratio, "--database", "all", "--for", lasts]:
            href = rule_form("ratio", target, where, lasts, ratio=ratio, **said)
            return Remedy(f"Throttle {target} by ratio", href, command)
        case ["headgate", "rule", "metrics", target, "--database", "all", *metrics, "--for", lasts]:
            href = rule_form("metrics", target, where, lasts, metrics=",".join(metrics), **said)
            return Remedy(f"Check {target} by the same metrics", href, command)
        case ["headgate", "clients", "--rogue"]:
            return Remedy("List rogue clients", "/clients#rogues", command, is_change=False)
    return None if command == LOOK else Remedy("Look", "/clients", command, is_change=False)


def rule_form(kind: str, target: str, database: str, lasts: str = FOR, **more: str) -> str:
    """The form for a new rule, filled in; fields are named as in the API."""
    fields = {"kind": kind, "target": target, "database": database, "for": lasts, **more}
    return f"/rules/new?{urlencode({name: value for name, value in fields.items() if value})}"


def client_remedies(app: str, database: str) -> tuple[Remedy, ...]:
    """What an operator can do to, or for, a client."""
    return (
        Remedy("Hold", rule_form("hold", app, database)),
        Remedy("Throttle by ratio", rule_form("ratio", app, database, ratio="0.5")),
        Remedy("Favor", rule_form("favor", app, database)),
        Remedy("Exempt", rule_form("exempt", app, database)),
    )


# --- rogue clients ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SuspectRow:
    doc: SuspectDoc
    tone: Tone
    program: str
    cells: Mapping[str, str]
    """By the name of its column."""
    budget_href: str
    """The form for a budget on it, filled in."""


SUSPECT_COLUMNS = ("user", "from", "database", "sessions", "at work", "of activity")
SUSPECT_NUMBERS = ("sessions", "at work", "of activity")


def suspect_rows(found: Iterable[SuspectDoc]) -> list[SuspectRow]:
    """The busiest first."""
    return [_suspect(one) for one in sorted(found, key=lambda one: -one.share)[:MAX_SUSPECTS]]


def _suspect(doc: SuspectDoc) -> SuspectRow:
    who = {"username": doc.user, "application_name": doc.application}
    query = urlencode({name: value for name, value in who.items() if value})
    numbers = (f"{doc.sessions:,}", f"{doc.active_mean:.1f}", told_share(doc.share))
    cells = (doc.user, doc.host or DASH, doc.database, *numbers)
    return SuspectRow(
        doc=doc,
        tone="warned" if doc.share >= LOUD_SHARE else "",
        program=doc.application or "(no application_name)",
        cells=dict(zip(SUSPECT_COLUMNS, cells, strict=True)),
        budget_href=f"/budgets/{quote(doc.database, safe='')}/new?{query}",
    )


def rogue_faults(found: RoguesDoc) -> list[Note]:
    """A database whose sessions cannot be listed clears no client."""
    return [
        Note("not listed", "warned", f"the sessions of {one.database}: {one.detail}")
        for one in found.faults
    ]


def rogues_view(found: RoguesDoc) -> list[Block]:
    blocks: list[Block] = list(rogue_faults(found))
    if found.suspects:
        names = columns("program", *SUSPECT_COLUMNS, right=SUSPECT_NUMBERS)
        rows: Sequence[Sequence[str | Said | Line]] = [
            [Said(row.program, row.tone), *row.cells.values()]
            for row in suspect_rows(found.suspects)
        ]
        return [*blocks, Table(names, rows)]
    return blocks or [line(Said(NO_ROGUES, "good"))]
