"""How long whom an exemption has starved, over all stretches and restarts (R79).

Watch ──findings──► Charges ──every few seconds──► Accounts (RuleKeeper, with the rule itself)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.core.rules import RuleBook
from headgate.core.starvation import Starved

MAX_CHARGED = 100
"""Clients of one exemption."""
MAX_KEPT = 20
"""Of those, the ones that are worst off: the budget is theirs."""
MAX_STRETCHES = 20
EARLIER = float("-inf")
KEEP_S = 3.0


class Accounts(Protocol):
    """Where charges outlive the process."""

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """`database client` → seconds, as it was kept last."""
        ...

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None: ...


class Charges:
    def __init__(self, accounts: Accounts | None = None) -> None:
        self._accounts = accounts
        self._stretches: dict[str, dict[str, dict[float, float]]] = {}
        """Rule → `database client` → when the stretch began → how long it is."""
        self._kept_at: dict[str, float] = {}

    def add(self, finding: Starved, book: RuleBook) -> float:
        """What the one who is worst off has been charged for by now, in seconds."""
        for gone in [rule_id for rule_id in self._stretches if rule_id not in book]:
            del self._stretches[gone]
            self._kept_at.pop(gone, None)
        by_client = self._of(finding.rule)
        who = f"{finding.database} {finding.client}"
        if who not in by_client and len(by_client) >= MAX_CHARGED:
            return finding.for_s
        mine = by_client.setdefault(who, {})
        mine[finding.since_s] = finding.for_s
        spent_s = sum(mine.values())
        if len(mine) > MAX_STRETCHES:  # Their sum is all that matters of the old ones.
            by_client[who] = {EARLIER: spent_s - finding.for_s, finding.since_s: finding.for_s}
        return spent_s

    async def keep(self, rule_id: str, now_s: float, *, at_once: bool = False) -> None:
        """Lest a restart refill the budget; a crash costs a few seconds of it at most."""
        last_s = self._kept_at.get(rule_id, EARLIER)
        if self._accounts is None or (now_s - last_s < KEEP_S and not at_once):
            return
        self._kept_at[rule_id] = now_s
        sums = {who: round(sum(of.values()), 3) for who, of in self._of(rule_id).items()}
        worst = sorted(sums, key=lambda who: sums[who], reverse=True)[:MAX_KEPT]
        charged = {who: sums[who] for who in worst}
        if charged != self._accounts.charged(rule_id):
            await self._accounts.charge(rule_id, charged)

    def _of(self, rule_id: str) -> dict[str, dict[float, float]]:
        known = self._stretches.get(rule_id)
        if known is None:
            before = self._accounts.charged(rule_id) if self._accounts is not None else {}
            known = {who: {EARLIER: spent_s} for who, spent_s in before.items()}
            self._stretches[rule_id] = known
        return known
