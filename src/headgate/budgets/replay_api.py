"""What a policy would have changed, as documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from headgate.budgets.consequences import (
    BY_KEYS,
    Fate,
    ReplayOutcome,
    ReplayRow,
    ReplayTally,
    together,
)
from headgate.budgets.difference import PolicyDifference
from headgate.changes.api import Log

MAX_ROWS = 500
MAX_BY = 3
DAY_S = 24 * 3600.0
NS = 1e9
When = Callable[[float], str]

_SinceS = Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]
_KEYS = {"pattern": f"^({'|'.join(BY_KEYS)}|tag\\..*)$"}
_Key = Annotated[str, msgspec.Meta(extra_json_schema=_KEYS)]
_By = Annotated[list[_Key], msgspec.Meta(min_length=1, max_length=MAX_BY)]


class BudgetReplayBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: dict[str, Any] | None = None
    """The whole document, as GET has it."""
    budget: dict[str, Any] | None = None
    """Or one budget, with its name: it replaces the one in force, or is added."""
    changes: dict[str, Any] | None = None
    """Or a file of changes, as `POST /v1/changes/apply` takes it."""
    log: Log = Log.AGENT
    """With `changes`: the log that they are for."""
    since_s: _SinceS = 3600.0
    by: _By = msgspec.field(default_factory=lambda: ["username"])
    """Clients are grouped by these: username, database, application_name, remote_address,
    query, tag.NAME."""
    step_s: Literal[60, 3600] | None = None
    """Seconds per row: 60 or 3600. Default: 60 for up to an hour."""


class BudgetTallyDoc(msgspec.Struct, frozen=True):
    statements: float
    ran_before: float
    blocked_before: float
    cpu_before_s: float
    ran: float
    """Would have been admitted without a warning."""
    warned: float
    delayed: float
    blocked: float
    """Blocked by this budget."""
    elsewhere: float
    """Blocked by another one."""
    cpu_s: float
    """Blocked, and would have been admitted."""
    waited_s: float
    newly_blocked: float
    newly_admitted: float
    error: float
    """Standard deviation of what is newly blocked and admitted, because only a sample is traced; 0
    if every statement was traced."""


class BudgetReplayRowDoc(msgspec.Struct, frozen=True):
    budget: str
    """Empty: no budget applies."""
    client: str
    """Empty: all of them."""
    since: str | None
    """When the minute or hour began; null: the whole time."""
    sums: BudgetTallyDoc
    """What would become of the statements."""


class BudgetReplayDoc(msgspec.Struct, frozen=True):
    database: str
    since: str
    until: str
    step_s: int
    by: Sequence[str]
    traces: int
    """Statements that were replayed."""
    total: BudgetTallyDoc
    """Totals; each statement counts once."""
    in_force: BudgetTallyDoc
    """The same for the policy in force: how close a replay is to what happened."""
    clients: Sequence[BudgetReplayRowDoc]
    """By budget and client, the largest change first."""
    more_clients: int
    steps: Sequence[BudgetReplayRowDoc]
    """By budget and minute or hour, in order."""
    more_steps: int
    """Number of older rows that were left out."""
    difference: Sequence[PolicyDifference]
    """Changes to the policy in force."""
    difference_total: int
    notes: Sequence[str]
    """Limits of this replay."""


def tally_doc(tally: ReplayTally) -> BudgetTallyDoc:
    after = tally.after
    return BudgetTallyDoc(
        statements=_round(tally.statements),
        ran_before=_round(tally.ran_before),
        blocked_before=_round(tally.blocked_before),
        cpu_before_s=tally.cpu_before_ns / NS,
        ran=_round(after[Fate.RAN]),
        warned=_round(after[Fate.WARNED]),
        delayed=_round(after[Fate.DELAYED]),
        blocked=_round(after[Fate.BLOCKED]),
        elsewhere=_round(after[Fate.ELSEWHERE]),
        cpu_s=tally.cpu_after_ns / NS,
        waited_s=tally.waited_ns / NS,
        newly_blocked=_round(tally.newly_blocked),
        newly_admitted=_round(tally.newly_admitted),
        error=_round(tally.changed_error),
    )


def _round(count: float) -> float:
    return round(count, 3)


def client_docs(outcome: ReplayOutcome) -> list[BudgetReplayRowDoc]:
    sums = _by(outcome.rows, lambda row: (row.key.budget, row.key.client))
    found = sorted(sums.items(), key=lambda one: (-_weighty(one[1]), one[0]))
    return [
        BudgetReplayRowDoc(budget, client, None, tally_doc(tally))
        for (budget, client), tally in found
    ]


def step_docs(outcome: ReplayOutcome, when: When) -> list[BudgetReplayRowDoc]:
    sums = _by(outcome.rows, lambda row: (row.key.step_ms, row.key.budget))
    return [
        BudgetReplayRowDoc(budget, "", when(step_ms / 1000), tally_doc(sums[step_ms, budget]))
        for step_ms, budget in sorted(sums)
    ]


def _by(
    rows: Iterable[ReplayRow], key: Callable[[ReplayRow], tuple[Any, Any]]
) -> Mapping[Any, ReplayTally]:
    found: dict[tuple[Any, Any], list[ReplayTally]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row.tally)
    return {one: together(tallies) for one, tallies in found.items()}


def _weighty(tally: ReplayTally) -> float:
    """What changes by this budget first; else what would be warned or delayed."""
    noticed = tally.after[Fate.WARNED] + tally.after[Fate.DELAYED]
    blocked = tally.after[Fate.BLOCKED] if tally.changed else 0.0
    return 1e9 * tally.changed + 1e6 * blocked + noticed
