"""Every series at once: each has rows, and no label has values without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headgate.http.exposition import (
    LABELS,
    SERIES,
    Series,
    render_in_turns,
    render_metrics,
)
from headgate.http.exposition.clients import MAX_NAMED
from headgate.http.exposition.render import ROWS_A_TURN
from headgate.metrics.samples import Cause
from headgate.proxy.metrics import LABELS as PROXY_LABELS
from headgate.proxy.metrics import SERIES as PROXY_SERIES
from headgate.rules.matching import Kind, Rule
from tests.http.everything import Everything, everything, rules


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with everything(tmp_path_factory.mktemp("e")) as world:
        yield world


def samples(text: bytes) -> list[Sample]:
    return [
        sample
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    ]


def told_by(text: bytes, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Value by the values of these labels."""
    found = (sample for sample in samples(text) if sample.name == name)
    return {tuple(one.labels[label] for label in labels): one.value for one in found}


def told(text: bytes, name: str, label: str) -> dict[str, float]:
    return {key[0]: value for key, value in told_by(text, name, label).items()}


def names(text: bytes) -> set[str]:
    return {sample.name.removesuffix("_bucket") for sample in samples(text)}


def test_every_series_of_an_agent_has_rows(world: Everything) -> None:
    """R134–R138: what has none here would be a panel that nobody ever saw."""
    assert {series.name for series in SERIES} - names(world.agent()) == set()


def test_every_series_of_a_proxy_has_rows(world: Everything) -> None:
    assert {series.name for series in PROXY_SERIES} - names(world.proxy()) == set()


def test_every_label_says_what_bounds_it() -> None:
    assert {label for one in SERIES for label in one.labels} == set(LABELS)
    assert {label for one in PROXY_SERIES for label in one.labels} == set(PROXY_LABELS)


def test_names_follow_the_customs_of_prometheus() -> None:
    every = [(s.name, s.kind, s.about) for s in SERIES]
    every += [(s.name, s.kind, s.about) for s in PROXY_SERIES]
    for name, kind, about in every:
        assert name.endswith("_total") == (kind == "counter"), name
        assert name.startswith("headgate_") and about.endswith("."), name
    assert len({name for name, *_ in every}) == len(every)


# --- rules (R136) ------------------------------------------------------------------------------


def test_rules_are_counted_by_kind_and_state(world: Everything) -> None:
    counted = told_by(world.agent(), "headgate_rules", "kind", "state")
    assert {key: n for key, n in counted.items() if n} == {
        ("ratio", "in_force"): 1,
        ("hold", "in_force"): 1,
        ("hold", "waiting"): 1,
        ("exempt", "in_force"): 1,
    }


def test_a_rule_in_force_says_since_when_and_how_long_yet(world: Everything) -> None:
    text = world.agent()
    left = told_by(text, "headgate_rule_seconds_left", "target", "kind", "database")
    assert set(left) == {("etl", "ratio", ""), ("held", "hold", "main"), ("saved", "exempt", "")}
    assert all(1700 < seconds <= 1800 for seconds in left.values())
    age = told(text, "headgate_rule_in_force_seconds", "target")
    assert 7200 <= age["saved"] < 7300


def test_a_suspended_exemption_is_distinguished(world: Everything) -> None:
    served = world.served
    book, now_s = served.checker.rules, served.clock.now().wall_s
    draft = book.draft(now_s)
    draft.suspend(frozenset({"r3"}))
    served.call(setattr, served.checker, "rules", draft.book(2))
    counted = told_by(world.agent(), "headgate_rules", "kind", "state")
    served.call(setattr, served.checker, "rules", book)
    assert counted["exempt", "suspended"] == 1 and counted["exempt", "in_force"] == 0


def test_many_rules_are_named_in_part_and_counted_in_full(world: Everything) -> None:
    now_s = world.served.clock.now().wall_s
    many = [Rule(f"m{n}", f"t{n}", 0.5, expires_at=now_s + 60) for n in range(300)]
    exempt = Rule("x", "zz", kind=Kind.EXEMPT, expires_at=now_s + 60)
    world.served.rule(*many, exempt)
    text = world.agent()
    world.served.rule(*rules(now_s))
    named = told(text, "headgate_rule_seconds_left", "target")
    assert len(named) == MAX_NAMED and "zz" in named, "exemptions come first"
    assert told_by(text, "headgate_rules", "kind", "state")["ratio", "in_force"] == 300


# --- who is held, and by what --------------------------------------------------------------------


def test_a_throttled_client_says_by_what_and_for_how_long(world: Everything) -> None:
    text = world.agent()
    by = ("client", "verdict", "scope", "metric")
    held = told_by(text, "headgate_client_held_seconds", *by)
    assert ("held:job", "ON_HOLD", "", "(rule)") in held
    count = told(text, "headgate_clients_held", "database")
    assert count["main"] == len(held)


def test_an_exempt_client_s_checks_name_no_rule_by_its_id(world: Everything) -> None:
    """Ids are made up for each rule: as labels, they would never end."""
    text = world.agent()
    checks = told_by(text, "headgate_checks_total", "client", "verdict", "metric")
    assert checks["saved:job", "OK", "(rule)"] >= 1
    assert not any("r3" in one.labels.get("metric", "") for one in samples(text))


def test_recent_clients_are_counted_by_window(world: Everything) -> None:
    """R136"""
    counted = told_by(world.agent(), "headgate_clients", "database", "window")
    assert counted["main", "5m"] == counted["main", "24h"] >= 4
    assert counted["replica", "24h"] == 0


def test_a_client_that_worked_without_a_throttler_is_shown(world: Everything) -> None:
    """R55"""
    text = world.agent()
    assert told(text, "headgate_unthrottled_seconds", "client") == {"etl:nightly": 53.0}
    assert told(text, "headgate_unthrottled_pieces", "client") == {"etl:nightly": 421}


# --- health ------------------------------------------------------------------------------------


def test_an_unavailable_metric_names_its_cause_and_scope(world: Everything) -> None:
    world.served.lose("threads_running", Cause.TIMED_OUT)
    absent = told_by(
        world.agent(), "headgate_metric_unavailable", "database", "metric", "scope", "cause"
    )
    assert ("main", "threads_running", "host", "timed_out") in absent
    assert ("main", "threads_running", "shard", "unreachable") in absent
    assert not any("lag" in labels for labels in absent)


def test_seconds_since_healthy_grow_while_it_is_not(world: Everything) -> None:
    """R136"""
    served = world.served
    served.measure(threads_running=3.0)
    served.call(served.views.note_health)
    name = "headgate_database_seconds_since_healthy"
    assert told(world.agent(), name, "database")["replica"] == 0
    served.measure(threads_running=10_000.0)
    assert told(world.agent(), name, "database")["replica"] > 0


# --- budgets (R137) ------------------------------------------------------------------------------


def test_the_accuracy_of_estimated_costs_is_over_all_patterns(world: Everything) -> None:
    text = world.agent()
    error = told(text, "headgate_budget_estimate_error", "quantile")
    assert error == dict.fromkeys(("0.1", "0.5", "0.9"), 0.1)
    assert told(text, "headgate_budget_cost_factor", "quantile")["0.5"] == pytest.approx(12.5e-9)
    assert told(text, "headgate_budget_backends_behind", "database")["main"] == 1
    assert told(text, "headgate_budgets", "mode") == {"off": 0, "warn": 0, "enforce": 1}


def test_sessions_of_rogue_clients_are_counted_by_user(world: Everything) -> None:
    """R138; by program or host there would be no bound."""
    users = told(world.agent(), "headgate_rogue_user_sessions_active", "user")
    assert users == {"alice": 2.0}


def test_the_process_has_the_usual_metrics(world: Everything) -> None:
    text = world.agent()
    lag = told(text, "headgate_loop_lag_seconds_bucket", "le")
    assert lag["0.001"] == 0 and lag["0.0025"] == 1 <= lag["+Inf"]
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= names(text)
    alone = names(render_metrics(world.served.views)[0])
    assert "headgate_connections" not in alone and not any("process_" in one for one in alone)


def test_checks_are_answered_while_a_scrape_is_under_way(world: Everything) -> None:
    """The text of thousands of series is made in turns with them, and is the same."""
    served = world.served
    turns = served.run_there(lambda: _turns_while(render_in_turns(served.views)))
    assert turns >= len(SERIES)
    assert names(served.run_there(lambda: render_in_turns(served.views))[0]) <= names(world.agent())


def test_a_series_of_many_rows_is_made_in_turns_too(
    world: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    """headgate_checks_total has a row for each client, metric and verdict: tens of thousands."""
    rows = [((f"client-{n}",), float(n)) for n in range(20 * ROWS_A_TURN)]
    many = Series("headgate_many", "gauge", ("client",), "Many.", lambda _: iter(rows))
    monkeypatch.setattr("headgate.http.exposition.render.SERIES", (many,))
    served = world.served
    assert served.run_there(lambda: _turns_while(render_in_turns(served.views))) >= 20
    text, _ = served.run_there(lambda: render_in_turns(served.views))
    assert text == render_metrics(served.views)[0]


async def _turns_while(work: Awaitable[object]) -> int:
    """How often others came to their turn meanwhile."""
    running, turns = asyncio.ensure_future(work), 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


ODD = ("plain", 'a"b', "back\\slash", "two\nlines", "ü {x}", "")


def test_odd_labels_and_numbers_come_out_as_they_went_in(
    world: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = (0.0, 1e21, float("inf"), -0.5, 2**53, 1e-9)
    rows = [((one,), number) for one, number in zip(ODD, numbers, strict=True)]
    odd = Series(
        "headgate_odd", "gauge", ("client",), "Tells \\ of\nodd ones.", lambda _: iter(rows)
    )
    monkeypatch.setattr("headgate.http.exposition.render.SERIES", (odd,))
    assert told(world.agent(), "headgate_odd", "client") == dict(zip(ODD, numbers, strict=True))
