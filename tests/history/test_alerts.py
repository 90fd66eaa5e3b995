"""A webhook that is slow, gone or rude delays nothing, fills nothing, and is reported."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headgate.history import alerts as alerts_module
from headgate.history.alerts import MAX_TRIES, MAX_WAITING, Alerts, Webhook
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fixtures.fakes import HandClock, settle


@asynccontextmanager
async def running(alerts: Alerts) -> AsyncIterator[None]:
    task = asyncio.create_task(alerts.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Taker:
    """Answers with each status in turn, the last one again and again."""

    def __init__(self, *statuses: int | OSError) -> None:
        self.statuses = list(statuses)
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> int:
        self.bodies.append(body)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(status, OSError):
            raise status
        return status


async def winding(clock: HandClock, until: Callable[[], bool]) -> None:
    """Let time pass until it is so; what runs in a thread needs real time besides."""

    async def pass_time() -> None:
        while True:
            await clock.advance(5.0)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(pass_time())
    try:
        await aeventually(until)
    finally:
        task.cancel()


async def test_an_alert_is_sent_again_until_it_is_taken() -> None:
    taker = Taker(ConnectionRefusedError("refused"), 503, 200)
    clock = HandClock()
    alerts = Alerts(clock, agent="db1", send=taker)
    async with running(alerts):
        alerts.put("starvation.begins", {"client": "etl"})
        await winding(clock, lambda: bool(alerts.outcomes["starvation.begins", "sent"]))
    assert len(taker.bodies) == 3 and alerts.fault is None
    told = json.loads(taker.bodies[0])
    assert (told["kind"], told["agent"], told["client"]) == ("starvation.begins", "db1", "etl")


async def test_an_alert_that_nobody_takes_is_given_up_and_counted() -> None:
    taker, clock = Taker(500), HandClock()
    alerts = Alerts(clock, send=taker)
    async with running(alerts):
        alerts.put("x", {})
        await winding(clock, lambda: bool(alerts.outcomes["x", "dropped"]))
    assert len(taker.bodies) == MAX_TRIES
    assert alerts.fault == "answered 500"


async def test_what_waits_is_bounded_and_the_oldest_goes() -> None:
    alerts = Alerts(HandClock(), send=Taker(200))
    for number in range(MAX_WAITING + 5):
        alerts.put("x", {"n": number})
    assert alerts.waiting == MAX_WAITING
    assert alerts.outcomes["x", "dropped"] == 5
    assert alerts.outcomes["x", "raised"] == MAX_WAITING + 5


async def test_without_a_webhook_alerts_are_counted_and_nothing_waits() -> None:
    alerts = Alerts(HandClock())
    alerts.put("x", {})
    assert alerts.waiting == 0 and alerts.outcomes["x", "raised"] == 1


async def test_a_call_that_hangs_is_left_behind_and_not_repeated_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerts_module, "GIVE_UP_AFTER_S", 0.05)
    hang, calls, clock = threading.Event(), [], HandClock()

    def send(body: bytes) -> int:
        calls.append(body)
        hang.wait()
        return 200

    alerts = Alerts(clock, send=send)
    async with running(alerts):
        alerts.put("x", {})
        await aeventually(lambda: alerts.fault == "no answer in 0.05 s")
        await clock.advance(1.0)
        await aeventually(lambda: alerts.fault == "the previous alert is still being sent")
        assert len(calls) == 1
        monkeypatch.setattr(alerts_module, "GIVE_UP_AFTER_S", DEADLINE_S)  # For the next one.
        hang.set()
        await winding(clock, lambda: bool(alerts.outcomes["x", "sent"]))
    assert len(calls) == 2


async def test_over_a_real_socket_with_its_token() -> None:
    heard: list[tuple[str, str | None, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers["Authorization"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/hook?key=abc"
        alerts = Alerts(HandClock(), send=Webhook(url, "secret"))
        async with running(alerts):
            alerts.put("x", {"client": "etl"})
            await aeventually(lambda: alerts.outcomes["x", "sent"] == 1)
        server.shutdown()
    [(path, token, body)] = heard
    assert (path, token) == ("/hook?key=abc", "Bearer secret")
    assert json.loads(body)["client"] == "etl"


async def test_nobody_there_is_named_without_the_address_key() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        webhook = Webhook(f"http://127.0.0.1:{unused.getsockname()[1]}/hook?key=abc")
        alerts = Alerts(HandClock(), send=webhook)
        async with running(alerts):
            alerts.put("x", {})
            await aeventually(lambda: alerts.fault is not None)
            await settle()
    assert "refused" in (alerts.fault or "") and "abc" not in f"{alerts.fault}{webhook.label}"
