"""Requests that repeat themselves byte for byte: parsed once, decided every time."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from headgate.check.checker import Fairness
from headgate.http.documents import reply
from headgate.http.listener import MAX_FORMS, MAX_MEMO_BYTES, MAX_MEMO_ENTRIES, Handlers
from headgate.rules.matching import Kind, Rule
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import get, request
from tests.http.test_checks import CHECK, FAR

ASK = get(CHECK)
VARIANTS = {
    "native": ASK,
    "detail": get(f"{CHECK}&detail=true"),
    "metrics": get(f"{CHECK}&metrics=lag"),
    "head": request("HEAD", CHECK),
    "read": get("/v1/check-read?app=etl:nightly&database=main&threshold=5"),
    "freno": get("/check/etl:nightly/mysql/main"),
    "freno-head": request("HEAD", "/freno/check-if-exists/etl:nightly/mysql/main"),
}


@pytest.fixture(params=list(VARIANTS))
def raw(request: pytest.FixtureRequest) -> bytes:
    return VARIANTS[request.param]


def method(raw: bytes) -> str:
    return raw.split(b" ", 1)[0].decode()


def test_every_repeat_is_counted(served: Served, raw: bytes) -> None:
    """R135: counters are exact."""
    before = served.counted("etl:nightly", "OK")
    with served.talk() as talk:
        for _ in range(50):
            assert talk.send(raw).reply(method(raw)).status == 200
    assert served.counted("etl:nightly", "OK") - before == 50
    assert raw in served.listener.repeats.memo


def test_the_very_next_repeat_after_a_breach_is_rejected(served: Served, raw: bytes) -> None:
    with served.talk() as talk:
        for value, status in ((0.25, 200), (7.0, 429), (0.25, 200), (7.0, 429), (1.0, 200)):
            served.measure(lag=value)
            assert talk.send(raw).reply(method(raw)).status == status
            assert talk.send(raw).reply(method(raw)).status == status


def test_a_repeat_shows_the_rules_of_its_own_decision(served: Served) -> None:
    """The bytes of an admission are kept only while the same rules had a say in it."""
    limits = Rule("strict", "etl", 0, FAR, Kind.THRESHOLDS, thresholds={"lag": 4.0})
    with served.talk() as talk:
        assert talk.send(ASK).reply().json["rules"] == []
        served.rule(limits)
        assert talk.send(ASK).reply().json["rules"] == ["strict"]
        served.rule()
        assert talk.send(ASK).reply().json["rules"] == []


def test_a_repeat_whose_dice_are_waived_says_so_once(served: Served) -> None:
    """R82"""
    served.rule(Rule("half", "etl", 0.5, FAR))
    served.call(setattr, served.checker, "fairness", Fairness(1e-6))
    served.dice.lands = 0.1
    with served.talk() as talk:
        first, second = (talk.send(ASK).reply() for _ in range(2))
        assert (first.status, second.status) == (429, 200)
        assert (first.json["dice_waived"], second.json["dice_waived"]) == (False, True)
        served.dice.lands = 0.9
        assert talk.send(ASK).reply().json["dice_waived"] is False


def test_a_repeat_rolls_its_own_dice(served: Served, raw: bytes) -> None:
    """R33: an OK that is kept must not skip the dice."""
    served.rule(Rule("half", "etl", 0.5, FAR))
    with served.talk() as talk:
        for lands in (0.7, 0.2, 0.9, 0.4, 0.6):
            served.dice.lands = lands
            admitted = talk.send(raw).reply(method(raw)).status == 200
            assert admitted == (lands >= 0.5)


def test_a_repeat_shows_the_newest_numbers(served: Served) -> None:
    freno, native = VARIANTS["freno"], VARIANTS["native"]
    with served.talk() as talk:
        for value in (0.75, 1.0, 2.5):
            served.measure(lag=value)
            assert talk.send(freno).reply().json["Value"] == value
            assert talk.send(native).reply().json["utilization"] == value / 5


def test_a_repeat_expires_with_its_sample(served: Served, raw: bytes) -> None:
    """R18: no new reading, no new health; and yet the kept OK ends with its age limit."""
    with served.talk() as talk:
        assert talk.send(raw).reply(method(raw)).status == 200
        served.lose("lag")
        lost = 424 if b" /v1/" in raw else 500
        assert talk.send(raw).reply(method(raw)).status == lost


def test_the_rule_of_an_admission_is_shown_only_while_it_is_in_force(served: Served) -> None:
    served.dice.lands = 0.9
    served.rule(Rule("half", "etl", 0.5, FAR))
    with served.talk() as talk:
        assert talk.send(ASK).reply().json["rule"] == "half"
        served.rule()
        assert talk.send(ASK).reply().json["rule"] is None


def test_forget_makes_open_connections_follow_new_handlers(serve: Serve) -> None:
    """Reload: what the same bytes mean may have changed."""
    served = serve(Plan())
    with served.talk() as talk:
        assert talk.send(ASK).reply().status == 200
        old = served.listener.handlers
        served.call(
            setattr, served.listener, "handlers", Handlers(lambda _: reply(418, b""), old.serve)
        )
        assert talk.send(ASK).reply().status == 200, "the memo is still what it was"
        served.call(served.listener.repeats.forget)
        assert talk.send(ASK).reply().status == 418


def test_names_that_are_used_once_do_not_drive_out_pollers(serve: Serve) -> None:
    served = serve(Plan(max_clients=10))
    asked = [get(f"/v1/check?app=c{n}&database=main") for n in range(MAX_MEMO_ENTRIES + 200)]
    with served.talk() as talk:
        connection = served.connection(talk)
        for first in range(0, len(asked), 500):
            served.feed(connection, *asked[first : first + 500])
        assert [talk.reply().status for _ in range(10)] == [200] * 10
        assert list(served.listener.repeats.memo) == asked[:1]
        assert len(served.listener.repeats._once) <= MAX_MEMO_ENTRIES
        served.feed(connection, asked[-1])
        assert list(served.listener.repeats.memo) == [asked[0], asked[-1]], "it has come again"
    assert sum(served.call(served.recorder.totals).values()) == len(asked) + 1


def test_the_memo_is_bounded(serve: Serve) -> None:
    served = serve(Plan(max_clients=10))
    with served.talk() as talk:
        connection = served.connection(talk)
        for n in range(0, MAX_MEMO_ENTRIES + 200, 100):
            asked = [get(f"/v1/check?app=c{n + m}&database=main") for m in range(100)]
            served.feed(connection, *asked, *asked)
            assert len(served.listener.repeats.memo) <= MAX_MEMO_ENTRIES
    assert 0 < len(served.listener.repeats.memo) <= 200, "it was emptied once"


def test_forms_are_bounded(serve: Serve) -> None:
    served = serve(Plan())
    with served.talk() as talk:
        connection = served.connection(talk)
        for n in range(MAX_FORMS + 10):
            served.feed(connection, get(CHECK, X=f"{n}"))
    assert len(served.listener.repeats.forms) == 10


NAMES = [
    "a",
    "job7:etl:nightly",
    "anonymous",
    "123",
    "A.b_c-d~e@f",
    "x" * 128,
    ":".join("abcdefgh"),
    # No names, or written otherwise than in the bytes of the request: the parser's business.
    ":".join("abcdefghi"),
    "x" * 129,
    f"{'x' * 128}:{'y' * 128}",
    "a::b",
    ":",
    "a%3Ab",
    "a+b",
    "a=b",
    "",
]


@pytest.mark.parametrize("lag", [0.25, 7.0])
def test_another_name_is_answered_as_if_all_were_parsed(
    served: Served, raw: bytes, lag: float
) -> None:
    served.measure(lag=lag)
    with served.talk() as talk:
        for name in NAMES:
            mine = raw.replace(b"etl:nightly", name.encode())
            talk.send(raw).reply(method(raw))
            known = talk.send(mine).reply(method(raw))
            served.call(served.listener.repeats.forget)
            parsed = talk.send(mine).reply(method(raw))
            served.call(served.listener.repeats.forget)
            assert known.status == parsed.status, name
            assert set(known.headers) == set(parsed.headers), name
            if method(raw) == "GET":
                assert _alike(known.json) == _alike(parsed.json), name


def _alike(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what changes from moment to moment."""
    told = json.dumps(answer)
    told = re.sub(r'("(?:age_ms|retry_after_ms)": )\d+|measured [^ ]+ [^ ]+ ago', r"\1", told)
    found: dict[str, Any] = json.loads(re.sub(r": ,", ": 0,", told))
    return found


def test_a_crowd_of_rejected_clients_shares_a_body_and_not_a_wait(served: Served) -> None:
    served.measure(lag=7.0)
    waits = set()
    with served.talk() as talk:
        for n in range(50):
            served.dice.lands = n / 50
            told = talk.send(get(f"/v1/check?app=c{n}&database=main")).reply()
            assert told.json["app"] == f"c{n}"
            assert int(told.headers["content-length"]) == len(told.body)
            wait_ms = told.json["retry_after_ms"]
            assert int(told.headers["retry-after"]) == max(1, math.ceil(wait_ms / 1000))
            waits.add(wait_ms)
    assert len(waits) == 50
    assert served.counted("c7", "THRESHOLD_EXCEEDED") == 1


def test_what_is_understood_on_the_unix_socket_alone_is_not_remembered(served: Served) -> None:
    """A Host that a browser could have been given by another site."""
    foreign = get(CHECK, Host="elsewhere.example")
    with served.talk(unix=True) as talk:
        assert talk.send(foreign).reply().status == 200
    with served.talk() as talk:
        assert talk.send(foreign).reply().status == 421


@pytest.mark.parametrize(
    "raw",
    [
        get(CHECK, Connection="close"),
        get(CHECK, X="y" * MAX_MEMO_BYTES),
        ASK + ASK,
        request("POST", "/v1/check", body=b"{}", Content_Type="application/json"),
        request("GET", CHECK, body=b"body"),
        b"GET " + CHECK.encode() + b" HTTP/1.0\r\n\r\n",
        get("/v1/check?app=a"),
        get("/healthz"),
    ],
    ids=["close", "large", "two", "post", "body", "1.0", "problem", "control"],
)
def test_only_whole_repeatable_checks_are_remembered(served: Served, raw: bytes) -> None:
    with served.talk() as talk:
        talk.send(raw).reply()
    assert raw not in served.listener.repeats.memo


def test_bytes_that_mean_something_else_in_their_place_are_not_taken_for_a_check(
    served: Served,
) -> None:
    """The same bytes as a body, or after half a head, are what they are there."""
    before = served.counted("etl:nightly")
    with served.talk() as talk:
        assert talk.send(ASK).reply().status == 200
        talk.send(f"POST /v1/check HTTP/1.1\r\nContent-Length: {len(ASK)}\r\n\r\n".encode())
        only = served.connection(talk)
        served.feed(only, ASK)
        assert talk.reply().status == 415
        served.feed(only, b"GET /healthz HTTP/1.1\r\nX: ")
        served.feed(only, ASK)
        assert talk.reply().json == {"serving": True}
    assert served.counted("etl:nightly") - before == 1


def test_a_rejected_connection_is_not_answered_from_the_memo(serve: Serve) -> None:
    """It has been told to go: its bytes are dropped, not decided and counted."""
    served = serve(Plan(limits=Plan().limits._replace(max_connections=1)))
    with served.talk() as seated:
        assert seated.send(ASK).reply().status == 200
        with served.talk() as late:
            late.send_what_goes(ASK * 1)
            assert late.reply().status == 503
            assert late.ended()
    assert served.counted("etl:nightly") == 1
