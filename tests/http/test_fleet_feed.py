"""The feed: what one agent hands down to another of the fleet, whole, in order and bounded."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import pytest

from headgate.base.keyvalue import Changes, KeyEvent, Listing, Put
from headgate.changes.mirror import MAX_LOG_BYTES, Mirror
from headgate.changes.model import BEAT, HEAD, WIDE, followed_prefixes, shard_items
from headgate.changes.state import MAX_ITEM_BYTES, head_bytes
from headgate.errors import Compacted, StoreRejected, StoreUnavailable
from headgate.fleet.feed_reader import AgentReader
from headgate.shard.peers import MAX_ANSWER_BYTES, PeerAccess, open_link
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.memory_log import MemoryLog
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, bearer, serving
from tests.http.talk import Reply
from tests.http.test_checks import is_problem

T = TypeVar("T")
SHARD = "commerce/-80"
PREFIXES = followed_prefixes([SHARD])
FEED = "/v1/fleet/feed"


class World:
    """An agent that follows a store, and what others ask of it."""

    def __init__(self, served: Served, store: MemoryLog) -> None:
        self.served = served
        self.store = store
        assert served.fleet is not None
        self.mirror: Mirror = served.fleet.mirror

    def put(self, **values: bytes) -> int:
        """Into the store, in one commit; its watch tells the mirror."""
        puts = [Put(f"{WIDE}rule/{name}", value) for name, value in values.items()]

        async def commit() -> int:
            before = self.mirror.revision
            revision = await self.store.commit([], puts)
            async for changes in self.store.watch(PREFIXES, after_revision=before):
                self.mirror.apply(changes)
                if changes.revision >= revision:
                    break
            return revision

        return self.served.run_there(commit)

    def ask(self, target: str, token: str = OPERATOR) -> Reply:
        return self.served.ask("GET", target, Authorization=bearer(token))

    def listed(self, prefixes: Sequence[str] = PREFIXES) -> Listing:
        async def list_all(reader: AgentReader) -> Listing:
            return await reader.list(prefixes)

        return self.served.run_there(lambda: self._with_reader(list_all))

    def next_changes(self, after: int) -> Changes:
        async def first(reader: AgentReader) -> Changes:
            await reader.list((HEAD,))
            async for changes in reader.watch(PREFIXES, after_revision=after):
                return changes
            raise AssertionError("a watch does not end")

        return self.served.run_there(lambda: self._with_reader(first))

    async def _with_reader(
        self, work: Callable[[AgentReader], Awaitable[T]], token: str = OPERATOR
    ) -> T:
        access = PeerAccess(token=token)
        link = open_link(self.served.base_url, access, sender="db-b", now=self.served.clock.now)
        reader = AgentReader(link, wait_s=0.2)
        try:
            return await work(reader)
        finally:
            await reader.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = MemoryLog()
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store)) as served:
        yield World(served, store)


@pytest.fixture
def following(world: World) -> World:
    async def adopt() -> None:
        await world.store.commit([], [Put(HEAD, head_bytes(1)), Put(f"{WIDE}rule/a", b"{}")])
        listing = await world.store.list((HEAD, *PREFIXES))
        world.mirror.adopt(listing, PREFIXES)

    world.served.run_there(adopt)
    return world


def page(*prefixes: str, **more: object) -> str:
    return f"{FEED}?{_query(prefixes, more)}"


def changes_of(*prefixes: str, **more: object) -> str:
    return f"{FEED}/changes?{_query(prefixes, more)}"


def _query(prefixes: tuple[str, ...], more: dict[str, object]) -> str:
    return urlencode([*(("prefix", prefix) for prefix in prefixes), *more.items()])


def test_marks_lead_from_a_listing_to_the_changes_and_on(following: World) -> None:
    """Of a commit that may not be whole nothing is told twice, and nothing is left out."""

    async def pieces(reader: AgentReader) -> list[Changes]:
        listing = await reader.list((HEAD, *PREFIXES))
        watch, told = reader.watch(PREFIXES, after_revision=listing.revision), []
        async with aclosing(watch):
            for name in "bc":
                event = KeyEvent(f"{WIDE}rule/{name}", b"{}", 9)
                following.mirror.apply(Changes((event,), 8))
                told.append(await anext(watch))
        return told

    told = following.served.run_there(lambda: following._with_reader(pieces))
    assert [[event.key[-1] for event in one.events] for one in told] == [["b"], ["c"]]
    assert following.ask(changes_of(*PREFIXES, after=8, mark=1)).status == 410


# --- whole -------------------------------------------------------------------------------------


def test_another_agent_gets_what_this_one_has_with_the_stores_own_revisions(
    following: World,
) -> None:
    """A replica may go from its primary's feed to the store and back without listing again."""
    following.put(b=b'{"x": 1}', c=b"\x00\xff")
    ours = following.mirror.listing((HEAD, *PREFIXES))
    assert following.listed((HEAD, *PREFIXES)) == ours
    assert ours.store_id == following.store.kept.store_id
    assert [entry.value for entry in ours.entries if entry.key.endswith("/c")] == [b"\x00\xff"]


def test_a_listing_that_is_longer_than_an_answer_comes_in_pages_of_one_revision(
    following: World,
) -> None:
    for number in range(30):
        following.put(**{f"r{number:03d}": bytes(20_000)})
    before = following.mirror.listing(PREFIXES)
    first = following.ask(page(*PREFIXES)).json
    assert first["next"] is not None
    following.put(later=b"{}")
    second = following.ask(
        page(*PREFIXES, **{"revision": first["revision"], "from": first["next"]})
    ).json
    assert second["revision"] == first["revision"] == before.revision
    following_listing = following.listed()
    assert len(following_listing.entries) == len(before.entries) + 1
    assert following_listing.revision > before.revision


def test_no_answer_is_longer_than_another_agent_takes(following: World) -> None:
    """The largest items there are, and as many as fit a page."""
    for number in range(3):
        following.put(**{f"big{number}": bytes(MAX_ITEM_BYTES)})
    pages = 0
    on: dict[str, object] = {}
    while True:
        reply = following.ask(page(*PREFIXES, **on))
        assert len(reply.body) < MAX_ANSWER_BYTES
        start, pages = reply.json.get("next"), pages + 1
        if start is None:
            break
        on = {"revision": reply.json["revision"], "from": start}
    assert pages == 2


def test_pages_of_a_listing_that_is_no_longer_kept_are_listed_again(following: World) -> None:
    gone = following.ask(page(*PREFIXES, **{"revision": 1, "from": "x"}))
    assert is_problem(gone, 410) and "list again" in gone.json["detail"]


# --- changes -----------------------------------------------------------------------------------


def test_changes_come_after_what_is_known_and_each_commit_whole(following: World) -> None:
    after = following.mirror.revision
    following.put(b=b"{}", c=b"{}")
    revision = following.put(d=b"{}")
    changes = following.next_changes(after)
    assert [event.key.rpartition("/")[2] for event in changes.events] == ["b", "c", "d"]
    assert changes.revision == revision
    assert following.next_changes(revision) == Changes((), revision)


def test_a_change_wakes_who_waits_for_it(following: World) -> None:
    after, told = following.mirror.revision, []
    asked = changes_of(*PREFIXES, after=after, wait_s=30)
    waiting = threading.Thread(target=lambda: told.append(following.ask(asked).json))
    waiting.start()
    eventually(lambda: following.served.call(lambda: following.mirror.feed.waiters) == 1)
    following.put(b=b"{}")
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert [event["key"].rpartition("/")[2] for event in told[0]["events"]] == ["b"]


def test_commits_are_not_torn_where_an_answer_is_full(following: World) -> None:
    after = following.mirror.revision
    for number in range(4):
        following.put(**{f"{number}{half}": bytes(30_000) for half in "ab"})
    told: list[str] = []
    while after < following.mirror.revision:
        changes = following.next_changes(after)
        assert changes.events and len(changes.events) % 2 == 0
        told += [event.key.rpartition("/")[2] for event in changes.events]
        after = changes.revision
    assert told == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"]


def test_a_commit_too_large_for_an_answer_has_its_reader_list_again(following: World) -> None:
    after = following.mirror.revision
    following.put(**{f"big{number}": bytes(50_000) for number in range(5)})
    with pytest.raises(Compacted):
        following.next_changes(after)
    assert len(following.listed().entries) == 6


def test_changes_of_before_what_is_known_here_have_their_reader_list_again(
    following: World,
) -> None:
    for number in range(MAX_LOG_BYTES // 60_000 + 2):
        following.put(**{f"r{number}": bytes(60_000)})
    with pytest.raises(Compacted):
        following.next_changes(1)


def test_a_reader_of_another_store_lists_again(following: World) -> None:
    other = changes_of(*PREFIXES, after=1, store_id="another")
    assert is_problem(following.ask(other), 410)


# --- who may, and what is asked ------------------------------------------------------------------


def test_only_agents_are_handed_anything(following: World) -> None:
    for asked in (page(*PREFIXES), changes_of(*PREFIXES, after=1)):
        assert is_problem(following.ask(asked, token=VIEWER), 403)
        assert is_problem(following.served.ask("GET", asked), 401)
    with pytest.raises(StoreRejected, match="peer"):
        following.served.run_there(
            lambda: following._with_reader(lambda r: r.list(PREFIXES), token=VIEWER)
        )


def test_what_is_not_followed_here_is_not_said_to_be_empty(following: World) -> None:
    strange = following.ask(page(shard_items("other/-80")))
    assert is_problem(strange, 409, field="prefix")
    assert is_problem(following.ask(page("")), 409, field="prefix")
    assert is_problem(following.ask(page()), 400, field="prefix")
    narrower = following.ask(page(f"{WIDE}rule/"))
    assert narrower.status == 200 and len(narrower.json["entries"]) == 1


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"after": "x"}, "after"),
        ({}, "after"),
        ({"after": 1, "wait_s": 31}, "wait_s"),
        ({"after": 1, "wait_s": "nan"}, "wait_s"),
        ({"after": 1, "beat": 1}, "beat"),
    ],
)
def test_an_invalid_query_is_rejected_as_such(
    following: World, more: dict[str, object], field: str
) -> None:
    reply = following.ask(changes_of(BEAT, **more))
    assert is_problem(reply, 400, field=field)


def test_an_agent_that_knows_nothing_yet_hands_nothing_down(world: World) -> None:
    """An empty answer would say that nothing is set."""
    assert is_problem(world.ask(page(*PREFIXES)), 503)
    with pytest.raises(StoreUnavailable, match="no data of the fleet"):
        world.listed()
