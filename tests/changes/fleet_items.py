"""Items as a fleet's store has them, for those who follow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import Place, parse_reach
from tests.builders import NOW

HERE = Place("eu-1", "commerce", "commerce/-80", "db-1", "main")
OTHER = Place("eu-1", "commerce", "search/0", "db-1", "other")
"""Another database of the same agent."""


def iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")


def rule_item(
    item_id: str = "f-1",
    n: int = 1,
    reach: str = "fleet",
    *,
    set_at: float = NOW.wall_s,
    for_s: float = 3600.0,
    **settings: Any,
) -> Change:
    value = {
        **({"target": "etl", "kind": "ratio", "ratio": 0.5} if "kind" not in settings else {}),
        "expires_at": iso(set_at + for_s),
        "created_at": iso(NOW.wall_s),
        "created_by": "ann",
        "set_at": iso(set_at),
        **settings,
    }
    return Change(ChangeKind.RULE, item_id, parse_reach(reach), value, n, set_at, "ann")


def budget_item(raw: dict[str, Any], n: int = 1, reach: str = "fleet") -> Change:
    item_id = f"{raw['name']}@{reach}"
    return Change(ChangeKind.BUDGET, item_id, parse_reach(reach), raw, n, NOW.wall_s, "ann")


def taken_out(item: Change, n: int) -> Change:
    return Change(item.kind, item.id, item.reach, None, n, item.set_at, "bob")
