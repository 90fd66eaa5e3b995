"""Bytes of every kind: answered, or rejected with the right status; later requests work."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headgate.http.listener import MAX_HEADER_BYTES, MAX_PIPELINED, MAX_TARGET_BYTES
from tests.fixtures.eventually import eventually
from tests.http.conftest import Serve
from tests.http.serving import LIMITS, Plan, Served, statuses
from tests.http.talk import get
from tests.http.test_checks import CHECK, is_problem

BODY = b'{"app":"etl","database":"main"}'
POST = "POST /v1/check HTTP/1.1\r\nContent-Type: application/json\r\n"


def rejected(served: Served, raw: bytes, status: int) -> bool:
    """One problem, then the end of the connection; and the next connection is served."""
    with served.talk() as talk:
        talk.send_what_goes(raw)
        reply = talk.reply()
        assert is_problem(reply, status)
        assert reply.headers["Connection"] == "close"
        assert talk.ended()
    assert served.ask("GET", CHECK).status == 200
    return True


# --- odd, but HTTP -------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CHECK, "/healthz", "/v1/check?app=a"])
@pytest.mark.parametrize(
    "head",
    ["GET {} HTTP/1.1\r\nConnection: close\r\n\r\n", "GET {} HTTP/1.0\r\n\r\n"],
    ids=["close", "1.0"],
)
def test_a_connection_that_is_not_kept_is_closed_and_says_so(
    served: Served, target: str, head: str
) -> None:
    with served.talk() as talk:
        reply = talk.send(head.format(target).encode()).reply()
        assert reply.headers["Connection"] == "close"
        assert reply.json
        assert talk.ended()


@pytest.mark.parametrize("target", [CHECK, "/healthz"])
def test_nothing_after_connection_close_is_answered(served: Served, target: str) -> None:
    with served.talk() as talk:
        talk.send(get(target, Connection="close") + get(CHECK))
        assert talk.reply().status == 200
        assert talk.ended()


def test_http_1_0_may_keep_its_connection(served: Served) -> None:
    raw = f"GET {CHECK} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode()
    with served.talk() as talk:
        assert [talk.send(raw).reply().status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("sizes", [[len(BODY)], [1] * len(BODY), [10, len(BODY) - 10]])
def test_chunked_bodies(served: Served, sizes: list[int]) -> None:
    chunks, at = b"", 0
    for size in sizes:
        chunks += b"%x\r\n%b\r\n" % (size, BODY[at : at + size])
        at += size
    raw = POST.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    with served.talk() as talk:
        assert talk.send(raw).reply().status == 200
        assert talk.ask("GET", CHECK).status == 200


def test_trailers_are_no_headers(served: Served) -> None:
    """What came after the body cannot lend it a type, or a token."""
    raw = (
        b"POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n"
        b"Content-Type: application/json\r\n\r\n"
    ) % (len(BODY), BODY)
    with served.talk() as talk:
        assert is_problem(talk.send(raw).reply(), 415)


def test_a_client_that_expects_100_is_invited(served: Served) -> None:
    head = f"{POST}Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n".encode()
    with served.talk() as talk:
        talk.send(head)
        assert talk.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert talk.send(BODY).reply().status == 200
        too_large = f"{POST}Content-Length: 70000\r\nExpect: 100-continue\r\n\r\n".encode()
        assert is_problem(talk.send(too_large).reply(), 413), "told before it sends anything"
    with served.talk() as talk:
        talk.send(get(CHECK, Expect="100-continue"))
        assert talk.sock.recv(17) == b"HTTP/1.1 200 OK\r\n", "no body comes: nothing to invite"


def test_an_invitation_does_not_overtake_an_answer(served: Served) -> None:
    head = f"{POST}Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n".encode()
    with served.talk() as talk:
        only = served.connection(talk)
        served.feed(only, get("/healthz") + head)
        assert talk.reply().json == {"serving": True}
        assert talk.send(BODY).reply().status == 200


def test_leading_line_ends_are_skipped(served: Served) -> None:
    with served.talk() as talk:
        assert talk.send(b"\r\n\r\n\r\n" + get(CHECK)).reply().status == 200
        assert talk.send(b"\r\n").send(get(CHECK)).reply().status == 200


def test_absolute_form_targets_as_proxies_send_them(served: Served) -> None:
    with served.talk() as talk:
        for prefix in ("http://agent:8187", "https://agent", "HTTP://[::1]:8187"):
            assert talk.ask("GET", prefix + CHECK).json["database"] == "main"
            assert talk.ask("GET", f"{prefix}/healthz").status == 200
        for page in ("http://agent", "http://agent?x=/v1/status"):
            assert talk.ask("GET", page).headers["Content-Type"].startswith("text/html")
        assert talk.ask("GET", "http://agent/v1").status == 404


def test_an_offer_to_upgrade_is_not_taken_up(served: Served) -> None:
    """`curl --http2` offers h2c with every first request; HTTP/1.1 is a right answer."""
    raw = get(CHECK, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
    with served.talk() as talk:
        for _ in range(3):
            assert talk.send(raw + get("/healthz")).reply().status == 200
            assert talk.reply().json == {"serving": True}
        assert (
            talk.ask("GET", "/v1/status", Connection="Upgrade", Upgrade="websocket").status == 200
        )


@pytest.mark.parametrize("method", ["OPTIONS", "PROPFIND", "QUERY", "M-SEARCH"])
def test_other_methods_are_405(served: Served, method: str) -> None:
    assert is_problem(served.ask(method, "/v1/check"), 405)
    assert is_problem(served.ask(method, "/healthz"), 405)


# --- not HTTP ------------------------------------------------------------------------------

CLIENT_HELLO = bytes.fromhex("16030100a5010000a103036f") + bytes(range(153))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        b"\x00" * 4096,
        b"hello there\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        CLIENT_HELLO,
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET /%s\xc3\xbc HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nX : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/banana\r\n\r\n",
        b"CONNECT db:3306 HTTP/1.1\r\nHost: db\r\n\r\n\x10\x00\x00\x00",
        b"*1\r\n$4\r\nPING\r\n",
        b"GE T / HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_are_400(served: Served, raw: bytes) -> None:
    assert rejected(served, raw, 400)


@pytest.mark.parametrize("line", ["GET / HTTP/2.0", "GET /", "GET / HTTP/0.9"])
def test_other_versions_are_505(served: Served, line: str) -> None:
    assert rejected(served, f"{line}\r\n\r\n".encode(), 505)


def test_a_tls_client_on_the_plain_port_fails_at_once(served: Served) -> None:
    context = ssl.create_default_context()
    with served.talk() as talk, pytest.raises(ssl.SSLError):
        context.wrap_socket(talk.sock, server_hostname="agent")
    assert served.ask("GET", CHECK).status == 200


SMUGGLED = get("/v1/check?app=smuggled&database=main")


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length:\r\n",
        f"Content-Length: {'9' * 5000}\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_request_smuggling(served: Served, head: str) -> None:
    """Two ways to read where a request ends: none is taken, and what follows is never asked."""
    raw = f"{POST}{head}\r\n0\r\n\r\n".encode() + SMUGGLED
    assert rejected(served, raw, 400)
    assert served.counted("smuggled") == 0


def test_http_1_0_has_no_chunks(served: Served) -> None:
    raw = b"POST /v1/check HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert rejected(served, raw + b"0\r\n\r\n" + SMUGGLED, 400)
    assert served.counted("smuggled") == 0


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"1\r\nxx\r\n"])
def test_broken_chunks_are_400(served: Served, chunk: bytes) -> None:
    raw = f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk
    assert rejected(served, raw, 400)


# --- too much ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/" + "a" * MAX_TARGET_BYTES, CHECK + "&x=" + "y" * 9000])
def test_a_long_target_is_414(served: Served, target: str) -> None:
    assert rejected(served, get(target), 414)
    assert rejected(served, get(target)[:9000], 414), "without waiting for its end"


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"y" * MAX_HEADER_BYTES + b"\r\n\r\n",
        b"X: " + b"y" * 1_000_000,
        b"y" * 1_000_000,
        b"a: b\r\n" * 10_000 + b"\r\n",
        b"a:\r\n" * 5_000 + b"\r\n",
        b"".join(b"x%d: y\r\n" % number for number in range(100_000)),
    ],
    ids=["one huge", "endless value", "endless name", "many small", "many empty", "endless many"],
)
def test_a_header_bomb_is_431(served: Served, headers: bytes) -> None:
    assert rejected(served, b"GET / HTTP/1.1\r\n" + headers, 431)


def test_a_large_head_that_fits_is_served(served: Served) -> None:
    assert served.ask("GET", CHECK, X="y" * (MAX_HEADER_BYTES - 500)).status == 200


@pytest.mark.parametrize(
    "raw",
    [
        f"{POST}Content-Length: 65537\r\n\r\n".encode(),
        f"{POST}Transfer-Encoding: chunked\r\n\r\n10001\r\n".encode() + b"x" * 65537,
        f"{POST}Transfer-Encoding: chunked\r\n\r\n1;".encode() + b"x" * 700_000,
        f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\nX: ".encode() + b"x" * 700_000,
    ],
    ids=["length", "chunk", "endless extension", "endless trailer"],
)
def test_a_body_too_large_is_413(served: Served, raw: bytes) -> None:
    assert rejected(served, raw, 413)


def test_trailers_are_bounded_as_headers_are(served: Served) -> None:
    raw = f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\n".encode() + b"a: b\r\n" * 10_000
    assert rejected(served, raw, 431)


def test_the_largest_body_is_taken(served: Served) -> None:
    body = BODY + b" " * (LIMITS.max_body_bytes - len(BODY))
    reply = served.ask("POST", "/v1/check", body=body, Content_Type="application/json")
    assert reply.status == 200


def test_pipelined_requests_are_bounded_and_those_before_answered_in_order(served: Served) -> None:
    """The rejection comes last: it must not be taken for the answer to an earlier request."""
    with served.talk() as talk:
        only = served.connection(talk)
        served.feed(only, get("/healthz") * (MAX_PIPELINED + 10))
        replies = [talk.reply() for _ in range(MAX_PIPELINED + 2)]
        assert statuses(replies) == [200] * (MAX_PIPELINED + 1) + [429]
        assert talk.ended()


@pytest.mark.parametrize("first", [get("/healthz"), get("/v1/status"), get(CHECK)])
@pytest.mark.parametrize(
    ("bad", "status"),
    [(b"\x00\x00", 400), (get("/" + "a" * 9000), 414), (b"GET / HTTP/2.0\r\n\r\n", 505)],
)
def test_a_rejection_does_not_overtake_the_answer_before_it(
    served: Served, first: bytes, bad: bytes, status: int
) -> None:
    with served.talk() as talk:
        only = served.connection(talk)
        served.feed(only, first + bad)
        assert talk.reply().status == 200
        assert is_problem(talk.reply(), status)
        assert talk.ended()


def test_a_defect_in_a_check_is_a_500_not_the_clients_fault(serve: Serve) -> None:
    served = serve(Plan())
    served.call(setattr, served.dice, "lands", "not a number")
    with capture_logs() as logs, served.talk() as talk:
        reply = talk.send(get("/v1/check?app=a&database=nowhere")).reply()
        assert is_problem(reply, 500)
        assert "see the agent's log" in reply.json["detail"]
        assert reply.json["verdict"] == "INTERNAL_ERROR"
        assert talk.ended()
    assert [line["event"] for line in logs] == ["http.check_failed"]
    served.dice.lands = 0.5
    assert served.ask("GET", CHECK).status == 200


# --- garbage -------------------------------------------------------------------------------

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = st.sampled_from(
    [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"/v1/check?app=fuzz&database=main",
        b"/healthz",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Type: application/json\r\n",
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: x\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\n",
        b"\r",
        b"\x00",
        get(CHECK),
        get("/healthz"),
    ]
)


@FUZZ
@given(
    pieces=st.lists(st.one_of(st.binary(max_size=60), WORDS, WORDS), max_size=12),
    turns=st.integers(0, 3),
)
def test_garbage_never_ends_the_server(served: Served, pieces: list[bytes], turns: int) -> None:
    with served.talk() as talk:
        only = served.connection(talk)
        served.feed(only, *pieces, turns=turns)
        talk.reset()
    with served.talk() as talk:
        assert talk.ask("GET", CHECK).status == 200
        assert talk.ask("GET", "/healthz").status == 200
    assert not served.accidents
    if len(served.listener.connections) > LIMITS.max_connections // 2:
        eventually(served.settled)


@FUZZ
@given(raw=st.binary(min_size=1, max_size=400))
def test_garbage_over_the_wire(served: Served, raw: bytes) -> None:
    with served.talk() as talk:
        talk.send_what_goes(raw)
    assert served.ask("GET", CHECK).status == 200
    assert not served.accidents
