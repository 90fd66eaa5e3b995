"""The fleet's book on real etcd members: who is first, lost answers, sizes, leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.base.keyvalue import Compare, Lease, Put
from headgate.changes.book import ChangeBook
from headgate.changes.etcd import EtcdAccess, EtcdStore
from headgate.changes.model import HEAD, ITEMS, LOG
from headgate.changes.state import read_head, read_item
from headgate.errors import OutcomeUnknown
from tests.changes import verbs
from tests.changes.changebook_world import COMMERCE, FLEET, HALF, ONE_SHARD, book_on, file_of
from tests.fixtures.eventually import DEADLINE_S


class Recording(EtcdStore):
    """Remembers its leases; loses the answers to the next commits if told to."""

    def __init__(self, endpoints: Sequence[str], prefix: str) -> None:
        super().__init__(endpoints, EtcdAccess(), prefix, timeout_s=DEADLINE_S, roll=lambda: 0.0)
        self.leases: list[int] = []
        self.to_lose = 0

    async def grant(self, ttl_s: float) -> Lease:
        lease = await super().grant(ttl_s)
        self.leases.append(lease.id)
        return lease

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        revision = await super().commit(compares, puts)
        if self.to_lose:
            self.to_lose -= 1
            raise OutcomeUnknown("no answer in 2 s")
        return revision


@pytest.fixture
async def stores(etcd_endpoints: list[str], etcd_prefix: str) -> AsyncIterator[list[Recording]]:
    """Of two agents, each beginning with another member."""
    opened = [
        Recording(endpoints, etcd_prefix) for endpoints in (etcd_endpoints, etcd_endpoints[::-1])
    ]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
def books(stores: list[Recording]) -> list[ChangeBook]:
    return [book_on(store, SystemClock(), f"b{at}") for at, store in enumerate(stores)]


async def test_two_agents_that_change_at_once_lose_nothing(
    books: list[ChangeBook], stores: list[Recording]
) -> None:
    stores[0].to_lose = 1
    changes = [
        verbs.put_rule(books[at % 2], {**HALF, "id": f"r{at}"}, reach=FLEET, who=f"w{at}")
        for at in range(4)
    ]
    made = await asyncio.gather(*changes)
    assert sorted(change.after_n for change in made) == [1, 2, 3, 4]
    held = await books[1].items()
    assert {rule_id for _, rule_id in held.items} == {f"r{at}" for at in range(4)}
    assert len(await books[0].history()) == await stores[0].count(LOG) == 4


async def test_every_reader_gets_each_revision_whole(
    books: list[ChangeBook], stores: list[Recording]
) -> None:
    """Number and items are one commit: anyone who has the number has the items."""
    change = asyncio.create_task(books[0].apply(file_of(150), who="ada"))
    seen: dict[int, Counter[int]] = {}
    async with asyncio.timeout(DEADLINE_S):
        while 2 not in seen:
            entries = (await stores[1].list((HEAD, ITEMS))).entries
            head = next((read_head(one.value) for one in entries if one.key == HEAD), 0)
            seen[head] = Counter(read_item(one.value).n for one in entries if one.key != HEAD)
    await change
    whole = {0: Counter[int](), 1: Counter({1: 100}), 2: Counter({1: 100, 2: 50})}
    assert seen == {n: whole[n] for n in seen}


async def test_large_changes_fit_into_what_etcd_takes(books: list[ChangeBook]) -> None:
    rules = [{"match": {"username": f"{'u' * 190}{at}"}} for at in range(250)]
    budgets = [{"name": f"b{at}", "reach": "fleet", "rate": 20, "rules": rules} for at in range(5)]
    first = await books[0].apply({"budgets": budgets}, who="ada")
    assert (len(first.changes), first.revisions) == (5, 2)
    again = [{**budget, "rate": 30} for budget in budgets]
    assert len((await books[1].apply({"budgets": again}, who="bob")).changes) == 5
    exported = await books[0].export()
    assert (await books[0].apply(exported.document, who="ada", prune=True)).changes == ()
    await books[1].rollback(first.after_n, who="bob")
    assert {one["rate"] for one in (await books[0].export()).document["budgets"]} == {20}


async def test_leases_collect_what_was_taken_out_and_never_what_was_put_again(
    books: list[ChangeBook], stores: list[Recording]
) -> None:
    await verbs.put_rule(books[0], HALF, reach=COMMERCE, who="ada")
    await verbs.patch_rule(books[0], "half", {"for": "1d"}, who="ada")
    first, second = stores[0].leases
    await stores[0].revoke(first)
    assert await stores[1].count(ITEMS) == 1, "it is of another lease by now"
    await verbs.set_budget(books[0], "cap", {"rate": 20}, reach=ONE_SHARD, who="ada")
    assert len(stores[0].leases) == 2, "what has no end has no lease"
    await verbs.remove_budget(books[0], "cap", reach=ONE_SHARD, who="ada")
    for lease in (second, stores[0].leases[2]):
        await stores[0].revoke(lease)
    assert await stores[1].count(ITEMS) == 0
