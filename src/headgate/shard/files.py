"""Members of shards in a file of changes.   FileEntry + LogState ──MemberRoom──► Change

[[peers]]                             [[skips]]
shard = "commerce/-80"                shard = "commerce/-80"
member = "db-b"                       member = "db-b"
url = "https://db-b:8087"             reason = "rebuilt"
database = "main"                     expires_at = "2026-11-16T18:00:00Z"   or for = "2h"

[[handovers]]                         announced where the server is the primary
shard = "commerce/-80"
reason = "upgrade"
for = "10m"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.base.declared import parse_date_time, parse_for, unknown
from headgate.base.names import parse_database
from headgate.base.units import duration_text
from headgate.changes.file_format import FileEntry
from headgate.changes.items import put, standing
from headgate.changes.model import Change, Edit
from headgate.changes.reach import HERE, Level, Reach
from headgate.changes.state import LogState, stands
from headgate.changes.time import iso
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.lint import Advice
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.handovers import HANDOVER
from headgate.shard.model import MAX_HANDOVER_S, MAX_MEMBERS, MAX_SKIP_S
from headgate.shard.service import PEER, RUNTIME, SKIP
from headgate.shard.shard import Shard
from headgate.shard.topology import Role

MEMBERS = (PEER, SKIP, HANDOVER)
MAX_REASON_CHARS = 500
_KEYS = {
    SKIP: ("shard", "member", "expires_at", "for", "reason"),
    PEER: ("shard", "member", "url", "database"),
    HANDOVER: ("shard", "member", "expires_at", "for", "reason"),
}


class MemberRoom:
    """Implements changefiles.Room, for skips, peers and handovers."""

    def __init__(self, shards: Mapping[str, Shard], parse_url: Callable[[str], str]) -> None:
        """`shards`: of this agent, by name. `parse_url`: InvalidName for what is no agent's."""
        self._shards = shards
        self._parse_url = parse_url

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        reading = _Reading(entry)
        if entry.kind == HANDOVER and entry.reach != HERE:
            reading.fault("reach", f"is {entry.reach}, must be {HERE}: its own agent announces it")
        elif entry.reach not in _reaches(entry):
            of_shard = _reaches(entry)[1]
            reading.fault("reach", f"is {entry.reach}, must be {of_shard}: a shard has members")
        shard = self._shards.get(entry.raw["shard"])
        if shard is None:
            known = ", ".join(sorted(self._shards)) or "none"
            reading.fault("shard", f"is not a shard of this agent; it has: {known}")
            raise InvalidSettings(reading.faults)
        if entry.kind == SKIP:
            self._check_skipped(held, shard, reading)
            value = reading.skip(asked)
        elif entry.kind == HANDOVER:
            value = reading.handover(shard, asked)
        else:
            _check_new(shard, reading)
            value = reading.peer(self._parse_url)
        if reading.faults:
            raise InvalidSettings(reading.faults)
        change = put(held, entry.kind, entry.id, value, asked, entry.reach)
        assert change.after is not None
        return change.after, ()

    def _check_skipped(self, held: LogState, shard: Shard, reading: _Reading) -> None:
        """`held` has peers that the file adds, too."""
        entry, names = reading.entry, _names(shard)
        added = standing(held, PEER, entry.id, _reaches(entry))
        if entry.raw["member"] not in names and not added:
            known = ", ".join(sorted(names))
            reading.fault("member", f"is not a member of {shard.name}; it has {known}")

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        """No shard has too many members by it."""
        after = [one.after for one in changes if one.after is not None and one.after.kind == PEER]
        members = {name: set(shard.remotes) for name, shard in self._shards.items()}
        for item in after:
            shard, _, member = item.id.rpartition(" ")
            of = members.get(shard, set())
            (of.add if stands(item, asked.wall_s) else of.discard)(member)
        for shard, names in members.items():
            if after and len(names) > MAX_MEMBERS:
                message = f"{shard} would have {len(names)} members, at most {MAX_MEMBERS}"
                raise InvalidSettings([Fault("peers", message)])
        return ()


def _check_new(shard: Shard, reading: _Reading) -> None:
    """One that an operator added may be changed; those of the settings, and found ones, stay."""
    member = reading.entry.raw["member"]
    remote = shard.remotes.get(member)
    if member in _names(shard) and (remote is None or remote.source != RUNTIME):
        reading.fault("member", f"is already a member of {shard.name}, from another source")


def _reaches(entry: FileEntry) -> tuple[Reach, Reach]:
    """At one agent, and at all of the shard."""
    return HERE, Reach(Level.SHARD, entry.raw["shard"])


def _names(shard: Shard) -> set[str]:
    return {*shard.remotes, *(member.name for member in shard.locals.values())}


@dataclass(slots=True)
class _Reading:
    """An entry, and what is wrong with it."""

    entry: FileEntry
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = _KEYS[self.entry.kind]
        for key in self.entry.raw:
            if key not in known:
                self.fault(key, unknown(key, known))

    def fault(self, key: str, message: str) -> None:
        self.faults.append(Fault(f"{self.entry.place}.{key}", message))

    def skip(self, asked: ChangeAuthor) -> dict[str, Any]:
        reason = self.entry.raw.get("reason")
        if not isinstance(reason, str) or not 1 <= len(reason) <= MAX_REASON_CHARS:
            self.fault("reason", f"must be a text of 1–{MAX_REASON_CHARS} characters")
        end_s = self._end_s(asked.wall_s)
        return {
            "until_wall_s": end_s,
            "expires_at": iso(math.ceil(end_s)),
            "who": asked.who,
            "reason": reason,
            "set_wall_s": asked.wall_s,
        }

    def handover(self, shard: Shard, asked: ChangeAuthor) -> dict[str, Any]:
        """As Handovers.announce."""
        raw, role = self.entry.raw, None
        reason = raw.get("reason", "")
        if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
            self.fault("reason", f"must be a text of at most {MAX_REASON_CHARS} characters")
        locals_ = [one for one in shard.locals.values() if raw.get("member", one.name) == one.name]
        for one in locals_:
            role = one.role if one.role is not None and one.role.role is Role.PRIMARY else role
        if role is None:
            message = "no server of this agent is its primary: apply this at the primary's agent"
            self.fault("member" if "member" in raw else "shard", message)
        return {
            "member": locals_[0].name if locals_ else "",
            "term": None if role is None else role.term,
            "until_wall_s": self._end_s(asked.wall_s, MAX_HANDOVER_S),
            "who": asked.who,
            "reason": reason,
        }

    def peer(self, parse_url: Callable[[str], str]) -> dict[str, Any]:
        self._parsed("member", parse_database)
        url, database = self._parsed("url", parse_url), self._parsed("database", parse_database)
        return {"url": url, "database": database}

    def _parsed(self, key: str, parse: Callable[[str], str]) -> str:
        given = self.entry.raw.get(key)
        if not isinstance(given, str):
            self.fault(key, "is missing" if given is None else "must be a text")
            return ""
        try:
            return parse(given)
        except InvalidName as error:
            self.fault(key, str(error).replace("database name", f"{key} name"))
            return ""

    def _end_s(self, wall_s: float, most_s: float = MAX_SKIP_S) -> float:
        given = [key for key in ("expires_at", "for") if self.entry.raw.get(key) is not None]
        if len(given) != 1:
            self.fault(given[-1] if given else "expires_at", "give either expires_at or for")
            return wall_s
        (key,) = given
        said = self.entry.raw[key]
        try:
            end_s = parse_date_time(said) if key == "expires_at" else wall_s + parse_for(said)
        except ValueError as error:
            self.fault(key, str(error))
            return wall_s
        if not wall_s < end_s <= wall_s + most_s:
            self.fault(key, f"is {said!r}, must be within the next {duration_text(most_s)}")
        return end_s
