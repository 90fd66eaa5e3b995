"""The server's own ledger, charged from outside.   Debits ──► RegionLedger ──► region

The agent's checks and the server's statements debit one bucket, by the same core. That needs the
server's own user and the compiled core; without either, `fault` says which, and the agent keeps a
ledger of its own. Not root: a process with more rights than the server's user must not trust what
that user can rewrite.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from headgate.budgets.charging import asked, debit_of
from headgate.budgets.model import DebitResult, DebitState, budget_key
from headgate.budgets.native.debits import RegionDebits
from headgate.budgets.pgext.directory import ServerFile, read_server_file
from headgate.budgets.pgext.region import opened_region
from headgate.budgets.pgext.threads import OneCall
from headgate.budgets.policy import Budget
from headgate.errors import HeadgateError, MeterFailed, NativeUnavailable
from headgate.metrics.samples import Instant


@dataclass(frozen=True, slots=True)
class _Reached:
    server: ServerFile
    inode: int
    """Of its memory: another one after a restart, were all numbers the same."""
    debits: RegionDebits


class RegionLedger:
    """The SharedLedger of one server on this host, restarted or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reaching = OneCall(f"reaching the ledger of {directory}", MeterFailed)
        self._reached: _Reached | None = None
        self._fault = "it has not been looked for yet"
        self._has_no_core = False

    @property
    def fault(self) -> str:
        return self._fault

    def describe(self) -> str:
        reached = self._reached
        return "the server's own" if reached is None else f"the server's own ({reached.server.pid})"

    async def tend(self) -> None:
        try:
            await self._reaching.run(self.tend_now)
        except MeterFailed as error:
            self._fault = str(error)

    def tend_now(self) -> None:
        if self._has_no_core:
            return
        try:
            self._reach(read_server_file(self._directory))
            self._fault = ""
        except NativeUnavailable as error:
            # Nor will it have one in a second: not a compiler's run each time.
            self._fault, self._reached, self._has_no_core = str(error), None, True
        except (HeadgateError, OSError) as error:
            self._fault, self._reached = str(error), None

    def _reach(self, server: ServerFile) -> None:
        known = self._reached
        with opened_region(server, self._directory, writable=True) as fd:
            inode = os.fstat(fd).st_ino
            if known is None or (known.server, known.inode) != (server, inode):
                mapping = mmap.mmap(fd, server.region_bytes, mmap.MAP_SHARED)
                self._reached = _Reached(server, inode, RegionDebits(mapping))

    def debit(
        self, budget: Budget, cost_ns: int, now: Instant, *, only_look: bool = False
    ) -> DebitResult:
        reached = self._reached
        if reached is None:
            return self._rests(budget, cost_ns, self._fault)
        ask = asked(cost_ns, now)
        charged = reached.debits.debit(budget_key(budget.name), ask, only_look=only_look)
        if charged is None:
            why = "the server has not got it yet, or was switched off (headgate pg disable)"
            if not reached.debits.is_on:
                why = "traffic control is switched off in the server itself"
            return self._rests(budget, cost_ns, why)
        answer, debt_ns, cpus_milli = charged
        return debit_of(budget, answer, debt_ns, cpus_milli, self.describe())

    def _rests(self, budget: Budget, cost_ns: int, why: str) -> DebitResult:
        note = f"budget {budget.name} is not charged: {why}"
        state, cost_s = DebitState.INACTIVE, cost_ns / 1e9
        return DebitResult(budget.name, state, cost_s, note=note, ledger=self.describe())
