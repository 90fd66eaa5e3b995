"""A change as lines that can be read: what was, what is. Pure.   AuditDoc ──► Entry"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headgate.present.changes import SettingChange, settings_changed
from headgate.wire.status import AuditDoc

MAX_LINES = 12
"""Of one change; the rest is in what was kept."""
MAX_KEPT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Entry:
    at: str
    day: str
    time: str
    who: str
    action: str
    target: str
    lines: tuple[SettingChange, ...]
    more: int
    """Lines beyond those."""
    kept: str
    """As it was kept, in JSON."""


def entry_of(doc: AuditDoc) -> Entry:
    at = datetime.fromisoformat(doc.at).astimezone(UTC)
    lines = list(settings_changed(doc.before, doc.after))
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
