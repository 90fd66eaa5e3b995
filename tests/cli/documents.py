"""What the agent says of the past and of starvation, as documents."""

from __future__ import annotations

from typing import Any


def sums(admitted: int, rejected: int, by: str = "shard/lag", **more: Any) -> dict[str, Any]:
    return {
        "checks": admitted + rejected,
        "admitted": admitted,
        "exempted": 0,
        "rejected": rejected,
        "by_reason": {"metric": rejected} if rejected else {},
        "by": [{"by": by, "count": rejected}] if rejected else [],
        **more,
    }


HELD = sums(1136, 13064)
TIMELINE: dict[str, Any] = {
    "app": "etl",
    "since": "2026-03-01T06:00:00Z",
    "until": "2026-03-01T08:00:00Z",
    "step_minutes": 30,
    "total": sums(3000, 14000, by_reason={"metric": 13064, "dice": 936}),
    "bins": [
        {"at": "2026-03-01T06:00:00Z", "minutes": 30, "sums": sums(500, 0)},
        {"at": "2026-03-01T07:00:00Z", "minutes": 30, "sums": HELD},
    ],
    "spans": [
        {
            "since": "2026-03-01T07:00:00Z",
            "until": "2026-03-01T07:25:00Z",
            "mostly_by": "shard/lag",
            "share": 0.92,
            "sums": HELD,
        }
    ],
    "children": [
        {"client": "u1:etl", "sums": HELD},
        {"client": "u2:etl", "sums": sums(500, 0)},
    ],
    "whole": True,
    "more_spans": 0,
    "runs": None,
}


STARVED: dict[str, Any] = {
    "database": "main",
    "client": "etl",
    "is_level": True,
    "members": ["a:etl", "b:etl"],
    "metric": "lag",
    "cause": "exempt_client",
    "why": "an exempt client continues",
    "starved_s": 900.0,
    "runtime_s": 3600.0,
    "share": 0.25,
    "alarming": True,
    "rejections": 900,
    "breached_share": 0.9,
    "mean_utilization": 1.4,
    "dice_s": 0.0,
    "blamed": ["fix:x"],
    "rule": "r7",
    "proposal": "headgate rule lift r7",
}
STARVATION = {"window_s": 3600.0, "waterline": 0.2, "starved": [STARVED]}
SUSPECT: dict[str, Any] = {
    "database": "main",
    "user": "alice",
    "application": "psql",
    "host": "10.0.0.9",
    "sessions": 2,
    "active_mean": 1.5,
    "share": 0.6,
}
