"""Rogue clients: they work in a database and never check.   sessions probe ──► Rogues ──► status

Every ten seconds while the database is awake, on a connection that its probes share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from headgate.base.ports import Clock
from headgate.check.demand import Demands
from headgate.check.model import Activity
from headgate.errors import ProbeFailed
from headgate.history.recorder import Recorder
from headgate.history.sessions import Presence, SessionGroup, Suspect, suspects

log = structlog.get_logger()

LOOK_INTERVAL_S = 10.0
RETRY_INTERVAL_S = 2.0
KEEP = 0.98
"""Weight of a look after the next one: about eight minutes are remembered."""
MAX_SUSPECTS = 50


class SessionsProbe(Protocol):
    async def read(self) -> Sequence[SessionGroup]:
        """Or ProbeFailed with the cause."""
        ...


class Rogues:
    def __init__(
        self,
        recorder: Recorder,
        demands: Demands,
        clock: Clock,
        open_probe: Callable[[str], SessionsProbe | None],
    ) -> None:
        """`open_probe`: that of a database as it is now; None where there is none."""
        self._recorder = recorder
        self._demands = demands
        self._clock = clock
        self._open_probe = open_probe
        self._presences: dict[str, Presence] = {}
        self.faults: dict[str, str] = {}
        """Databases whose sessions cannot be listed, and why."""

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(RETRY_INTERVAL_S if self.faults else LOOK_INTERVAL_S)

    async def look(self) -> None:
        awake = [
            name
            for name, demand in list(self._demands.by_database.items())
            if demand.state is not Activity.HIBERNATING
        ]
        # What was seen before a rest is no longer so: not even the fault.
        for unseen in set(self.databases) - set(awake):
            self._presences.pop(unseen, None)
            self.faults.pop(unseen, None)
        for database in awake:
            await self._look_at(database)

    async def _look_at(self, database: str) -> None:
        probe = self._open_probe(database)
        if probe is None:
            return
        try:
            groups = await probe.read()
        except ProbeFailed as failure:
            if database not in self.faults:
                log.warning("sessions.not_listed", database=database, detail=failure.detail)
            self.faults[database] = failure.detail
            return
        self.faults.pop(database, None)
        presence = self._presences.get(database, Presence())
        self._presences[database] = presence.after(groups, keep=KEEP)

    def suspects(self, database: str) -> tuple[Suspect, ...]:
        """Most active first; empty as well where nothing has been listed yet."""
        presence = self._presences.get(database)
        if presence is None:
            return ()
        return suspects(presence, self._recorder.tokens(database))[:MAX_SUSPECTS]

    @property
    def databases(self) -> list[str]:
        return sorted(self._presences.keys() | self.faults.keys())
