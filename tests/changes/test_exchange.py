"""R164: without a store that all share, the agents of a shard keep its changes alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.changes.exchange import EVERY_S, MAX_WAITERS, RESTING_S
from headgate.changes.exchanged import KEEP_S, PAGE_BYTES, Offer
from headgate.changes.items import put
from headgate.changes.model import Change, ChangeKind, item_key
from headgate.changes.reach import HERE, parse_reach
from headgate.changes.state import Draft, LogState, item_bytes
from headgate.errors import (
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    StoreUnavailable,
    WrongShard,
)
from headgate.metrics.samples import Absent, Cause
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.topology import RoleSeen, Unled
from headgate.store.sqlite import SqliteStore
from tests.changes import verbs
from tests.changes.exchange_world import REACH, ROLE, SHARD, Agent, Net, agents, promote
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_store import MemoryStore

Three = tuple[Agent, Agent, Agent]


@pytest.fixture
async def three() -> AsyncIterator[Three]:
    a, b, c = await agents("db-a", "db-b", "db-c")
    yield a, b, c
    for one in (a, b, c):
        await one.stop()


# --- what is reported ----------------------------------------------------------------------


async def test_a_rule_is_in_force_at_all_agents_of_the_shard_when_it_is_acknowledged(
    three: Three,
) -> None:
    a, b, c = three
    done = await a.put("half")
    assert done.copies is not None
    assert (done.copies.have, done.copies.of) == (2, 2)
    assert done.copies.words == "in force here; 2 of 2 replicas have a copy"
    assert {"half"} == a.in_force_now() == b.in_force_now() == c.in_force_now()
    assert a.digest == b.digest == c.digest


async def test_a_skip_and_a_metric_of_the_shard_are_sent_as_rules_are(three: Three) -> None:
    a, b, c = three
    reach = await a.exchange.lead.reach(None, ["main"])
    assert reach == REACH and await b.exchange.lead.reach(None, ["main"]) == HERE
    skip = {"until_wall_s": 1e10, "who": "ops", "reason": "rebuild", "set_wall_s": 1.0}
    named = {ChangeKind.SKIP: f"{SHARD} db-c", ChangeKind.METRIC: f"main/lag@{REACH}"}
    metric = {"settings": {"threshold": "2s"}}
    values: dict[ChangeKind, dict[str, Any]] = {ChangeKind.SKIP: skip, ChangeKind.METRIC: metric}

    def draft(held: LogState, asked: ChangeAuthor) -> Draft:
        return Draft("set", [put(held, k, named[k], values[k], asked, reach) for k in named])

    done = await a.book.make(draft, "ops", dry_run=False)
    assert done.copies is not None and (done.copies.have, done.copies.of) == (2, 2)
    for agent in (b, c):
        held = agent.book.held.items
        assert {kind: held[kind, named[kind]].value for kind in named} == values


async def test_what_is_for_one_agent_alone_is_sent_to_nobody(three: Three) -> None:
    a, b, _ = three
    done = await a.set_here("mine")
    assert done.copies is None
    await a.clock.advance(3 * EVERY_S)
    assert b.in_force_now() == set()
    assert not any(offer.entries for _, _, offer in a.net.offers)


async def test_a_replica_that_is_away_delays_no_change_and_is_reported(three: Three) -> None:
    a, b, c = three
    await c.kill()
    await a.clock.advance(EVERY_S)
    done = await a.put("half")
    assert done.copies is not None
    assert done.copies.words == ("in force here; 1 of 2 replicas have a copy: db-c does not answer")
    assert b.in_force_now() == {"half"}
    has_all, fault = a.state(c)
    assert not has_all and "connection refused" in fault


async def test_a_replica_that_hangs_delays_a_change_for_a_second(three: Three) -> None:
    a, b, _ = three
    await a.clock.advance(EVERY_S)

    async def hang(offer: Offer) -> object:
        return await asyncio.Event().wait()

    b.answer = hang  # type: ignore[method-assign, assignment]
    began_s = a.clock.now().mono_s
    done = await a.put("half")
    assert done.copies is not None
    assert done.copies.words.endswith("1 of 2 replicas have a copy: db-b has not answered yet")
    assert a.clock.now().mono_s - began_s <= 1.2
    assert a.in_force_now() == {"half"}


async def test_a_shard_of_one_says_that_nobody_else_is_known() -> None:
    (a,) = await agents("db-a")
    done = await a.put("half")
    assert done.copies is not None
    assert done.copies.words == "in force here; no other agent of the shard is known"
    await a.stop()


async def test_a_replica_that_comes_back_gets_what_it_has_missed(three: Three) -> None:
    a, _, c = three
    await a.put("old")
    await c.kill()
    await a.put("new")
    await a.lift("old")
    await c.restart()
    c.follow(a)
    assert c.in_force_now() == {"old"}
    await a.clock.advance(2 * EVERY_S)
    assert c.in_force_now() == {"new"}
    assert a.state(c) == (True, "")


async def test_a_member_that_appears_gets_everything(three: Three) -> None:
    a, b, c = three
    for n in range(5):
        await a.put(f"r{n}", f"job{n}")
    new = await Agent(a.net, "db-d", a.clock).start()
    new.follow(a)
    a.lead(b, c, new)
    await a.clock.advance(1)
    assert new.in_force_now() == a.in_force_now()
    assert len(new.in_force_now()) == 5
    await new.stop()


async def test_many_changes_go_in_many_messages(three: Three) -> None:
    a, b, c = three
    a.net.cut |= {("db-a", "db-c")}
    reason, many = "x" * 400, 200
    assert many * len(reason) > 2 * PAGE_BYTES
    for n in range(many):
        await a.put(f"r{n}", f"job{n}", reason=reason)
    assert b.digest == a.digest
    a.net.cut.clear()
    await a.clock.advance(2 * EVERY_S)
    assert len(c.in_force_now()) == many
    # And the other way round: by pages of what a new leader lacks.
    new = await Agent(a.net, "db-d", a.clock).start()
    promote(new, [new, b, c])
    await a.clock.advance(2)
    assert len(new.in_force_now()) == many
    assert new.digest == c.digest
    await new.stop()


async def test_changes_one_after_another_are_each_acknowledged_with_their_copies(
    three: Three,
) -> None:
    a, b, _ = three
    done = await a.finished(
        asyncio.gather(
            *(
                verbs.put_rule(
                    a.book,
                    {"id": f"r{n}", "target": f"job{n}", "ratio": 0.5},
                    reach=REACH,
                    who="ops",
                )
                for n in range(50)
            )
        )
    )
    assert {one.copies and (one.copies.have, one.copies.of) for one in done} == {(2, 2)}
    assert len(b.in_force_now()) == 50


# --- promotions ----------------------------------------------------------------------------


async def test_a_promoted_replicas_agent_has_every_acknowledged_change(three: Three) -> None:
    a, b, c = three
    await a.put("stays")
    await a.put("goes", "other")
    await a.lift("goes")
    await a.kill()
    promote(b, three)
    assert b.in_force_now() == {"stays"}
    done = await b.put("next", "third")
    assert done.copies is not None and done.copies.have == 1
    assert c.in_force_now() == {"stays", "next"}


async def test_an_old_primary_that_returns_brings_nothing_back_that_was_lifted(
    three: Three,
) -> None:
    a, b, c = three
    await a.put("lifted")
    await a.kill()
    promote(b, three)
    await b.lift("lifted")
    await a.restart()
    a.follow(b)
    assert a.in_force_now() == {"lifted"}  # It cannot know yet.
    await a.clock.advance(2 * EVERY_S)
    assert a.in_force_now() == b.in_force_now() == c.in_force_now() == set()


async def test_what_an_old_primary_kept_and_sent_to_nobody_comes_with_it(three: Three) -> None:
    """Killed between the commit and the first push: acknowledged to nobody, or as 0 of 2."""
    a, b, c = three
    a.net.cut |= {("db-a", "db-b"), ("db-a", "db-c")}
    done = await a.put("alone")
    assert done.copies is not None and done.copies.have == 0
    await a.kill()
    a.net.cut.clear()
    promote(b, three)
    await b.put("meanwhile", "other")
    await a.restart()
    a.follow(b)
    await a.clock.advance(2 * EVERY_S)
    assert a.in_force_now() == b.in_force_now() == c.in_force_now() == {"alone", "meanwhile"}


async def test_a_new_leader_receives_what_others_have_before_it_changes_anything(
    three: Three,
) -> None:
    """One copy of two: what the new leader lacks, the other one has. A rule that was lifted there
    is not brought back by a change that is built on what the leader knew."""
    a, b, c = three
    await a.put("half")
    a.net.cut.add(("db-a", "db-b"))
    for _ in range(5):
        await a.patch("half", ratio=0.5 + 0.01 * (_ + 1))
    await a.lift("half")
    await a.kill()
    promote(b, three)
    assert b.in_force_now() == {"half"}
    await b.put("half", "other")
    await b.clock.advance(2 * EVERY_S)
    assert b.digest == c.digest
    item = b.book.held.rule("half")
    assert item is not None and item.value is not None and item.value["target"] == "other"
    assert c.rejects("other") and not c.rejects("etl")


async def test_a_leader_that_has_lost_its_state_gets_it_back_from_its_replicas(
    three: Three,
) -> None:
    a, b, _ = three
    await a.put("half")
    await a.kill()
    a.store = MemoryStore()
    await a.restart()
    promote(a, three)
    await a.put("next", "other")
    assert a.in_force_now() == b.in_force_now() == {"half", "next"}
    numbers = {item.id: item.n for item in a.book.held.items.values()}
    assert numbers["next"] > numbers["half"]


async def test_numbers_go_on_above_those_that_were_merged_also_after_a_restart(
    three: Three, tmp_path: Path
) -> None:
    a, *_ = three
    net, clock = a.net, a.clock
    d = Agent(net, "db-d", clock, store=SqliteStore(tmp_path / "state.db"))
    d.open_store = lambda: SqliteStore(tmp_path / "state.db")
    await d.start()
    for n in range(7):
        await a.put(f"r{n}", f"job{n}")
    a.lead(d)
    await clock.advance(1)
    await d.kill()
    await d.restart()
    d.lead()
    await d.put("next", "other")
    held = d.book.held
    assert all(
        held.rule("next").n > item.n  # type: ignore[union-attr]
        for item in held.items.values()
        if item.id != "next"
    )
    assert [one.action for one in await d.book.history()][:2] == ["rule.set", "replicated"]
    await d.stop()


async def test_two_leaders_at_once_end_up_with_the_same(three: Three) -> None:
    """A split brain: each gives the same numbers. What one of them has lifted is lifted."""
    a, b, c = three
    await a.put("half")
    await a.put("other", "other")
    net = a.net
    net.cut |= {("db-a", "db-b"), ("db-a", "db-c"), ("db-b", "db-a")}
    b.lead(a, c)
    await a.lift("half")
    await b.patch("half", ratio=0.9)
    await a.patch("other", ratio=0.8)
    await b.patch("other", ratio=0.7)
    net.cut.clear()
    promote(b, three)
    await b.clock.advance(3 * EVERY_S)
    assert a.digest == b.digest == c.digest
    assert a.in_force_now() == b.in_force_now() == c.in_force_now()
    ratios = {(one.book.held.rule("other").value or {})["ratio"] for one in three}  # type: ignore[union-attr]
    assert len(ratios) == 1


# --- who may change ------------------------------------------------------------------------


async def test_a_replicas_agent_says_where_changes_of_the_shard_are_made(three: Three) -> None:
    a, b, _ = three
    await a.put("half")
    for change in (b.put("next"), b.lift("half"), b.patch("half", ratio=0.1)):
        with pytest.raises(InvalidRequest, match="https://db-a:8087") as rejected:
            await change
        assert rejected.value.status == 409
    await b.set_here("mine", "other")
    assert b.in_force_now() == {"half", "mine"}


async def test_without_a_leader_nothing_of_the_shard_is_changed(three: Three) -> None:
    a, *_ = three
    a.shard.point = Unled(Absent(Cause.SPLIT_BRAIN, "db-a and db-b both say so", 0.0))
    with pytest.raises(InvalidRequest, match=r"no agent leads shard commerce/-80.*both say so"):
        await a.put("half")


async def test_while_a_switchover_is_announced_the_old_primary_still_changes(three: Three) -> None:
    a, b, _ = three
    a.shard.point = Unled(Absent(Cause.HANDING_OVER, "about to step down", 0.0))
    await a.put("half")
    assert b.in_force_now() == {"half"}


async def test_an_idle_shard_is_woken_by_a_change(three: Three) -> None:
    a, b, _ = three
    a.rest()
    demand = a.demands.by_database["main"]
    demand.on_shard_asked = lambda: a.lead(b)
    assert await a.finished(a.exchange.lead.reach(None)) == REACH
    a.rest()
    await a.put("half")
    assert b.in_force_now() == {"half"}


async def test_a_shard_that_does_not_wake_is_not_changed(three: Three) -> None:
    a, b, _ = three
    a.rest()
    with pytest.raises(InvalidRequest, match=r"no agent leads shard commerce/-80.*nobody asks"):
        await a.put("half")
    assert a.in_force_now() == b.in_force_now() == set()


async def test_an_idle_shard_exchanges_rarely_and_a_change_at_once(three: Three) -> None:
    a, b, _ = three
    a.rest()
    await a.clock.advance(RESTING_S)
    before = a.net.messages
    await a.clock.advance(10 * RESTING_S)
    assert a.net.messages - before <= 2 * 11
    a.lead(b)
    await a.put("half")
    assert b.in_force_now() == {"half"}


# --- by default ----------------------------------------------------------------------------


async def test_the_leader_speaks_for_the_shard_by_default_and_others_for_themselves(
    three: Three,
) -> None:
    a, b, _ = three
    assert await a.exchange.lead.reach(None) == REACH
    assert await a.exchange.lead.reach(None, ["main"]) == REACH
    assert await b.exchange.lead.reach(None) == HERE
    assert await a.exchange.lead.reach(parse_reach("host:db-a")) == HERE
    with pytest.raises(InvalidRequest, match="https://db-a:8087"):
        await b.exchange.lead.reach(REACH)


# --- names ---------------------------------------------------------------------------------


async def test_a_rule_of_the_shard_takes_no_name_from_one_that_was_set_at_an_agent(
    three: Three,
) -> None:
    a, b, c = three
    await b.set_here("nightly", "own")
    done = await a.put("nightly", "shards")
    assert done.copies is not None and done.copies.have == 2
    assert b.in_force_now() == {"nightly", f"nightly@{SHARD}"}
    assert b.rejects("own") and b.rejects("shards")
    await b.kill()
    await b.restart()
    b.follow(a)
    assert b.in_force_now() == {"nightly", f"nightly@{SHARD}"}
    await b.lift("nightly")
    assert not b.rejects("own") and b.rejects("shards")
    await a.lift("nightly")
    assert not b.rejects("shards") and not c.rejects("shards")


async def test_each_agent_may_call_its_database_otherwise(three: Three) -> None:
    a, b, c = three
    other = await Agent(a.net, "db-d", a.clock, database="orders").start()
    other.follow(a)
    a.lead(b, c, other)
    await a.put("half", database="main")
    assert b.rejects("etl") and other.rejects("etl")
    await other.stop()


# --- versions ------------------------------------------------------------------------------


def newer_item(kind: str = "quota", n: int = 7) -> tuple[str, bytes]:
    item = Change(kind, "x", REACH, {"limit": 3}, n, 1_700_000_000.0, "ops")
    raw = item_bytes(item).replace(b'"kind"', b'"since":"9.9","kind"')
    return item.key, raw


async def test_a_kind_of_a_newer_version_is_kept_and_passed_on_as_it_was_made(
    three: Three,
) -> None:
    """R156."""
    a, b, c = three
    key, raw = newer_item()
    await b.book.merge(SHARD, [(key, raw)], by="db-x")
    await a.clock.advance(3 * EVERY_S)
    for one in (a, b, c):
        listed = (await one.store.list((key,))).entries
        assert [entry.value for entry in listed] == [raw]
        assert dict(await one.book.entries([key])) == {key: raw}
    assert a.digest == c.digest


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (item_key("rule", "x", HERE), b"{}"),
        (item_key("rule", "x", parse_reach("shard:other")), newer_item()[1]),
        (newer_item()[0], b"{}"),
        (newer_item()[0], b"no JSON"),
        (newer_item()[0], b'{"n":-1,"value":null,"set_at":1,"set_by":"x"}'),
        (newer_item()[0], b'{"n":999999999999,"value":null,"set_at":1,"set_by":"x"}'),
        (newer_item()[0], b'{"n":1,"value":[],"set_at":1,"set_by":"x"}'),
        (newer_item()[0], b'{"n":1,"value":null,"set_at":1e400,"set_by":"x"}'),
    ],
)
async def test_what_is_no_change_of_the_shard_is_rejected_and_the_rest_is_taken(
    three: Three, key: str, raw: bytes
) -> None:
    a, *_ = three
    good = newer_item("other")
    merged = await a.book.merge(SHARD, [(key, raw), good], by="db-x")
    assert len(merged.rejected) == 1 and merged.rejected[0].startswith(key)
    assert [item.kind for item in merged.items] == ["other"]


async def test_the_audit_has_one_entry_for_each_change_with_who_set_it(three: Three) -> None:
    a, b, _ = three
    await a.put("half")
    await a.lift("half")
    entries = [e for e in await b.store.audit() if e.action.endswith(".replicated")]
    assert [(e.who, e.action, e.target) for e in entries] == [
        ("ops@db-a", "rule.replicated", "half")
    ] * 2
    newest, first = entries
    assert first.before is None and first.after["ratio"] == 0.5
    assert newest.after["lifted_by"] == "ops@db-a"


# --- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "answer lost", "twice", "late"])
async def test_a_message_that_goes_wrong_loses_nothing(three: Three, fate: str) -> None:
    a, b, c = three
    await a.clock.advance(EVERY_S)
    a.net.fates = [fate] * 4
    await a.put("half")
    await a.put("other", "other")
    await a.lift("half")
    await a.clock.advance(3 * EVERY_S)
    await a.net.deliver_late(b)
    await a.clock.advance(EVERY_S)
    assert a.in_force_now() == b.in_force_now() == c.in_force_now() == {"other"}
    assert a.digest == b.digest == c.digest


async def test_a_replica_whose_disk_is_full_has_no_copy_and_gets_it_later(three: Three) -> None:
    a, b, _ = three
    await a.clock.advance(EVERY_S)
    commit = b.store.commit

    async def full(*args: object, **kw: object) -> int:
        raise StoreUnavailable("the disk is full")

    b.store.commit = full  # type: ignore[method-assign]
    done = await a.put("half")
    assert done.copies is not None and done.copies.have == 1
    assert "the disk is full" in done.copies.missing[0]
    assert b.in_force_now() == set()
    b.store.commit = commit  # type: ignore[method-assign]
    await a.clock.advance(2 * EVERY_S)
    assert b.in_force_now() == {"half"}


async def test_who_hangs_up_half_way_leaves_no_rule_that_is_kept_and_not_in_force(
    three: Three,
) -> None:
    a, *_ = three
    await a.put("half")
    entries = await a.book.entries([item_key("rule", "half", REACH)])
    fresh = await Agent(a.net, "db-d", a.clock).start()
    telling = asyncio.ensure_future(
        fresh.answer(Offer(SHARD, "main", "db-a", "0" * 64, tuple(entries)))
    )
    await asyncio.sleep(0)
    telling.cancel()
    await settle()
    assert fresh.in_force_now() == {"half"}
    await fresh.stop()


# --- who is asked --------------------------------------------------------------------------


async def test_nothing_crosses_to_another_shard_or_cluster(three: Three) -> None:
    """R39."""
    a, *_ = three
    zero = "0" * 64
    with pytest.raises(WrongShard):
        await a.answer(Offer("other", "main", "db-x", zero))
    with pytest.raises(InvalidRequest):
        await a.answer(Offer(SHARD, "nothing", "db-x", zero))
    a.shard.locals["main"].role = RoleSeen(ROLE, 0.0, cluster="7300000000000000001")
    with pytest.raises(WrongShard, match="another shard of the same name"):
        await a.answer(Offer(SHARD, "main", "db-x", zero, cluster="7300000000000000002"))
    await a.answer(Offer(SHARD, "main", "db-x", zero))


async def test_a_bounded_number_of_answers_waits(three: Three) -> None:
    a, *_ = three
    await a.put("half")

    def ask() -> asyncio.Future[object]:
        return asyncio.ensure_future(a.answer(Offer(SHARD, "main", "s", a.digest, wait_s=30.0)))

    held = [ask() for _ in range(MAX_WAITERS)]
    await settle()
    assert not any(one.done() for one in held)
    one_too_many = ask()
    await settle()
    assert one_too_many.done()
    await a.put("other", "other")
    assert all(one.done() for one in held)
    again = ask()
    await settle()
    a.exchange.let_go()
    await settle()
    assert again.done()


# --- active and passive --------------------------------------------------------------------


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Agent, Agent, Agent]]:
    """An active agent, one that stands by for it, and a replica's."""
    net, clock = Net(), HandClock()
    active = await Agent(net, "db-a", clock).start()
    standby = await Agent(net, "db-a", clock, url="https://db-a:8097").start()
    replica = await Agent(net, "db-b", clock).start()
    replica.follow(active)
    active.lead(replica)
    standby.standby_for, standby.is_passive = active.url, True
    standby.lead(replica)
    await settle()
    yield active, standby, replica
    for one in (active, standby, replica):
        await one.stop()


async def test_a_standby_has_every_acknowledged_change(pair: Three) -> None:
    active, standby, replica = pair
    done = await active.put("half")
    assert done.copies is not None
    assert done.copies.words == (
        "in force here; 1 of 1 replicas have a copy; the standby has a copy"
    )
    assert standby.in_force_now() == replica.in_force_now() == {"half"}
    assert not [by for by, to, _ in active.net.offers if (by, to) == ("db-a", "db-a") and not by]


async def test_a_passive_standby_changes_nothing_of_the_shard_and_sends_replicas_nothing(
    pair: Three,
) -> None:
    active, standby, _ = pair
    with pytest.raises(InvalidRequest, match="standby of https://db-a:8087"):
        await standby.put("half")
    assert await standby.exchange.lead.reach(None) == HERE
    await active.clock.advance(3 * EVERY_S)
    assert standby.exchange.copies(SHARD) == {}


async def test_a_standby_takes_over_with_all_of_it_and_hands_back_what_changed(
    pair: Three,
) -> None:
    active, standby, replica = pair
    await active.put("stays")
    await active.put("goes", "other")
    await active.kill()
    standby.is_passive = False
    standby.exchange.look()
    assert standby.in_force_now() == {"stays", "goes"}
    await standby.lift("goes")
    await standby.put("new", "third")
    assert replica.in_force_now() == {"stays", "new"}
    await active.restart()
    active.lead(replica)
    await active.clock.advance(2 * EVERY_S)
    standby.is_passive = True
    assert active.in_force_now() == {"stays", "new"}


async def test_a_standby_is_pulled_a_few_times_a_minute_while_nothing_changes(
    pair: Three,
) -> None:
    active, standby, _ = pair
    # Held answers last as long as the loop's own clock says: here nobody waits for that.
    await active.put("half")
    before = active.net.messages
    await active.clock.advance(60)
    between = [o for by, to, o in active.net.offers[before:] if o.is_standby]
    assert len(between) <= 5
    assert standby.in_force_now() == {"half"}


# --- what is over --------------------------------------------------------------------------


async def test_what_was_lifted_is_kept_for_a_month_and_then_dropped_by_all(three: Three) -> None:
    a, b, c = three
    await a.put("half")
    await a.lift("half")
    key = item_key("rule", "half", REACH)
    a.clock._step(KEEP_S - 60)
    await a.clock.advance(2 * EVERY_S)
    assert len(await a.book.entries([key])) == 1
    a.clock._step(120)
    await a.clock.advance(130)
    for one in (a, b, c):
        assert await one.book.entries([key]) == []
        assert (await one.store.list((key,))).entries == ()
    assert a.digest == b.digest == c.digest == "0" * 64


async def test_what_ended_a_day_ago_is_forgotten_by_the_log_and_kept_for_others(
    three: Three,
) -> None:
    a, b, _ = three
    await a.put("half")
    a.clock._step(2 * 86_400)
    for one in (a, b):
        await one.keeper._renew(one.clock.now())
        await one.book.forget("rule", ["half"])
    assert len(await a.book.entries([item_key("rule", "half", REACH)])) == 1
    await a.clock.advance(2 * EVERY_S)
    assert a.digest == b.digest


async def test_a_member_that_was_away_for_long_learns_of_a_lift_while_any_member_has_it(
    three: Three,
) -> None:
    """What was lifted a month ago is dropped by all. Who still has it standing takes it, though it
    would not keep it otherwise."""
    a, b, c = three
    await a.put("half")
    await a.patch("half", **{"for": "29d"})
    await c.kill()
    await a.lift("half")
    [(key, lifted)] = await a.book.entries([item_key("rule", "half", REACH)])
    a.clock._step(KEEP_S + 60)
    assert (await b.book.merge(SHARD, [(key, lifted)], by="db-a")).items == ()
    await c.restart()
    merged = await c.book.merge(SHARD, [(key, lifted)], by="db-a")
    assert [item.id for item in merged.items] == ["half"]


async def test_a_part_that_is_kept_is_in_force_though_the_next_one_fails(three: Three) -> None:
    a, *_ = three
    for n in range(110):
        await a.put(f"r{n:03d}", f"job{n}")
    fresh = await Agent(a.net, "db-d", a.clock).start()
    commit, commits = fresh.store.commit, 0

    async def once(*args: Any, **kw: Any) -> int:
        nonlocal commits
        commits += 1
        if commits > 1:
            raise StoreUnavailable("the disk is full")
        return await commit(*args, **kw)

    fresh.store.commit = once  # type: ignore[method-assign]
    keys = [item_key("rule", f"r{n:03d}", REACH) for n in range(110)]
    with pytest.raises(StoreUnavailable):
        await fresh.book.merge(SHARD, await a.book.entries(keys), by="db-a")
    assert len(fresh.in_force_now()) == 100
    await fresh.stop()


async def test_what_was_dropped_is_known_though_the_answer_was_lost(three: Three) -> None:
    a, *_ = three
    await a.put("mine", "job", reach=HERE)
    await a.clock.advance(120)
    commit = a.store.commit

    async def unanswered(*args: Any, **kw: Any) -> int:
        await commit(*args, **kw)
        a.store.commit = commit  # type: ignore[method-assign]
        raise OutcomeUnknown("the disk hangs")

    a.store.commit = unanswered  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await a.book.forget(ChangeKind.RULE, ["mine"])
    await a.clock.advance(2)
    assert a.book.held.rule("mine") is None


# --- going back ----------------------------------------------------------------------------


async def test_nobody_goes_back_behind_what_it_received_lately(three: Three) -> None:
    """What stood in the shard then, an agent that came to it later does not know."""
    a, b, _ = three
    await a.put("half")
    await a.clock.advance(300)
    await a.kill()
    a.store = MemoryStore()
    a.net.cut |= {("db-a", "db-b"), ("db-a", "db-c"), ("db-b", "db-a"), ("db-c", "db-a")}
    await a.restart()
    before = (await a.put("mine", "job", reach=HERE)).after_n
    a.net.cut.clear()
    promote(a, three)
    await a.clock.advance(2 * EVERY_S)
    assert a.in_force_now() == {"half", "mine"}
    with pytest.raises(Conflict, match=r"got 1 changes of its shard only with revision"):
        await a.book.rollback(before, who="ops")
    assert a.in_force_now() == {"half", "mine"} and b.in_force_now() == {"half"}


async def test_what_was_received_at_once_goes_back_at_a_new_leader(three: Three) -> None:
    a, b, _ = three
    await a.put("half")
    before = b.book.held.n
    await a.clock.advance(300)
    await a.put("more", "job")
    await a.kill()
    promote(b, three)
    await b.book.rollback(before, who="ops")
    assert b.in_force_now() == {"half"}


async def test_a_new_leader_does_not_roll_back_before_it_has_the_others_copies(
    three: Three,
) -> None:
    a, b, c = three
    await a.put("half")
    before = b.book.held.n
    await a.put("more", "job")
    await a.kill()
    waiting = asyncio.Event()

    async def hangs(offer: Offer) -> Any:
        await waiting.wait()

    c.answer = hangs  # type: ignore[method-assign]
    promote(b, three)
    going = asyncio.create_task(b.book.rollback(before, who="ops"))
    await b.clock.advance(3)
    with pytest.raises(Conflict, match="does not know yet what other agents have"):
        await going
    assert b.in_force_now() == {"half", "more"}
    waiting.set()
