"""Rules on clients: precedence, ends, and what no set of them can do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import parse_identity
from headgate.check.decide import decide, findings
from headgate.check.health import Health
from headgate.check.model import PASSING, Decision, State, Verdict
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.rules.matching import (
    FOREVER,
    MAX_RESOLVED,
    Applied,
    DiceOrder,
    Justification,
    Kind,
    Rule,
    RuleBook,
    _weigh,
    book_of,
)
from tests.builders import NOW, absent, at, check, health, metric, sample, shard_health, window

LAG = metric("lag")
THREADS = metric("threads_running")
HEALTHY = health((LAG, 1.0), (THREADS, 3.0))
LAGGED = health((LAG, 7.0), (THREADS, 3.0))
W = NOW.wall_s


def rule(name: str, target: str, kind: Kind = Kind.RATIO, **more: Any) -> Rule:
    return Rule(name, target, kind=kind, **{"expires_at": W + 3600, **more})


def exempt(name: str, target: str, *metrics: str, **more: Any) -> Rule:
    because = {"justification": Justification.INCIDENT, "reason": "fix"}
    return rule(name, target, Kind.EXEMPT, **{"metrics": metrics, **because, **more})


def applied(
    rules: Sequence[Rule], app: str = "u1:etl:nightly", wall_s: float = W, **more: Any
) -> Applied:
    return RuleBook(rules, **more).applied(parse_identity(app), "main", wall_s)


def ask(
    known: Health, rules: Sequence[Rule] | RuleBook, *, roll: float = 0.5, app: str = "etl:nightly"
) -> Decision:
    book = rules if isinstance(rules, RuleBook) else book_of(rules)
    return decide(check(app), known, book, now=NOW, roll=roll)


def ids(found: Applied) -> list[str]:
    return [one.id for one in found.rules]


# --- precedence (R65–R67) ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "first"),
    [
        (["all", "etl"], "etl"),
        (["all", "etl", "etl:nightly"], "etl:nightly"),
        (["etl:nightly", "u1:etl:nightly"], "u1:etl:nightly"),
        (["nightly:etl", "etl"], "nightly:etl"),
        # As many distinct tokens, not as many colons.
        (["etl:etl", "nightly:etl"], "nightly:etl"),
    ],
)
def test_the_most_specific_rule_comes_first(targets: list[str], first: str) -> None:
    """Whatever its ratio; `all` comes last."""
    rules = [rule(t, t, ratio=0.9 - i / 10) for i, t in enumerate(targets)]
    found = applied(rules)
    assert found.reject is not None and found.reject.id == first
    assert {one.rule.id for one in found.shadowed} == {*targets} - {first}
    assert all(one.by.id == first for one in found.shadowed)


@pytest.mark.parametrize(
    ("strict", "lax"),
    [
        (rule("a", "etl", Kind.HOLD), rule("b", "etl", ratio=0.99)),
        (rule("a", "etl", ratio=0.6), rule("b", "nightly", ratio=0.5)),
        (rule("a", "etl", ratio=0.0), exempt("b", "etl")),
        (exempt("b", "etl", "lag"), exempt("a", "etl")),
        (exempt("b", "etl", "lag"), exempt("a", "etl", "lag", "pool_usage")),
        (
            rule("b", "etl", Kind.METRICS, metrics=("lag", "pool_usage")),
            rule("a", "etl", Kind.METRICS, metrics=("lag",)),
        ),
        (
            rule("b", "etl", Kind.THRESHOLDS, thresholds={"lag": 1.0}),
            rule("a", "etl", Kind.THRESHOLDS, thresholds={"lag": 2.0}),
        ),
    ],
)
def test_among_equals_the_stricter_comes_first(strict: Rule, lax: Rule) -> None:
    found = applied([lax, strict])
    assert ids(found) == [strict.id]
    assert [(s.rule.id, s.by.id) for s in found.shadowed] == [(lax.id, strict.id)]


def test_rules_of_different_kinds_add_up() -> None:
    rules = [
        rule("r", "all", ratio=0.2),
        exempt("x", "etl", "pool_usage"),
        rule("m", "nightly", Kind.METRICS, metrics=("lag",)),
        rule("t", "u1", Kind.THRESHOLDS, thresholds={"lag": 1.0}),
    ]
    assert ids(applied(rules)) == ["r", "x", "m", "t"]


def test_a_client_with_a_specific_exemption_is_not_on_hold_with_all() -> None:
    found = applied([rule("h", "all", Kind.HOLD), exempt("x", "etl")])
    assert (found.reject, found.exempt and found.exempt.id) == (None, "x")
    assert [(s.rule.id, s.by.id) for s in found.shadowed] == [("h", "x")]


def test_a_narrow_exemption_is_not_widened_by_a_general_one() -> None:
    """The most specific exemption stands: everybody else's full one does not reach it."""
    found = applied([exempt("full", "all"), exempt("narrow", "etl", "lag")])
    assert found.exempt is not None and found.exempt.id == "narrow"
    assert [(s.rule.id, s.by.id) for s in found.shadowed] == [("full", "narrow")]


def test_a_narrow_exemption_is_diced_for_as_ever() -> None:
    found = applied([rule("h", "all", Kind.HOLD), exempt("x", "etl", "lag")])
    assert ids(found) == ["h", "x"]


def test_a_suspended_exemption_does_not_count() -> None:
    """R79"""
    rules = [rule("h", "all", ratio=0.5), exempt("x", "etl")]
    found = applied(rules, suspended=frozenset({"x"}))
    assert ids(found) == ["h"]


def test_a_rule_on_another_database_does_not_count() -> None:
    assert applied([rule("r", "etl", ratio=0.5, database="orders")]) == applied([])._replace(
        since=-FOREVER, until=FOREVER
    )


tokens = st.sampled_from(["u1", "etl", "nightly", "web"])
targets = st.one_of(
    st.just("all"), st.lists(tokens, min_size=1, max_size=3, unique=True).map(":".join)
)
ends = st.one_of(st.just(FOREVER), st.integers(-50, 50).map(lambda s: W + s))
windows = st.one_of(
    st.none(),
    st.lists(
        st.tuples(st.integers(-60, 60), st.integers(1, 30)).map(
            lambda w: (W + w[0], W + w[0] + w[1])
        ),
        max_size=3,
    ).map(tuple),
)
kinds: dict[Kind, st.SearchStrategy[dict[str, Any]]] = {
    Kind.RATIO: st.fixed_dictionaries(
        {"ratio": st.floats(0, 1), "order": st.sampled_from(list(DiceOrder))}
    ),
    Kind.HOLD: st.just({}),
    Kind.EXEMPT: st.fixed_dictionaries(
        {"metrics": st.sampled_from([(), ("lag",), ("lag", "threads_running")])}
    ),
    Kind.METRICS: st.fixed_dictionaries(
        {"metrics": st.sampled_from([("lag",), ("threads_running",), ("lag", "threads_running")])}
    ),
    Kind.THRESHOLDS: st.fixed_dictionaries(
        {
            "thresholds": st.dictionaries(
                st.sampled_from(["lag", "threads_running"]), st.floats(1, 9)
            )
        }
    ),
}


@st.composite
def rule_sets(draw: st.DrawFn, without: Kind | None = None) -> list[Rule]:
    chosen = [kind for kind in Kind if kind is not without]
    count = draw(st.integers(0, 6))
    rules = []
    for index in range(count):
        kind = draw(st.sampled_from(chosen))
        more = draw(kinds[kind])
        rules.append(
            Rule(
                f"r{index}",
                draw(targets),
                kind=kind,
                expires_at=draw(ends),
                windows=draw(windows),
                database=draw(st.sampled_from(["", "main", "orders"])),
                **more,
            )
        )
    return rules


@given(rules=rule_sets(), seed=st.integers(), app=st.sampled_from(["u1:etl:nightly", "web", "etl"]))
def test_precedence_never_depends_on_the_order_of_arrival(
    rules: list[Rule], seed: int, app: str
) -> None:
    """R67"""
    shuffled = list(rules)
    Random(seed).shuffle(shuffled)
    one, other = applied(rules, app), applied(shuffled, app)
    assert one.rules == other.rules
    assert set(map(repr, one.shadowed)) == set(map(repr, other.shadowed))
    assert (one.since, one.until) == (other.since, other.until)


@given(
    rules=rule_sets(without=Kind.EXEMPT),
    lag=st.floats(0, 10),
    threads=st.floats(0, 200),
    roll=st.floats(0, 1, exclude_max=True),
    named=st.sampled_from([(), ("lag",), ("lag", "threads_running")]),
)
def test_no_rule_admits_anyone_while_a_selected_metric_is_unhealthy(
    rules: list[Rule], lag: float, threads: float, roll: float, named: tuple[str, ...]
) -> None:
    """R71: neither a ratio nor an order nor a set of rules; exemption apart."""
    known = health((LAG, lag), (THREADS, threads))
    decision = decide(check("u1:etl:nightly", *named), known, book_of(rules), now=NOW, roll=roll)
    if decision.admitted:
        assert findings(decision)
        assert all(finding.state in PASSING for finding in findings(decision))
        assert decision.exempted == ()
    without = decide(check("u1:etl:nightly", *named), known, book_of([]), now=NOW, roll=roll)
    selects_less = bool(decision.applied.metrics) and not named
    # R80 is the only way to more: metrics of one's own, reported as partial exemption.
    assert not decision.admitted or without.admitted or selects_less


@given(rules=rule_sets(), lag=st.floats(5.01, 100), roll=st.floats(0, 1, exclude_max=True))
def test_an_exemption_is_never_silent_and_never_above_its_ceiling(
    rules: list[Rule], lag: float, roll: float
) -> None:
    """R78, R79"""
    decision = ask(health((LAG, lag), (THREADS, 3.0)), rules, roll=roll, app="u1:etl:nightly")
    judged_by_lag = any(f.ref.metric == "lag" for f in findings(decision))
    if decision.admitted and judged_by_lag:
        exemption = decision.applied.exempt
        assert exemption is not None and "lag" in {f.ref.metric for f in decision.exempted}
        assert lag <= exemption.ceiling * LAG.threshold


@pytest.mark.parametrize("named", [(), ("lag",)])
@pytest.mark.parametrize("last", [None, 1.0, 9.0, 99.0])
def test_an_exemption_waives_nothing_that_cannot_be_read(
    named: tuple[str, ...], last: float | None
) -> None:
    """R79: the probe that fails may fail because of what is let through."""
    before = [] if last is None else [sample(last, age_s=9.0)]
    readings: list[Sample | Absent] = [*before, absent(Cause.FAILED)]
    blind = health((LAG, window(*readings)), (THREADS, 3.0))
    decision = ask(blind, [exempt("x", "etl", *named, ceiling=1000.0)])
    assert decision.verdict in (Verdict.METRIC_UNAVAILABLE, Verdict.THRESHOLD_EXCEEDED)
    assert decision.exempted == () and [f.ref.metric for f in decision.failing] == ["lag"]


def test_an_exemption_is_suspended_while_a_breach_is_only_kept_from_before() -> None:
    """R79: what was 9 when the probe began to fail may be anything by now."""
    held, last = metric("lag", absence="hold", hold_s=60), sample(9.0, age_s=0.1)
    assert ask(health((held, last)), [exempt("x", "etl")]).admitted
    blind = health((held, window(last, absent(Cause.TIMED_OUT))))
    decision = ask(blind, [exempt("x", "etl")])
    assert decision.verdict is Verdict.THRESHOLD_EXCEEDED and decision.exempted == ()


def test_what_an_exemption_does_not_name_does_not_keep_it_from_the_rest() -> None:
    blind = health((LAG, 9.0), (THREADS, absent(Cause.FAILED)))
    decision = ask(blind, [exempt("x", "etl", "lag")])
    assert not decision.admitted
    assert [f.ref.metric for f in decision.failing] == ["threads_running"]
    assert [f.ref.metric for f in decision.exempted] == ["lag"]


# --- thresholds metric by metric, metrics as sets --------------------------------------------


def limit(name: str, target: str, **limits: float) -> Rule:
    return rule(name, target, Kind.THRESHOLDS, thresholds=limits)


def limits_of(found: Applied) -> dict[str, tuple[str, float]]:
    return {name: (one.id, one.thresholds[name]) for name, one in found.thresholds.items()}


def test_thresholds_on_one_target_do_not_hide_each_others_metrics() -> None:
    found = applied([limit("a", "etl", lag=2.0), limit("b", "etl", threads_running=9.0)])
    assert limits_of(found) == {"lag": ("a", 2.0), "threads_running": ("b", 9.0)}
    assert found.shadowed == () and ids(found) == ["a", "b"]


def test_thresholds_of_a_category_apply_to_its_jobs_but_where_they_have_their_own() -> None:
    """The most specific counts by metric, even if it is the laxer one."""
    rules = [
        limit("all", "all", lag=1.0, threads_running=50.0, pool_usage=0.5),
        limit("etl", "etl", lag=2.0, threads_running=9.0),
        limit("job", "etl:nightly", lag=3.0),
        limit("hidden", "nightly", threads_running=9.5),
    ]
    found = applied(rules)
    assert limits_of(found) == {
        "lag": ("job", 3.0),
        "threads_running": ("etl", 9.0),
        "pool_usage": ("all", 0.5),
    }
    assert [(s.rule.id, s.by.id) for s in found.shadowed] == [("hidden", "etl")]
    assert {one.id for one in found.rules} == {"job", "etl", "all"}


@given(rules=rule_sets(), app=st.sampled_from(["u1:etl:nightly", "web", "etl"]))
def test_each_metrics_limit_is_that_of_the_most_specific_rule_and_among_equals_the_lowest(
    rules: list[Rule], app: str
) -> None:
    book, who = RuleBook(rules), parse_identity(app)
    limiting = [
        (specific, one)
        for specific, one in book.matching(who, "main")
        if one.kind is Kind.THRESHOLDS and one.in_force(W)
    ]
    expected = {}
    for name in {name for _, one in limiting for name in one.thresholds}:
        naming = [(s, one.thresholds[name]) for s, one in limiting if name in one.thresholds]
        most = max(specific for specific, _ in naming)
        expected[name] = min(limit for specific, limit in naming if specific == most)
    found = book.applied(who, "main", W)
    assert found.limits == expected
    shadowed = {s.rule.id for s in found.shadowed if s.rule.kind is Kind.THRESHOLDS}
    counting = {one.id for one in found.thresholds.values()}
    # Every one either counts for something, or is told to be shadowed.
    assert {one.id for _, one in limiting if one.thresholds} == counting | shadowed
    assert not counting & shadowed


@given(
    values=st.lists(st.floats(0, 10), min_size=1, max_size=5),
    limits=st.floats(0.1, 12),
    at_least=st.booleans(),
)
def test_a_limit_never_lets_through_what_the_metric_itself_rejects(
    values: list[float], limits: float, at_least: bool
) -> None:
    """R71: with debounce, too, where the last value alone says little."""
    spec = metric("lag", debounce="2 of 3", comparison=">=" if at_least else ">")
    known = health((spec, window(*(sample(value) for value in values))))
    ruled = ask(known, [limit("t", "etl", lag=limits)])
    assert not ruled.admitted or ask(known, []).admitted
    last = values[-1]
    over = last > limits or (at_least and last == limits)
    if over and limits < spec.threshold:
        assert not ruled.admitted


def test_a_limit_is_compared_as_the_metric_is() -> None:
    pool = metric("pool_usage")
    known = health((pool, 0.5))
    assert not ask(known, [limit("t", "etl", pool_usage=0.5)]).admitted
    lag = health((LAG, 2.0))
    assert ask(lag, [limit("t", "etl", lag=2.0)]).admitted


def test_an_answer_shows_the_threshold_it_was_decided_by() -> None:
    decision = ask(health((LAG, 3.0), (THREADS, 3.0)), [limit("t", "etl", lag=2.0)])
    shown = {f.ref.metric: (f.state, f.threshold) for f in findings(decision)}
    assert shown["lag"] == (State.BREACHED, 2.0)
    assert shown["threads_running"] == (State.HEALTHY, THREADS.threshold)
    exempted = ask(LAGGED, [exempt("x", "etl")])
    assert [f.state for f in findings(exempted)] == [State.EXEMPTED, State.HEALTHY]


def test_a_count_of_members_is_not_compared_with_a_rules_seconds() -> None:
    """The shard's own threshold stands: a rule that says nothing of it must not lock out."""
    lag = metric("lag", scope="shard", rollup="unhealthy", threshold=5)
    known = health((lag, 0.0), shard=shard_health((lag, 1.0)))
    assert ask(known, [limit("t", "etl", lag=0.5)]).admitted


def test_sets_of_metrics_that_are_equally_specific_are_united() -> None:
    rules = [
        rule("m1", "etl", Kind.METRICS, metrics=("lag",)),
        rule("m2", "nightly", Kind.METRICS, metrics=("threads_running",)),
        rule("m3", "etl", Kind.METRICS, metrics=("lag",)),
        rule("m4", "all", Kind.METRICS, metrics=("pool_usage",)),
    ]
    found = applied(rules)
    assert set(found.judged_by) == {"lag", "threads_running"}
    assert {(s.rule.id, s.by.id) for s in found.shadowed} == {("m3", "m1"), ("m4", "m1")}


def test_the_most_specific_set_of_metrics_replaces_the_others_whole() -> None:
    """What it leaves out, it leaves out on purpose; R80 has it reported."""
    rules = [
        rule("m1", "etl", Kind.METRICS, metrics=("lag", "threads_running")),
        rule("m2", "etl:nightly", Kind.METRICS, metrics=("lag",)),
    ]
    assert applied(rules).judged_by == ("lag",)


@given(rules=rule_sets(), app=st.sampled_from(["u1:etl:nightly", "web", "etl"]))
def test_a_client_is_decided_by_every_metric_of_its_most_specific_sets(
    rules: list[Rule], app: str
) -> None:
    book, who = RuleBook(rules), parse_identity(app)
    sets = [
        (specific, one)
        for specific, one in book.matching(who, "main")
        if one.kind is Kind.METRICS and one.in_force(W)
    ]
    most = max((specific for specific, _ in sets), default=0)
    wanted = {name for specific, one in sets if specific == most for name in one.metrics}
    assert set(book.applied(who, "main", W).judged_by) == wanted


# --- one roll, both orders (R70, R72, R75) -------------------------------------------------


@given(
    ratio=st.floats(0, 0.999),
    roll=st.floats(0, 1, exclude_max=True),
    lag=st.sampled_from([1.0, 7.0]),
    order=st.sampled_from(list(DiceOrder)),
)
def test_both_orders_admit_on_the_same_dice(
    ratio: float, roll: float, lag: float, order: DiceOrder
) -> None:
    """R75: whichever comes first, the same checks pass; only what is counted differs."""
    decision = ask(health((LAG, lag)), [rule("r", "etl", ratio=ratio, order=order)], roll=roll)
    assert decision.admitted is (lag <= 5 and roll >= ratio)
    if lag > 5 and roll < ratio:
        by_dice = decision.verdict is Verdict.REJECTED_BY_RATIO
        assert by_dice is (order is DiceOrder.BEFORE)


@pytest.mark.parametrize("order", list(DiceOrder))
def test_a_ratio_rejects_its_share(order: DiceOrder) -> None:
    """R72 with 20,000 draws: within three standard deviations."""
    dice, book = Random(7), book_of([rule("r", "etl", ratio=0.9, order=order)])
    admitted = sum(ask(HEALTHY, book, roll=dice.random()).admitted for _ in range(20_000))
    assert abs(admitted / 20_000 - 0.1) < 3 * 0.00213


@pytest.mark.parametrize("ratio", [0.9, 0.1])
def test_a_gate_that_is_open_half_of_the_time_halves_what_is_left(ratio: float) -> None:
    """R72: 5 and 45 of 100, so still nine times as many."""
    dice, book = Random(72), book_of([rule("r", "etl", ratio=ratio)])
    gates = [HEALTHY, LAGGED]
    admitted = sum(ask(gates[n % 2], book, roll=dice.random()).admitted for n in range(20_000))
    expected = (1 - ratio) / 2
    assert abs(admitted / 20_000 - expected) < 3 * (expected * (1 - expected) / 20_000) ** 0.5


@pytest.mark.parametrize("sleep_s", [0.0, 1.0, 10.0])
def test_clients_that_sleep_when_rejected_are_not_nine_times_apart(sleep_s: float) -> None:
    """R73: with work of 1 s, (w + 9s) / (w + s/9). bench/rules.py has the whole table."""
    dice, jobs = Random(73), 4_000

    def seconds(ratio: float) -> float:
        book, elapsed_s, done = book_of([rule("r", "etl", ratio=ratio)]), 0.0, 0
        while done < jobs:
            admitted = ask(HEALTHY, book, roll=dice.random()).admitted
            elapsed_s, done = elapsed_s + (1.0 if admitted else sleep_s), done + admitted
        return elapsed_s

    assert seconds(0.9) / seconds(0.1) == pytest.approx((1 + 9 * sleep_s) / (1 + sleep_s / 9), 0.1)


def test_one_or_two_of_six_is_a_third_and_can_be_had_again() -> None:
    """R74"""
    book = book_of([rule("r", "etl", ratio=2 / 6)])

    def admitted(seed: int) -> list[bool]:
        dice = Random(seed)
        return [ask(HEALTHY, book, roll=dice.random()).admitted for _ in range(6_000)]

    assert admitted(4) == admitted(4) != admitted(5)
    assert abs(sum(admitted(4)) / 6_000 - 4 / 6) < 3 * 0.0061


@given(roll=st.floats(0, 1, exclude_max=True), lag=st.sampled_from([1.0, 7.0]))
def test_all_but_one_by_two_rules_is_what_a_rule_for_each_other_client_would_be(
    roll: float, lag: float
) -> None:
    """R76"""
    two = book_of([rule("all", "all", ratio=0.9), rule("fix", "fix", ratio=0.0)])
    others = ["etl", "web:api", "u1:purge"]
    each = book_of([rule(name, name, ratio=0.9) for name in others])
    for app in (*others, "fix", "u1:fix"):
        known = health((LAG, lag))
        one, other = (ask(known, book, roll=roll, app=app) for book in (two, each))
        assert one.verdict is other.verdict


@pytest.mark.parametrize(
    "app",
    ["u1:vcopier:vreplication:online-ddl", "vcopier:u1:online-ddl", "online-ddl", "a:online-ddl:b"],
)
def test_a_token_is_found_wherever_a_client_puts_it(app: str) -> None:
    """R66: one orders its levels this way, another that way."""
    found = applied([rule("r", "online-ddl", ratio=0.5)], app)
    assert found.reject is not None
    assert applied([rule("r", "online", ratio=0.5)], app).reject is None


def test_a_dice_throw_serves_any_number_of_tokens_and_metrics() -> None:
    """One draw per token would make a ratio of 0.5 one of 0.875."""
    rules = [rule(t, t, ratio=0.5) for t in ("u1", "etl", "nightly")]
    book, dice = book_of(rules), Random(3)
    admitted = sum(
        ask(HEALTHY, book, roll=dice.random(), app="u1:etl:nightly").admitted for _ in range(20_000)
    )
    assert abs(admitted / 20_000 - 0.5) < 3 * 0.0036


# --- ends (R83, R84, R87) ------------------------------------------------------------------


@given(
    rules=rule_sets(),
    instants=st.lists(st.floats(-100, 100), min_size=1, max_size=12),
)
def test_what_is_kept_resolved_is_what_a_fresh_look_finds(
    rules: list[Rule], instants: list[float]
) -> None:
    """R84: the cache honours every edge, and a wall clock that is set back."""
    book, who = RuleBook(rules), parse_identity("u1:etl:nightly")
    for seconds in instants:
        fresh = RuleBook(rules).applied(who, "main", W + seconds)
        assert book.applied(who, "main", W + seconds) == fresh
        assert all(one.in_force(W + seconds) for one in fresh.rules)


def test_on_its_end_the_next_rule_applies_without_a_sweeper() -> None:
    """R84: to the instant; and back, where the clock is."""
    rules = [rule("short", "nightly", ratio=0.9, expires_at=W + 60), rule("base", "etl", ratio=0.1)]
    book, who = RuleBook(rules), parse_identity("etl:nightly")

    def rejects(seconds: float) -> str | None:
        reject = book.applied(who, "main", W + seconds).reject
        return reject.id if reject else None

    assert [rejects(s) for s in (0, 59.999, 60, 59, 3600, 0)] == [
        "short", "short", "base", "short", None, "short",
    ]  # fmt: skip


def test_a_window_opens_and_closes_on_time() -> None:
    rush = rule("rush", "etl", Kind.HOLD, windows=((W + 10, W + 20), (W + 30, W + 40)))
    book, who = RuleBook([rush]), parse_identity("etl")
    held = [book.applied(who, "main", W + s).reject is not None for s in range(0, 50, 5)]
    assert held == [False, False, True, True, False, False, True, True, False, False]
    assert rush.ends_at(W + 12) == W + 20


# --- many clients, many rules (R69) --------------------------------------------------------


def test_a_uuid_made_up_per_check_escapes_no_category_and_fills_no_memory() -> None:
    """R69"""
    book = RuleBook([rule("h", "etl", Kind.HOLD), rule("r", "all", ratio=0.0)])
    for number in range(2 * MAX_RESOLVED):
        found = book.applied(parse_identity(f"u{number}:etl"), "main", W)
        assert found.reject is not None and found.reject.id == "h"
    assert len(book._resolved) <= MAX_RESOLVED


@given(
    rules=rule_sets(),
    app=st.sampled_from(["u1:etl:nightly", "web:etl", "etl"]),
    resting=st.sets(st.sampled_from(["r0", "r1", "r2"])),
)
def test_rules_weighed_by_target_are_as_if_weighed_all_together(
    rules: list[Rule], app: str, resting: set[str]
) -> None:
    """R67: what is worked out once for a target changes nothing for a client."""
    book, who = RuleBook(rules, suspended=frozenset(resting)), parse_identity(app)
    live = [item for item in book.matching(who, "main") if item[1].in_force(W)]
    together, shadowed = _weigh(live, book.suspended)
    found = book.applied(who, "main", W)
    assert found[:4] == together[:4] and found.shadowed == shadowed


@given(
    rules=rule_sets(), others=rule_sets(), gone=st.sets(st.integers(0, 5)),
    wall_s=st.sampled_from([-FOREVER, W - 20, W]),
)  # fmt: skip
def test_rules_changed_step_by_step_are_those_made_at_once(
    rules: list[Rule], others: list[Rule], gone: set[int], wall_s: float
) -> None:
    """Groups are shared between books: what is changed in one must not be in the other."""
    old = RuleBook(rules, wall_s=wall_s)
    before = {app: old.applied(parse_identity(app), "main", W) for app in ("u1:etl", "web")}
    draft = old.draft(wall_s)
    draft.put(others[:2])
    draft.drop(f"r{n}" for n in gone)
    draft.put(others[2:])
    draft.suspend(frozenset({"r1"}))
    left = {r.id: r for r in [*rules, *others[:2]] if r.id not in {f"r{n}" for n in gone}}
    left |= {r.id: r for r in others[2:]}
    changed = draft.book(7)
    fresh = RuleBook(left.values(), suspended=frozenset({"r1"}), wall_s=wall_s)
    for app in ("u1:etl:nightly", "web:etl", "etl", "new"):
        who = parse_identity(app)
        one, other = changed.applied(who, "main", W), fresh.applied(who, "main", W)
        assert one[:4] == other[:4]
        assert set(map(repr, one.shadowed)) == set(map(repr, other.shadowed))
        assert sorted(r.id for _, r in changed.matching(who, "main")) == sorted(
            r.id for _, r in fresh.matching(who, "main")
        )
    assert {r.id for r in changed.rules} == set(left)
    assert {app: old.applied(parse_identity(app), "main", W) for app in before} == before


def test_thousands_of_rules_on_one_target_are_weighed_once_for_all_clients() -> None:
    """R69: names made up per check must not have each of them weighed again."""
    many = [rule(f"r{n}", "etl", ratio=n / 20_000) for n in range(10_000)]
    lifted = [rule(f"x{n}", "etl", Kind.HOLD, windows=()) for n in range(10_000)]
    book = RuleBook([*many, *lifted])
    spans = set()
    for number in range(50):
        found = book.applied(parse_identity(f"u{number}:etl"), "main", W)
        assert found.reject is not None and found.reject.id == "r9999"
        spans |= {id(live) for _, live in found.ranks}
        assert [len(live) for _, live in found.ranks] == [10_000]
    assert len(spans) == 1
    assert len(book.matching(parse_identity("etl"), "main")) == 20_000


def test_a_change_leaves_what_it_does_not_concern_as_it_is() -> None:
    """Shared, not built again: with 10,000 rules that would hold up checks."""
    old = RuleBook([rule("a", "etl", ratio=0.1), rule("b", "web", ratio=0.1)])
    draft = old.draft()
    draft.put([rule("c", "etl", ratio=0.5)])
    new = draft.book(2)
    assert new._groups["web"] is old._groups["web"]
    assert new._groups["etl"] is not old._groups["etl"]
    assert [one.id for one in old.rules] == ["a", "b"]


def test_thousands_of_rules_of_one_category_are_not_all_looked_at() -> None:
    """Found by the rarest of their tokens, not by the one they share."""
    rules = [rule(f"r{n}", f"etl:job{n}", ratio=0.5) for n in range(10_000)]
    book = RuleBook([*rules, rule("e", "etl", ratio=0.1)])
    assert max(map(len, book._by_token.values())) == 1
    found = book.applied(parse_identity("u1:etl:job77"), "main", W)
    assert found.reject is not None and found.reject.id == "r77"


def test_two_favored_clients_collide_without_harm() -> None:
    """R81: both are left to the metrics, and those reject both."""
    rules = [
        rule("all", "all", ratio=0.9),
        rule("a", "etl", ratio=0.0),
        rule("b", "web", ratio=0.0),
    ]
    for app in ("etl", "web"):
        assert ask(HEALTHY, rules, roll=0.0, app=app).admitted
        assert not ask(LAGGED, rules, roll=0.99, app=app).admitted
    assert not ask(HEALTHY, rules, roll=0.89, app="new").admitted


def test_an_end_lies_within_both_the_rule_and_its_window() -> None:
    rush = rule("rush", "etl", windows=((W, W + 100),), expires_at=at(50).wall_s)
    assert rush.ends_at(W + 1) == W + 50
