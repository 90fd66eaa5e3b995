"""How near to its threshold what a check looks at is: 1 is at it. The same for all who tell it."""

from __future__ import annotations

from headgate.base.names import Scope
from headgate.check.decide import findings
from headgate.check.health import Health, Selection
from headgate.check.model import Check, Decision

MAX_UTILIZATION = 1e9
"""JSON knows no infinity."""


def utilization(decision: Decision) -> float:
    check, health = decision.check, decision.health
    if health is None:
        return 0.0
    if not check.metrics:
        worst = _selection(check, health).worst
        return _share(worst.utilization) if worst else 0.0
    shares = [
        f.value / f.threshold for f in findings(decision) if f.value is not None and f.threshold
    ]
    return _share(max(shares, default=0.0))


def _selection(check: Check, health: Health) -> Selection:
    if check.scope is None:
        return health.default
    return health.host if check.scope is Scope.HOST else health.whole


def _share(share: float) -> float:
    return round(min(share, MAX_UTILIZATION), 4)
