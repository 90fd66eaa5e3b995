"""How connections end: slow and silent clients, too many of them, and the agent's own stop."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from http.client import RemoteDisconnected

import pytest

from headgate.http.listener import Connection, Limits
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.http.conftest import Serve
from tests.http.serving import OPERATOR, Plan, Served, bearer
from tests.http.talk import Talk, get, request
from tests.http.test_checks import CHECK, is_problem
from tests.http.test_control import FILED, LAG, SlowStore

SHORT_S = 1.0
"""Long enough for a busy machine to send what it has to send."""
SLOW = Limits(8, 65536, request_timeout_s=SHORT_S, idle_timeout_s=600.0)
IDLE = Limits(8, 65536, request_timeout_s=600.0, idle_timeout_s=60.0)


# --- slow senders --------------------------------------------------------------------------


BEGUN = (
    b"G",
    b"GET /v1/check?app=a&database=main HTTP/1.1\r\nX: ",
    b"POST /v1/check HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
    b"POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
)


def test_a_request_that_stops_half_way_is_408(serve: Serve) -> None:
    served, waiting = serve(Plan(limits=SLOW)), set(BEGUN)

    def answered(talk: Talk) -> bool:
        """False: this test was stopped before it sent anything, and was taken for silent."""
        try:
            reply = talk.reply()
        except RemoteDisconnected:
            return False
        assert is_problem(reply, 408)
        assert f"within {SHORT_S:g} s" in reply.json["detail"]
        return talk.ended()

    def all_answered() -> bool:
        with ExitStack() as stack:
            begun = {one: stack.enter_context(served.talk()).send(one) for one in waiting}
            waiting.difference_update({one for one, talk in begun.items() if answered(talk)})
        return not waiting

    eventually(all_answered)


def test_a_request_that_comes_byte_by_byte_is_408_all_the_same(serve: Serve) -> None:
    """Slowloris: each byte on its own does not buy more time."""
    served = serve(Plan(limits=SLOW))
    with served.talk(timeout_s=0.02) as talk:

        def answered() -> bool:
            talk.send_what_goes(b"x")
            try:
                return bool(talk.sock.recv(1, socket.MSG_PEEK))
            except TimeoutError:
                return False

        talk.send(b"GET / HTTP/1.1\r\nX: ")
        eventually(answered)
        talk.sock.settimeout(DEADLINE_S)
        assert is_problem(talk.reply(), 408)


def test_the_clock_of_a_request_starts_with_its_first_byte(serve: Serve) -> None:
    """A connection that waited longer than that before asking is not late."""
    served = serve(Plan(limits=SLOW))
    with served.talk() as talk:
        assert talk.ask("GET", CHECK).status == 200
        talk.send(b"\r\n")  # Stray line ends between requests begin nothing.
        time.sleep(2 * SHORT_S)
        assert talk.ask("GET", CHECK).status == 200


def test_a_late_second_request_does_not_spoil_the_answer_to_the_first(serve: Serve) -> None:
    store = SlowStore()
    served = serve(Plan(limits=SLOW, store=store))
    with served.talk() as talk:
        talk.send(patch_of_lag() + b"GET /never-fini")
        assert store.asked.wait(DEADLINE_S)
        time.sleep(2 * SHORT_S)
        store.go_on.set()
        assert talk.reply().json["settings"] == {**FILED, "threshold": "60s"}
        assert is_problem(talk.reply(), 408)
        assert talk.ended()


def patch_of_lag() -> bytes:
    body = json.dumps({"threshold": "60s"}).encode()
    headers = {"Authorization": bearer(OPERATOR), "Content_Type": "application/json"}
    return request("PATCH", LAG, body=body, **headers)


# --- silent and slow readers ---------------------------------------------------------------


def test_a_connection_that_sends_nothing_is_closed(serve: Serve) -> None:
    """And one that goes on asking stays, well past that time."""
    served = serve(Plan(limits=IDLE, tended=False))
    with ExitStack() as stack:
        asking, silent, blank, hot, cold = (stack.enter_context(served.talk()) for _ in range(5))
        blank.send(b"\r\n")
        assert hot.ask("GET", CHECK).status == 200
        assert cold.ask("GET", "/healthz").status == 200
        for passed_s in (0, 50, 59):
            served.later(passed_s)
            assert asking.ask("GET", CHECK).status == 200
        served.later(61)
        assert asking.ask("GET", CHECK).status == 200
        for talk in (silent, blank, hot, cold):
            assert talk.ended(), "closed without a word"
    eventually(served.settled)


def test_after_a_stall_of_the_agent_what_came_meanwhile_is_read_first(serve: Serve) -> None:
    """Of who has asked in time, it is not known yet: the loop was away."""
    served = serve(Plan(limits=SLOW, tended=False))
    with served.talk() as asking, served.talk() as silent:
        eventually(lambda: len(served.listener.connections) == 2)
        served.tend()
        served.tend(later_s=100)
        assert asking.ask("GET", CHECK).status == 200
        served.tend(later_s=100)
        assert silent.ended()


# Over the Unix socket: its buffers are small and fixed, so the test knows when they are full.


@pytest.mark.parametrize("target", [CHECK, "/v1/status"])
def test_a_client_that_checks_and_never_reads_is_cut_off(serve: Serve, target: str) -> None:
    """Its answers must not pile up: the agent stops listening to it, then ends it."""
    served = serve(Plan(limits=IDLE, tended=False))
    with served.talk(unix=True) as talk:
        connection = the_only(served)
        talk.sock.setblocking(False)

        unsent = b""

        def is_full() -> bool:
            nonlocal unsent
            with suppress(BlockingIOError, ConnectionError):
                while True:
                    unsent = unsent or get(target) * 20
                    unsent = unsent[talk.sock.send(unsent) :]
            assert connection._transport.get_write_buffer_size() < 1_000_000
            return connection.closing or not connection._writable.is_set()

        passed_s = itertools.count(61, 61)

        def is_cut_off() -> bool:
            served.later(next(passed_s))
            return served.settled()

        eventually(is_full)
        eventually(is_cut_off)
    assert served.ask("GET", CHECK).status == 200


def test_a_slow_reader_gets_every_answer(serve: Serve) -> None:
    """Delayed, not cut off; a request that is late because nobody listened is not late."""
    served = serve(Plan(limits=SLOW._replace(request_timeout_s=60.0), tended=False))
    count = 5000
    with served.talk(unix=True) as talk:
        connection = the_only(served)
        asked = get(CHECK) * (count - 1) + get(CHECK, Connection="close")
        sender = threading.Thread(target=talk.send, args=(asked,))
        sender.start()
        eventually(lambda: not connection._writable.is_set())
        served.later(61)
        answers = talk.rest()
        sender.join()
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == count
    assert served.counted("etl:nightly", "OK") == count


def the_only(served: Served) -> Connection:
    eventually(lambda: len(served.listener.connections) == 1)
    (connection,) = served.listener.connections
    return connection


# --- too many ------------------------------------------------------------------------------


def test_too_many_connections_get_503_and_the_first_ones_are_served(serve: Serve) -> None:
    served = serve(Plan(limits=Limits(3, 65536, 600, 600)))
    seated = [served.talk() for _ in range(3)]
    assert [talk.ask("GET", CHECK).status for talk in seated] == [200] * 3
    with served.talk() as late:
        assert is_problem(late.reply(), 503)
        assert late.ended()
    assert served.listener.rejected_connections == 1
    assert [talk.ask("GET", CHECK).status for talk in seated] == [200] * 3
    seated.pop().sock.close()
    eventually(lambda: len(served.listener.connections) == 2)
    assert served.ask("GET", CHECK).status == 200
    for talk in seated:
        talk.sock.close()
    eventually(served.settled)


def test_a_flood_of_connections_is_bounded_too(serve: Serve) -> None:
    served = serve(Plan(limits=Limits(3, 65536, 600, 600)))
    seated = [served.talk() for _ in range(3)]
    assert [talk.ask("GET", CHECK).status for talk in seated] == [200] * 3
    late = [served.talk() for _ in range(40)]
    eventually(lambda: served.listener.rejected_connections == 40)
    assert len(served.listener.connections) == 3
    assert len(served.listener.turned_away) <= 3
    assert seated[0].ask("GET", CHECK).status == 200
    for talk in [*seated, *late]:
        talk.sock.close()
    eventually(served.settled)


def test_a_connection_that_never_sends_is_closed_as_soon_as_a_late_request(serve: Serve) -> None:
    """N3: its time counts from when it was accepted, not from its first byte."""
    served = serve(Plan(limits=SLOW))
    with ExitStack() as stack:
        silent, blank, asked = (stack.enter_context(served.talk()) for _ in range(3))
        local = stack.enter_context(served.talk(unix=True))
        assert asked.ask("GET", CHECK).status == 200
        blank.send(b"\r\n")
        for talk in (silent, blank, local):
            assert talk.rest() == b"", "it has said nothing, and is told nothing"
        assert asked.ask("GET", CHECK).status == 200, "one that has asked may rest"
    eventually(served.settled)


def test_those_that_never_send_give_way_to_new_ones(serve: Serve) -> None:
    """N3: they held every place until their time was over."""
    served = serve(Plan(limits=Limits(8, 65536, request_timeout_s=60.0, idle_timeout_s=60.0)))
    with ExitStack() as stack:
        asked = stack.enter_context(served.talk())
        assert asked.ask("GET", CHECK).status == 200
        silent = [stack.enter_context(served.talk()) for _ in range(6)]
        half = stack.enter_context(served.talk()).send(b"GET /v1/che")
        eventually(lambda: len(served.listener.connections) == 7)
        for late in range(6):
            talk = stack.enter_context(served.talk())
            assert talk.ask("GET", CHECK).status == 200, f"number {late} found no place"
        assert asked.ask("GET", CHECK).status == 200, "who asks keeps its place"
        for talk in [*silent[:5], half]:
            assert talk.rest() == b""
        last = stack.enter_context(served.talk())
        assert last.reply().status == 503, "no place is left that nobody uses"
        assert served.listener.shed_connections >= 6
    eventually(served.settled)


# --- hanging up ----------------------------------------------------------------------------


SENT = (
    b"",
    b"GET /v1/sta",
    get(CHECK),
    get(CHECK) * 50,
    get("/v1/status") * 30,
    b"POST /v1/check HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
    b"\x00garbage",
)


@pytest.mark.parametrize("abrupt", [False, True], ids=["close", "reset"])
def test_hanging_up_leaves_nothing_behind(served: Served, abrupt: bool) -> None:
    for sent in SENT * 5:
        talk = served.talk()
        talk.send(sent)
        if abrupt:
            talk.reset()
        talk.sock.close()
    eventually(served.settled)
    assert not served.accidents
    assert served.ask("GET", CHECK).status == 200


def test_hanging_up_while_a_request_is_served_ends_its_task(serve: Serve) -> None:
    store = SlowStore()
    served = serve(Plan(store=store))
    talk = served.talk()
    talk.send(patch_of_lag())
    assert store.asked.wait(DEADLINE_S)
    talk.reset()
    eventually(lambda: not served.listener.connections)
    store.go_on.set()
    eventually(served.settled)


# --- the agent stops -----------------------------------------------------------------------


def test_a_stop_lets_the_request_under_way_finish(serve: Serve) -> None:
    store = SlowStore()
    served = serve(Plan(store=store))
    address = served.address
    with served.talk() as busy, served.talk() as idle, served.talk() as half:
        assert idle.ask("GET", CHECK).status == 200
        half.send(b"GET /v1/che")
        busy.send(patch_of_lag() + get("/healthz"))
        assert store.asked.wait(DEADLINE_S)
        stopping = threading.Thread(
            target=served.run_there, args=(lambda: served.listener.stop(DEADLINE_S),)
        )
        stopping.start()
        assert idle.ended(), "one that is kept alive is closed in a moment"
        assert half.ended()
        assert stopping.is_alive()
        store.go_on.set()
        assert busy.reply().json["settings"] == {**FILED, "threshold": "60s"}
        assert busy.ended(), "what waited behind it is not begun"
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
    with pytest.raises(ConnectionRefusedError):
        Talk(address)
    assert not served.listener.connections


def test_a_stop_does_not_wait_forever(serve: Serve) -> None:
    store = SlowStore()
    served = serve(Plan(store=store))
    with served.talk() as busy:
        busy.send(patch_of_lag())
        assert store.asked.wait(DEADLINE_S)
        served.run_there(lambda: served.listener.stop(SHORT_S))
        assert busy.ended()
        store.go_on.set()
    eventually(served.settled)


def test_a_connection_made_while_stopping_is_rejected(serve: Serve) -> None:
    served = serve(Plan())
    served.call(setattr, served.listener, "stopping", True)
    with served.talk() as talk:
        reply = talk.reply()
        assert is_problem(reply, 503) and "stopping" in reply.json["detail"]
