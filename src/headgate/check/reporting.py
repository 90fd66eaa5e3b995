"""Clients report what they decided locally.   POST /v1/reports ──► Intake

A client that may check may report: both count under a name that is not verified.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from headgate.base.ports import Clock
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Verdict
from headgate.check.questions import (
    APP_SCHEMA,
    DATABASE_SCHEMA,
    MAX_METRICS,
    METRIC_PATTERN,
    METRIC_SCHEMA,
    SCOPE_SCHEMA,
    build_check,
)
from headgate.check.snapshot import Counted
from headgate.check.snapshot_api import MAX_REASON_CHARS, MAX_ROWS, MAX_TIMES
from headgate.errors import InvalidRequest
from headgate.history.recorder import Recorder
from headgate.http.documents import json_response
from headgate.http.routes import Plain, Route, Unread
from headgate.metrics.samples import Instant

MAX_AGO_S = 86_400.0
MAX_BATCH = 2**53 - 1
_BY = rf"^(|other|rule:[\w.-]{{1,64}}|budget:[\w.-]{{1,63}}|{METRIC_PATTERN})$"
# Not int: to JSON Schema 312.0 is an integer, too, to msgspec it is none.
_Times = Annotated[float, msgspec.Meta(ge=1, le=MAX_TIMES, multiple_of=1)]
_Batch = Annotated[float, msgspec.Meta(ge=1, le=MAX_BATCH, multiple_of=1)]
_Ago = Annotated[float, msgspec.Meta(ge=0, le=MAX_AGO_S)]


class ReportRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decisions of one client that are alike."""

    app: Annotated[str, msgspec.Meta(extra_json_schema=APP_SCHEMA)]
    database: Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]
    verdict: Verdict
    times: _Times
    by: Annotated[str, msgspec.Meta(pattern=_BY)] = ""
    """The metric, the rule or the budget that decided."""
    first_s_ago: _Ago = 0.0
    last_s_ago: _Ago = 0.0
    metrics: Annotated[
        list[Annotated[str, msgspec.Meta(extra_json_schema=METRIC_SCHEMA)]],
        msgspec.Meta(max_length=MAX_METRICS),
    ] = []
    """Names of the metrics that the check named."""
    scope: Annotated[str, msgspec.Meta(extra_json_schema=SCOPE_SCHEMA)] | None = None
    threshold: Annotated[float, msgspec.Meta(gt=0, lt=1e12)] | None = None
    """Of a read check."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] = ""


class ReportsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instance: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16,64}$")]
    """Id of the sender: each process makes up its own, and a new one after a fork."""
    batch: _Batch
    """Number that the sender gives; a repeated batch counts once."""
    rows: Annotated[list[ReportRow], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]


class ReportsDoc(msgspec.Struct, frozen=True):
    batch: int
    taken: bool
    """False: it was counted before."""


_decode = msgspec.json.Decoder(ReportsBody).decode


class Reporting:
    """Handlers, as Control's."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def reports(self, call: Plain) -> Response:
        try:
            body = _decode(await call.request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the body is not a report: {error}; nothing was counted"
            raise InvalidRequest(message) from None
        rows = [_counted(row) for row in body.rows]
        taken = self._intake.take(body.instance, int(body.batch), rows)
        return json_response(ReportsDoc(int(body.batch), taken))


def _counted(row: ReportRow) -> Counted:
    check = build_check(row.app, row.database, row.metrics, scope=row.scope)
    if row.threshold is not None:
        check = check._replace(read_threshold=row.threshold)
    first_s_ago = max(row.first_s_ago, row.last_s_ago)
    return Counted(
        check, row.verdict, row.by, int(row.times), first_s_ago, row.last_s_ago, row.reason
    )


REPORTING_ROUTES = (
    Route(
        "POST", "/v1/reports", "reports", "Count decisions that a client made locally", ReportsDoc,
        body=Unread(ReportsBody),  # As often as clients decide locally: read at once.
        sends={
            "instance": "9f86d081884c7d65", "batch": 7,
            "rows": [{"app": "etl:nightly", "database": "main", "verdict": "OK", "times": 4711}],
        },
        about="See [deciding locally](http.md#deciding-locally).",
    ),
)  # fmt: skip


# --- intake --------------------------------------------------------------------------------------

# Count what clients decided locally.   check/reporting ──► Intake ──► Recorder, Demand
#
# Batches of one sender come in order, one at a time, and again if the answer was lost: a batch that
# is not newer than the last one was already taken. Only the last number of each sender is kept.

MAX_SENDERS = 20_000
"""Beyond that, the longest silent sender is dropped. If it repeats a batch, that batch counts
twice."""
RECENT_S = 30.0
"""A decision older than this does not wake the database."""


class Intake:
    def __init__(
        self, recorder: Recorder, board: Board, clock: Clock, demands: Demands | None
    ) -> None:
        self._recorder = recorder
        self._healths = board.healths
        self._clock = clock
        self._demands = demands
        self._last: OrderedDict[str, int] = OrderedDict()
        self.batches_total = 0
        self.repeated_total = 0
        self.decisions_total = 0

    def take(self, sender: str, batch: int, rows: Sequence[Counted]) -> bool:
        """Whether it counts; False for what had been taken before."""
        if batch <= self._last.get(sender, 0):
            self.repeated_total += 1
            return False
        self._last[sender] = batch
        self._last.move_to_end(sender)
        if len(self._last) > MAX_SENDERS:
            self._last.popitem(last=False)
        now = self._clock.now()
        # Oldest first: the client is shown with its latest answer.
        for row in sorted(rows, key=lambda row: -row.last_s_ago):
            self._count(row, now)
        self.batches_total += 1
        return True

    def _count(self, row: Counted, now: Instant) -> None:
        health = self._healths.get(row.check.database)
        self.decisions_total += row.times
        self._recorder.merge(row, health, now)
        demands = self._demands.by_database if self._demands is not None else {}
        demand = demands.get(row.check.database)
        if demand is not None and row.last_s_ago < RECENT_S:
            demand.note(row.check, health, now.mono_s)
