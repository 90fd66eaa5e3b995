"""A kept connection is lent only while it is quiet, ours, and wanted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headgate.client.drivers.pool import MAX_CONNECTIONS, Pool, PooledConnection


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]


def test_a_quiet_connection_is_lent_to_one_at_a_time(pool: Pool, ends: Ends) -> None:
    ours = PooledConnection(ends[0])
    pool.give(ours)
    assert pool.take() is ours
    assert pool.take() is None


def test_a_connection_that_sends_without_a_request_is_dropped(pool: Pool, ends: Ends) -> None:
    """A late or second answer must not be read as the next question's (R33)."""
    ours, theirs = ends
    pool.give(PooledConnection(ours))
    theirs.sendall(b"HTTP/1.1 200 OK\r\n")
    assert pool.take() is None
    assert ours.fileno() == -1


def test_a_connection_that_ended_is_dropped(pool: Pool, ends: Ends) -> None:
    ours, theirs = ends
    pool.give(PooledConnection(ours))
    theirs.close()
    assert pool.take() is None
    assert ours.fileno() == -1


def test_what_comes_back_after_the_end_is_closed(pool: Pool, ends: Ends) -> None:
    pool.close()
    pool.give(PooledConnection(ends[0]))
    assert ends[0].fileno() == -1
    with pytest.raises(RuntimeError, match="was closed"):
        pool.take()


def test_no_more_are_kept_than_stated(pool: Pool) -> None:
    pairs = [socket.socketpair() for _ in range(MAX_CONNECTIONS + 2)]
    for ours, _ in pairs:
        pool.give(PooledConnection(ours))
    assert [ours.fileno() == -1 for ours, _ in pairs[-3:]] == [False, True, True]
    for _, theirs in pairs:
        theirs.close()
