"""A link to a real agent: pulls, clocks, authority, and what happens when it goes away."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.base.clock import SystemClock
from headgate.check.model import Activity
from headgate.errors import InvalidName, InvalidRequest, InvalidSettings, PeerFailed
from headgate.http.listener import Limits
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.shard import peers
from headgate.shard.model import Pull
from headgate.shard.peers import HttpPeerLink, PeerAccess, host_trust, load_access, open_link
from headgate.shard.topology import Role, RoleSeen
from tests.fixtures.eventually import aeventually, eventually
from tests.shard.peers.authority import Authority
from tests.shard.peers.conftest import Run, Serve
from tests.shard.peers.serving import LONG_S, OPERATOR, PEER, SHARD, VIEWER, Plan, ShiftedClock

TOKEN = PeerAccess(PEER)
LOCAL = SystemClock()
ANSWER_S = 60.0


def question(*, wait_s: float = 0.0, shard: str = SHARD, database: str = "main") -> Pull:
    role = RoleSeen(Role.PRIMARY, LOCAL.now().mono_s - 0.5, term=3)
    return Pull(shard, database, "db-a", "https://db-a:8087", role, Activity.AWAKE, wait_s)


@asynccontextmanager
async def linked(url: str, access: PeerAccess = TOKEN) -> AsyncIterator[HttpPeerLink]:
    link = open_link(url, access, sender="db-a", now=LOCAL.now)
    try:
        yield link
    finally:
        await link.close()


async def failure(
    url: str, access: PeerAccess = TOKEN, ask: Pull | None = None, timeout_s: float = ANSWER_S
) -> PeerFailed:
    async with linked(url, access) as link:
        with pytest.raises(PeerFailed) as failed:
            await link.pull(ask or question(), timeout_s=timeout_s)
    assert url in failed.value.detail
    assert PEER not in failed.value.detail
    return failed.value


# --- pulls ---------------------------------------------------------------------------------


def test_a_pull_brings_the_report_dated_by_our_own_clock(serve: Serve, run: Run) -> None:
    """The other agent's monotonic clock began elsewhere; it never crosses."""
    agent = serve(Plan(clock=ShiftedClock(mono_ahead_s=1e6, wall_ahead_s=12.5)))

    async def pulls() -> None:
        async with linked(agent.url) as link:
            began = LOCAL.now().mono_s
            pulled = await link.pull(question(), timeout_s=ANSWER_S)
            ended = LOCAL.now().mono_s
            report = pulled.report
            assert (report.name, report.labels, report.url) == (
                "db-b",
                {"region": "eu"},
                "https://db-b:8087",
            )
            assert began <= report.at <= ended
            assert report.role is not None and report.role.role is Role.REPLICA
            assert began - 0.1 <= report.role.taken_at <= ended - 0.1
            lag = report.readings["lag"]
            assert isinstance(lag, Sample) and lag.value == 0.25
            assert began - 0.2 <= lag.taken_at <= ended - 0.2
            assert isinstance(report.readings["disk_used"], Absent)
            assert pulled.wall_ahead_s == pytest.approx(12.5, abs=pulled.error_s + 0.001)
            assert pulled.error_s <= ended - began
            (asked,) = agent.shards.asked
            assert (asked.sender, asked.shard, asked.activity) == ("db-a", SHARD, Activity.AWAKE)
            assert asked.role is not None
            assert began - 0.5 <= asked.role.taken_at - 1e6 + 0.001
            assert asked.role.taken_at - 1e6 - 0.001 <= ended - 0.5

    run(pulls())


def test_pulls_share_one_connection(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            for _ in range(20):
                await link.pull(question(), timeout_s=ANSWER_S)
            assert len(agent.listener.connections) == 1
        await aeventually(lambda: not agent.listener.connections)

    run(pulls())
    assert len(agent.shards.asked) == 20


def test_a_pull_counts_as_no_client(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            await link.wake(SHARD, "main", timeout_s=ANSWER_S)

    run(pulls())
    assert not list(agent.call(agent.recorder.clients))


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 90.0])
def test_clocks_are_compared_however_long_an_answer_waits(
    serve: Serve, run: Run, ahead_s: float
) -> None:
    agent = serve(Plan(clock=ShiftedClock(-7000.0, ahead_s)))

    async def pulls() -> None:
        async with linked(agent.url) as link:
            began = LOCAL.now().mono_s
            pulled = await link.pull(question(wait_s=0.3), timeout_s=ANSWER_S)
            took_s = LOCAL.now().mono_s - began
            assert took_s >= 0.29
            assert 2 * pulled.error_s <= took_s - 0.29, "the time it was held is no uncertainty"
            assert pulled.wall_ahead_s == pytest.approx(ahead_s, abs=pulled.error_s + 0.001)
            assert pulled.report.at >= began + 0.29 - 2 * pulled.error_s

    run(pulls())


def test_a_waiting_pull_is_answered_when_something_changes(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
            await aeventually(lambda: agent.shards.holding == 1)
            agent.change(7.0)
            pulled = await pull
            lag = pulled.report.readings["lag"]
            assert isinstance(lag, Sample) and lag.value == 7.0

    run(pulls())


def test_a_wake_and_a_request_overtake_a_waiting_pull(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
            await aeventually(lambda: agent.shards.holding == 1)
            await link.wake(SHARD, "main", timeout_s=ANSWER_S)
            status, body, headers = await link.ask("GET", "/healthz", timeout_s=ANSWER_S)
            assert (status, body) == (200, b'{"serving":true}')
            assert headers["content-type"] == "application/json"
            agent.change(1.0)
            await pull

    run(pulls())
    assert agent.shards.woken_by == [(SHARD, "main", "db-a")]


def test_a_pull_that_is_given_up_leaves_nothing_behind(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
            await aeventually(lambda: agent.shards.holding == 1)
            pull.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pull
            await aeventually(lambda: agent.shards.holding == 0)
            # Its answer, had it come, is nobody else's.
            assert (await link.pull(question(), timeout_s=ANSWER_S)).report.name == "db-b"

    run(pulls())


def test_an_answer_that_does_not_come_in_time(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        failed = await failure(agent.url, ask=question(wait_s=LONG_S), timeout_s=0.2)
        assert failed.cause is Cause.TIMED_OUT
        assert "no answer in 0.2 s" in failed.detail
        await aeventually(lambda: agent.shards.holding == 0)

    run(pulls())


def test_a_link_that_is_closed_lets_go_of_who_waits(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
            await aeventually(lambda: agent.shards.holding == 1)
            await link.close()
            with pytest.raises(PeerFailed, match="closed") as failed:
                await pull
            assert failed.value.cause is Cause.UNREACHABLE
            with pytest.raises(PeerFailed, match="closed"):
                await link.pull(question(), timeout_s=ANSWER_S)
            await link.close()

    run(pulls())
    eventually(agent.settled)


def test_a_link_that_is_closed_while_it_connects_leaves_no_connection(
    serve: Serve, run: Run
) -> None:
    """At whichever step of the way it is: what is opened afterwards would be nobody's to end."""
    agent = serve()

    async def closes() -> None:
        for steps in range(8):
            async with linked(agent.url) as link:
                pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
                for _ in range(steps):
                    await asyncio.sleep(0)
                await link.close()
                with pytest.raises(PeerFailed, match="closed"):
                    await pull
        await aeventually(agent.settled)

    run(closes())


# --- agents that go away and come back -----------------------------------------------------


def test_nobody_is_there(run: Run) -> None:
    failed = run(failure("http://127.0.0.1:1"))
    assert failed.cause is Cause.UNREACHABLE
    assert "connection refused" in failed.detail


def test_a_name_that_does_not_resolve(run: Run) -> None:
    failed = run(failure("http://nowhere.invalid:8087", timeout_s=ANSWER_S))
    assert failed.cause is Cause.UNREACHABLE
    assert "cannot be resolved" in failed.detail


def test_a_dead_agent_is_not_hammered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that asks again at once is slowed down, not obeyed."""

    async def pulls() -> None:
        async with linked("http://127.0.0.1:1") as link:
            began = time.monotonic()
            for _ in range(3):
                with pytest.raises(PeerFailed):
                    await link.pull(question(), timeout_s=ANSWER_S)
            assert time.monotonic() - began >= 0.35
            monkeypatch.setattr(peers, "RECONNECT_PAUSE_S", 3600.0)
            with pytest.raises(PeerFailed):
                await link.pull(question(), timeout_s=ANSWER_S)
            with pytest.raises(PeerFailed) as failed:
                await link.pull(question(), timeout_s=0.01)
            assert failed.value.cause is Cause.TIMED_OUT

    run(pulls())


def test_a_connection_that_was_closed_while_idle_is_no_failure(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            agent.drop_connections()
            await link.pull(question(), timeout_s=ANSWER_S)
            agent.drop_connections()
            await aeventually(lambda: not agent.listener.connections)
            await link.pull(question(), timeout_s=ANSWER_S)

    run(pulls())
    assert len(agent.shards.asked) == 3


def test_a_peer_that_dies_during_a_waiting_pull_is_unreachable(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            pull = asyncio.create_task(link.pull(question(wait_s=LONG_S), timeout_s=ANSWER_S))
            await aeventually(lambda: agent.shards.holding == 1)
            agent.stop()
            with pytest.raises(PeerFailed) as failed:
                await pull
            assert failed.value.cause is Cause.UNREACHABLE

    run(pulls())


async def is_lost(link: HttpPeerLink) -> bool:
    try:
        await link.pull(question(), timeout_s=ANSWER_S)
    except PeerFailed as failed:
        return failed.cause is Cause.UNREACHABLE
    return False


def test_a_peer_that_comes_back_is_pulled_again(serve: Serve, run: Run) -> None:
    agent = serve()
    port = agent.port

    async def pulls() -> None:
        async with linked(agent.url) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            agent.stop()

            while not await is_lost(link):
                pass
            again = serve(Plan(port=port))
            await link.pull(question(), timeout_s=ANSWER_S)
            assert len(again.shards.asked) == 1

    run(pulls())


def test_an_agent_that_turns_connections_away(serve: Serve, run: Run) -> None:
    agent = serve(Plan(limits=Limits(0, 65536, 60.0, 75.0)))
    failed = run(failure(agent.url))
    assert failed.cause in (Cause.FAILED, Cause.UNREACHABLE)


# --- who may pull --------------------------------------------------------------------------


def test_an_operators_token_pulls_as_well(serve: Serve, run: Run) -> None:
    agent = serve()

    async def pulls() -> None:
        async with linked(agent.url, PeerAccess(OPERATOR)) as link:
            await link.pull(question(), timeout_s=ANSWER_S)

    run(pulls())


@pytest.mark.parametrize(("token", "status"), [(None, "401"), ("wrong", "401"), (VIEWER, "403")])
def test_a_caller_that_is_no_peer_learns_what_to_configure(
    serve: Serve, run: Run, token: str | None, status: str
) -> None:
    """Loopback is not enough."""
    agent = serve()
    failed = run(failure(agent.url, PeerAccess(token)))
    assert failed.cause is Cause.FAILED
    assert status in failed.detail
    assert "token_file" in failed.detail and "tls_client_ca" in failed.detail
    assert not agent.shards.asked
    assert (token or "?") not in failed.detail


def test_an_agent_without_tokens_takes_nobody(serve: Serve, run: Run) -> None:
    agent = serve(Plan(tokens=False))
    assert run(failure(agent.url)).cause is Cause.FAILED
    assert not agent.shards.asked


def test_tls_and_a_token(serve: Serve, run: Run, authority: Authority, tmp_path: Path) -> None:
    agent = serve(Plan(tls=authority.server()))
    token_file = tmp_path / "token"
    token_file.write_text(f"{PEER}\n")

    async def pulls() -> None:
        async with linked(agent.url, authority.access(token_file=token_file)) as link:
            for _ in range(3):
                await link.pull(question(), timeout_s=ANSWER_S)
            assert len(agent.listener.connections) == 1

    run(pulls())


def test_a_client_certificate_instead_of_a_token(
    serve: Serve, run: Run, authority: Authority
) -> None:
    agent = serve(Plan(tls=authority.server(believes=authority.ca_path), tokens=False))

    async def pulls() -> None:
        async with linked(agent.url, authority.access(name="db-a")) as link:
            await link.pull(question(), timeout_s=ANSWER_S)
            await link.wake(SHARD, "main", timeout_s=ANSWER_S)

    run(pulls())
    assert len(agent.shards.asked) == 1


def test_a_certificate_of_an_unknown_authority_is_rejected(
    serve: Serve, run: Run, authority: Authority
) -> None:
    """Without tls_client_ca, the listener asks for no certificate, and looks at none."""
    agent = serve(Plan(tls=authority.server(), tokens=False))
    failed = run(failure(agent.url, authority.access(name="db-a")))
    assert failed.cause is Cause.FAILED and "401" in failed.detail


def test_a_certificate_of_another_authority_is_rejected(
    serve: Serve, run: Run, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    agent = serve(Plan(tls=authority.server(believes=other.ca_path), tokens=False))
    failed = run(failure(agent.url, authority.access(name="db-a")))
    assert failed.cause in (Cause.FAILED, Cause.UNREACHABLE)
    assert not agent.shards.asked


def test_no_certificate_where_one_would_do_is_rejected(
    serve: Serve, run: Run, authority: Authority
) -> None:
    agent = serve(Plan(tls=authority.server(believes=authority.ca_path), tokens=False))
    failed = run(failure(agent.url, authority.access()))
    assert failed.cause is Cause.FAILED and "401" in failed.detail


def test_a_server_of_another_authority_is_not_believed(
    serve: Serve, run: Run, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    agent = serve(Plan(tls=Authority(tmp_path / "other").server()))
    failed = run(failure(agent.url, authority.access()))
    assert failed.cause is Cause.FAILED
    assert "ca of [peers]" in failed.detail
    assert not agent.shards.asked


def test_a_server_that_goes_by_another_name_is_not_believed(
    serve: Serve, run: Run, authority: Authority
) -> None:
    agent = serve(Plan(tls=authority.server(name="somebody.else")))
    failed = run(failure(agent.url, authority.access()))
    assert failed.cause is Cause.FAILED and "certificate" in failed.detail


def test_a_host_that_trusts_no_private_authority(
    serve: Serve, run: Run, authority: Authority
) -> None:
    agent = serve(Plan(tls=authority.server()))
    assert run(failure(agent.url, TOKEN)).cause is Cause.FAILED


def test_tls_spoken_to_a_plain_port(serve: Serve, run: Run, authority: Authority) -> None:
    agent = serve()
    failed = run(failure(agent.url.replace("http:", "https:"), authority.access()))
    assert failed.cause is Cause.FAILED and "TLS" in failed.detail


def test_plain_http_sent_to_a_tls_port(serve: Serve, run: Run, authority: Authority) -> None:
    agent = serve(Plan(tls=authority.server()))
    failed = run(failure(agent.url.replace("https:", "http:")))
    assert failed.cause in (Cause.UNREACHABLE, Cause.INVALID)


# --- what an agent may reject --------------------------------------------------------------


def test_another_shard_is_rejected_in_the_peers_words(serve: Serve, run: Run) -> None:
    """R39: a mistake in someone's settings crosses no shards."""
    failed = run(failure(serve().url, ask=question(shard="commerce/80-")))
    assert failed.cause is Cause.FAILED
    assert "409" in failed.detail and "belongs to shard 'commerce/-80'" in failed.detail


def test_another_database_is_rejected_in_the_peers_words(serve: Serve, run: Run) -> None:
    failed = run(failure(serve().url, ask=question(database="other")))
    assert failed.cause is Cause.FAILED and "no database 'other'" in failed.detail


def test_an_agent_that_belongs_to_no_shard(serve: Serve, run: Run) -> None:
    failed = run(failure(serve(Plan(in_shard=False)).url))
    assert failed.cause is Cause.FAILED and "belongs to a shard" in failed.detail


def test_a_wake_up_call_may_be_rejected(serve: Serve, run: Run) -> None:
    agent = serve()

    async def wakes() -> None:
        async with linked(agent.url) as link:
            with pytest.raises(PeerFailed, match="409"):
                await link.wake("another", "main", timeout_s=ANSWER_S)

    run(wakes())


# --- forwarding ----------------------------------------------------------------------------


def test_checks_are_forwarded_as_they_are(serve: Serve, run: Run) -> None:
    agent = serve()

    async def asks() -> None:
        async with linked(agent.url) as link:
            body = b'{"app": "etl", "database": "nowhere"}'
            kind = {"Content-Type": "application/json", "Headgate-Forwarded": "db-a"}
            status, answer, headers = await link.ask(
                "POST", "/v1/check", body, kind, timeout_s=ANSWER_S
            )
            assert (status, b'"UNKNOWN_METRIC"' in answer) == (404, True)
            assert "retry-after" in headers or status == 404
            status, _, _ = await link.ask(
                "GET", "/v1/check?app=a&database=main", timeout_s=ANSWER_S
            )
            assert status in (200, 429)

    run(asks())


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("HEAD", "/v1/check", {}),
        ("GET / HTTP/1.1\r\nX:", "/v1/check", {}),
        ("GET", "/v1/check HTTP/1.1\r\nX: y", {}),
        ("GET", "http://elsewhere/", {}),
        ("GET", "/", {"A b": "c"}),
        ("GET", "/", {"A": "b\r\nC: d"}),
    ],
)
def test_what_is_no_request_is_not_forwarded(
    run: Run, method: str, target: str, headers: dict[str, str]
) -> None:
    async def asks() -> None:
        async with linked("http://127.0.0.1:1") as link:
            with pytest.raises(InvalidRequest):
                await link.ask(method, target, b"", headers, timeout_s=ANSWER_S)

    run(asks())


def test_a_crowd_is_rejected_and_not_kept(serve: Serve, run: Run) -> None:
    agent = serve()

    async def asks() -> None:
        async with linked(agent.url) as link:
            answers = await asyncio.gather(
                *(link.ask("GET", "/healthz", timeout_s=ANSWER_S) for _ in range(100)),
                return_exceptions=True,
            )
            told = [a for a in answers if isinstance(a, PeerFailed)]
            assert len(answers) - len(told) >= 64 and told
            assert "are waiting" in told[0].detail

    run(asks())


# --- settings ------------------------------------------------------------------------------


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(PeerAccess("hunter2"))
    with pytest.raises(InvalidName) as rejected:
        open_link("https://u:hunter2@db-b", TOKEN, sender="a", now=LOCAL.now)
    assert "hunter2" not in str(rejected.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"\xff\n", "tökén\n".encode()])
def test_a_token_file_without_a_token_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(InvalidSettings) as rejected:
        load_access(token_file=path, ca=None, cert=None, key=None)
    assert rejected.value.faults[0].place == "peers.token_file"


def test_certificates_that_cannot_be_used_are_rejected(
    tmp_path: Path, authority: Authority
) -> None:
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("")
    for ca, cert, place in [
        (missing, None, "peers.ca"),
        (empty, None, "peers.ca"),
        (authority.ca_path, missing, "peers.cert"),
        (authority.ca_path, empty, "peers.cert"),
    ]:
        with pytest.raises(InvalidSettings) as rejected:
            load_access(token_file=None, ca=ca, cert=cert, key=cert)
        assert rejected.value.faults[0].place == place


def test_what_a_link_trusts_without_settings(authority: Authority) -> None:
    access = load_access(token_file=None, ca=None, cert=None, key=None)
    assert (access.token, access.tls) == (None, None)
    trust = host_trust()
    assert trust.verify_mode is ssl.CERT_REQUIRED and trust.check_hostname
