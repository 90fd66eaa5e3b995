"""Electing one of a pair through the fleet's store: never two at once, and never in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.keyvalue import Put
from headgate.shard.election import MAX_DRIFT, Candidate, Elector, Office
from headgate.shard.model import ServedDatabase
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.shard.elections import TTL_S, Pair

KEY = "leaders/pair"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    await pair.close()


async def test_one_leads_and_the_other_follows_it(pair: Pair) -> None:
    """R52"""
    await pair.true.advance(1)
    [leader] = pair.leaders()
    other = "b" if leader == "a" else "a"
    assert pair.offices()[other] is Office.FOLLOWING
    state = pair.electors[other].state()
    assert (state.leader, state.leader_url) == (leader, f"http://{leader}:8087")
    await pair.true.advance(600)
    assert pair.leaders() == [leader], "it stays so"
    assert pair.electors[leader].state().terms_total == 1


async def test_the_other_takes_over_when_the_leader_is_gone(pair: Pair) -> None:
    """R52"""
    await pair.true.advance(1)
    [leader] = pair.leaders()
    other = "b" if leader == "a" else "a"
    await pair.kill(leader)
    await pair.true.advance(TTL_S * 1.5)
    assert pair.offices()[other] is Office.LEADING


async def test_a_leader_that_leaves_is_followed_at_once(pair: Pair) -> None:
    await pair.true.advance(1)
    [leader] = pair.leaders()
    await pair.kill(leader)
    await pair.electors[leader].leave()
    assert pair.offices()[leader] is Office.ALONE
    await pair.true.advance(0.1)
    assert pair.leaders() == ["b" if leader == "a" else "a"]


async def test_while_the_store_is_away_nobody_leads_and_both_say_so(pair: Pair) -> None:
    """R53: a host without an answer is the worse mistake."""
    await pair.true.advance(1)
    [leader] = pair.leaders()
    pair.set_away(True)
    await pair.true.advance(TTL_S / 2)
    assert pair.leaders() == [leader], "until its term is over"
    await pair.true.advance(TTL_S / 2)
    assert pair.leaders() == []
    await pair.true.advance(TTL_S)
    assert set(pair.offices().values()) == {Office.ALONE}
    for elector in pair.electors.values():
        assert elector.state().fault == "rough: away" and elector.state().leader == ""
    pair.set_away(False)
    await pair.true.advance(TTL_S)
    assert len(pair.leaders()) == 1 and Office.FOLLOWING in pair.offices().values()


async def test_a_short_loss_of_the_store_changes_nothing(pair: Pair) -> None:
    await pair.true.advance(1)
    before = pair.offices()
    for _ in range(10):
        pair.set_away(True)
        await pair.true.advance(TTL_S / 3)
        assert pair.offices() == before
        pair.set_away(False)
        await pair.true.advance(TTL_S / 2)
        assert pair.offices() == before


async def test_it_steps_down_by_its_own_clock_before_the_lease_can_end(pair: Pair) -> None:
    """R53"""
    await pair.true.advance(1)
    [leader] = pair.leaders()
    elector = pair.electors[leader]
    pair.stores[leader].away = True
    until = elector.state().until
    await pair.true.advance(until - pair.true.now().mono_s - 0.01)
    assert elector.office() is Office.LEADING
    assert len(pair.kept.listing([KEY]).entries) == 1
    await pair.true.advance(0.02)
    assert elector.office() is Office.ALONE
    assert len(pair.kept.listing([KEY]).entries) == 1, "the store still has it"


async def test_a_term_is_counted_from_when_it_was_requested() -> None:
    """R53: the answers were under way for most of it."""
    pair = Pair("a")
    delays = iter(
        [0.0, 0.0, 0.0, TTL_S / 2, 0.0, TTL_S / 4]
    )  # list, grant and commit, there and back
    pair.stores["a"].delay_s = lambda: next(delays, 0.0)
    asked_at = pair.true.now().mono_s
    await pair.true.advance(TTL_S * 0.76)
    assert pair.leaders() == ["a"]
    assert pair.electors["a"].state().until - asked_at < TTL_S
    await pair.close()


async def test_a_process_that_slept_through_its_term_knows_it_at_once(pair: Pair) -> None:
    """By the clock, before any loop has run: SIGSTOP, a suspended machine."""
    await pair.true.advance(1)
    [leader] = pair.leaders()
    other = "b" if leader == "a" else "a"
    pair.clocks[leader].naps_until = pair.true.now().mono_s + 3 * TTL_S
    await pair.true.advance(3 * TTL_S - 0.01)
    assert pair.leaders() == [other]
    assert pair.offices()[leader] is not Office.LEADING
    await pair.true.advance(TTL_S)
    assert pair.offices() == {leader: Office.FOLLOWING, other: Office.LEADING}


async def test_a_commit_whose_answer_was_lost_is_found_again() -> None:
    pair = Pair("a")
    pair.stores["a"].loses_answers = 1.0
    pair.stores["a"].roll = iter([1.0, 1.0, 0.0]).__next__  # list, grant, and then the commit
    await pair.true.advance(0.1)
    assert pair.offices()["a"] is Office.ALONE and "lost" in pair.electors["a"].state().fault
    pair.stores["a"].roll = lambda: 1.0
    pair.stores["a"].loses_answers = 0.0
    await pair.true.advance(TTL_S / 2)
    assert pair.offices()["a"] is Office.LEADING
    await pair.close()


async def test_a_restarted_agent_answers_alone_until_its_last_term_is_over() -> None:
    """It was killed, and serves at the same address again. Whether the key that it finds there is
    its own ghost's or another agent's of the same address, nobody can tell: it is not taken."""
    pair = Pair("a", "b")
    await pair.true.advance(1)
    [leader] = pair.leaders()
    await pair.kill(leader)
    pair.add(leader)
    await pair.true.advance(0.5)
    assert pair.offices()[leader] is Office.ALONE, "nobody is sent away from it"
    assert "this agent's previous" in pair.electors[leader].state().obstacle
    await pair.true.advance(TTL_S * 1.5)
    assert sorted(office.value for office in pair.offices().values()) == ["following", "leading"]
    await pair.close()


async def test_two_of_the_same_name_and_address_never_lead_at_once() -> None:
    """R53: by the defaults, two hosts have one name and one address."""
    pair = Pair("db-a")
    pair.twin("db-a", "twin")
    for _ in range(600):
        await pair.true.advance(0.1)
        assert len(pair.leaders()) <= 1, pair.offices()
    [leader] = pair.leaders()
    other = "twin" if leader == "db-a" else "db-a"
    state = pair.electors[other].state()
    assert state.office is Office.ALONE and "its own `advertise`" in state.obstacle
    assert [elector.state().terms_total for elector in pair.electors.values()].count(1) == 1
    assert pair.kept.listing([KEY]).revision <= 2, "nobody fights for it"
    await pair.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://evil.example/", "add its address to elect_among"),
        ("http://evil.example:8087@x", "add its address to elect_among"),
        ("http://[", "add its address to elect_among"),
        ("", "has no address"),
    ],
)
async def test_an_address_that_no_setting_allows_is_not_followed(url: str, told: str) -> None:
    """Whoever may write one key would have all checks of the host, and the clients' tokens."""
    pair = Pair("a", "b")
    for name in list(pair.tasks):
        await pair.kill(name)
    pair.kept.commit([], [Put(KEY, json.dumps({"by": "x", "url": url, "lease": 1}).encode())])
    pair.start("a")
    await pair.true.advance(60)
    state = pair.electors["a"].state()
    assert (state.office, state.leader_url) == (Office.ALONE, "") and told in state.obstacle
    await pair.close()


async def test_a_stranger_by_the_same_name_is_rejected_loudly() -> None:
    """R53: a copied settings file. Checks about one server, answered by another's health."""
    pair = Pair("a")
    pair.answer_for("a", main=ServedDatabase(server="7001"))
    await pair.true.advance(TTL_S)
    pair.answer_for("x", main=ServedDatabase(server="7002"))
    pair.add("x")
    await pair.true.advance(1)
    state = pair.electors["x"].state()
    assert state.office is Office.ALONE, "nobody is sent to another's server"
    assert "its main is server 7001, this agent's is 7002" in state.obstacle
    assert "its own `elect` name" in state.obstacle
    assert pair.leaders() == ["a"]
    await pair.close()


async def test_what_a_leader_learns_of_its_server_later_is_published() -> None:
    pair = Pair("a")
    pair.answer_for("a", main=ServedDatabase(target="local@m:5432/app"))
    await pair.true.advance(1)
    pair.answer_for("b", main=ServedDatabase(server="7002"))
    pair.add("b")
    await pair.true.advance(1)
    assert pair.offices()["b"] is Office.FOLLOWING, "as far as anybody can tell"
    pair.answer_for("a", main=ServedDatabase(server="7001"))
    await pair.true.advance(TTL_S)
    assert pair.offices() == {"a": Office.LEADING, "b": Office.ALONE}
    revision = pair.kept.listing([KEY]).revision
    await pair.true.advance(10 * TTL_S)
    assert pair.kept.listing([KEY]).revision == revision, "and told once"
    await pair.close()


async def test_one_on_the_same_host_is_followed_without_being_named() -> None:
    pair = Pair("a")
    await pair.kill("a")
    document = {"by": "a", "url": "http://a:8097", "lease": 1}
    pair.kept.commit([], [Put(KEY, json.dumps(document).encode())])
    pair.start("a")
    await pair.true.advance(1)
    assert pair.electors["a"].state().leader_url == "http://a:8097"
    await pair.close()


async def test_a_key_that_was_deleted_by_hand_is_elected_again(pair: Pair) -> None:
    """How an operator moves the lead by force."""
    await pair.true.advance(1)
    pair.kept.commit([], [Put(KEY, None)])
    await pair.true.advance(TTL_S)
    assert len(pair.leaders()) == 1


async def test_a_key_that_cannot_be_read_is_taken_all_the_same(pair: Pair) -> None:
    await pair.true.advance(1)
    for name in list(pair.tasks):
        await pair.kill(name)
        await pair.electors[name].leave()
    pair.kept.commit([], [Put(KEY, b"\xff not ours")])
    pair.start("a")
    await pair.true.advance(60)
    assert pair.offices()["a"] is Office.ALONE, "nobody to send anyone to"
    assert "has no address" in pair.electors["a"].state().obstacle


async def test_another_pair_whose_name_begins_alike_is_another(pair: Pair) -> None:
    pair.kept.commit([], [Put("leaders/pair-2", b'{"by":"x","url":"http://x","lease":77}')])
    await pair.true.advance(1)
    assert len(pair.leaders()) == 1


async def test_each_change_is_reported_once() -> None:
    pair = Pair()
    told: list[tuple[str, Office]] = []
    for name, elector in pair.electors.items():

        def note(name: str = name, elector: Elector = elector) -> None:
            told.append((name, elector.office()))

        elector.watch(note)
    await pair.true.advance(60)
    assert sorted(office.value for _, office in told) == ["following", "leading"]
    await pair.close()


async def test_a_leader_renews_three_times_a_term_and_each_looks_once(pair: Pair) -> None:
    """Ten thousand pairs ask the same store. The watch tells what a list would."""
    await pair.true.advance(TTL_S * 2)
    [leader] = pair.leaders()
    for store in pair.stores.values():
        store.calls = 0
    await pair.true.advance(TTL_S * 100)
    assert pair.stores[leader].calls <= 100 * (3 / 0.8 + 1)
    assert pair.stores[pair.other(leader)].calls <= 100
    assert pair.leaders() == [leader]


async def test_a_leader_that_is_gone_is_found_out_though_the_watch_is_silent(pair: Pair) -> None:
    """R52"""
    await pair.true.advance(TTL_S)
    [leader] = pair.leaders()
    other = pair.other(leader)
    pair.stores[other].is_silent = True
    await pair.kill(leader)
    await pair.true.advance(TTL_S * 2.4)
    assert pair.offices()[other] is Office.LEADING


async def test_a_key_taken_out_by_hand_is_missed_within_a_term_without_a_watch(
    pair: Pair,
) -> None:
    """R53"""
    await pair.true.advance(TTL_S)
    [leader] = pair.leaders()
    pair.stores[leader].is_silent = True
    pair.kept.commit([], [Put(KEY, None)])
    await pair.true.advance(TTL_S * 1.4)
    assert len(pair.leaders()) == 1


async def test_a_store_that_was_recreated_is_listed_until_it_is_watched_again(pair: Pair) -> None:
    """Its revisions begin below those from which on the watch was to tell."""
    pair.kept.commit([], [Put(f"other/{at}", b"x") for at in range(3)])
    await pair.true.advance(TTL_S)
    [leader] = pair.leaders()
    following = pair.stores[pair.other(leader)]
    pair.kept.revision = 0
    await pair.true.advance(TTL_S * 1.4)
    following.calls = 0
    await pair.true.advance(TTL_S * 10)
    assert following.calls >= 29, "three times a term"


async def test_a_machine_that_slept_has_no_term_left_when_it_wakes() -> None:
    """R53: its monotonic clock was stopped meanwhile; what counts is one that was not."""
    clock, slept_s = HandClock(), [0.0]
    elector = Elector(
        MemoryLog(KeptInMemory(mono_s=lambda: clock.now().mono_s)),
        clock,
        lambda: 0.5,
        Candidate("pair", "a", "http://a:8087", TTL_S),
        mono_s=lambda: clock.now().mono_s + slept_s[0],
    )
    await elector.round()
    assert elector.office() is Office.LEADING
    slept_s[0] = 3 * TTL_S
    assert elector.office() is Office.ALONE, "before any round"


# --- the invariant -----------------------------------------------------------------------------


async def _never_two(pair: Pair, steps: int) -> None:
    random = pair.random
    for store in pair.stores.values():
        store.delay_s = lambda: random.choice((0.0, 0.0, 0.1, 1.0, TTL_S / 3, TTL_S))
        store.loses_answers = 0.1
    for _ in range(steps):
        name = random.choice(sorted(pair.electors))
        match random.randrange(12):
            case 0:
                pair.stores[name].away = not pair.stores[name].away
            case 1:
                pair.clocks[name].naps_until = pair.true.now().mono_s + random.random() * 2 * TTL_S
            case 2:
                pair.set_away(random.random() < 0.5)
            case 3 if name in pair.tasks:
                await pair.kill(name)
            case 4 if name not in pair.tasks:
                pair.start(name)
        await pair.true.advance(random.random() * TTL_S / 3)
        assert len(pair.leaders()) <= 1, pair.offices()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rates=st.lists(st.floats(1 - MAX_DRIFT / 2, 1 + MAX_DRIFT / 2), min_size=3, max_size=3),
)
def test_two_never_lead_at_once_while_clocks_keep_to_their_drift(
    seed: int, rates: list[float]
) -> None:
    """R53: by true time, whatever is slow, lost, away, killed or asleep."""

    async def run() -> None:
        pair = Pair("a", "b", rates=rates[:2], store_rate=rates[2], seed=seed)
        try:
            await _never_two(pair, 80)
        finally:
            await pair.close()

    asyncio.run(run())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_after_any_trouble_one_leads_and_the_other_follows(seed: int) -> None:
    async def run() -> None:
        pair = Pair(seed=seed)
        try:
            await _never_two(pair, 30)
            for name, store in pair.stores.items():
                store.away, store.loses_answers, store.delay_s = False, 0.0, lambda: 0.0
                pair.clocks[name].naps_until = 0.0
                if name not in pair.tasks:
                    pair.start(name)
            await pair.true.advance(4 * TTL_S)
            assert sorted(office.value for office in pair.offices().values()) == [
                "following",
                "leading",
            ]
        finally:
            await pair.close()

    asyncio.run(run())
