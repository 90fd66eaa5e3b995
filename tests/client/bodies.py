"""Bodies as the agent sends them (docs/reference/http.md)."""

from __future__ import annotations

import json
from typing import Any

LAG = {
    "metric": "lag",
    "scope": "host",
    "state": "breached",
    "value": 7.2,
    "unit": "s",
    "threshold": 5.0,
    "comparison": ">",
    "age_ms": 412,
    "cause": None,
    "detail": "",
    "unavailable_for_ms": None,
}
ABSENT = LAG | {
    "metric": "threads_running",
    "state": "unavailable",
    "value": None,
    "unit": "",
    "threshold": 100.0,
    "age_ms": None,
    "cause": "timed_out",
    "detail": "no answer in 0.5 s",
    "unavailable_for_ms": 2210,
}
REASON = "main: lag is 7.2 s, above its threshold of 5 s (measured 0.4 s ago)"


def ok(database: str = "main", **changes: Any) -> dict[str, Any]:
    return {
        "verdict": "OK",
        "admitted": True,
        "app": "etl:nightly",
        "database": database,
        "reason": "",
        "retry_after_ms": None,
        "utilization": 0.2,
        "rule": None,
        "rules": [],
        "exempted": [],
        "dice_waived": False,
        "read_only": False,
        "metrics": [],
    } | changes


def rejection(database: str = "main", **changes: Any) -> dict[str, Any]:
    return (
        ok(database)
        | {
            "verdict": "THRESHOLD_EXCEEDED",
            "admitted": False,
            "reason": REASON,
            "retry_after_ms": 1430,
            "utilization": 1.44,
            "metrics": [LAG, ABSENT],
        }
        | changes
    )


def batch(*parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    first = next((part for part in parts if not part["admitted"]), parts[0])
    spoken = {name: first[name] for name in ("verdict", "admitted", "reason", "retry_after_ms")}
    return spoken | {"checks": list(parts)} | changes


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()
