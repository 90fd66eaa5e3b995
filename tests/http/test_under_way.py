"""Changes whose client has hung up: brought to their end, and never silently lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import Response
from structlog.testing import capture_logs

from headgate.errors import StoreUnavailable
from headgate.http.control import UnderWay


@pytest.mark.parametrize(
    ("fault", "event"),
    [(None, "change.made_unheard"), ("stopped after 54 of 99", "change.failed_unheard")],
)
async def test_what_became_of_it_is_logged_where_nobody_listens(
    fault: str | None, event: str
) -> None:
    hung_up = asyncio.Event()

    async def change() -> Response:
        await hung_up.wait()
        if fault is not None:
            raise StoreUnavailable(fault)
        return Response()

    asked = asyncio.create_task(UnderWay().finish(change()))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    with capture_logs() as logged:
        hung_up.set()
        for _ in range(4):
            await asyncio.sleep(0)
    assert [line["event"] for line in logged] == [event]
    assert fault is None or _only(logged)["detail"] == fault


async def test_event_listeners_are_called_and_nothing_is_logged() -> None:
    async def change() -> Response:
        raise StoreUnavailable("away")

    with capture_logs() as logged, pytest.raises(StoreUnavailable):
        await UnderWay().finish(change())
    assert logged == []


def _only(logged: list[Any]) -> Any:
    [line] = logged
    return line
