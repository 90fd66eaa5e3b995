"""Why a statement runs or does not, and what would have to change (R144)."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from headgate.budgets.explain import Explanation, RuleOutcome, explain, findings
from headgate.budgets.matching import Now
from headgate.budgets.model import (
    Limit,
    Statement,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
)
from tests.budgets.worlds import MS, S, World, budget, rule_set, world

WHO = StatementIdentity("app", "shop", None, ip_address("10.1.2.3"))
TEXT = Statement(b"SELECT 1 /*tenant='acme'*/")


def explained(w: World, cost_ns: int = MS, **ask: Any) -> Explanation:
    asked = StatementCheck(w.now_ns, cost_ns=cost_ns, flags=StatementFlags.COST_GIVEN, **ask)
    return explain(w.rules, w.ledger, WHO, TEXT, asked, Now(wall_ms=5000, healthy=True))


def test_every_rule_of_every_budget_is_accounted_for() -> None:
    rules = rule_set(
        budget("off", mode="off"),
        budget("gone", expires_at=5),
        budget("rests", when="unhealthy"),
        budget(
            "far",
            rules=[
                {"match": {"remote_address": "10.0.0.0/8"}},
                {"match": {"username": "etl", "tag.tenant": "acme", "database": "x"}},
                {"match": {"remote_address": "10.2.0.0/16", "application_name": "a"}},
                {"each": ["tag.job"]},
            ],
        ),
        budget("near", rules=[{"match": {"remote_address": "10.1.0.0/16"}}, {}]),
        budget("each", rules=[{"each": ["tag.tenant"]}]),
    )
    told = [
        (f.budget.name, f.outcome, f.why)
        for f in findings(rules, WHO, TEXT, Now(wall_ms=5000, healthy=True))
    ]
    assert told == [
        ("off", RuleOutcome.OFF, "its budget is off"),
        ("gone", RuleOutcome.EXPIRED, "its budget has expired"),
        ("rests", RuleOutcome.INACTIVE, "its budget applies if unhealthy; health is good"),
        ("far", RuleOutcome.HIDDEN, "budget near has the longer prefix 10.1.0.0/16"),
        ("far", RuleOutcome.DIFFERS, "username is app, not etl; database is shop, not x"),
        (
            "far",
            RuleOutcome.DIFFERS,
            "there is no application_name; remote_address 10.1.2.3 is not in 10.2.0.0/16",
        ),
        ("far", RuleOutcome.DIFFERS, "there is no tag.job"),
        ("near", RuleOutcome.APPLIES, "it matches"),
        ("near", RuleOutcome.REPEATS, "an earlier rule brings the same bucket"),
        ("each", RuleOutcome.APPLIES, "bucket tenant=acme"),
    ]


def test_an_explanation_for_an_exempt_user_says_so() -> None:
    rules = rule_set(budget(), exempt_usernames=["app"])
    (only,) = findings(rules, WHO, TEXT, Now())
    assert (only.outcome, only.why) == (RuleOutcome.EXEMPT, "no rule applies to the user app")


def test_what_would_have_to_change() -> None:
    w = world(
        budget("busy", max_workers=1),
        budget("dear", burst=10),
        budget("owing", rate=50, capacity=100),
        budget("small", capacity=10),
        budget("shut", rate=0, mode="warn"),
        cpus_milli=1000,
    )
    w.who = WHO
    two = rule_set(budget("busy", max_workers=1), budget("owing", rate=50, capacity=100))
    first = World(two, w.ledger)
    assert first.take(900 * MS)[1] is not None
    told = explained(w, 200 * MS)
    assert told.answer.verdict is StatementVerdict.BLOCK
    assert list(told.changes) == [
        "busy: 1 of 1 workers must end, or 2 be allowed",
        "dear: make it cheaper than 0.100 s of CPU, or raise burst to 20",
        "owing: wait 0.200 s, or raise capacity to 110, or raise epoch to forgive",
        "small: it is larger than the whole capacity: make it cheaper, or raise that to 20",
        "shut: its rate is 0, which admits nothing: raise it",
    ]
    assert [(s.name, s.limit) for s in told.budgets] == [
        ("busy", Limit.CONCURRENCY),
        ("dear", Limit.QUERY),
        ("owing", Limit.BUCKET),
        ("small", Limit.BUCKET),
        ("shut", Limit.BUCKET),
    ]
    owing = told.budgets[2]
    assert (owing.debt_ns, owing.capacity_ns, owing.fill) == (900 * MS, S, 0.9)
    assert "needs 3 workers, 1 allowed: allow 4" in explained(w, workers=3).changes[0]


def test_it_reads_as_text() -> None:
    w = world(budget("etl", rate=50, capacity=100, max_workers=4, rules=[{"each": ["tag.tenant"]}]))
    lines = explained(w, 2 * S).lines()
    assert lines == [
        "block: expected 2.000 s of CPU, by budget etl [tenant=acme]: "
        "debt 0.000 s of 1.000 s, never fits",
        "to change that:",
        "  etl: it is larger than the whole capacity: make it cheaper, or raise that to 200",
        "budgets that apply:",
        "  etl [tenant=acme]: enforce, 0 of 4 workers running, debt 0.000 s of 1.000 s, 0 % full",
        "rules:",
        "  etl: everything, for each tag.tenant: applies: bucket tenant=acme",
    ]
    assert explained(world()).lines() == [
        "run: expected 0.001 s of CPU, and no budget applies",
    ]


def test_inside_a_transaction_it_says_so() -> None:
    w = world(budget(burst=0.001))
    asked = StatementCheck(
        0, cost_ns=10**9, flags=StatementFlags.COST_GIVEN | StatementFlags.IN_TRANSACTION
    )
    told = explain(w.rules, w.ledger, WHO, TEXT, asked, Now())
    assert told.answer.passed
    assert told.lines()[1] == "inside a transaction: a limit is exceeded, but it may go on"


def test_explain_changes_nothing() -> None:
    w = world(budget(rate=50, capacity=100))
    explained(w)
    assert list(w.ledger.buckets()) == []
    assert w.ledger.counts == {}
