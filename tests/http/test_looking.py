"""Looks back take turns by address: nobody needs a token, so nobody keeps the others out (L6)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from starlette.requests import Request

from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.history import looking
from headgate.history.looking import MAX_WAITING_EACH, Turns
from headgate.http.auth import LOCAL, Peer


def request(address: str) -> Request:
    return Request({"type": "http", "state": {"peer": Peer(address, None)}})


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Lookers:
    """Each looks until it is let go of; `order` is who came to look."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self.let = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def _look(self, address: str) -> None:
        async with self.turns.look(request(address)):
            self.order.append(address)
            await self.let.wait()

    async def come(self, *addresses: str) -> list[asyncio.Task[None]]:
        came = [asyncio.create_task(self._look(address)) for address in addresses]
        self.tasks += came
        await settled()
        return came

    async def all(self) -> None:
        self.let.set()
        await asyncio.gather(*self.tasks)


async def test_one_looks_at_a_time_and_addresses_take_turns() -> None:
    lookers = Lookers()
    await lookers.come("a", "a", "a", "a", "b", "b", "c")
    assert lookers.order == ["a"]
    await lookers.all()
    assert lookers.order == ["a", "b", "a", "c", "b", "a", "a"]


async def test_the_unix_socket_comes_first() -> None:
    lookers = Lookers()
    await lookers.come("a", "b", "c", LOCAL)
    await lookers.all()
    assert lookers.order[:2] == ["a", LOCAL]


async def test_crowding_clients_get_a_time_to_retry_and_others_do_not() -> None:
    lookers = Lookers()
    await lookers.come(*["a"] * (MAX_WAITING_EACH + 1))
    (crowding,) = await lookers.come("a")
    with pytest.raises(InvalidRequest, match="try again in 5 s") as caught:
        await crowding
    assert (caught.value.status, caught.value.retry_after_s) == (429, 5.0)
    lookers.tasks.remove(crowding)
    await lookers.come("b")
    await lookers.all()
    assert lookers.order[1] == "b", "after the one that looks, not after all of them"


async def test_all_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MAX_WAITING", 3)
    lookers = Lookers()
    await lookers.come("a", "b", "c", "d")
    (crowding,) = await lookers.come("e")
    with pytest.raises(InvalidRequest):
        await crowding
    lookers.tasks.remove(crowding)
    await lookers.all()


async def test_a_look_is_cut_short_where_another_address_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "FAIR_S", 0.0)
    lookers = Lookers()
    (first,) = await lookers.come("a")
    await asyncio.sleep(0.01)
    assert not first.done(), "nobody else waits"
    (other,) = await lookers.come("b")
    with pytest.raises(StoreUnavailable, match="while others wait"):
        await first
    await settled()
    assert lookers.order == ["a", "b"] and not other.done()
    lookers.let.set()
    await other


async def test_who_hangs_up_while_waiting_takes_no_turn() -> None:
    lookers = Lookers()
    first, second, third = await lookers.come("a", "b", "c")
    second.cancel()
    first.cancel()
    for task in (first, second):
        with suppress(asyncio.CancelledError):
            await task
    await settled()
    assert lookers.order == ["a", "c"]
    lookers.let.set()
    await third
    await lookers.come("d")
    assert lookers.order[-1] == "d", "the turn was lost"


async def test_a_turn_that_is_given_to_one_who_hangs_up_goes_on() -> None:
    lookers = Lookers()
    first, second, third = await lookers.come("a", "b", "c")
    first.cancel()
    await asyncio.sleep(0)
    second.cancel()
    await settled()
    assert lookers.order[-1] == "c"
    lookers.let.set()
    await third
    assert first.cancelled() and second.cancelled()
