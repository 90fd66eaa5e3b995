"""The answer to a check, as documents: an agent sends them, and the command line reads them.

Nothing that decides is imported here: `headgate check` loads this file, and no more of the room.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class MetricDoc(msgspec.Struct, frozen=True):
    metric: str
    scope: str
    state: str
    value: float | None
    unit: str
    threshold: float | None
    comparison: str
    age_ms: int | None
    cause: str | None
    """Why there is no current value, or what the value is based on; null: not known."""
    detail: str
    unavailable_for_ms: int | None

    @property
    def name(self) -> str:
        """With its scope, where that is not the host's own."""
        return self.metric if self.scope == "host" else f"{self.scope}/{self.metric}"

    @property
    def share(self) -> float | None:
        """Of the threshold; None where there is no value or nothing to compare with."""
        if self.value is None or not self.threshold:
            return None
        return self.value / self.threshold

    @property
    def over(self) -> bool:
        if self.value is None or self.threshold is None:
            return False
        return self.value > self.threshold or (
            self.comparison == ">=" and self.value == self.threshold
        )


class DebitDoc(msgspec.Struct, frozen=True):
    budget: str
    state: str
    """`charged`; `warned`, if the budget is in warn mode or nearly full; `over`; `inactive`, if the
    budget does not apply now; `unknown`."""
    cost_s: float
    debt_s: float | None
    """The budget's debt before, in CPU seconds; null: it has no bucket."""
    capacity_s: float | None
    note: str
    ledger: str
    """Where the debt is counted: with the server's own statements, or by the agent alone."""


class AnswerDoc(msgspec.Struct, frozen=True, omit_defaults=False):
    verdict: str
    admitted: bool
    app: str
    database: str
    reason: str
    retry_after_ms: int | None
    utilization: float
    rule: str | None
    """The rule that rejected the check, or could have rejected it by chance."""
    rules: Sequence[str]
    """Every rule that applied."""
    exempted: Sequence[MetricDoc]
    """Metrics that would have rejected an exempt client."""
    dice_waived: bool
    """Ratio rules had rejected the client for the maximum time: this time the metrics alone
    decided."""
    read_only: bool
    check_at: str | None
    """With WRONG_AGENT: the address to check at instead; null if unknown."""
    check_at_database: str | None
    """That agent's name for the database."""
    budget: DebitDoc | None
    """What a check that names a budget was charged; null: it names none, or was rejected before."""
    metrics: Sequence[MetricDoc]


class BatchDoc(msgspec.Struct, frozen=True):
    verdict: str
    admitted: bool
    """Whether all checks were admitted."""
    reason: str
    retry_after_ms: int | None
    checks: Sequence[AnswerDoc]
    """One answer for each check, in their order."""


class FrenoDoc(msgspec.Struct, frozen=True):
    StatusCode: int
    Value: float | None
    """Null where there is none: to a client of freno's that is no number, never a lag of 0."""
    Threshold: float | None
    Message: str
