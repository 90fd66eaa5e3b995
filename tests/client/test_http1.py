"""The reader gives the same response however its bytes are cut, and is bounded."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.http1 import (
    BadResponse,
    ClosedUnread,
    Response,
    ResponseReader,
    encode_request,
)

PLAIN = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\nRetry-After: 2\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"3;name=value\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
NO_PHRASE = b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n"

WHOLE = {
    "plain": (PLAIN, 429, b"hello"),
    "chunked": (CHUNKED, 200, b"hello"),
    "interim first": (INTERIM, 429, b"hello"),
    "no body": (EMPTY, 204, b""),
    "no phrase": (NO_PHRASE, 503, b""),
}
whole = pytest.mark.parametrize(("wire", "status", "body"), WHOLE.values(), ids=WHOLE.keys())


def read(*pieces: bytes) -> Response | None:
    reader, response = ResponseReader(), None
    for piece in pieces:
        assert response is None
        response = reader.feed(piece)
    return response


@whole
def test_cut_at_every_byte(wire: bytes, status: int, body: bytes) -> None:
    for cut in range(1, len(wire)):
        response = read(wire[:cut], wire[cut:])
        assert response is not None
        assert (response.status, response.body, response.keep_alive) == (status, body, True)


@whole
def test_byte_by_byte(wire: bytes, status: int, body: bytes) -> None:
    response = read(*(wire[at : at + 1] for at in range(len(wire))))
    assert response is not None
    assert (response.status, response.body) == (status, body)


@whole
def test_an_end_at_any_byte_is_never_an_answer(wire: bytes, status: int, body: bytes) -> None:
    for cut in range(1, len(wire)):
        reader = ResponseReader()
        assert reader.feed(wire[:cut]) is None
        with pytest.raises(BadResponse, match=f"closed {cut} bytes into"):
            reader.end()


def test_an_end_before_the_first_byte_has_its_own_name() -> None:
    with pytest.raises(ClosedUnread):
        ResponseReader().end()


def test_headers_are_found_by_lower_case_name() -> None:
    response = read(b"HTTP/1.1 200 OK\r\nCONTENT-length:\t0 \r\nVia: a\r\nvia: b\r\n\r\n")
    assert response is not None
    assert response.headers == {"content-length": "0", "via": "a, b"}


def test_without_a_length_the_end_ends_the_body() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 503 Sorry\r\nConnection: close\r\n\r\nbu") is None
    assert reader.feed(b"sy") is None
    assert reader.end() == Response(503, {"connection": "close"}, b"busy", keep_alive=False)


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: upgrade, close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_who_keeps_the_connection(head: bytes, keep_alive: bool) -> None:
    response = read(head + b"Content-Length: 0\r\n\r\n")
    assert response is not None
    assert response.keep_alive is keep_alive


def test_bytes_behind_the_end_spoil_the_connection() -> None:
    response = read(PLAIN + b"HTTP/1.1 200 OK\r\n")
    assert response is not None
    assert response.status == 429
    assert not response.keep_alive


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 020 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nspace : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
    ],
)
def test_what_is_not_http_is_rejected(wire: bytes) -> None:
    with pytest.raises(BadResponse):
        read(wire)


def test_nothing_is_read_without_a_bound() -> None:
    def bounded() -> ResponseReader:
        return ResponseReader(max_head_bytes=64, max_body_bytes=10)

    head = b"HTTP/1.1 200 OK\r\n"
    with pytest.raises(BadResponse, match="64 bytes of header"):
        bounded().feed(head + b"x" * 60)
    with pytest.raises(BadResponse, match="64 bytes of header"):
        bounded().feed(head + b"x: " + b"y" * 60 + b"\r\n\r\n")
    with pytest.raises(BadResponse, match="10 bytes of body"):
        bounded().feed(head + b"Content-Length: 11\r\n\r\n")
    with pytest.raises(BadResponse, match="10 bytes of body"):
        bounded().feed(head + b"\r\n" + b"x" * 11)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    with pytest.raises(BadResponse, match="10 bytes of body"):
        bounded().feed(chunked + b"6\r\nabcdef\r\n5\r\n")
    with pytest.raises(BadResponse, match="bytes of header"):
        bounded().feed(chunked + b"1;" + b"x" * 70)
    with pytest.raises(BadResponse, match="bytes of trailers"):
        bounded().feed(chunked + b"0\r\n" + b"x: y\r\n" * 20)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_in_any_cut_give_one_outcome(noise: bytes, cuts: list[int]) -> None:
    def outcome(pieces: list[bytes]) -> tuple[str, object]:
        reader = ResponseReader(max_head_bytes=64, max_body_bytes=32)
        try:
            for piece in pieces:
                if (response := reader.feed(piece)) is not None:
                    return "response", (response.status, response.body)
            return "response", reader.end().body
        except BadResponse as fault:
            return "bad", type(fault)

    stream = b"HTTP/1.1 200 OK\r\n" + noise
    edges = sorted({0, *cuts, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert outcome(pieces) == outcome([stream])


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.data())
def test_any_chunking_gives_the_same_body(parts: list[bytes], data: st.DataObject) -> None:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    cut = data.draw(st.integers(0, len(wire) - 1))
    response = read(wire[:cut], wire[cut:])
    assert response is not None
    assert response.body == b"".join(parts)


def test_a_request_is_one_write() -> None:
    assert encode_request("GET", "/v1/check?app=a", host="h:1", token="t") == (
        b"GET /v1/check?app=a HTTP/1.1\r\nHost: h:1\r\nAccept: application/json\r\n"
        b"Authorization: Bearer t\r\n\r\n"
    )
    assert encode_request("POST", "/v1/check", host="h:1", body=b"{}").endswith(
        b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    matched = encode_request("DELETE", "/x", host="h:1", headers={"If-Match": '"7"'})
    assert b'\r\nIf-Match: "7"\r\n' in matched
