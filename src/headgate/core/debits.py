"""What a check that names a budget is charged, and what came of it (R146).

A cooperative check with a declared cost and the statements in the query path debit one budget:
see agent/ledger.py.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class DebitState(Enum):
    CHARGED = "charged"
    WARNED = "warned"
    """It goes, for the budget only warns, or is nearly full."""
    OVER = "over"
    """It does not go, and nothing was charged."""
    RESTS = "rests"
    """The budget has nothing to say just now: off, ended, or for bad times alone."""
    UNKNOWN = "unknown"
    """There is no such budget."""


class Debit(NamedTuple):
    budget: str
    state: DebitState
    cost_s: float
    """CPU, as declared."""
    owed_s: float | None = None
    """CPU that the budget owes, before this; None: it has no bucket."""
    capacity_s: float | None = None
    retry_after_s: float | None = None
    """With OVER: when it would fit; None: as it is, never."""
    note: str = ""
    ledger: str = ""
    """Where it is kept: in the server, with the statements, or by the agent alone."""

    @property
    def admitted(self) -> bool:
        return self.state not in (DebitState.OVER, DebitState.UNKNOWN)
