"""What a proxy tells of itself: bounded, and the worst first."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from headgate.budgets.readings import (
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    PatternReading,
    ServerHealth,
)
from headgate.proxy.metrics import MAX_CLIENTS, OTHER, SERIES, render_metrics, top_clients
from headgate.proxy.ports import ActCause, ClientCounts, PartState, ServerTarget
from headgate.proxy.status import ProxyFacts, ProxyReadings, calibration, problems, status_document
from tests.proxy.fakes import client, counts

TARGET = ServerTarget(1, "db1", "::1", 5432, primary=True, replica=False)
FACTS = ProxyFacts("p", "0", "postgres", 1, started_s=0.0, state="serving", max_sessions=10)


def blocking(index: int, statements: int) -> ClientCounts:
    blocked = [0] * len(ActCause)
    blocked[ActCause.HEALTH] = 2
    return counts(client(index), statements=statements, blocked=tuple(blocked))


def pattern(calls: int, error: float) -> PatternReading:
    return PatternReading(1, 0, calls, None, 1e6, 1e6, error, 1)


def readings(**changes: Any) -> BudgetReadings:
    return BudgetReadings(version=3, checksum=7, started_ms=1, **changes)


def seen(**changes: Any) -> ProxyReadings:
    plain: dict[str, Any] = {
        "now_s": 10.0,
        "clients": [counts(client(0, "unidentified"), statements=1), blocking(2, 3)],
        "threads": [{"sessions": 1, "idle_sessions": 0, "longest_round_ns": 5}],
        "parts": [PartState("agent", True, "heard")],
        "targets": [TARGET],
        "readings": readings(),
        "readings_fault": "",
        "clients_full": 0,
        "statements_full": 0,
        "released": (0, 0),
        "slowlog": {"written": 0, "left_out": 0},
    }
    return ProxyReadings(**{**plain, **changes})


def test_the_share_of_the_unidentified_is_reported() -> None:
    """R97."""
    found = status_document(FACTS, seen())
    assert found["statements"]["unidentified_share"] == 0.25
    nothing = status_document(FACTS, seen(clients=[counts(client(0))]))
    assert nothing["statements"]["unidentified_share"] is None, "no failure becomes a 0"


def test_blocks_are_reported_by_cause() -> None:
    found = status_document(FACTS, seen())["clients"]
    assert [(one["client"], one["blocked"]) for one in found] == [
        ("c2", {"health": 2}),
        ("unidentified", {}),
    ]


def test_health_is_known_as_long_as_the_relay_believes_it() -> None:
    told = readings(health=ServerHealth.UNHEALTHY, health_until_ms=5000)
    shown = [
        status_document(FACTS, seen(readings=told, wall_ms=ms))["policy"]["health"]
        for ms in (4999, 5001)
    ]
    assert shown == [ServerHealth.UNHEALTHY.value, ServerHealth.UNKNOWN.value]


def test_a_budget_is_as_full_as_its_fullest_bucket() -> None:
    buckets = [BucketReading("etl", f"t{n}", 1, 10, n / 10, 0) for n in (1, 7, 3)]
    budgets = MappingProxyType({"etl": BudgetCounts(admitted=4)})
    (one,) = status_document(
        FACTS, seen(readings=readings(buckets=tuple(buckets), budgets=budgets))
    )["budgets"]
    assert (one["budget"], one["admitted"], one["fill"]) == ("etl", 4, 0.7)


def test_calibration_is_of_patterns_that_ran_often_enough() -> None:
    patterns = (pattern(100, 0.5), pattern(100, 0.1), pattern(1, 9.0), pattern(50, 0.3))
    found = calibration(readings(patterns=patterns))
    assert (found["known"], found["measured"], found["error_median"]) == (4, 3, 0.3)
    assert found["worst"][0]["error"] == 0.5
    assert calibration(None)["error_median"] is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"targets": []}, "no server takes sessions"),
        ({"parts": [PartState("agent", False, "silent for 5 s")]}, "agent: silent for 5 s"),
        ({"readings": None, "readings_fault": "no"}, "budgets cannot be read: no"),
        ({"threads": [{"sessions": 10, "longest_round_ns": 0}]}, "all 10 sessions are taken"),
        ({"threads": [{"out_of_buffers": 2, "longest_round_ns": 0}]}, "no buffer was free"),
        ({"clients_full": 3}, "more clients than [memory] clients"),
        ({"statements_full": 3}, "more statements at once"),
        ({"policy_rejection": "policy.hgp is invalid: torn"}, "policy.hgp is invalid: torn"),
    ],
)
def test_what_an_on_call_engineer_should_know(changes: dict[str, Any], told: str) -> None:
    assert problems(FACTS, seen()) == []
    assert any(told in line for line in problems(FACTS, seen(**changes)))


def test_labels_are_bounded_and_nothing_is_lost() -> None:
    many = [blocking(index, statements=index) for index in range(MAX_CLIENTS + 50)]
    shown = top_clients(many)
    assert len(shown) == MAX_CLIENTS + 1
    assert shown[-1].client.identity == OTHER
    assert sum(one.statements for one in shown) == sum(one.statements for one in many)
    assert shown[-1].blocked[ActCause.HEALTH] == 2 * 50


def test_every_series_can_be_rendered_from_nothing_but_counts() -> None:
    body, kind = render_metrics(FACTS, seen(readings=None, readings_fault="no"))
    assert kind.startswith("text/plain")
    assert b'headgate_proxy_client_blocked_total{by="health",client="c2"} 2.0' in body
    assert len({series.name for series in SERIES}) == len(SERIES)
