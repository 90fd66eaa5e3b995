"""A name for each job destroys nobody's history (R68, R69, R88, R138)."""

from __future__ import annotations

import pytest

from headgate.base.names import OTHER
from headgate.check.decide import decide
from headgate.check.model import Decision, Verdict
from headgate.check.snapshot import Counted
from headgate.history import recorder
from headgate.history.recorder import IDLE_S, Recorder
from headgate.history.records import Tally
from headgate.rules.matching import NO_RULES
from tests.builders import at, check, health, metric

KNOWN = {lag: health((metric("lag", max_age_s=7200), lag)) for lag in (1.0, 9.0)}


def decision(app: str, after_s: float = 0.0, lag: float = 1.0) -> Decision:
    return decide(check(app), KNOWN[lag], NO_RULES, now=at(after_s), roll=0.5)


def flood(into: Recorder, count: int, after_s: float = 0.0, kind: str = "etl:nightly") -> None:
    for number in range(count):
        into.record(decision(f"u{after_s:g}-{number}:{kind}", after_s))


def names(of: Recorder) -> set[str]:
    return {client for _, client, _ in of.clients()}


def at_level(tallies: list[Tally], level: str) -> int:
    return sum(t.count for t in tallies if level in t.client.split(":"))


def test_sums_by_level_stay_exact_whatever_names_are_made_up() -> None:
    """R68, R69: `headgate history etl` counts all of them."""
    made = Recorder(max_clients=10)
    flood(made, 500)
    made.record(decision("run7:payroll"))
    kept = made.drain(at(1).wall_s)
    assert at_level(kept, "etl") == at_level(kept, "nightly") == 500
    assert at_level(kept, "payroll") == 1
    assert len(kept) <= 10 + 2
    assert made.totals()["main", "other:etl:nightly", Verdict.OK, ""] == 490


def test_what_clients_decided_locally_collapses_alike() -> None:
    made = Recorder(max_clients=10)
    for number in range(50):
        told = Counted(check(f"u{number}:etl"), Verdict.OK, "", 3)
        made.merge(told, KNOWN[1.0], at(0))
    assert at_level(made.drain(at(1).wall_s), "etl") == 150
    assert len(names(made)) == 11


def test_a_newcomer_that_keeps_checking_gets_the_place_of_one_that_is_silent() -> None:
    made = Recorder(max_clients=10)
    flood(made, 50)
    made.drain(at(IDLE_S / 2).wall_s)
    for _ in range(3):
        made.record(decision("run7:payroll", IDLE_S / 2))
    assert "run7:payroll" not in names(made) and "other:payroll" in names(made)
    made.drain(at(IDLE_S + 1).wall_s)
    made.record(decision("run7:payroll", IDLE_S + 1))
    assert "run7:payroll" in names(made)
    assert len(names(made)) == 10 + len({"other:etl:nightly", "other:payroll"})


def test_names_that_are_used_once_push_nobody_out() -> None:
    """A client that asks now and then is not silent; what is asked once is not asked again."""
    made = Recorder(max_clients=10)
    for minute in range(10):
        made.drain(at(minute * 50.0).wall_s)
        made.record(decision("real:payroll", minute * 50.0))
        flood(made, 100, minute * 50.0)
    assert "real:payroll" in names(made)
    assert sum("u0-" in name for name in names(made)) == 9


def test_who_gives_its_place_up_leaves_its_counts_to_its_like() -> None:
    """Every check is shown with a client, and no counter jumps: its own has ended."""
    made = Recorder(max_clients=2)
    for _ in range(5):
        made.record(decision("a:etl"))
    made.record(decision("b:etl", lag=9.0))
    for second in range(1, 5):
        made.record(decision("c:etl", IDLE_S + second))
        made.drain(at(IDLE_S + second).wall_s)
    assert names(made) == {"b:etl", "c:etl", "other:etl"}
    assert sum(record.asked for _, _, record in made.clients()) == 10
    assert made.totals() == {
        ("main", "b:etl", Verdict.THRESHOLD_EXCEEDED, "lag"): 1,
        ("main", "other:etl", Verdict.OK, ""): 2,
        ("main", "c:etl", Verdict.OK, ""): 2,
    }
    assert made.forgotten == {("main", Verdict.OK): 5}


def test_what_was_counted_but_not_reported_yet_keeps_its_place() -> None:
    made = Recorder(max_clients=1)
    made.record(decision("a:etl"))
    for _ in range(2):
        made.record(decision("b:etl", IDLE_S))
    made.drain(at(IDLE_S + 1).wall_s)
    made.merge(Counted(check("a:etl"), Verdict.OK, "", 4, 200, 200), KNOWN[1.0], at(IDLE_S + 1))
    made.record(decision("b:etl", IDLE_S + 1))
    assert "a:etl" in names(made) and "b:etl" not in names(made)
    assert sum(made.totals().values()) == 8


def test_crowds_are_bounded_and_give_way_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MIN_CROWDS", 3)
    made = Recorder(max_clients=4)
    for number in range(100):
        made.record(decision(f"u{number}:v{number}"))
    assert len(names(made)) == 4 + 3 + len({OTHER})
    for number in range(200):
        made.record(decision(f"x{number}:payroll", IDLE_S + 1))
        if number % 50 == 0:
            made.drain(at(IDLE_S + 1).wall_s)
    assert "other:payroll" in names(made)
    assert len(names(made)) <= 4 + 3 + len({OTHER})
    made.drain(at(IDLE_S + 2).wall_s)
    assert sum(record.asked for _, _, record in made.clients()) == 300
    assert sum(made.totals().values()) + sum(made.forgotten.values()) == 300


def test_churn_does_not_make_a_client_that_checks_a_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R138: known by its levels, with a record or without, and in bounded memory."""
    monkeypatch.setattr(recorder, "MAX_TOKENS", 50)
    made = Recorder(max_clients=10)
    flood(made, 100)
    for round_s in range(20):
        flood(made, 100, float(round_s))
        made.record(decision("run7:payroll", float(round_s)))
    known = made.tokens("main")
    assert {"payroll", "etl", "nightly"} <= known and OTHER not in known
    assert len(known) < 200
    assert made.tokens("elsewhere") == set()


def test_rows_of_a_minute_collapse_towards_levels_the_largest_keep_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "MAX_ROWS_A_MINUTE", 5)
    monkeypatch.setattr(recorder, "MAX_CROWD_ROWS_A_MINUTE", 2)
    made = Recorder(max_clients=1000)
    flood(made, 50)
    for _ in range(9):
        made.record(decision("run7:payroll"))
    made.record(decision("x:lonely"))
    kept = made.drain(at(1).wall_s)
    assert {t.count for t in kept if t.client == "run7:payroll"} == {9}
    assert at_level(kept, "etl") == 50
    assert len(kept) <= 5 + 2 + 1
    assert sum(t.count for t in kept) == 60


def test_a_client_whose_statements_alone_are_counted_never_checked() -> None:
    """R138: a server that decides about its statements does not make a rogue client known."""
    made = Recorder(max_clients=1)
    for name in ("export.py", "crowded:export.py"):
        counted = Counted(check(name), Verdict.OVER_BUDGET, "budget:best-effort", 3)
        made.merge(counted, KNOWN[1.0], at(0), checks=False)
    assert "export.py" in names(made) and made.tokens("main") == set()
    made.record(decision("export.py"))
    assert made.tokens("main") == {"export.py"}
