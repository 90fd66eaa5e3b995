"""What clients decided locally, as they report it.   Ledger ──► POST /v1/reports

A batch has a number and the id of its sender: one that arrives twice counts once. Only the
standard library, because the SDK writes it; check/reporting.py reads it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headgate.check.snapshot import Counted

MAX_ROWS = 200
MAX_TIMES = 1_000_000_000
MAX_REASON_CHARS = 500
MAX_ROWS_BYTES = 40 * 1024
"""For the rows of one batch: with its head, a body that every agent accepts."""

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def encode_report(instance: str, batch: int, rows: Sequence[Counted]) -> bytes:
    doc = {"instance": instance, "batch": batch, "rows": [_row(row) for row in rows]}
    return _encode(doc).encode()


def fitting(rows: Sequence[Counted]) -> int:
    """How many of them, from the first on, one batch can hold; one at least."""
    size = 0
    for number, row in enumerate(rows[:MAX_ROWS]):
        size += len(_encode(_row(row)))
        if size > MAX_ROWS_BYTES and number:
            return number
    return min(len(rows), MAX_ROWS)


def _row(row: Counted) -> dict[str, Any]:
    check = row.check
    doc: dict[str, Any] = {
        "app": check.identity.text,
        "database": check.database,
        "verdict": row.verdict.value,
        "by": row.by,
        "times": min(row.times, MAX_TIMES),
        "first_s_ago": round(max(0.0, row.first_s_ago), 3),
        "last_s_ago": round(max(0.0, row.last_s_ago), 3),
    }
    if check.metrics:
        doc["metrics"] = [str(ref) for ref in check.metrics]
    if check.scope is not None:
        doc["scope"] = check.scope.value
    if check.read_threshold is not None:
        doc["threshold"] = check.read_threshold
    if row.reason:
        doc["reason"] = row.reason[:MAX_REASON_CHARS]
    return doc
