"""One suite over both drivers and both kinds of socket, against a real server with faults."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest

from headgate import InvalidRequest, ThrottlerUnavailable, WaitedTooLong
from tests.client import bodies
from tests.client.conftest import MakeCaller, StartAgent
from tests.client.scripted import OK, REJECTED, Play, ScriptedAgent, answer
from tests.fixtures.eventually import DEADLINE_S, aeventually

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n"
CHUNKED_OK = Play(
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"1\r\n%c\r\n" % byte for byte in bodies.encoded(bodies.ok()))
    + b"0\r\n\r\n"
)
FAULTS = {
    "closes at once": (Play(b"", close=True), "closed without an answer"),
    "resets": (Play(b"", reset=True), "closed without an answer"),
    "closes mid-header": (Play(HEAD[:20], close=True), "closed 20 bytes into the answer"),
    "closes mid-body": (Play(HEAD + b'{"verdict": "OK"', close=True), "bytes into the answer"),
    "garbage": (Play(b"\x00\xff" * 10 + b"\r\n\r\n", close=True), "not HTTP/1.1"),
    "garbage body": (answer(200, body=b"OK"), "2 bytes that are not JSON"),
    "half an answer": (answer(200, {"admitted": True}), "'verdict' is missing"),
    "5xx without body": (answer(503, body=b""), "status 503"),
    "5xx until close": (Play(b"HTTP/1.1 502 Bad\r\n\r\n", close=True), "status 502"),
    "endless header": (Play(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 4000), "bytes of header"),
    "endless body": (Play(HEAD.replace(b"400", b"9999999")), "bytes of body"),
    "another's answer": (answer(200, bodies.ok("other")), "about 'other'"),
}


async def test_an_admission(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent(OK)
    gate = make_caller(agent.url, metrics=("lag", "self/loadavg"), token="s3cret")
    assert await gate.check()
    (heard,) = agent.heard
    assert heard.line == (
        "GET /v1/check?app=etl%3Anightly&database=main&metrics=lag,host/loadavg HTTP/1.1"
    )
    assert heard.headers["Authorization"] == "Bearer s3cret"


async def test_a_rejection_is_an_answer(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent(REJECTED)
    rejected = await make_caller(agent.url).check()
    assert not rejected
    assert (rejected.reason, rejected.retry_after_s) == (bodies.REASON, 0.01)


async def test_a_chunked_answer(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    gate = make_caller(start_agent(CHUNKED_OK, CHUNKED_OK).url)
    assert await gate.check()
    assert await gate.check()


async def test_a_read_check(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    """R34."""
    agent = start_agent(answer(200, bodies.ok(read_only=True)))
    assert (await make_caller(agent.url).check_read(2.5)).read_only
    assert agent.heard[0].line == (
        "GET /v1/check-read?app=etl%3Anightly&database=main&threshold=2.5&metric=lag HTTP/1.1"
    )


async def test_several_databases_in_one_call(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    both = answer(200, bodies.batch(bodies.ok("main"), bodies.ok("replica")))
    one = answer(429, bodies.batch(bodies.ok("main"), bodies.rejection("replica")))
    agent = start_agent(both, one)
    gate = make_caller(agent.url, database=("main", "replica"), metrics=["lag"])
    assert await gate.check()
    assert not await gate.check()
    assert agent.heard[0].line == "POST /v1/check HTTP/1.1"
    assert json.loads(agent.heard[0].body) == {
        "app": "etl:nightly",
        "checks": [
            {"database": "main", "metrics": ["lag"]},
            {"database": "replica", "metrics": ["lag"]},
        ],
    }


async def test_wait_checks_until_admitted(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent(REJECTED, REJECTED, OK)
    gate = make_caller(agent.url)
    assert await gate.wait()
    assert len(agent.heard) == 3
    assert len(gate.time.slept) == 2


async def test_waited_too_long(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    gate = make_caller(start_agent(default=REJECTED).url, max_wait_s=3)
    with pytest.raises(WaitedTooLong, match=r"lag is 7\.2 s"):
        await gate.wait()
    with pytest.raises(WaitedTooLong, match="not admitted within 1 s"):
        await gate.wait(deadline_s=1)


async def test_one_check_for_each_chunk(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    """R30."""
    agent = start_agent(REJECTED)
    gate = make_caller(agent.url)
    assert await gate.chunks(range(7), 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(agent.heard) == 4
    assert await gate.chunks(range(6), 3) == [[0, 1, 2], [3, 4, 5]]
    assert await gate.chunks([], 3) == []
    assert len(agent.heard) == 6


async def test_a_guard_checks(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent(REJECTED, OK)
    assert await make_caller(agent.url).guarded()
    assert len(agent.heard) == 2


@pytest.mark.parametrize(("play", "detail"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_is_never_an_ok(
    start_agent: StartAgent, make_caller: MakeCaller, play: Play, detail: str
) -> None:
    """R28; and the connection it came over is not trusted with the next question."""
    agent = start_agent(play, OK)
    gate = make_caller(agent.url)
    with pytest.raises(ThrottlerUnavailable, match=detail) as caught:
        await gate.check()
    assert agent.url in str(caught.value)
    assert await gate.check()


async def test_a_silent_server_is_given_the_timeout_and_no_more(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    """It says no more until the test ends; and no such connection is used again."""
    agent = start_agent()
    gate = make_caller(agent.url, timeout_s=0.2)
    for said in (b"", HEAD):
        agent.script.default = Play(said, hold=True)
        started = time.monotonic()
        with pytest.raises(ThrottlerUnavailable, match=r"no answer in 0\.2 s"):
            await gate.check()
        assert time.monotonic() - started > 0.19
    agent.script.default = OK
    gate.timeout_s = DEADLINE_S
    assert await gate.check()
    used = [heard.connection for heard in agent.heard]
    assert len(set(used)) == len(used)


async def test_nobody_listens(socket_dir: Path, make_caller: MakeCaller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ThrottlerUnavailable, match="refused"):
        await make_caller(f"http://127.0.0.1:{port}").check()
    with pytest.raises(ThrottlerUnavailable, match="no such file"):
        await make_caller(f"unix://{socket_dir}/none.sock").check()


async def test_names_are_resolved(make_caller: MakeCaller) -> None:
    with ScriptedAgent() as agent:
        assert await make_caller(agent.url.replace("127.0.0.1", "localhost")).check()


async def test_fail_open_is_marked(socket_dir: Path, make_caller: MakeCaller) -> None:
    """R47."""
    gate = make_caller(f"unix://{socket_dir}/none.sock", on_unavailable="open")
    assert (await gate.wait()).unthrottled
    assert sum(gate.time.slept) == pytest.approx(10)


async def test_one_connection_is_kept(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent()
    gate = make_caller(agent.url)
    for _ in range(20):
        assert await gate.check()
    assert agent.script.connections == 1


async def test_a_server_that_closes_each_time(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    closing = Play(answer(200, bodies.ok(), Connection="close").wire, close=True)
    agent = start_agent(default=closing)
    gate = make_caller(agent.url)
    for _ in range(3):
        assert await gate.check()
    assert agent.script.connections == 3


async def test_a_restart_between_checks(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent()
    gate = make_caller(agent.url)
    assert await gate.check()
    agent.stop()
    with pytest.raises(ThrottlerUnavailable):
        await gate.check()
    agent.start()
    assert await gate.check()
    agent.stop()
    agent.start()
    assert await gate.check()


async def test_a_connection_closed_while_idle_is_replaced(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    agent = start_agent()
    gate = make_caller(agent.url)
    for _ in range(5):
        assert await gate.check()
        agent.cut_connections()
    assert await gate.check()
    assert len(agent.heard) == 6


@pytest.mark.parametrize("dropped", [Play(b"", close=True), Play(b"", reset=True)])
async def test_a_connection_closed_under_the_check_is_replaced_once(
    start_agent: StartAgent, make_caller: MakeCaller, dropped: Play
) -> None:
    """A kept connection may end just as it is used: asked again, on a new connection."""
    agent = start_agent(OK, dropped, OK, dropped, dropped)
    gate = make_caller(agent.url)
    assert await gate.check()
    assert await gate.check()
    with pytest.raises(ThrottlerUnavailable, match="closed without an answer"):
        await gate.check()
    assert [heard.connection for heard in agent.heard] == [1, 1, 2, 2, 3]


async def test_an_answer_to_no_request_is_not_taken_for_one(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    """A second OK behind the first must not answer the next question (R33)."""
    agent = start_agent(Play(OK.wire + OK.wire), REJECTED)
    gate = make_caller(agent.url)
    assert await gate.check()
    assert not await gate.check()


async def test_many_at_once(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent()
    gate = make_caller(agent.url)
    answers = await asyncio.gather(*(gate.check() for _ in range(100)))
    assert all(answers)
    assert len(agent.heard) == 100
    await aeventually(lambda: len(agent.script.live) <= 8)


async def test_a_closed_client_says_so(start_agent: StartAgent, make_caller: MakeCaller) -> None:
    agent = start_agent()
    gate = make_caller(agent.url)
    await gate.check()
    await gate.close()
    await aeventually(lambda: not agent.script.live)
    with pytest.raises(RuntimeError, match="closed"):
        await gate.check()
    await gate.close()


async def test_a_wrong_check_is_the_caller_s_error(
    start_agent: StartAgent, make_caller: MakeCaller
) -> None:
    problem = {"status": 401, "detail": "this agent does not know the token"}
    gate = make_caller(start_agent(answer(401, problem)).url, token="s3cret")
    with pytest.raises(InvalidRequest, match="does not know the token") as caught:
        await gate.wait()
    assert "s3cret" not in str(caught.value)
