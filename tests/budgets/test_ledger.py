"""What budgets remember: bounded, lazily, and never less than the truth (R104–R115, R128)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.bucket import Bucket, drain_ns
from headgate.budgets.cost import AGAIN_AFTER_NS
from headgate.budgets.ledger import EACH_WAYS, WAYS, BucketTable, Holding, Ledger
from headgate.budgets.model import (
    NEVER,
    Limit,
    Match,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
    budget_key,
)
from headgate.budgets.parse import parse_budget
from headgate.budgets.policy import Budget
from tests.budgets.worlds import MS, S, World, budget, learn, rule_set, world

HALF: dict[str, Any] = {"rate": 50, "capacity": 100}
"""Of one CPU: drains half a second of CPU in a second, holds one."""


def held(taken: tuple[Any, Holding | None]) -> Holding:
    assert taken[1] is not None
    return taken[1]


def state(ledger: Ledger) -> tuple[Any, ...]:
    return list(ledger.buckets()), copy.deepcopy(ledger.counts), ledger.host, ledger.pattern(7)


def test_many_moderate_statements_are_too_much_together() -> None:
    """R115, R109."""
    w = world(budget(burst=50, **HALF))
    verdicts = [w.run(300 * MS, 300 * MS).verdict for _ in range(5)]
    assert verdicts == [StatementVerdict.RUN] * 3 + [StatementVerdict.BLOCK] * 2
    answer = w.check(300 * MS)
    assert (answer.decided_by, answer.used, answer.retry_ns) == (Limit.BUCKET, 900 * MS, 400 * MS)
    w.now_ns += answer.retry_ns - 1
    assert w.check(300 * MS).verdict is StatementVerdict.BLOCK
    w.now_ns += 1
    assert w.check(300 * MS).verdict is StatementVerdict.RUN


def test_three_overlapping_long_statements_are_limited_to_one() -> None:
    """R128: each of 40 s, none long enough for a timeout."""
    w = world(budget(max_workers=1))
    first = held(w.take(40 * S))
    for _ in range(2):
        w.now_ns += 10 * S
        assert w.take(40 * S)[0].decided_by is Limit.CONCURRENCY
    w.now_ns += 20 * S
    w.ledger.settle(first, 40 * S, w.now_ns)
    assert w.take(40 * S)[0].verdict is StatementVerdict.RUN


def test_a_block_leaves_everything_as_it_was() -> None:
    """R104: the budgets that would have admitted it, too, and the table."""
    each = budget("each", rules=[{"each": ["username"]}], max_workers=3)
    w = world(budget("open", **HALF), budget("shut", rate=0), each)
    before = state(w.ledger)
    assert w.take(MS)[0].verdict is StatementVerdict.BLOCK
    assert state(w.ledger) == before
    w.now_ns += S
    assert w.take(MS, flags=StatementFlags.NO_DELAY)[1] is None
    assert state(w.ledger) == before


def test_looking_changes_nothing() -> None:
    """R111: whatever has drained."""
    w = world(budget(max_workers=3, **HALF))
    held(w.take(300 * MS))
    before = state(w.ledger)
    for step in (0, S, 100 * S):
        World(w.rules, w.ledger, w.now_ns + step).check(300 * MS)
    assert state(w.ledger) == before


def test_what_costs_nothing_stored_is_not() -> None:
    """R112: no limit that remembers, no bucket."""
    w = world(budget("a"), budget("b", rate=50), budget("c", capacity=50), budget("d", burst=50))
    held(w.take(MS))
    assert list(w.ledger.buckets()) == []
    assert w.counts("d").admitted == 1


def test_a_warning_takes_no_place_and_adds_no_debt() -> None:
    """What a switch to enforce finds is at most one capacity."""
    w = world(budget(mode="warn", max_workers=2, **HALF))
    for _ in range(4):
        assert w.take(400 * MS)[1] is not None
    assert w.debt_ns() == 800 * MS
    assert w.counts().warned == [0, 2, 0, 0]
    assert w.counts().admitted == 2
    w.now_ns += S
    for number in range(5):
        w.run(800 * MS, 800 * MS)
        assert w.debt_ns() <= S, number


def test_inside_a_transaction_debt_may_exceed_the_capacity() -> None:
    """R148: let pass, taken, charged, counted."""
    w = world(budget(max_workers=1, **HALF))
    for _ in range(3):
        assert (
            w.take(800 * MS, flags=StatementFlags.IN_TRANSACTION)[0].verdict is StatementVerdict.RUN
        )
    assert w.debt_ns() == 2400 * MS
    (bucket,) = w.ledger.buckets()
    assert (bucket.workers, bucket.statements) == (3, 3)
    assert (w.counts().admitted, w.counts().passed) == (3, 2)


def test_an_early_look_decides_by_what_is_known() -> None:
    w = world(budget(burst=10, max_workers=1))
    for _ in range(3):
        _, holding = w.ledger.take((), (), StatementCheck(0, plan_cost=10.0, pattern=7))
        assert holding is not None
        w.ledger.settle(holding, 2 * S, 0)
    early = w.check(pattern=7, flags=StatementFlags.EARLY)
    assert (early.verdict, early.decided_by) == (StatementVerdict.BLOCK, Limit.QUERY)
    assert early.estimate_ns == pytest.approx(S // 2, rel=1e-5)
    assert w.check(pattern=8, flags=StatementFlags.EARLY).verdict is StatementVerdict.RUN


def test_the_end_corrects_the_estimate_both_ways() -> None:
    """R114."""
    w = world(budget(**HALF))
    first, second = held(w.take(400 * MS)), held(w.take(400 * MS))
    w.ledger.settle(first, 100 * MS, w.now_ns)
    assert w.debt_ns() == 500 * MS
    w.ledger.settle(second, 900 * MS, w.now_ns)
    assert w.debt_ns() == 1000 * MS
    assert (w.counts().estimated_ns, w.counts().charged_ns) == (800 * MS, 1000 * MS)


def test_work_that_is_done_already_is_charged_whatever_the_limits_say() -> None:
    """P3: planning is no statement, and takes its time all the same."""
    w = world(budget(burst=0, max_workers=0, mode="warn", in_transaction="block", **HALF))
    for _ in range(3):
        w.ledger.charge(w.rules.budgets, w.matched().at, 700 * MS, w.now_ns)
    assert w.debt_ns() == 2100 * MS
    assert (w.counts().charged_ns, w.counts().admitted) == (2100 * MS, 0)
    assert all(bucket.workers == bucket.statements == 0 for bucket in w.ledger.buckets())
    w.now_ns += 1 * S
    assert w.debt_ns() == 1600 * MS


def test_cancelled_statements_give_back_and_pay() -> None:
    """R108."""
    w = world(budget(max_workers=1, **HALF))
    holding = held(w.take(pattern=7, plan_cost=100.0))
    w.ledger.settle(holding, 700 * MS, w.now_ns, aborted=True)
    assert w.debt_ns() == 700 * MS
    assert w.ledger.host.calls == 0
    known = w.ledger.pattern(7)
    assert known is not None and known.calls == 1
    assert w.take(MS)[0].verdict is StatementVerdict.RUN


def test_an_idle_cursor_keeps_its_charge_but_no_place() -> None:
    w = world(budget(max_workers=1, **HALF))
    cursor = w.ledger.pause(held(w.take(400 * MS)))
    other = held(w.take(MS))
    assert w.debt_ns() == 401 * MS
    cursor = w.ledger.resume(cursor)
    (bucket,) = w.ledger.buckets()
    assert bucket.workers == 2
    w.ledger.settle(other, MS, w.now_ns)
    w.ledger.settle(w.ledger.pause(cursor), 0, w.now_ns)
    (bucket,) = w.ledger.buckets()
    assert (bucket.workers, bucket.statements, w.debt_ns()) == (0, 0, MS)


# --- a policy that changes --------------------------------------------------------------------


def test_another_rate_keeps_the_debt_and_another_epoch_forgives_it() -> None:
    w = world(budget(**HALF))
    held(w.take(800 * MS))
    slow = World(rule_set(budget(rate=10, capacity=100)), w.ledger, w.now_ns)
    assert slow.check(300 * MS).retry_ns == S
    held(slow.take(100 * MS))
    assert slow.debt_ns() == 900 * MS
    mild = World(rule_set(budget(rate=10, capacity=100, epoch=1)), w.ledger, w.now_ns)
    assert mild.check(S).verdict is StatementVerdict.RUN
    assert (mild.debt_ns(), mild.counts().forgiven_ns) == (0, 900 * MS)
    held(mild.take(100 * MS))
    assert (mild.debt_ns(), mild.counts().forgiven_ns) == (100 * MS, 900 * MS)


@pytest.mark.parametrize(("before", "after"), [(1, 100), (100, 1), (1, 50), (50, 8)])
def test_a_statement_blocked_under_another_rate_is_admitted_when_promised(
    before: float, after: float
) -> None:
    """R110: a changed rate takes effect with the look, even where everything is blocked."""
    w = world(budget(rate=before, capacity=100))
    w.run(S, S)
    w.rules = rule_set(budget(rate=after, capacity=100))
    told = w.take(S)[0]
    assert told.verdict is StatementVerdict.BLOCK
    assert told.retry_ns == pytest.approx(100 * S / after, abs=100)
    for part in range(1, 11):  # as often as anybody tries
        w.now_ns = S + told.retry_ns * part // 11
        assert w.take(S)[0].verdict is StatementVerdict.BLOCK
    w.now_ns = S + told.retry_ns - 1
    assert w.take(S)[0].verdict is StatementVerdict.BLOCK
    w.now_ns += 1
    assert w.take(S)[0].verdict is StatementVerdict.RUN


def test_after_a_change_of_rate_nothing_is_given_back() -> None:
    w = world(budget(**HALF))
    holding = held(w.take(400 * MS))
    fast = World(rule_set(budget(rate=100, capacity=100)), w.ledger, w.now_ns)
    held(fast.take(100 * MS))
    w.ledger.settle(holding, 0, w.now_ns)
    assert w.debt_ns() == 500 * MS


# --- what is known becomes old ----------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"burst": 20}, {"rate": 7, "capacity": 20}, {"capacity": 20}])
def test_a_pattern_that_was_too_expensive_once_is_tried_again(limits: dict[str, Any]) -> None:
    """R106: nothing is learnt of what never runs. One at a time, and then rarely."""
    w = world(budget(**limits))
    learn(w.ledger, 7, 100.0, 800 * MS, now_ns=w.now_ns)
    w.now_ns += AGAIN_AFTER_NS - 1
    assert w.check(plan_cost=100.0, pattern=7).retry_ns == NEVER
    w.now_ns += 1
    assert (
        w.check(plan_cost=100.0, pattern=7, flags=StatementFlags.EARLY).verdict
        is StatementVerdict.RUN
    )
    answer, trial = w.take(plan_cost=100.0, pattern=7)
    assert answer.estimate_ns == pytest.approx(200 * MS, abs=2)
    assert w.take(plan_cost=100.0, pattern=7)[1] is None
    assert trial is not None
    w.ledger.settle(trial, 0, w.now_ns)
    w.now_ns += AGAIN_AFTER_NS
    assert w.run(0, 0, plan_cost=100.0, pattern=7).verdict is StatementVerdict.RUN
    assert w.ledger.estimate(StatementCheck(0, plan_cost=100.0, pattern=7)).p90_ns < 300 * MS


def test_the_more_expensive_the_rarer_and_an_explicit_zero_never() -> None:
    w = world(budget(burst=20))
    learn(w.ledger, 7, 100.0, 100 * S)
    for age_s, verdict in ((9_990, StatementVerdict.BLOCK), (10_010, StatementVerdict.RUN)):
        w.now_ns = age_s * S
        assert w.check(plan_cost=100.0, pattern=7).verdict is verdict
    w.rules = rule_set(budget(burst=0))
    assert w.check(plan_cost=100.0, pattern=7).verdict is StatementVerdict.BLOCK


def test_an_aborted_trial_makes_nothing_cheaper() -> None:
    """R108."""
    w = world(budget(burst=20))
    learn(w.ledger, 7, 100.0, 800 * MS)
    w.now_ns = 2 * AGAIN_AFTER_NS
    _, trial = w.take(plan_cost=100.0, pattern=7)
    assert trial is not None
    w.ledger.settle(trial, 500 * MS, w.now_ns, aborted=True)
    known = w.ledger.pattern(7)
    assert known is not None
    assert known.calls == 1
    assert known.whole.typical_estimate.mean_ns == pytest.approx(800 * MS, rel=1e-5)


# --- the table --------------------------------------------------------------------------------

TENANT = [{"each": ["tag.t"]}]


def fill(w: World, costs: list[int]) -> list[Holding]:
    """A bucket per cost, in a table of one set."""
    texts = (f"SELECT 1 /*t={at}*/".encode() for at in range(len(costs)))
    return [held(w.take(cost, text)) for cost, text in zip(costs, texts, strict=True)]


def labels(w: World) -> set[bytes]:
    return {bucket.label for bucket in w.ledger.buckets()}


def test_an_emptied_bucket_makes_room_first() -> None:
    """R112."""
    w = world(budget(rules=TENANT, **HALF), buckets=WAYS)
    for holding in fill(w, [(20 + at) * MS for at in range(EACH_WAYS)]):
        w.ledger.settle(holding, holding.estimate_ns, w.now_ns)
    w.now_ns += 43 * MS
    held(w.take(MS, b"SELECT 1 /*t=new*/"))
    assert labels(w) == {f"t={at}".encode() for at in range(1, EACH_WAYS)} | {b"t=new"}
    assert (w.counts().evicted, w.counts().forgiven_ns) == (0, 0)


def test_else_the_one_that_would_be_empty_soonest_is_forgiven_and_counted() -> None:
    """R112, R113."""
    w = world(budget(rules=TENANT, **HALF), buckets=WAYS)
    costs = [(100 - at) * MS for at in range(EACH_WAYS)]
    for holding in fill(w, costs):
        w.ledger.settle(holding, holding.estimate_ns, w.now_ns)
    w.now_ns += 10 * MS
    held(w.take(MS, b"SELECT 1 /*t=new*/"))
    assert f"t={EACH_WAYS - 1}".encode() not in labels(w)
    assert (w.counts().evicted, w.counts().forgiven_ns) == (1, min(costs) - 5 * MS)


def test_a_bucket_in_use_is_never_evicted() -> None:
    """All are: the statement runs uncounted."""
    w = world(budget(rules=TENANT, max_workers=1), buckets=WAYS)
    holdings = fill(w, [MS] * EACH_WAYS)
    extra = held(w.take(MS, b"SELECT 1 /*t=new*/"))
    assert w.counts().unpinned == 1
    w.ledger.settle(extra, MS, w.now_ns)
    w.ledger.settle(holdings[3], MS, w.now_ns)
    held(w.take(MS, b"SELECT 1 /*t=new*/"))
    assert b"t=3" not in labels(w)


def test_an_idle_cursor_keeps_its_bucket() -> None:
    """R128: it is counted when it goes on, and pays for what it took."""
    w = world(budget(rules=TENANT, max_workers=1, **HALF), buckets=WAYS)
    cursor = w.ledger.pause(held(w.take(MS, b"SELECT 1 /*t=c*/")))
    w.now_ns += 60 * S
    for at in range(3 * WAYS):
        w.run(500 * MS, 500 * MS, text=f"SELECT 1 /*t={at}*/".encode())
    cursor = w.ledger.resume(cursor)
    assert w.take(MS, b"SELECT 1 /*t=c*/")[0].decided_by is Limit.CONCURRENCY
    before = w.debt_ns()
    w.ledger.settle(w.ledger.pause(cursor), 700 * MS, w.now_ns)
    assert w.debt_ns() == before + 699 * MS


def hog_and_tenants(secret: int = 0) -> World:
    """A table of one set; the debt of tenants drains so slowly that none is empty soon."""
    hog = budget("hog", rules=[{"match": {"username": "hog"}}], **HALF)
    return world(hog, budget(rules=TENANT, rate=0.1, capacity=100), buckets=WAYS, secret=secret)


@pytest.mark.parametrize("pinned", [0, EACH_WAYS])
def test_made_up_values_wash_no_debt_of_a_budget_away(pinned: int) -> None:
    """R110, R113: neither by slow debts nor by sessions that sit in the ways."""
    w = hog_and_tenants()
    fill(w, [MS] * pinned)
    w.who = StatementIdentity(username="hog")
    admitted_ns, began_ns = 0, w.now_ns
    while w.now_ns < began_ns + 20 * S:
        admitted_ns += 500 * MS if w.run(500 * MS, 500 * MS).verdict is StatementVerdict.RUN else 0
        w.run(MS, MS, text=f"SELECT 1 /*t=u{w.now_ns}*/".encode())
        w.now_ns += 50 * MS
    assert admitted_ns <= 20 * S // 2 + S
    assert (w.counts("hog").forgiven_ns, w.counts("hog").evicted) == (0, 0)
    assert bool(w.counts().unpinned) == bool(pinned)


def test_budgets_own_buckets_have_the_last_ways_first_and_then_any() -> None:
    names = [f"o{at}" for at in range(WAYS + 1)]
    own = (budget(n, rules=[{"match": {"username": n}}], **HALF) for n in names)
    w = world(budget(rules=TENANT, **HALF), *own, buckets=WAYS)
    for at in range(WAYS):
        w.run(900 * MS, 900 * MS, text=f"SELECT 1 /*t={at}*/".encode())
    assert len(labels(w)) == EACH_WAYS
    for at, name in enumerate(names):
        w.who = StatementIdentity(username=name)
        w.run((100 + at) * MS, (100 + at) * MS)
    assert {bucket.is_own for bucket in w.ledger.buckets()} == {True}
    assert w.counts().evicted == WAYS
    assert [name for name in names if w.counts(name).evicted] == ["o0"]


def test_the_set_of_a_key_is_a_secret() -> None:
    """Else one could make up values that crowd the set of another's bucket."""
    sets = {
        secret: tuple(BucketTable(1024, secret).placed(Bucket(k, 9), 0).place for k in keys)
        for keys in [range(64, 64 * 12, 64)]
        for secret in (0, 1, 2**63 + 5)
    }
    assert len(set(sets.values())) == 3
    assert {place.row for place in sets[0] if place} == {0}
    assert len({place.row for place in sets[1] if place}) > 4


# --- properties -------------------------------------------------------------------------------

CPUS = 1000


def one_budget(**settings: Any) -> tuple[Budget, list[Match]]:
    return parse_budget(budget(**settings)), [Match(0, 0, budget_key("b"))]


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 400 * MS),  # after the one before
        st.integers(1, 900 * MS),  # estimate
        st.integers(0, 1500),  # actual, in thousandths of it
        st.integers(0, 800 * MS),  # how long it runs
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.parametrize("overrun", [False, True])
@given(arrivals=ARRIVALS)
def test_the_cost_admitted_is_at_most_share_times_time_plus_size(
    overrun: bool, arrivals: list[tuple[int, int, int, int]]
) -> None:
    """R110, for any pattern of arrivals, at every instant, with settlement; where estimates were
    too low, plus what they were too low by."""
    rule, matches = one_budget(rate=30, capacity=100)
    ledger = Ledger(cpus_milli=CPUS, workers=1, buckets=WAYS)
    running: list[tuple[int, int, Holding]] = []
    at = spent = over = 0
    for gap, estimate, share, length in arrivals:
        at += gap
        for end, actual, holding in sorted(running, key=lambda r: r[0]):
            if end <= at:
                ledger.settle(holding, actual, end)
                running = [r for r in running if r[2] is not holding]
        ask = StatementCheck(at, cost_ns=estimate, flags=StatementFlags.COST_GIVEN)
        _, holding_or_none = ledger.take([rule], matches, ask)
        if holding_or_none is None:
            continue
        actual = estimate * (share if overrun else min(share, 1000)) // 1000
        spent += actual
        over += max(actual - estimate, 0)
        running.append((at + length, actual, holding_or_none))
        assert spent <= at * 30 // 100 + S + over + 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400 * MS),  # after the one before
            st.floats(0.01, 1e6),  # plan cost
            st.integers(0, 900 * MS),  # actual, whatever the plan cost says
            st.integers(0, 4),  # plan shape
            st.booleans(),  # whether it is cut short
        ),
        min_size=1,
        max_size=25,
    )
)
def test_the_bound_holds_for_learned_estimates(
    arrivals: list[tuple[int, float, int, int, bool]],
) -> None:
    """R110, R162: however wrong they are, plus what they were too low by."""
    rule, matches = one_budget(rate=30, capacity=100)
    ledger = Ledger(cpus_milli=CPUS, workers=1, buckets=WAYS)
    at = spent = over = 0
    for gap, plan_cost, actual, shape, aborted in arrivals:
        at += gap
        ask = StatementCheck(at, plan_cost=plan_cost, pattern=7, shape=shape)
        answer, holding = ledger.take([rule], matches, ask)
        if holding is None:
            continue
        ledger.settle(holding, actual, at, aborted=aborted)
        spent += actual
        over += max(actual - answer.estimate_ns, 0)
        assert spent <= at * 30 // 100 + S + over + 1


COSTS = st.lists(st.integers(1, 900 * MS), min_size=1, max_size=5)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2000 * MS),  # after the one before
        st.booleans(),  # a transaction that the client has begun, or a string of statements
        COSTS,
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("in_transaction", ["charge", "block"])
@given(messages=MESSAGES)
def test_the_bound_counts_what_transactions_and_strings_run(
    in_transaction: str, messages: list[tuple[int, bool, list[int]]]
) -> None:
    """R110, R165: everything is charged. Whatever a budget may block (all but the later statements
    of a transaction, if it says so) starts within share × time + size of all that ran before."""
    rule, matches = one_budget(rate=30, capacity=100, in_transaction=in_transaction)
    ledger = Ledger(cpus_milli=CPUS, workers=1, buckets=WAYS)
    at = spent = 0
    for gap, is_transaction, costs in messages:
        at += gap
        for number, cost in enumerate(costs):
            inside = is_transaction and number > 0
            flags = StatementFlags.IN_TRANSACTION if inside else StatementFlags.PLANNED
            ask = StatementCheck(at, cost_ns=cost, flags=flags | StatementFlags.COST_GIVEN)
            _, holding = ledger.take([rule], matches, ask)
            if holding is None:
                break  # The client gets an error, and what is left of the message is not run.
            ledger.settle(holding, cost, at)
            spent += cost
            if not inside or in_transaction == "block":
                assert spent <= at * 30 // 100 + S + 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "warn", "settle", "abort", "pause", "resume", "rate", "epoch"]),
        st.integers(0, 300 * MS),
        st.integers(1, 800 * MS),
    ),
    max_size=20,
)


@given(OPERATIONS)
def test_whatever_happens_places_come_back_and_debt_stays_bounded(
    operations: list[tuple[str, int, int]],
) -> None:
    """Nothing leaks; outside transactions admission alone never makes a bucket overflow."""
    settings_: dict[str, Any] = {"rate": 50, "capacity": 100, "max_workers": 3, "epoch": 0}
    w = world(budget(**settings_))
    holdings: list[Holding] = []
    for name, gap, amount in operations:
        w.now_ns += gap
        if name in ("take", "warn"):
            settings_["mode"] = "warn" if name == "warn" else "enforce"
            w.rules = rule_set(budget(**settings_))
            before = w.debt_ns()
            _, holding = w.take(amount)
            assert w.debt_ns() <= max(before, S)
            holdings += [holding] if holding is not None else []
        elif name == "rate":
            settings_["rate"] = 1 + amount % 100
        elif name == "epoch":
            settings_["epoch"] += 1
        elif holdings and name == "pause":
            holdings[0] = w.ledger.pause(holdings[0])
        elif holdings and name == "resume":
            holdings[0] = w.ledger.resume(holdings[0])
        elif holdings:
            w.ledger.settle(holdings.pop(), amount, w.now_ns, aborted=name == "abort")
    for holding in holdings:
        w.ledger.settle(holding, 0, w.now_ns)
    assert all((b.workers, b.statements) == (0, 0) for b in w.ledger.buckets())


def test_a_charge_is_never_less_than_the_estimate() -> None:
    assert drain_ns(1, 100_000, 128_000) == 1
