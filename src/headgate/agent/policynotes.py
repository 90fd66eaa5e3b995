"""What the settings file and the fleet bring into a policy, for the audit.

Edition ──brought──► PolicyNotes ──► audit (policy.read, policy.followed), notes/policy/<database>

Nobody at this agent changed it, so it is no revision of the log. The note says which file and
which of the fleet's budgets were audited last: a start with the same ones is no change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import structlog

from headgate.agent.budgetedition import Change, Edition, audited, summary
from headgate.agent.budgetlayers import EMPTY
from headgate.agent.logwriter import beside
from headgate.agent.ports import Clock, OwnStore
from headgate.core.change import NOTES, OURSELVES, quoted
from headgate.core.keyvalue import Put
from headgate.core.records import AuditEntry
from headgate.core.stored import read_object
from headgate.traffic.policy import Policy

log = structlog.get_logger()

READ, FOLLOWED = "policy.read", "policy.followed"
"""Actions: the file's policy, and the fleet's, came into force."""
NOTHING = Edition(0, EMPTY, Policy())


class PolicyNotes:
    def __init__(self, database: str, store: OwnStore, clock: Clock) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._key = f"{NOTES}policy/{quoted(database)}"
        self._noted: str | None = None
        """The digest in the store; empty: there is none; None: it was not read yet."""
        self._before: Edition | None = None
        """As it was before the first change that is not audited yet."""
        self._brought: tuple[Edition, str] | None = None

    @property
    def is_noted(self) -> bool:
        """There has been one, as far as the store was read."""
        return bool(self._noted)

    @property
    def is_due(self) -> bool:
        return self._brought is not None

    def brought(self, before: Edition, after: Edition, action: str) -> None:
        """It is in force; the next `keep` audits it."""
        if self._noted is not None and self._before is None:
            self._before = before
        self._brought = (after, action)

    async def keep(self) -> None:
        """Raises StoreUnavailable where it cannot be: then it is still due."""
        due = self._brought
        if due is None:
            return
        if self._noted is None:
            self._noted = await self._read()
        (after, action), noted = due, self._noted
        size = len(after.policy.budgets)
        digest = await beside(size, lambda: _digest(after))
        if digest != (noted or NONE):
            audit = await beside(size, lambda: self._entries(after, action, noted))
            await self._store.commit((), (self._note(digest),), audit=audit)
            self._noted = digest
        if self._brought is due:
            self._brought, self._before = None, None

    def _entries(self, after: Edition, action: str, noted: str) -> list[AuditEntry]:
        """None where the document is as it was: what was changed here lies on top of it."""
        before = self._before if noted and self._before is not None else NOTHING
        change = Change(before, after, dry_run=False)
        if before.document == after.document:
            return []
        was, became = audited(change)
        what = summary(change)
        shown: Mapping[str, Any] | None = was
        if noted and self._before is None:  # It was another when the agent ran last.
            shown, what = None, "another than before the start"
        log.info(action, database=self._database, who=OURSELVES, what=what)
        now_s = self._clock.now().wall_s
        return [AuditEntry(now_s, OURSELVES, action, self._database, shown, became)]

    async def _read(self) -> str:
        entries = (await self._store.list((self._key,))).entries
        for entry in entries:
            if entry.key == self._key:
                try:
                    return str(read_object(entry.value).get("digest", ""))
                except ValueError as error:
                    log.error("policy.note_unreadable", key=entry.key, fault=str(error))
        return ""

    def _note(self, digest: str) -> Put:
        return Put(self._key, json.dumps({"digest": digest}).encode())


def _digest(edition: Edition) -> str:
    said = json.dumps(edition.layers.base, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


NONE = _digest(NOTHING)
