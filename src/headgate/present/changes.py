"""What operators changed: the log, one change of it, the audit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headgate.budgets.api import DifferenceDoc
from headgate.changes.api import (
    ChangeDifferenceDoc,
    ChangeDoc,
    ChangeExportDoc,
    ChangeMadeDoc,
    ChangeRevisionDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangesDoc,
    Log,
)
from headgate.check.api import AuditDoc, AuditsDoc
from headgate.check.reasons import duration
from headgate.present.view import DASH, Block, Cell, Line, Said, Table, Tone, columns, line
from headgate.present.words import advice_of

WIDE = 80
MAX_LINES = 100
MAX_VALUE_CHARS = 160
BOOKKEEPING = frozenset({"created_at", "created_by", "set_at", "ruled_at"})
"""What an entry of the audit says itself."""
_NAMED = {Log.AGENT: "this agent", Log.FLEET: "the fleet"}
_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)\.\d+(Z|[+-]\d\d:\d\d)")
_ABSENT = object()


def export_head(found: ChangeExportDoc) -> list[str]:
    """The first comment of the file, and one for each thing that no file can have."""
    where = "for the fleet" if found.log is Log.FLEET else "at this agent"
    return [f"What is set {where}, at revision {found.n}.", *found.left_out]


# --- the log ------------------------------------------------------------------------------------


def changes_view(found: ChangesDoc) -> list[Block]:
    nothing = "is set for it" if found.log is Log.FLEET else "is set at it"
    empty = [] if found.changes else [Said(f"; nothing {nothing}", "quiet")]
    head = Said(f"{_NAMED[found.log]} is at revision {found.n:,}", "strong")
    blocks: list[Block] = [line(head, *empty)]
    if found.changes:
        numbers = ("left", "revision")
        names = columns(
            "id", "reach", *numbers, "by", "what", right=numbers, revision=WIDE, by=WIDE
        )
        blocks.append(Table(names, [_change(one) for one in found.changes]))
    return [*blocks, *(line(Said("UNREADABLE  ", "bad"), told) for told in found.rejected)]


def _change(one: ChangeDoc) -> list[Cell]:
    tone: Tone = "bad" if one.state == "unreadable" else ""
    quiet: Tone = "" if one.state == "in_force" else "quiet"
    left: Cell = DASH if one.left_s is None else duration(one.left_s)
    left = left if one.state == "in_force" else Said(one.state, "quiet")
    what = Said(f"{one.kind}: {one.says}", tone or quiet)
    return [one.id, Said(one.reach, "info"), left, f"{one.n:,}", one.set_by, what]


def history_view(found: ChangeRevisionsDoc) -> list[Block]:
    if not found.revisions:
        return [line(Said("no revision is kept", "quiet"))]
    rows: list[list[Cell]] = [
        [f"{one.n:,}", _second(one.at), one.who, _did(one)] for one in found.revisions
    ]
    flag = " --fleet" if found.log is Log.FLEET else ""
    back = f"`headgate changes rollback N{flag} --dry-run` shows the way back to how it was after N"
    names = columns("revision", "at", "by", "what", right=("revision",))
    return [Table(names, rows), line(Said(back, "quiet"))]


def _did(one: ChangeRevisionDoc) -> Line:
    marks = [Said("  (in force)", "good")] if one.is_current else []
    marks += [Said("  CANNOT BE READ HERE", "bad")] if one.unread is not None else []
    return line(f"{one.action}: {one.summary}" if one.action else "", *marks)


def _second(at: str | None) -> str:
    """A person is not interested in its fractions."""
    return "?" if at is None else _FRACTION.sub(r"\1\2", at)


def revision_view(whole: ChangeRevisionWholeDoc) -> list[Block]:
    about = whole.about
    did = f"  {about.action}, at {_second(about.at)}, by {about.who}" if about.action else ""
    mark = [Said("  (in force)", "good")] if about.is_current else []
    blocks: list[Block] = [line(Said(f"revision {about.n:,}", "strong"), did, *mark)]
    blocks += difference_lines(whole.difference, whole.difference_total)
    if about.unread is not None:
        blocks += [line(about.summary)] if about.summary else []
        told = f"  its changes, by this agent's version: {about.unread}"
        blocks.append(line(Said("CANNOT BE READ HERE", "bad"), told))
    return blocks


# --- one change ---------------------------------------------------------------------------------


def made_view(change: ChangeMadeDoc, done: str) -> list[Block]:
    told = difference_lines(change.difference, change.difference_total)
    return [_outcome(change, done), *told, *_reached(change), *advice_of(change.advice)]


def tried_view(change: ChangeMadeDoc) -> list[Block]:
    if not change.changed:
        same = f"no difference: {_NAMED[change.log]} is so, at revision {change.before_n:,}"
        return [line(Said(same, "good"))]
    told = difference_lines(change.difference, change.difference_total)
    replayed = [line(said) for said in change.replay]
    return [*told, *replayed, *_reached(change), *advice_of(change.advice)]


def _reached(change: ChangeMadeDoc) -> Iterator[Line]:
    for one in (change.reached, change.copies) if change.changed else ():
        if one is not None:
            yield line(one.says)


def _outcome(change: ChangeMadeDoc, done: str) -> Line:
    where = _NAMED[change.log]
    if not change.changed:
        told = f"  it is so already; {where} is at revision {change.after_n:,}"
        return line(Said("UNCHANGED", "strong"), told)
    if change.dry_run:
        told = f"  (dry run: nothing was changed; {where} is at revision {change.before_n:,})"
        return line(Said(f"WOULD BE {done}", "warned"), Said(told, "quiet"))
    times = f", in {change.revisions:,} revisions" if change.revisions > 1 else ""
    was = Said(f" (was {change.before_n:,}{times})", "quiet")
    return line(Said(done, "good"), f"  {where} is at revision {change.after_n:,}", was)


_MARKS = {"added": Said("+ ", "good"), "removed": Said("- ", "bad"), "out": Said("- ", "bad")}


def difference_lines(
    differences: Sequence[DifferenceDoc | ChangeDifferenceDoc], total: int, most: int = MAX_LINES
) -> Iterator[Line]:
    """`+ etl: new, warn, rate 20`, as many as fit."""
    for one in differences[:most]:
        yield line(_MARKS.get(one.kind.rpartition(" ")[2], Said("~ ", "warned")), one.line)
    if (more := total - min(len(differences), most)) > 0:
        yield line(Said(f"and {more:,} more differences: --json", "quiet"))


# --- the audit ----------------------------------------------------------------------------------


class SettingChange(NamedTuple):
    mark: str
    """`+` set, `−` taken out, `~` put another way."""
    words: str
    """The same for those who do not see marks."""
    setting: str
    before: str
    after: str

    def told(self, gone: str = "none") -> str:
        """`threshold: 5 → 9`; `gone`: what a setting is that was taken out."""
        before = f"{self.before} → " if self.before else ""
        return f"{self.setting}: {before}{self.after or gone}"


def settings_changed(before: Any, after: Any) -> Iterator[SettingChange]:
    """Settings that differ, by their place: `schedule.days`, `budgets[0].rate`."""
    was, now = dict(_flat(before, "")), dict(_flat(after, ""))
    for name in [*was, *(name for name in now if name not in was)]:
        old, new = was.get(name, _ABSENT), now.get(name, _ABSENT)
        if old == new or name in BOOKKEEPING:
            continue
        if old is _ABSENT:
            yield SettingChange("+", "set", name, "", _told(new))
        elif new is _ABSENT:
            yield SettingChange("−", "taken out", name, _told(old), "")
        else:
            yield SettingChange("~", "changed", name, _told(old), _told(new))


def _flat(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for at, inner in enumerate(value):
            yield from _flat(inner, f"{place}[{_name(inner, at)}]")
    elif value is not None:
        yield place, value


def _name(value: Any, at: int) -> str:
    """By its name, where it has one: what moves within a list has not changed."""
    name = value.get("name", value.get("id")) if isinstance(value, Mapping) else None
    return name if isinstance(name, str) else str(at)


def _told(value: Any) -> str:
    text = _FRACTION.sub(r"\1\2", _text(value))
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return msgspec.json.encode(value).decode()


def audit_view(found: AuditsDoc) -> list[Block]:
    if not found.audit:
        return [line(Said("nothing was changed yet", "quiet"))]
    rows: list[list[Cell]] = []
    for entry in found.audit:
        at = entry.at.replace("T", " ").split(".")[0].removesuffix("Z")
        rows.append([at, entry.who, entry.action, entry.target, audit_change(entry)])
    return [Table(columns("when (UTC)", "who", "what", "on", "change"), rows)]


def audit_change(entry: AuditDoc) -> Said:
    if entry.after is None:
        return Said("removed", "warned")
    changed = "; ".join(one.told() for one in settings_changed(entry.before, entry.after))
    return Said(changed or "nothing")
