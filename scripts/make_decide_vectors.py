#!/usr/bin/env python3
"""Write tests/vectors/decide.json: what is asked is listed here, the answers are the agent's.

PYTHONPATH=src:. python scripts/make_decide_vectors.py

Read the difference before committing it: each changed line is a decision that changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.builders import NOW
from tests.vectors.loading import PATH, Vector, Worlds, check_of, line_of

from headgate.check.snapshot import decided
from headgate.client.local_answers import answer_of

METRICS = {
    "lag": {"threshold": 5, "interval_s": 1, "max_age_s": 2.5, "scope": "shard"},
    "pool_usage": {"threshold": 1.0, "interval_s": 1, "max_age_s": 2.5},
    "threads_running": {"threshold": 100, "debounce": "2 of 3", "absence": "hold", "hold_s": 10},
    "loadavg": {"threshold": 2, "absence": "ignore"},
}
FINE = {
    "lag": {"values": [0.5]},
    "pool_usage": {"values": [0.4]},
    "threads_running": {"values": [7, 8, 9]},
    "loadavg": {"values": [0.3]},
}


def _host(**changed: Any) -> dict[str, Any]:
    return {"host": {**FINE, **changed}}


def _shard(ask: str, **changed: Any) -> dict[str, Any]:
    told = {"metrics": {**FINE, **changed}, "primary": "db-a"}
    return {
        **_host(),
        "shard": told | ({"check_at": ask, "check_at_database": "orders"} if ask else {}),
    }


ELSEWHERE: dict[str, Any] = {key: {"absent": "elsewhere"} for key in FINE}
NO_PRIMARY: dict[str, Any] = {
    key: {"absent": "no_primary", "detail": "nobody leads"} for key in FINE
}
STATES = {
    "healthy": _host(),
    "lag breached": _host(lag={"values": [9]}),
    "lag above the ceiling": _host(lag={"values": [99]}),
    "lag at its threshold": _host(lag={"values": [5]}),
    "pool at its threshold": _host(pool_usage={"values": [1.0]}),
    "lag and pool breached": _host(lag={"values": [9]}, pool_usage={"values": [1.2]}),
    "lag failed": _host(lag={"values": [0.5], "absent": "failed", "detail": "rejected"}),
    "lag never read": _host(lag={"absent": "never_read"}),
    "lag stale": _host(lag={"values": [0.5], "age_s": 3}),
    "threads held": _host(threads_running={"values": [7], "age_s": 4, "absent": "timed_out"}),
    "threads held too long": _host(
        threads_running={"values": [7], "age_s": 14, "absent": "timed_out"}
    ),
    "threads breached once": _host(threads_running={"values": [7, 8, 150]}),
    "threads breached twice": _host(threads_running={"values": [150, 8, 150]}),
    "load ignored": _host(loadavg={"absent": "failed"}),
    "no metrics": {"host": {}},
    "leading, healthy": _shard(""),
    "leading, shard lag breached": _shard("", lag={"values": [9]}),
    "leading, no longer confirmed": _shard("", lag={"values": [0.5], "valid_s": -0.1}),
    "elsewhere": _shard("http://db-a:8087", **ELSEWHERE),
    "nobody leads": _shard("", **NO_PRIMARY),
}
RULES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "half": [{"id": "half", "target": "etl", "ratio": 0.5}],
    "half, after": [{"id": "half", "target": "etl", "ratio": 0.5, "order": "after"}],
    "hold": [{"id": "hold", "target": "nightly", "kind": "hold"}],
    "exempt": [{"id": "free", "target": "etl", "kind": "exempt"}],
    "exempt from lag": [{"id": "free", "target": "etl", "kind": "exempt", "metrics": ["lag"]}],
    "exempt, suspended": [{"id": "free", "target": "etl", "kind": "exempt", "suspended": True}],
    "own metrics": [{"id": "own", "target": "etl", "kind": "metrics", "metrics": ["pool_usage"]}],
    "stricter": [{"id": "low", "target": "etl", "kind": "thresholds", "thresholds": {"lag": 0.2}}],
    "favored": [
        {"id": "all", "target": "all", "ratio": 0.9},
        {"id": "fav", "target": "etl:nightly", "ratio": 0.0},
    ],
    "specific": [
        {"id": "cat", "target": "etl", "ratio": 0.9},
        {"id": "two", "target": "etl:nightly", "ratio": 0.5},
        {"id": "one", "target": "job7:etl:nightly", "ratio": 0.1},
    ],
    "elsewhere": [{"id": "other", "target": "all", "kind": "hold", "database": "replica"}],
    "ended": [{"id": "past", "target": "all", "kind": "hold", "ends_in_s": 0.0}],
    "not yet": [{"id": "later", "target": "all", "kind": "hold", "window_s": [60, 120]}],
    "in its window": [{"id": "now", "target": "etl", "kind": "hold", "window_s": [-60, 30]}],
}
ETL, WEB = "job7:etl:nightly", "web:checkout"
SHARDS = [name for name, state in STATES.items() if state.get("shard")]


def _asked() -> Iterator[tuple[Any, ...]]:
    """(state, rules, app, metrics, scope, roll)"""
    hosts = [name for name in STATES if name not in SHARDS]
    yield from product(hosts, ["none"], [ETL], [""], [""], [0.3])
    apps, rolls = [ETL, WEB, "anonymous"], [0.05, 0.3, 0.7, 0.95]
    yield from product(["healthy"], RULES, apps, [""], [""], rolls)
    trouble = ["lag breached", "lag above the ceiling", "lag and pool breached", "lag failed"]
    yield from product(trouble, list(RULES)[1:9], [ETL], [""], [""], [0.3, 0.7])
    yield from product(
        SHARDS, ["none", "half", "exempt"], [ETL], [""], ["", "host", "shard"], [0.3]
    )
    named = ["lag", "self/lag", "shard/lag", "lag,pool_usage", "nosuch", "pool_usage,nosuch"]
    states = ["healthy", "lag breached", "elsewhere", "leading, shard lag breached"]
    yield from product(states, ["none", "own metrics"], [ETL], named, [""], [0.3])


def document() -> dict[str, Any]:
    inputs: dict[str, Any] = {"metrics": METRICS, "states": STATES, "rules": RULES}
    worlds, lines = Worlds(inputs), []
    for asked in dict.fromkeys(_asked()):
        vector = Vector._make([*asked, ""])
        made = decided(worlds.view(vector), check_of(vector), now=NOW, roll=vector.roll)
        lines.append([*asked, line_of(answer_of(made))])
    return {**inputs, "vectors": lines}


def main() -> None:
    made = document()
    lines = made.pop("vectors")
    head = json.dumps(made, indent=1)[:-2]
    body = ",\n  ".join(json.dumps(line) for line in lines)
    PATH.write_text(f'{head},\n "vectors": [\n  {body}\n ]\n}}\n')
    print(f"wrote {len(lines)} vectors to {PATH.name}")


if __name__ == "__main__":
    main()
