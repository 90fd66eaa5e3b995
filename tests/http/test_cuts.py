"""However the bytes are cut and grouped, the answers are the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.http.listener import MAX_HEADER_BYTES
from tests.http.serving import Served
from tests.http.talk import get, request
from tests.http.test_checks import CHECK


@dataclass(frozen=True)
class Question:
    raw: bytes
    method: str
    status: int


def question(raw: bytes, status: int) -> Question:
    return Question(raw, raw.lstrip().split(b" ", 1)[0].decode(), status)


JSON = {"Content_Type": "application/json"}
BODY = b'{"app":"etl","database":"main"}'
CHUNKED = (
    b"POST /v1/check HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n"
    + BODY[:5]
    + b"\r\n%x\r\n" % (len(BODY) - 5)
    + BODY[5:]
    + b"\r\n0\r\nContent-Type: text/plain\r\n\r\n"
)
# Answers that do not depend on the moment, hot and cold, with and without bodies.
QUESTIONS = [
    question(get(CHECK), 200),
    question(request("HEAD", CHECK), 200),
    question(get("/check/gh-ost/mysql/main"), 200),
    question(get("/v1/check?app=a&database=nowhere"), 404),
    question(get("/v1/check?app=a"), 400),
    question(get("/healthz"), 200),
    question(request("HEAD", "/healthz"), 200),
    question(get("/nothing"), 404),
    question(request("POST", "/v1/check", body=BODY, **JSON), 200),
    question(CHUNKED, 200),
    question(request("POST", "/v1/check", body=b"\r\n\r\n", **JSON), 400),
    question(b"\r\n\r\n" + get(CHECK), 200),
    question(get(CHECK, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c"), 200),
    question(get(f"http://agent:8187{CHECK}"), 200),
    question(request("DELETE", "/v1/databases/main/metrics/lag"), 401),
]
LARGE = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_the_checks_are_answered_as_they_should(served: Served) -> None:
    with served.talk() as talk:
        for asked in QUESTIONS:
            for _ in range(2):
                assert talk.send(asked.raw).reply(asked.method).status == asked.status, asked.raw


def whole(served: Served, asked: list[Question]) -> list[tuple[int, bytes]]:
    with served.talk() as talk:
        replies = [talk.send(q.raw).reply(q.method) for q in asked]
    return [(reply.status, reply.body) for reply in replies]


def in_pieces(
    served: Served, asked: list[Question], pieces: list[bytes], turns: int
) -> list[tuple[int, bytes]]:
    """Fed to the connection piece by piece, with `turns` of the loop in between."""
    with served.talk() as talk:
        served.feed(served.connection(talk), *pieces, turns=turns)
        replies = [talk.reply(q.method) for q in asked]
        assert talk.ask("GET", "/healthz").status == 200, "still in step"
    return [(reply.status, reply.body) for reply in replies]


@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_request_cut_at_every_byte(served: Served, number: int, turns: int) -> None:
    asked = [QUESTIONS[number]]
    raw = asked[0].raw
    expected = whole(served, asked)
    assert in_pieces(served, asked, [raw[i : i + 1] for i in range(len(raw))], turns) == expected
    for cut in range(1, len(raw), 29):
        assert in_pieces(served, asked, [raw[:cut], raw[cut:]], turns) == expected


@LARGE
@given(
    numbers=st.lists(st.integers(0, len(QUESTIONS) - 1), min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 4000), max_size=12),
    turns=st.integers(0, 4),
)
def test_pipelined_in_any_grouping(
    served: Served, numbers: list[int], cuts: set[int], turns: int
) -> None:
    asked = [QUESTIONS[number] for number in numbers]
    raw = b"".join(q.raw for q in asked)
    edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(edges)]
    assert in_pieces(served, asked, pieces, turns) == whole(served, asked)


def test_many_pipelined_checks_and_the_head_of_another(served: Served) -> None:
    """What came whole in the same read does not count against a head that is still arriving."""
    before = served.counted("etl:nightly")
    raw = get(CHECK)
    many = 2 * MAX_HEADER_BYTES // len(raw)
    with served.talk() as talk:
        only = served.connection(talk)
        served.feed(only, raw * many + raw[:-5])
        served.feed(only, raw[-5:])
        assert [talk.reply().status for _ in range(many + 1)] == [200] * (many + 1)
    assert served.counted("etl:nightly") - before == many + 1


def test_over_the_wire_byte_by_byte(served: Served) -> None:
    with served.talk() as talk:
        for byte in get(CHECK) + get("/healthz"):
            talk.send(bytes([byte]))
        assert talk.reply().status == 200
        assert talk.reply().json == {"serving": True}
