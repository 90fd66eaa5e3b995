"""A change as lines that can be read: what was, what is. Pure.   AuditDoc ──► Entry"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from headgate.wire.status import AuditDoc

MAX_LINES = 12
"""Of one change; the rest is in what was kept."""
MAX_VALUE_CHARS = 160
MAX_KEPT_CHARS = 20_000
BOOKKEEPING = frozenset({"created_at", "created_by", "set_at", "ruled_at"})
"""What the entry says itself: they are in what was kept."""
ABSENT = object()
_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)\.\d+(Z|[+-]\d\d:\d\d)")


class Line(NamedTuple):
    mark: str
    """`+` set, `−` taken out, `~` put another way."""
    words: str
    """The same for those who do not see marks."""
    setting: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Entry:
    at: str
    day: str
    time: str
    who: str
    action: str
    target: str
    lines: tuple[Line, ...]
    more: int
    """Lines beyond those."""
    kept: str
    """As it was kept, in JSON."""


def entry_of(doc: AuditDoc) -> Entry:
    at = datetime.fromisoformat(doc.at).astimezone(UTC)
    lines = list(difference(doc.before, doc.after))
    return Entry(
        at=doc.at,
        day=f"{at.day} {at:%b %Y}",
        time=f"{at:%H:%M:%S}",
        who=doc.who,
        action=doc.action,
        target=doc.target,
        lines=tuple(lines[:MAX_LINES]),
        more=max(0, len(lines) - MAX_LINES),
        kept=_kept(doc),
    )


def difference(before: Any, after: Any) -> Iterator[Line]:
    """Settings that differ, by their place: `schedule.days`, `budgets[0].rate`."""
    was, now = dict(_flat(before, "")), dict(_flat(after, ""))
    for name in [*was, *(name for name in now if name not in was)]:
        old, new = was.get(name, ABSENT), now.get(name, ABSENT)
        if old == new or name in BOOKKEEPING:
            continue
        if old is ABSENT:
            yield Line("+", "set", name, "", _told(new))
        elif new is ABSENT:
            yield Line("−", "taken out", name, _told(old), "")
        else:
            yield Line("~", "changed", name, _told(old), _told(new))


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


def _kept(doc: AuditDoc) -> str:
    told = {"before": doc.before, "after": doc.after}
    text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
    if len(text) <= MAX_KEPT_CHARS:
        return text
    return f"{text[:MAX_KEPT_CHARS]}\n… {len(text) - MAX_KEPT_CHARS:,} characters more"


# --- choosing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    who: str = ""
    action: str = ""
    target: str = ""

    @property
    def is_all(self) -> bool:
        return not (self.who or self.action or self.target)

    def meets(self, doc: AuditDoc) -> bool:
        return (
            self.who.lower() in doc.who.lower()
            and self.action in ("", doc.action)
            and self.target.lower() in doc.target.lower()
        )


def actions_of(docs: Sequence[AuditDoc], chosen: str) -> list[str]:
    """Those that there are, and the one that was asked for."""
    return sorted({doc.action for doc in docs} | ({chosen} if chosen else set()))
