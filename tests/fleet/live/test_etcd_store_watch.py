"""Several watches in one stream, put in order again: without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headgate.changes.etcd import client
from headgate.changes.etcd.client import CatchUp, CommitOrder, Missed, WatchReader, lines, widest
from headgate.changes.etcd.faults import EtcdSilent, NoToken
from headgate.changes.etcd.gateway import EventAnswer, Keys, KeyValue
from headgate.errors import Compacted, StoreRejected
from tests.fixtures.eventually import DEADLINE_S

PREFIXES = ("a", "b", "c")


def put(key: str, revision: int, version: int = 1) -> EventAnswer:
    return EventAnswer(KeyValue(key.encode(), b"v", revision, revision, version))


def gone(key: str, revision: int) -> EventAnswer:
    return EventAnswer(KeyValue(key.encode(), mod_revision=revision), "DELETE")


async def chunks_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


# --- messages ------------------------------------------------------------------------------


@given(st.integers(1, 40))
def test_a_stream_cut_anywhere_gives_the_same_messages(size: int) -> None:
    stream = b'{"a":1}\n{"b":22}\n\n{"c":333}\n'

    async def read() -> list[bytes]:
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = []
        with pytest.raises(EtcdSilent, match="ended the watch"):
            async for line in lines(chunks_of(*pieces)):
                found.append(line)
        return found

    assert asyncio.run(read()) == [b'{"a":1}', b'{"b":22}', b'{"c":333}']


async def test_the_last_line_needs_no_end_of_line() -> None:
    error = b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}'
    with pytest.raises(EtcdSilent, match="no leader"):
        await WatchReader("m0", chunks_of(error)).next()


async def test_a_message_without_an_end_is_not_kept_forever() -> None:
    with pytest.raises(EtcdSilent, match="more than 0 kB"):
        async for _ in lines(chunks_of(b"x" * 60, b"x" * 60), max_bytes=100):
            pytest.fail("there is no message")


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ('{"result":{"header":{},"canceled":true,"compact_revision":"7"}}', Compacted, "before"),
        ('{"result":{"header":{},"canceled":true}}', EtcdSilent, "without a reason"),
        (
            '{"result":{"header":{},"canceled":true,"cancel_reason":'
            '"rpc error: code = PermissionDenied desc = etcdserver: permission denied"}}',
            StoreRejected,
            "grant",
        ),
        (
            '{"result":{"header":{},"canceled":true,"cancel_reason":"etcdserver: invalid auth '
            'token"}}',
            NoToken,
            "token",
        ),
        ('{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}', EtcdSilent, "no leader"),
        ('{"error":{"code":14,"message":"etcdserver: no leader"}}', EtcdSilent, "no leader"),
        ("<html>", EtcdSilent, "something else than a watch message"),
        ("{}", EtcdSilent, "neither"),
        (
            '{"result":{"header":{},"events":[{"kv":{"key":7}}]}}',
            EtcdSilent,
            "else than a watch message",
        ),
    ],
)
async def test_an_end_is_reported_by_its_name(line: str, kind: type[Exception], words: str) -> None:
    reader = WatchReader("m0", chunks_of(f"{line}\n".encode()))
    with pytest.raises(kind, match=words):
        await reader.next()
    await reader.close()


def told(events: Sequence[EventAnswer], *, fragment: bool = False) -> bytes:
    result = {"header": {"revision": "9"}, "events": events, "fragment": fragment}
    return msgspec.json.encode({"result": result}) + b"\n"


async def test_what_was_cut_apart_arrives_as_one() -> None:
    first, second = put("a/1", 5), put("a/2", 5)
    stream = chunks_of(told([first], fragment=True), told([second]))
    reader = WatchReader("m0", stream)
    answer = await reader.next()
    assert answer is not None
    assert answer.events == (first, second)


async def test_what_is_too_much_to_keep_has_us_list_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_HELD_BYTES", 3)
    stream = chunks_of(told([put("a", 5)], fragment=True), told([put("aaa", 5)]))
    with pytest.raises(Compacted, match="list again"):
        await WatchReader("m0", stream).next()


async def test_a_read_that_was_waited_for_in_vain_is_not_lost() -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def later() -> AsyncIterator[bytes]:
        while True:
            yield await pieces.get()

    reader = WatchReader("m0", later())
    assert await reader.next(0.001) is None
    pieces.put_nowait(told([put("a", 5)]))
    answer = await reader.next(DEADLINE_S)
    assert answer is not None
    assert [event.kv.key for event in answer.events] == [b"a"]
    assert await reader.next(0.001) is None
    await reader.close()


# --- what was missed -----------------------------------------------------------------------


def test_a_silent_watch_is_waited_for_as_long_as_it_has_something_to_send() -> None:
    catch_up = CatchUp(9, [Missed({b"a/1": 7}), Missed(), Missed(ended=1)])
    catch_up.hear(0, [put("a/1", 6), put("a/1", 7, version=2)])
    assert not catch_up.is_done()
    catch_up.hear(2, [put("c/came", 8), gone("c/came", 9)])
    assert not catch_up.is_done(), "that one had not been there before"
    catch_up.hear(2, [gone("c/old", 9), put("c/new", 10)])
    assert catch_up.is_done()
    before, since = catch_up.parted()
    assert [event.kv.mod_revision for event in before] == [6, 7, 8, 9, 9]
    assert [event.kv.key for event in since] == [b"c/new"]


def test_half_of_what_came_and_went_is_not_all() -> None:
    catch_up = CatchUp(9, [Missed()])
    catch_up.hear(0, [put("a/came", 7)])
    assert not catch_up.is_done()
    catch_up.hear(0, [gone("a/came", 8)])
    assert catch_up.is_done()


Commit = dict[str, bool]
"""Key → whether it is put."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[Commit]]:
    keys = st.sampled_from([f"{prefix}{number}" for prefix in PREFIXES for number in range(3)])
    commits = draw(st.lists(st.dictionaries(keys, st.booleans(), min_size=1), max_size=12))
    return draw(st.integers(0, len(commits))), commits


def events_of(commits: Sequence[Commit]) -> list[EventAnswer]:
    """As etcd would tell them: the delete of what is not there is no event."""
    versions: dict[str, int] = {}
    found = []
    for revision, commit in enumerate(commits, start=1):
        for key, is_put in commit.items():
            if is_put:
                versions[key] = versions.get(key, 0) + 1
                found.append(put(key, revision, versions[key]))
            elif versions.pop(key, 0):
                found.append(gone(key, revision))
    return found


def alive_at(events: Sequence[EventAnswer], revision: int) -> dict[bytes, tuple[int, int]]:
    """Key → when it came, and when it was last put."""
    alive: dict[bytes, tuple[int, int]] = {}
    for event in events:
        if event.kv.mod_revision > revision:
            break
        if event.is_gone:
            alive.pop(event.kv.key, None)
        else:
            came, _ = alive.get(event.kv.key, (event.kv.mod_revision, 0))
            alive[event.kv.key] = came, event.kv.mod_revision
    return alive


def missed_by(prefix: str, events: Sequence[EventAnswer], after: int, through: int) -> Missed:
    """As a reading tells it."""
    own = [event for event in events if event.kv.key.startswith(prefix.encode())]
    before, now = alive_at(own, after), alive_at(own, through)
    new = sum(came > after for came, _ in now.values())
    put_since = {key: last for key, (_, last) in now.items() if last > after}
    return Missed(put_since, len(before) + new - len(now))


def by_commit(prefix: str, events: Sequence[EventAnswer], after: int) -> list[list[EventAnswer]]:
    """What the watch of a prefix has to tell: commits are whole in it."""
    own = [e for e in events if e.kv.key.startswith(prefix.encode()) and e.kv.mod_revision > after]
    return [list(group) for _, group in groupby(own, key=lambda event: event.kv.mod_revision)]


@given(histories(), st.randoms(use_true_random=False))
def test_whatever_watch_is_first_everything_comes_in_order_and_whole(
    history: tuple[int, list[Commit]], dice: Random
) -> None:
    """R84: nothing is released before every watch has told its part of it."""
    after, commits = history
    events, through = events_of(commits), len(commits)
    missed = [missed_by(prefix, events, after, through) for prefix in PREFIXES]
    catch_up = CatchUp(through, missed)
    queues = [by_commit(prefix, events, after) for prefix in PREFIXES]
    while not catch_up.is_done():
        at = dice.choice([at for at, queue in enumerate(queues) if queue])
        catch_up.hear(at, queues[at].pop(0))
    before, since = catch_up.parted()
    known = [event for event in events if event.kv.mod_revision <= after]
    assert alive_at([*known, *before], through) == alive_at(events, through)
    assert [e.kv.mod_revision for e in before] == sorted(e.kv.mod_revision for e in before)
    assert since == []


# --- what comes ----------------------------------------------------------------------------


def test_a_commit_waits_until_something_newer_comes() -> None:
    order = CommitOrder("m0", 4)
    order.hear([put("a/1", 5)])
    assert order.take(newest_too=False) == []
    order.hear([put("b/1", 5)])
    order.hear([put("a/1", 6)])
    assert [event.kv.key for event in order.take(newest_too=False)] == [b"a/1", b"b/1"]
    assert order.through == 5
    assert order.is_holding


def test_a_commit_is_passed_on_once_nothing_more_came() -> None:
    order = CommitOrder("m0", 4)
    order.hear([put("a/1", 5)])
    assert [event.kv.mod_revision for event in order.take(newest_too=True)] == [5]
    assert not order.is_holding
    assert order.take(newest_too=True) == []


def test_a_commit_of_which_more_may_come_is_not_called_whole() -> None:
    """R84: the way may have gone silent between its pieces, and who goes on from there asks for
    all of that commit again."""
    order = CommitOrder("m0", 4)
    order.hear([put("a/1", 9)])
    order.take(newest_too=True)
    assert order.through == 8
    order.hear([put("b/1", 9)])
    assert [event.kv.key for event in order.take(newest_too=True)] == [b"b/1"]
    order.hear([put("beat", 12)])
    assert order.take(newest_too=False) == []
    assert order.through == 11


def test_a_single_watch_gives_every_commit_whole() -> None:
    order = CommitOrder("m0", 4, single=True)
    order.hear([put("a/1", 5)])
    order.take(newest_too=True)
    assert order.through == 5


def test_a_piece_that_comes_after_something_newer_has_us_list_again() -> None:
    order = CommitOrder("m0", 4)
    order.hear([put("a/1", 5)])
    order.take(newest_too=True)
    order.hear([put("a/1", 6)])
    order.take(newest_too=True)
    with pytest.raises(Compacted, match="revision 5 came after 5"):
        order.hear([put("b/1", 5)])


def test_nothing_arrives_twice_where_prefixes_overlap() -> None:
    assert widest(["b/1", "a/", "b/", "b/"]) == ["a/", "b/"]
    assert widest(["", "a"]) == [""]
    assert widest([]) == []


def test_a_key_that_is_no_text_is_ignored_and_reported_once() -> None:
    """It could be told in no answer, no feed and no file: all of them would fail."""
    keys = Keys("/p/")
    strange = KeyValue(b"/p/items/\xff\xfe", b"x", mod_revision=5)
    good = KeyValue(b"/p/items/a", b"y", mod_revision=6)
    with capture_logs() as told:
        for _ in range(2):
            assert [entry.key for entry in keys.entries([strange, good])] == ["items/a"]
            events = [EventAnswer(strange), EventAnswer(good), EventAnswer(strange, "DELETE")]
            assert [event.key for event in keys.events(events)] == ["items/a"]
    assert [line["event"] for line in told] == ["fleet.key_unreadable"]
