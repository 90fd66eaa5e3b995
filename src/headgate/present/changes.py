"""What operators changed: the log, one change of it, the audit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple

import msgspec

from headgate.budgets.difference import PolicyDifference
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
from headgate.present.words import advice_of, age, moment
from headgate.rules.matching import DiceOrder

WIDE = 80
MAX_LINES = 100
MAX_VALUE_CHARS = 160
BOOKKEEPING = frozenset(
    {"created_at", "created_by", "set_at", "ruled_at", "ruled_s", "rule_time", "id", "name"}
    | {"who", "set_wall_s"}
)
"""What an entry of the audit says itself, or an agent notes for itself."""
_NAMED = {Log.AGENT: "this agent", Log.FLEET: "the fleet"}
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
    return "?" if at is None else moment(at)


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
    return [_outcome(change, done), *_does(change)]


def tried_view(change: ChangeMadeDoc) -> list[Block]:
    if not change.changed:
        same = f"no difference: {_NAMED[change.log]} is so, at revision {change.before_n:,}"
        return [line(Said(same, "good"))]
    return list(_does(change))


def _does(change: ChangeMadeDoc) -> Iterator[Block]:
    yield from difference_lines(change.difference, change.difference_total)
    yield from map(line, change.replay)
    yield from _reached(change)
    yield from advice_of(change.advice)


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
    differences: Sequence[PolicyDifference | ChangeDifferenceDoc], total: int, most: int = MAX_LINES
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


def settings_changed(before: Any, after: Any, zone: tzinfo | None) -> Iterator[SettingChange]:
    """Settings that differ, by their place: `schedule days`, `budget etl server share`."""
    was, now = dict(_flat(before, "")), dict(_flat(after, ""))
    for name in [*was, *(name for name in now if name not in was)]:
        old, new = was.get(name, _ABSENT), now.get(name, _ABSENT)
        leaf = name.rpartition(".")[2]
        if old == new or leaf in BOOKKEEPING or (old is _ABSENT and (leaf, new) in _USUAL):
            continue
        label = _label(name)
        if old is _ABSENT:
            yield SettingChange("+", "set", label, "", _told(name, new, zone))
        elif new is _ABSENT:
            yield SettingChange("−", "taken out", label, _told(name, old, zone), "")
        else:
            told = (_told(name, value, zone) for value in (old, new))
            yield SettingChange("~", "changed", label, *told)


_USUAL = (("order", DiceOrder.BEFORE.value),)
"""As a new rule has them unless its author says otherwise."""
_LABELS = {
    "rate": "server share",
    "capacity": "burst limit",
    "burst": "per-query limit",
    "max_workers": "concurrency limit",
    "mode_cap": "all budgets at most",
    "rules": "rule",
    "budgets": "budget",
    "expires_at": "ends",
    "until_wall_s": "ends",
    "lifted_by": "lifted by",
}
_PERCENT = frozenset({"rate", "ratio"})


def _label(name: str) -> str:
    """`budgets.etl.rules[0].match.username` → `budget etl rule 1 match username`."""
    parts = re.sub(r"\[(\d+)\]", lambda n: f".{int(n[1]) + 1}", name).replace("[", ".")
    words = [_LABELS.get(one, one) for one in parts.replace("]", "").split(".")]
    plain = " ".join(re.sub(r"(_wall)?_s$", "", word) for word in words if word != "policy")
    return plain.replace("_", " ")


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


def _told(name: str, value: Any, zone: tzinfo | None) -> str:
    """A time as a time, a length with its unit, a share as one."""
    key = name.rpartition(".")[2]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key.endswith("wall_s"):
            return _when(datetime.fromtimestamp(value, tz=UTC), zone)
        if key.endswith("_s"):
            return age(value) if value >= 1 else duration(value)
        if key in _PERCENT:
            return f"{value * (100 if key == 'ratio' else 1):g}%"
    text = _text(value)
    if _ISO.fullmatch(text):
        return _when(datetime.fromisoformat(text), zone)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def _when(at: datetime, zone: tzinfo | None) -> str:
    return at.astimezone(zone).strftime("%-d %b %H:%M:%S")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return msgspec.json.encode(value).decode()


_ACTIONS = {
    "metric.set": "changed metric",
    "metric.revert": "reverted metric",
    "metric.remove": "removed metric",
    "skip.set": "skipped member",
    "skip.removed": "counts again member",
    "policy.read": "read the policy file of",
    "policy.set": "replaced the policy of",
    "policy.capped": "capped all budgets of",
    "policy.uncapped": "let all budgets work again on",
    "budget.forgiven": "forgave the debt of budget",
    "state.acknowledged": "accepted the lost state of",
}


def did_words(action: str) -> str:
    """`rule.lifted` → `lifted rule`."""
    kind, _, verb = action.partition(".")
    plain = f"{verb} {kind}".replace("_", " ").strip()
    return _ACTIONS.get(action, plain)


@dataclass(frozen=True, slots=True)
class AuditLine:
    at: str
    day: str
    who: str
    action: str
    did: str
    target: str
    lines: tuple[SettingChange, ...]
    more: int
    """Lines beyond those."""
    kept: str
    """As it was kept, in JSON."""


MAX_AUDIT_LINES = 6
MAX_KEPT_CHARS = 20_000


def _kept(doc: AuditDoc) -> str:
    told = {"before": doc.before, "after": doc.after}
    text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
    if len(text) <= MAX_KEPT_CHARS:
        return text
    return f"{text[:MAX_KEPT_CHARS]}\n… {len(text) - MAX_KEPT_CHARS:,} characters more"


def audit_line(doc: AuditDoc, zone: tzinfo | None) -> AuditLine:
    at = datetime.fromisoformat(doc.at).astimezone(zone)
    # Of what is gone, all that it was says nothing new.
    gone = doc.after is None and doc.before is not None
    lines = [] if gone else list(settings_changed(doc.before, doc.after, zone))
    most = MAX_AUDIT_LINES if len(lines) > MAX_AUDIT_LINES + 1 else len(lines)
    return AuditLine(
        at=doc.at,
        day=f"{at:%A} {at.day} {at:%B %Y}",
        who=doc.who,
        action=doc.action,
        did=did_words(doc.action),
        target=doc.target,
        lines=tuple(lines[:most]),
        more=len(lines) - most,
        kept=_kept(doc),
    )


NOTHING_CHANGED = "nothing was changed yet"


def audit_view(found: AuditsDoc) -> list[Block]:
    if not found.audit:
        return [line(Said(NOTHING_CHANGED, "quiet"))]
    rows: list[list[Cell]] = []
    for entry in found.audit:
        at = moment(entry.at)
        rows.append([at, entry.who, entry.action, entry.target, audit_change(entry)])
    return [Table(columns("when", "who", "what", "on", "change"), rows)]


def audit_change(entry: AuditDoc) -> Said:
    if entry.after is None:
        return Said("removed", "warned")
    changed = "; ".join(one.told() for one in settings_changed(entry.before, entry.after, None))
    return Said(changed or "nothing")
