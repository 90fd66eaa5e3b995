"""The same door with TLS on it: transports differ there in what they can do."""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import replace
from http.client import RemoteDisconnected

import pytest
import trustme

from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.http.conftest import Serve
from tests.http.serving import LIMITS, Plan, Served
from tests.http.talk import get
from tests.http.test_checks import CHECK, is_problem


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def plan(authority: trustme.CA) -> Plan:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return Plan(tls=context, limits=LIMITS)


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_checks_and_control(serve: Serve, plan: Plan, trusting: ssl.SSLContext) -> None:
    served = serve(plan)
    with served.talk().wrapped(trusting) as talk:
        for _ in range(3):
            assert talk.ask("GET", CHECK).status == 200
            assert talk.ask("GET", "/healthz").json == {"serving": True}
        assert talk.send(get("/healthz") + get(CHECK, Connection="close")).reply().status == 200
        assert talk.reply().headers["Connection"] == "close"
    eventually(served.settled)


def test_rejections_are_counted(serve: Serve, plan: Plan, trusting: ssl.SSLContext) -> None:
    """TLS has no half-closed state: the words must leave before the end."""
    served = serve(replace(plan, limits=LIMITS._replace(request_timeout_s=2.0)))

    def is_answered(sent: bytes, status: int) -> bool:
        """False: this test was stopped before it sent anything, and was taken for silent."""
        with served.talk().wrapped(trusting) as talk:
            try:
                reply = talk.send(sent).reply()
            except RemoteDisconnected:
                return False
        assert is_problem(reply, status)
        return True

    eventually(lambda: is_answered(b"\x00\x00", 400))
    eventually(lambda: is_answered(b"GET / HTTP/1.1\r\n", 408))
    eventually(served.settled)


def test_a_slow_reader_is_delayed(serve: Serve, plan: Plan, trusting: ssl.SSLContext) -> None:
    """Rejections, since they are long: the buffers of two sockets fill sooner."""
    served = serve(plan)
    served.measure(lag=7.0, threads_running=500.0, pool_usage=1.0)
    count = 20_000
    with served.talk().wrapped(trusting) as talk:
        asked = get(CHECK) * count
        sender = threading.Thread(target=talk.send_what_goes, args=(asked,), daemon=True)
        connection = served.connection(talk)
        sender.start()
        eventually(lambda: not connection._writable.is_set())
        held = eventually(lambda: counted_and_still(served))
        assert held < count
        assert connection._transport.get_write_buffer_size() < 1_000_000
        assert [talk.reply().status for _ in range(100)] == [429] * 100
        talk.reset()
        sender.join(DEADLINE_S)
    eventually(served.settled)


def counted_and_still(served: Served) -> int:
    """How many were answered, once that no longer grows."""
    before = served.counted("etl:nightly")
    time.sleep(0.05)
    return before if served.counted("etl:nightly") == before else 0


def test_a_plain_client_on_the_tls_port_is_let_go(serve: Serve, plan: Plan) -> None:
    served = serve(plan)
    with served.talk() as talk:
        talk.send_what_goes(get(CHECK))
        talk.rest()
    eventually(served.settled)
