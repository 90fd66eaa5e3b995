"""The page is a client of the API: what it decodes is what the route's row answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate.http.openapi import documents
from headgate.page.api import PageApi
from tests.fixtures.api import misfits, route_of
from tests.http.serving import OPERATOR, Served
from tests.page.visiting import Visitor, signed_in


@pytest.fixture
def ann(served: Served) -> Visitor:
    """An operator at the agent that the module serves."""
    return signed_in(served, OPERATOR)


@pytest.fixture(autouse=True)
def documents_are_those_of_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    get, send = PageApi.get, PageApi.send

    async def checked_get(self: PageApi, path: str, kind: Any, query: Any = None) -> Any:
        _expect("GET", path, kind, query or {})
        return await get(self, path, kind, query or {})

    async def checked_send(
        self: PageApi, method: str, path: str, kind: Any, body: Any = None, **more: Any
    ) -> Any:
        _expect(method, path, kind, more.get("query", {}))
        return await send(self, method, path, kind, body, **more)

    monkeypatch.setattr(PageApi, "get", checked_get)
    monkeypatch.setattr(PageApi, "send", checked_send)


def _expect(method: str, path: str, kind: type, query: Mapping[str, Any]) -> None:
    route = route_of(method, path)
    assert route is not None and kind in documents(route), f"{method} {path}: {kind.__name__}"
    unknown = [fault for fault in misfits(method, path, query) if "no parameter" in fault]
    assert unknown == []
