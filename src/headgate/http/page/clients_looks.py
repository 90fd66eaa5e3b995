"""What the pages of clients are made of, asked of the API.   PageApi ──► Looks"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from headgate.http.page.api import PageApi, Refused
from headgate.present.clients import Seen, seen_of
from headgate.wire.history import ClientsSumsDoc
from headgate.wire.starvation import RoguesDoc, StarvationDoc
from headgate.wire.status import ClientsDoc
from headgate.wire.unthrottled import UnthrottledDoc, UnthrottledsDoc

T = TypeVar("T")
HOUR_KEPT_TIMES = 20.0
"""The sums of an hour are kept for so many times as long as it took to make them: nobody who
watches takes more than a twentieth of the store's time for it."""
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Clients:
    seen: tuple[Seen, ...]
    seconds: float | None
    """What the rates are over; None: not known."""
    fault: str
    """Why there are no rates, or no sums of the hour."""


@dataclass(frozen=True, slots=True)
class Watched:
    """None: this agent does not look for it."""

    starvation: StarvationDoc | None
    rogues: RoguesDoc | None
    unthrottled: Sequence[UnthrottledDoc]


class ClientLooks:
    def __init__(self) -> None:
        self._hour: tuple[float, ClientsSumsDoc] | None = None
        """Until when it is good (the loop's time), and what it is."""
        self._turn = asyncio.Lock()

    async def clients(self, api: PageApi, app: str = "") -> Clients:
        """All of them, or those that have the levels of `app`."""
        docs = (await api.get("/v1/clients", ClientsDoc)).clients
        levels = set(app.split(":")) if app else set()
        mine = [doc for doc in docs if levels <= set(doc.client.split(":"))]
        try:
            minute = await api.get("/v1/history/clients", ClientsSumsDoc, {"since": "1m"})
            hour = await self._last_hour(api)
        except Refused as refused:
            return Clients(tuple(seen_of(mine, None, None)), None, refused.detail)
        seen = await asyncio.to_thread(seen_of, mine, minute, hour)
        return Clients(tuple(seen), minute.seconds, "")

    async def _last_hour(self, api: PageApi) -> ClientsSumsDoc:
        """One look for all who watch."""
        async with self._turn:
            clock = asyncio.get_running_loop().time
            began = clock()
            if self._hour is None or began >= self._hour[0]:
                found = await api.get("/v1/history/clients", ClientsSumsDoc, {"since": "1h"})
                self._hour = (clock() + HOUR_KEPT_TIMES * (clock() - began), found)
            return self._hour[1]


async def watched(api: PageApi, app: str = "") -> Watched:
    starvation = await _if_watched(api, "/v1/starvation", StarvationDoc)
    rogues = await _if_watched(api, "/v1/rogues", RoguesDoc)
    asked = {"since": "1h", "app": app}
    found = await api.get("/v1/unthrottled", UnthrottledsDoc, asked)
    return Watched(starvation, rogues, found.unthrottled)


async def _if_watched(api: PageApi, path: str, kind: type[T]) -> T | None:
    try:
        return await api.get(path, kind)
    except Refused as refused:
        if refused.status != NOT_FOUND:
            raise
        return None
