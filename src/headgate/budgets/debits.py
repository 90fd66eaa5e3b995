"""What a check that names a budget is charged, and the result.

A cooperative check with a declared cost and the statements in the query path debit one budget:
see budgets/charging.py.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class DebitState(Enum):
    CHARGED = "charged"
    WARNED = "warned"
    """Admitted although it does not fit: the budget is in warn mode or nearly full."""
    OVER = "over"
    """Rejected; nothing was charged."""
    RESTS = "rests"
    """The budget does not apply now: it is off, has ended, or only counts under load."""
    UNKNOWN = "unknown"
    """There is no such budget."""


class DebitResult(NamedTuple):
    budget: str
    state: DebitState
    cost_s: float
    """CPU seconds that the check declares."""
    owed_s: float | None = None
    """The budget's debt in CPU seconds before this check; None: it has no bucket."""
    capacity_s: float | None = None
    retry_after_s: float | None = None
    """With OVER: when the check would fit; None: never with these limits."""
    note: str = ""
    ledger: str = ""
    """Where the debt is counted: in the server with the statements, or by the agent alone."""

    @property
    def admitted(self) -> bool:
        return self.state not in (DebitState.OVER, DebitState.UNKNOWN)
