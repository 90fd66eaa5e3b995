"""The rules of then, put together again from the audit (R144)."""

from __future__ import annotations

from typing import Any

from headgate.base.names import parse_identity
from headgate.history.past_rules import original_id, rules_at, rules_between
from headgate.history.records import AuditEntry
from headgate.rules.matching import RuleBook
from tests.rules.test_service import World

ETL = parse_identity("u1:etl")


class Rules(World):
    """A log whose audit is what is looked back at."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s = self.clock.now().wall_s

    async def put(self, **raw: Any) -> str:
        (entry,) = await self.set({"reason": "x", **raw}, who="me")
        return entry.id

    async def applied(self, after_s: float) -> list[str]:
        audit = await self.store.audit(limit=1000)
        wall_s = self.began_s + after_s
        then = rules_at(audit, [e.spec for e, _ in self.keeper.entries()], wall_s)
        assert then.unreadable == ()
        return [rule.id for rule in then.book.applied(ETL, "main", wall_s).rules]


async def opened() -> Rules:
    rules = Rules()
    await rules.store.open()
    return rules


async def test_a_rule_was_in_force_from_when_it_was_set_until_it_ended_or_was_lifted() -> None:
    rules = await opened()
    await rules.clock.advance(100)
    short = await rules.put(target="etl", ratio=0.5, **{"for": "60s"})
    await rules.clock.advance(200)
    long = await rules.put(target="etl", kind="hold", **{"for": "1h"})
    await rules.clock.advance(100)
    await rules.lift(long, who="me")
    await rules.clock.advance(1000)
    assert await rules.applied(50) == []
    assert await rules.applied(130) == [short]
    assert await rules.applied(250) == []
    assert await rules.applied(350) == [long]
    assert await rules.applied(500) == []


async def test_a_rule_is_shown_as_it_was_before_it_was_changed() -> None:
    rules = await opened()
    rule = await rules.put(target="etl", ratio=0.2, **{"for": "1h"})
    await rules.clock.advance(100)
    await rules.patch(rule, {"ratio": 0.9}, who="me")
    audit = await rules.store.audit(limit=10)
    before = rules_at(audit, (), rules.began_s + 50).book.rules
    after = rules_at(audit, (), rules.began_s + 150).book.rules
    assert ([r.ratio for r in before], [r.ratio for r in after]) == ([0.2], [0.9])
    # Of the audit only the change is left: what was before it is in there, too.
    later = [entry for entry in audit if entry.action != "rule.set"]
    assert [r.ratio for r in rules_at(later, (), rules.began_s + 50).book.rules] == [0.2]


async def test_a_rule_whose_audit_is_forgotten_is_known_from_today() -> None:
    rules = await opened()
    rule = await rules.put(target="etl", ratio=0.2, **{"for": "1h"})
    present = [entry.spec for entry, _ in rules.keeper.entries()]
    assert [r.id for r in rules_at([], present, rules.began_s + 5).book.rules] == [rule]
    assert rules_at([], present, rules.began_s - 5).book.rules == ()


async def test_a_suspended_exemption_did_not_apply() -> None:
    rules = await opened()
    exempt = await rules.put(target="etl", kind="exempt", justification="incident")
    await rules.clock.advance(100)
    await rules.keeper.suspend(exempt, "it starves others")
    await rules.clock.advance(100)
    assert await rules.applied(50) == [exempt]
    assert await rules.applied(150) == []


def test_what_cannot_be_read_is_named() -> None:
    entry = AuditEntry(5.0, "me", "rule.set", "r9", None, {"kind": "of another version"})
    assert rules_at([entry], (), 10.0).unreadable == ("r9",)
    assert rules_at([entry], (), 1.0).unreadable == ()


# --- the rules of a stretch of time --------------------------------------------------------


async def between(rules: Rules, since_s: float, until_s: float) -> RuleBook:
    audit = await rules.store.audit(limit=1000)
    present = [e.spec for e, _ in rules.keeper.entries()]
    begin, end = rules.began_s + since_s, rules.began_s + until_s
    then = rules_between(audit, present, begin, end)
    assert then.unreadable == ()
    return then.book


def ids(book: RuleBook, wall_s: float) -> list[str]:
    return [original_id(rule.id) for rule in book.applied(ETL, "main", wall_s).rules]


async def test_one_log_has_the_rules_of_every_instant() -> None:
    """R145: what was set later, or lifted since, must not stand among the rules of then."""
    rules = await opened()
    await rules.clock.advance(100)
    short = await rules.put(target="etl", ratio=0.5, **{"for": "60s"})
    await rules.clock.advance(200)
    long = await rules.put(target="etl", kind="hold", **{"for": "1h"})
    await rules.clock.advance(100)
    await rules.lift(long, who="me")
    await rules.clock.advance(100)
    await rules.put(target="u1", ratio=0.9, id="later")
    await rules.clock.advance(1000)
    book = await between(rules, 0, 1500)
    told = {after: ids(book, rules.began_s + after) for after in (50, 130, 250, 350, 450, 600)}
    assert told == {50: [], 130: [short], 250: [], 350: [long], 450: [], 600: ["later"]}
    for after in told:
        assert await rules.applied(after) == told[after]


async def test_a_rule_that_was_changed_is_each_of_its_versions_in_turn() -> None:
    rules = await opened()
    changing = await rules.put(target="etl", ratio=0.5, **{"for": "1h"})
    await rules.clock.advance(100)
    await rules.patch(changing, {"ratio": 0.9}, who="me")
    await rules.clock.advance(100)
    book = await between(rules, 0, 300)
    ratios = [
        book.applied(ETL, "main", rules.began_s + after).rules[0].ratio for after in (50, 150)
    ]
    assert ratios == [0.5, 0.9]
    [rule] = (await between(rules, 150, 300)).rules
    assert rule.ratio == 0.9


async def test_a_schedule_had_its_windows_then() -> None:
    """A window of last week is none of those that lie ahead."""
    rules = await opened()
    schedule = {"days": "mon-sun", "from": "07:00", "to": "09:00", "zone": "UTC"}
    await rules.put(target="etl", ratio=0.5, schedule=schedule, **{"for": "7d"})
    await rules.clock.advance(3 * 86_400)
    book = await between(rules, 0, 3 * 86_400)
    midnight_s = -(-rules.began_s // 86_400) * 86_400
    hours = [7 - 1, 7, 8, 9, 24 + 8]
    assert [len(ids(book, midnight_s + hour * 3600)) for hour in hours] == [0, 1, 1, 0, 1]
