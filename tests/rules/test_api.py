"""Rules as documents and as sentences; what they make of one client (R144)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headgate.base.names import parse_identity
from headgate.base.units import share_of
from headgate.check.decide import decide
from headgate.check.health import Health
from headgate.check.model import Decision
from headgate.check.reasons import reason_of, says
from headgate.metrics.samples import Cause
from headgate.rules.api import (
    MAX_CLIENTS_NAMED,
    MAX_EXEMPTIONS_TOLD,
    exemptions_told,
    explain_doc,
    explain_rules,
    matched_clients,
    needed_of,
    rule_doc,
)
from headgate.rules.matching import FOREVER, DiceOrder, Justification, Kind, Rule, RuleBook, book_of
from headgate.rules.settings import KnownMetric, RuleSpec
from headgate.rules.times import parse_schedule
from tests.builders import NOW, absent, check, health, metric, sample, window

LAG = metric("lag")
POOL = metric("pool_usage")
W = NOW.wall_s


def rule(name: str, target: str = "etl", kind: Kind = Kind.RATIO, **more: Any) -> Rule:
    given = {"expires_at": W + 1800, "created_by": "ops", "created_at": W - 60, **more}
    return Rule(name, target, kind=kind, **given)


HOLD = rule("h", kind=Kind.HOLD, reason="incident 42")
EXEMPT = rule(
    "x", kind=Kind.EXEMPT, justification=Justification.INCIDENT, reason="the fix", ceiling=2.0
)


def decided(known: Health, *rules: Rule, roll: float = 0.5) -> Decision:
    return decide(check("etl:nightly"), known, book_of(rules), now=NOW, roll=roll)


# --- sentences -------------------------------------------------------------------------------


def test_a_hold_says_who_how_long_set_by_and_why() -> None:
    assert reason_of(decided(health((LAG, 1.0)), HOLD)) == (
        "rule h rejects every check of etl for another 30 min, set by ops: incident 42"
    )


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (0.0, "0%"), (0.05, "5%"), (0.333, "33%"), (0.9, "90%"), (0.999, "99.9%"),
        (0.9999, "99.99%"), (0.001, "0.1%"), (1 - 1e-16, "almost 100%"), (1.0, "100%"),
    ],
)  # fmt: skip
def test_only_all_of_them_is_a_hundred_percent(ratio: float, told: str) -> None:
    assert share_of(ratio) == told


def test_an_exemption_that_cannot_be_validated_says_so() -> None:
    """R79"""
    blind = health((LAG, window(sample(1.0, age_s=9.0), absent(Cause.FAILED, age_s=4.0))))
    assert reason_of(decided(blind, EXEMPT)).endswith(
        "but is suspended: its ceiling cannot be compared while lag is failed for 4.0 s"
    )


def test_of_a_rule_in_a_window_the_window_ends_first() -> None:
    rush = rule("r", ratio=0.9, windows=((W - 60, W + 300),))
    assert "for another 5 min, set by ops" in reason_of(decided(health((LAG, 1.0)), rush))


def test_a_suspended_exemption_says_why() -> None:
    """R79"""
    told = reason_of(decided(health((LAG, 10.5)), EXEMPT))
    assert told.startswith("main: lag is 10.5 s, above its threshold of 5 s")
    assert told.endswith("rule x exempts etl, but is suspended: lag is above 2 times its threshold")


def test_what_is_left_of_a_partial_exemption_is_said() -> None:
    partial = rule("x", kind=Kind.EXEMPT, metrics=("lag",))
    told = reason_of(decided(health((LAG, 7.0), (POOL, 1.0)), partial))
    assert told.startswith("main: pool_usage is 100%")
    assert told.endswith("rule x exempts etl from lag")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (HOLD, "rejects every check of etl"),
        (rule("r", ratio=0.9), "rejects 90% of the checks of etl"),
        (rule("r", ratio=0.0), "sets no ratio for etl: only the metrics decide"),
        (
            rule("r", ratio=0.9, order=DiceOrder.AFTER, database="main"),
            "rejects 90% of the checks of etl, after the metrics have admitted them on main",
        ),
        (EXEMPT, "EXEMPTS etl from every metric and rejection, up to 2 times its threshold"),
        (
            rule("m", kind=Kind.METRICS, metrics=("lag", "pool_usage")),
            "decides checks of etl by lag, pool_us",
        ),
        (
            rule("t", kind=Kind.THRESHOLDS, thresholds={"lag": 2.0}),
            "stricter thresholds for etl: lag 2 s",
        ),
    ],
)
def test_every_kind_has_its_sentence(given: Rule, told: str) -> None:
    assert told in says(given)


# --- documents -------------------------------------------------------------------------------


def spec_of(given: Rule, **more: Any) -> RuleSpec:
    return RuleSpec(given, **more)


def test_a_rule_as_a_document() -> None:
    """R85"""
    doc = rule_doc(spec_of(HOLD), HOLD, W, clients=["etl:nightly"], advice=["look"])
    assert (doc.id, doc.kind, doc.ratio, doc.ceiling) == ("h", "hold", None, None)
    assert (doc.left_s, doc.state, doc.clients_total) == (1800.0, "in_force", 1)
    assert doc.created_at == "2023-11-14T22:12:20Z" and doc.expires_at == "2023-11-14T22:43:20Z"
    assert msgspec.json.decode(msgspec.json.encode(doc))["advice"] == ["look"]


@pytest.mark.parametrize(
    ("given", "more", "state"),
    [
        (rule("r", ratio=0.5), {}, "in_force"),
        (rule("r", ratio=0.5, expires_at=W), {}, "ended"),
        (rule("r", ratio=0.5), {"lifted_by": "eve"}, "ended"),
        (EXEMPT, {"suspended": "it starves web"}, "suspended"),
        (rule("r", ratio=0.5, windows=((W + 9, W + 99),)), {}, "waiting"),
    ],
)
def test_every_state_of_a_rule(given: Rule, more: dict[str, Any], state: str) -> None:
    doc = rule_doc(spec_of(given, **more), given, W)
    assert doc.state == state
    assert (doc.left_s == 0.0) is (state == "ended")
    assert (doc.next_at is not None) is (state == "waiting")


def test_a_rule_without_an_end_is_still_a_document() -> None:
    given = rule("r", ratio=0.5, expires_at=FOREVER)
    assert rule_doc(spec_of(given), given, W).expires_at.startswith("9999-12-31")


def test_a_schedule_is_shown_as_it_was_written() -> None:
    schedule = parse_schedule("mon-fri 07:00-09:30 Europe/Berlin")
    doc = rule_doc(spec_of(HOLD, schedule=schedule), HOLD, W)
    assert doc.schedule == {
        "days": ["mon", "tue", "wed", "thu", "fri"],
        "from": "07:00",
        "to": "09:30",
        "zone": "Europe/Berlin",
    }


def test_who_is_meant_is_named_up_to_a_bound() -> None:
    clients = [(parse_identity(f"u{n}:etl"), "main") for n in range(100)]
    book = RuleBook([rule("r", ratio=0.5), rule("o", "etl", database="orders"), rule("a", "all")])
    meant = matched_clients(book, [*clients, (parse_identity("web"), "main")])
    assert {name: len(who) for name, who in meant.items()} == {"r": 100, "a": 101}
    doc = rule_doc(spec_of(HOLD), HOLD, W, clients=meant["r"])
    assert (len(doc.clients), doc.clients_total) == (MAX_CLIENTS_NAMED, 100)


def test_exemptions_are_shown_in_status() -> None:
    """R78"""
    ended = rule("old", kind=Kind.EXEMPT, expires_at=W)
    (told,) = exemptions_told(RuleBook([HOLD, EXEMPT, ended]), W)
    assert told == (
        "exempt: rule x EXEMPTS etl from every metric and rejection, up to 2 times its threshold, "
        "for another 30 min, by ops (incident: the fix)"
    )
    (resting,) = exemptions_told(RuleBook([EXEMPT], suspended=frozenset({"x"})), W)
    assert resting.startswith("suspended: rule x EXEMPTS etl")


def test_partial_exemptions_are_shown_in_status() -> None:
    """R80: metrics of one's own that leave out what others are decided by."""
    known = {"lag": KnownMetric(5.0, True), "pool_usage": KnownMetric(1.0, True)}
    rules = [
        rule("m", kind=Kind.METRICS, metrics=("lag",)),
        rule("whole", kind=Kind.METRICS, metrics=("lag", "pool_usage")),
        rule("ended", kind=Kind.METRICS, metrics=("lag",), expires_at=W),
    ]
    assert exemptions_told(RuleBook(rules), W, lambda _: known) == [
        "exempt: rule m decides checks of etl by lag: partial exemption from pool_usage, "
        "for another 30 min, by ops"
    ]


def test_a_thousand_exemptions_do_not_bury_the_status() -> None:
    rules = [rule(f"x{n}", f"c{n}", kind=Kind.EXEMPT) for n in range(1000)]
    told = exemptions_told(RuleBook(rules), W)
    assert len(told) == MAX_EXEMPTIONS_TOLD + 1
    assert told[-1] == "exempt: 980 more: `headgate rules` lists them"


# --- explain ---------------------------------------------------------------------------------


def states(rules: Sequence[Rule], **more: Any) -> list[tuple[str, str, str | None]]:
    found = explain_rules(RuleBook(rules, **more), parse_identity("u1:etl:nightly"), "main", W)
    return [(m.rule.id, m.state, m.by.id if m.by else None) for m in found]


def test_what_matched_what_was_shadowed_and_what_ended() -> None:
    """R144"""
    rules = [
        rule("gone", "nightly", ratio=0.9, expires_at=W - 5),
        rule("base", "all", ratio=0.1),
        rule("cat", "etl", ratio=0.5),
        rule("later", "etl", ratio=0.9, windows=((W + 60, W + 120),)),
        rule("lifted", "etl", ratio=0.9, windows=()),
        rule("other", "web", ratio=0.9),
        rule("elsewhere", "etl", database="orders"),
        EXEMPT,
    ]
    assert states(rules, suspended=frozenset({"x"})) == [
        ("cat", "applies", None),
        ("base", "shadowed", "cat"),
        ("x", "suspended", None),
        ("later", "waiting", None),
        ("gone", "ended", None),
        ("lifted", "ended", None),
    ]


def test_thresholds_that_count_in_part_say_for_what_they_do_not() -> None:
    rules = [
        rule("cat", kind=Kind.THRESHOLDS, thresholds={"lag": 2.0, "pool_usage": 0.5}),
        rule("job", "etl:nightly", kind=Kind.THRESHOLDS, thresholds={"lag": 3.0}),
    ]
    book = RuleBook(rules)
    decision = decide(check("u1:etl:nightly"), health((LAG, 1.0)), book, now=NOW, roll=0.5)
    told = {m.rule: (m.state, m.says) for m in explain_doc(decision, book).matched}
    assert told["job"][0] == told["cat"][0] == "applies"
    assert told["cat"][1].endswith("; except for lag, where rule job on etl:nightly decides")
    assert "except for" not in told["job"][1]


def test_what_is_needed_names_the_metrics_behind_a_rule_too() -> None:
    told = needed_of(decided(health((LAG, 7.0)), HOLD))
    assert told[0].startswith("rule h must end") and told[1].startswith("lag must fall")


def test_an_explanation_has_the_answer_the_rules_and_what_is_needed() -> None:
    known = health((LAG, 7.0))
    rules = [rule("base", "all", ratio=0.1), rule("cat", ratio=0.2), rule("old", expires_at=W - 90)]
    book = RuleBook(rules)
    decision = decide(check("etl:nightly"), known, book, now=NOW, roll=0.5)
    doc = explain_doc(decision, book)
    assert (doc.verdict, doc.rule, doc.rules) == ("THRESHOLD_EXCEEDED", "cat", ["cat"])
    assert [(m.rule, m.state, m.by) for m in doc.matched] == [
        ("cat", "applies", None),
        ("base", "shadowed", "cat"),
        ("old", "ended", None),
    ]
    assert doc.matched[1].says.endswith("does not apply, because rule cat on etl decides")
    assert doc.matched[2].ended_s_ago == 90.0
    assert doc.needed == ["lag must fall from 7 s to 5 s or below"]
    assert msgspec.json.decode(msgspec.json.encode(doc))["metrics"][0]["metric"] == "lag"


@pytest.mark.parametrize(
    ("decision", "needed"),
    [
        (decided(health((LAG, 1.0))), []),
        (
            decided(health((LAG, 1.0)), HOLD),
            ["rule h must end, which it does in 30 min; `headgate rule lift h` ends it now"],
        ),
        (
            decided(health((LAG, 1.0)), rule("r", ratio=0.9)),
            [
                "more luck: rule r lets 10% of the checks of etl reach the metrics, and ends "
                "in 30 min; `headgate rule lift r` ends it now"
            ],
        ),
        (decided(health((POOL, 1.0))), ["pool_usage must fall from 100% to below 100%"]),
        (decided(health((LAG, None))), ["lag must be readable again: lag has no value"]),
        (decided(health()), ["no metric is configured"]),
    ],
)
def test_what_would_have_to_change(decision: Decision, needed: list[str]) -> None:
    told = needed_of(decision)
    assert len(told) == len(needed)
    assert all(one.startswith(wanted) for one, wanted in zip(told, needed, strict=True))
