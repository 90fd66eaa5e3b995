"""A policy as servers get it, for proxies that have no folder here.   GET /v1/policies/D

Proxies poll every second: a policy that has not changed is answered without its body, and its body
is made once, however many poll. Who may look may read it, as in /v1/budgets/D.
"""

from __future__ import annotations

import zlib
from asyncio import to_thread
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from headgate.budgets.api import PublishedPolicyDoc
from headgate.budgets.keeper import NoSuchBudget
from headgate.budgets.layers import Edition
from headgate.budgets.parse import written
from headgate.budgets.service import Budgets, Controlled
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.http.documents import SECURITY_HEADERS
from headgate.http.routes import Plain, Route


class _Made(NamedTuple):
    edition: Edition
    expired: frozenset[str]
    etag: str
    body: bytes


class Publishing:
    """Handlers, as Control's."""

    def __init__(self, budgets: Budgets | None) -> None:
        self._given = budgets
        self._made: dict[str, _Made] = {}

    async def published(self, call: Plain) -> Response:
        if self._given is None:
            raise InvalidRequest("this agent has no budgets", status=404)
        controlled = self._given.of(call.place("database"))
        made = await self._of(controlled)
        headers = {**SECURITY_HEADERS, "ETag": made.etag}
        asked = call.request.headers.get("if-none-match", "")
        if made.etag in [one.strip().removeprefix("W/") for one in asked.split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(made.body, media_type="application/json", headers=headers)

    async def _of(self, controlled: Controlled) -> _Made:
        database, edition = controlled.plan.database, controlled.book.edition
        if not controlled.is_loaded:
            raise StoreUnavailable("the operators' changes have not been read yet")
        if not controlled.has_policy:
            message = (
                f"{database} has no policy: neither a file nor a change, so a server or proxy "
                f"keeps the one it has; `headgate budget create {database}` gives it one"
            )
            raise NoSuchBudget(message)
        over = frozenset(edition.ended(controlled.wall_ms))
        known = self._made.get(database)
        if known is None or known.edition is not edition or known.expired != over:
            known = await to_thread(_make, database, edition, over, controlled.wall_ms)
            self._made[database] = known
        return known


def _make(database: str, edition: Edition, expired: frozenset[str], wall_ms: int) -> _Made:
    doc = PublishedPolicyDoc(
        database=database,
        revision=edition.revision,
        mode_cap=edition.mode_cap.value,
        document=written(edition.in_force(wall_ms)),
    )
    body = msgspec.json.encode(doc)
    # By its content, too: a budget that expires changes it without a revision.
    return _Made(edition, expired, f'"{edition.revision}-{zlib.crc32(body):08x}"', body)


PUBLISHING_ROUTES = (
    Route(
        "GET", "/v1/policies/{database}", "published", "A policy as published to servers",
        PublishedPolicyDoc, errors=(503,),
        about="Capped, without expired budgets: for [proxies](../explanation/proxy.md) that no "
        "agent writes a file for. `If-None-Match` with its `ETag` is answered 304.",
    ),
)  # fmt: skip
