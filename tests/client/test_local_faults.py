"""Deciding in process while agents die, hang, lie and come back: it is asked, never guessed."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import headgate
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import SnapshotReader, SnapshotWriter, hello
from headgate.client import local, local_clock, local_feed
from headgate.client.local_feed import FEEDS
from headgate.client.target import Target
from headgate.demo.servers import free_ports
from headgate.metrics.samples import Instant
from headgate.rules.matching import RuleBook
from tests.builders import NOW, at, health, metric
from tests.client import bodies
from tests.client.callers import feed_in_use
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import DEADLINE_S, eventually

# No database is needed: what is measured is the host, and it always passes.
SETTINGS = """
[databases.main]
engine = "postgres"
dsn = "host=/nowhere"
[databases.main.metrics.loadavg]
threshold = 100000
interval_s = 0.2
"""
FRESH_S = 1.5


@pytest.fixture(scope="module")
def _process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path_factory.mktemp("agent"), next(free_ports()))
    agent.write_settings(SETTINGS)
    agent.start()
    yield agent
    if agent.process.poll() is None:
        agent.kill()


@pytest.fixture
def agent(_process: AgentProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    monkeypatch.setattr(local_feed, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(local_feed, "FRESH_S", FRESH_S)
    monkeypatch.setattr(local, "FRESH_S", FRESH_S)
    if _process.process.poll() is not None:
        _process.start()
    yield _process
    eventually(lambda: not FEEDS._feeds)


IMPATIENT: dict[str, Any] = {"timeout_s": 0.2, "unavailable_after_s": 0.2}


def opened(url: str, **more: Any) -> headgate.Client:
    gate = headgate.Client("etl:nightly", database="main", url=url, local=True, **more)
    eventually(lambda: decided(gate) == "local")
    return gate


def decided(gate: headgate.Client) -> str:
    """By whom; `nobody` where there is nobody."""
    try:
        return gate.check().decided
    except headgate.ThrottlerUnavailable:
        return "nobody"


def state_of(gate: headgate.Client) -> str:
    return gate.circuit.state


def aged(seconds: float) -> None:
    """As if so long had passed since the agent's last word."""
    feed = feed_in_use()
    assert feed.snapshot is not None
    feed.snapshot = feed.snapshot._replace(sent_s=feed.snapshot.sent_s - seconds)


def test_a_rule_set_by_the_command_line_is_obeyed(agent: AgentProcess) -> None:
    with opened(agent.url) as gate:
        argv = [sys.executable, "-m", "headgate", "rule", "hold", "nightly", "--for", "5m"]
        argv += ["--id", "held", "--reason", "incident 7", "--url", f"unix://{agent.socket}"]
        subprocess.run(argv, check=True, capture_output=True, timeout=DEADLINE_S)

        def held_here() -> list[headgate.Answer]:
            answer = gate.check()
            is_here = answer.decided == "local" and answer.raw.get("rule") == "held"
            return [answer] if is_here else []

        (answer,) = eventually(held_here)
        assert answer.verdict == "ON_HOLD" and "incident 7" in answer.reason
        assert agent.request("DELETE", "/v1/rules/held", unix=True).status == 200
        eventually(lambda: gate.check().admitted)
    counted = agent.get("/v1/clients").json["clients"]
    assert [c["rejected"] > 0 for c in counted if c["client"] == "etl:nightly"] == [True]


def test_a_killed_agent_is_missed_and_found_again(
    agent: AgentProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R47: what was known holds while it is fresh, then the agent is asked, and then the
    client's own policy decides."""
    monkeypatch.setattr(local_feed, "FRESH_S", DEADLINE_S)
    monkeypatch.setattr(local, "FRESH_S", DEADLINE_S)
    with opened(agent.url) as gate:
        agent.kill()
        assert decided(gate) == "local", "what was said a moment ago still holds"
        aged(DEADLINE_S)
        assert decided(gate) == "nobody"
        assert "checks now go to the agent" in caplog.text
        agent.start()
        eventually(lambda: decided(gate) == "local")
        eventually(lambda: "snapshots come again" in caplog.text)


def test_a_stopped_agent_is_not_mistaken_for_a_quiet_one(agent: AgentProcess) -> None:
    """The connection stands, and nothing comes: R54, R151."""
    with opened(agent.url, on_unavailable="open", **IMPATIENT) as gate:
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: decided(gate) == "nobody")
            assert gate.wait().unthrottled, "as this client was told to do then"
            assert state_of(gate) == "open"
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
        eventually(lambda: decided(gate) == "local")
        assert state_of(gate) == "closed", "a snapshot is a sign of life"


def test_work_goes_no_further_unthrottled_than_until_the_first_snapshot(
    agent: AgentProcess,
) -> None:
    """Not until the next probe of the agent, which is a long way off (R49)."""
    with opened(agent.url, on_unavailable="open", **IMPATIENT) as gate:
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: gate.wait().unthrottled)
            gate._conversation.patience.unavailable_after_s = 1e6
            eventually(lambda: gate.wait().unthrottled and state_of(gate) == "open")
            gate.wait()
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
        eventually(lambda: gate.wait().decided == "local")
        assert state_of(gate) == "closed"


def test_an_agent_that_stops_in_order_ends_its_streams(
    agent: AgentProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """To their last byte: it neither waits for those who only listen, nor cuts them off."""
    with opened(agent.url):
        agent.stop()
        eventually(lambda: "the stream of snapshots" in caplog.text)
    told = caplog.text.partition("the stream of snapshots ")[2]
    assert told.startswith("ended (the agent stops")


def test_a_stopped_client_does_not_take_what_it_missed_for_fresh(agent: AgentProcess) -> None:
    """What lay in the socket's buffer while this process was stopped is as old as it is."""
    with opened(agent.url) as gate:
        aged(FRESH_S)
        assert gate._only is not None
        assert gate._only.ready(local_clock.now()) is None


# --- agents that lie -----------------------------------------------------------------------


class Liar:
    """Answers checks as it should, and streams what the test says."""

    def __init__(self, stream: Callable[[int], bytes | Iterable[bytes]]) -> None:
        self._stream = stream
        self.streams: list[float] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        # It may hang up at any moment: it has heard enough.
        with contextlib.suppress(ConnectionError), sock, sock.makefile("rb") as file:
            while line := file.readline():
                while file.readline() not in (b"\r\n", b""):
                    pass
                if b"/v1/snapshot" in line:
                    self.streams.append(time.monotonic())
                    stream = self._stream(len(self.streams))
                    sock.sendall(STREAM_HEAD)
                    for piece in [stream] if isinstance(stream, bytes) else stream:
                        sock.sendall(piece)
                    return
                body = bodies.encoded(bodies.ok())
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                sock.sendall(head.encode() + body)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole() -> bytes:
    writer = SnapshotWriter()
    writer.change(DatabaseSnapshot(health((metric("lag"), 0.1)), RuleBook()), NOW)
    return hello(NOW.mono_s, 1.0) + writer.whole(NOW)


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (b"event: snapshot\ndata: {]\n\n", "not JSON"),
        (b"event: snapshot\ndata: \xff\n\n", "not UTF-8"),
        (whole().replace(b'"state"', b'"stat"'), "'state' is missing"),
        (whole().replace(b'"version":1', b'"version":9'), "install a newer SDK"),
        (whole().split(b"\n\n")[1] + b"\n\n", "does not begin with a hello"),
        (whole().replace(b'"value":0.1', b'"value":1' + b"0" * 400), "not a finite number"),
    ],
)
def test_garbage_is_named_and_the_agent_decides(
    stream: bytes, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_feed, "BACKOFF_BASE_S", 0.01)
    liar = Liar(lambda _: chunk(stream) + b"0\r\n\r\n")
    try:
        with headgate.Client("etl:nightly", database="main", url=liar.url, local=True) as gate:
            eventually(lambda: told in caplog.text)
            assert gate.check().decided == "agent"
            assert caplog.text.count(told) == 1, "each trouble is said once"
    finally:
        liar.close()


def test_a_stream_is_reopened_later_and_later_and_never_in_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R32: a herd that lost its agent does not come back as one."""
    pauses: list[float] = []
    dice = iter([0.5, 0.1, 0.9] * 100)
    monkeypatch.setattr(local_feed, "system_dice", lambda: next(dice))
    feed = local_feed.Feed(Target("http://h:1", "h", 1), "main", "etl", None)
    monkeypatch.setattr(feed, "_listen", lambda stopped: None)

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

        def is_set(self) -> bool:
            return len(pauses) >= 9

    feed._run(Stopped())
    bounds = [min(5.0, 0.1 * 2**n) for n in range(1, 10)]
    assert pauses == [
        pytest.approx(b * d) for b, d in zip(bounds, [0.5, 0.1, 0.9] * 3, strict=True)
    ]
    pauses.clear()
    feed._tries = 5000
    feed._run(Stopped())
    assert max(pauses) == pytest.approx(4.5), "also after an outage of hours"


def test_what_nobody_thought_of_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that ended would leave every check of the process to the agent, for good."""
    taken: list[str] = []

    def take(self: SnapshotReader, kind: str, data: str, now_s: float) -> None:
        taken.append(kind)
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(SnapshotReader, "take", take)
    monkeypatch.setattr(local_feed, "BACKOFF_CAP_S", 0.01)
    liar = Liar(lambda _: chunk(whole()))
    try:
        with headgate.Client("etl:nightly", database="main", url=liar.url, local=True) as gate:
            feed = feed_in_use()
            eventually(lambda: len(taken) > 2)
            assert gate.check().decided == "agent"
            assert feed.is_running
            assert caplog.text.count("ZeroDivisionError: nobody thought of it") == 1
    finally:
        liar.close()


def test_a_thread_that_is_gone_is_started_again(agent: AgentProcess) -> None:
    with opened(agent.url) as gate:
        feed = feed_in_use()
        feed.stop()
        feed.join(DEADLINE_S)
        assert not feed.is_running
        eventually(lambda: decided(gate) == "agent")
        eventually(lambda: decided(gate) == "local")


def told_at(*ages_s: float) -> bytes:
    """Said so many seconds after the hello."""
    writer = SnapshotWriter()
    writer.change(DatabaseSnapshot(health((metric("lag"), 0.1)), RuleBook()), NOW)
    return b"".join([hello(NOW.mono_s, 1.0), *(writer.whole(at(age_s)) for age_s in ages_s)])


@pytest.mark.parametrize(
    ("said_s", "told"),
    [(60.0, "this host's clock stopped for "), (-9.0, " s old when it is read")],
)
def test_a_stream_that_cannot_be_dated_is_reopened(
    said_s: float, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: this host slept for a minute, or that of the agent did."""
    monkeypatch.setattr(local_feed, "BACKOFF_CAP_S", 0.01)
    liar = Liar(lambda n: chunk(told_at(0.0, said_s) if n == 1 else told_at(0.0)))
    try:
        with headgate.Client("etl:nightly", database="main", url=liar.url, local=True) as gate:
            eventually(lambda: told in caplog.text)
            eventually(lambda: decided(gate) == "local")
            assert len(liar.streams) > 1
    finally:
        liar.close()


def test_a_stream_that_began_slowly_is_reopened_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it says looks older than it is, by as much as its first word took to come."""
    monkeypatch.setattr(local_feed, "FRESH_S", 0.8)
    monkeypatch.setattr(local, "FRESH_S", 0.8)
    monkeypatch.setattr(local_feed, "RENEW_SOON_S", 0.05)
    ended, began_s = threading.Event(), time.monotonic()

    def now() -> Instant:
        return at(time.monotonic() - began_s)

    def stream(number: int) -> Iterator[bytes]:
        writer = SnapshotWriter()
        writer.change(
            DatabaseSnapshot(health((metric("lag", max_age_s=60), 0.1)), RuleBook()), now()
        )
        ended.wait(0.9 if number == 1 else 0)
        yield chunk(hello(now().mono_s, 1.0) + writer.whole(now()))
        while not ended.wait(0.02):
            yield chunk(writer.beat(now()))

    liar = Liar(stream)
    try:
        with headgate.Client("etl:nightly", database="main", url=liar.url, local=True) as gate:
            eventually(lambda: decided(gate) == "local")
            assert len(liar.streams) > 1
    finally:
        ended.set()
        liar.close()


def test_over_a_long_way_streams_are_not_reopened_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_feed, "system_dice", lambda: 0.5)
    feed = local_feed.Feed(Target("http://h:1", "h", 1), "main", "etl", None)
    renewed = [feed._renew_at_s(0.0, 0.3) - 0.3 for _ in range(10)]
    assert renewed[:3] == pytest.approx([5, 10, 20])
    assert renewed[-1] > local_feed.RENEW_S, "as seldom as any other"
    assert feed._renew_at_s(0.0, 0.1) == math.inf
    assert feed._renew_at_s(0.0, 0.3) == pytest.approx(5.3)


def test_an_event_without_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_feed, "MAX_EVENT_BYTES", 10_000)
    liar = Liar(lambda _: b"".join(chunk(b"data: " + b"x" * 5000) for _ in range(9)))
    try:
        with headgate.Client("etl:nightly", database="main", url=liar.url, local=True) as gate:
            eventually(lambda: "an event of more than 10000 bytes" in caplog.text)
            assert gate.check().admitted
    finally:
        liar.close()
