"""A proxy put together: it starts, tells, reloads, hands over, stops. Without a database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidSettings, RelayFault
from headgate.proxy.app import Proxy
from headgate.proxy.metrics import SERIES
from headgate.settings.proxy import load_proxy_settings
from tests.fixtures.eventually import aeventually

TOKEN = "of-an-operator"
LEAST = """
[proxy]
protocol = "postgres"
directory = "{directory}"
threads = 1
cpus = 1
drain_timeout_s = 0.5
[[listen]]
address = "127.0.0.1:0"
[[server]]
address = "127.0.0.1:1"
[control]
address = "127.0.0.1:0"
[memory]
buckets = 256
patterns = 256
policy_kb = 64
"""
Started = Callable[..., Awaitable[Proxy]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.toml"


def write(path: Path, more: str = "", **replaced: str) -> Path:
    content = LEAST.format(directory=path.parent / "state") + more
    for old, new in replaced.items():
        content = content.replace(old, new)
    path.write_text(content)
    return path


@pytest.fixture
async def started(path: Path) -> AsyncIterator[Started]:
    running: list[Proxy] = []

    async def start(more: str = "", **environment: str) -> Proxy:
        write(path, more)
        proxy = Proxy(load_proxy_settings(path, environment), path, environment)
        running.append(proxy)
        await proxy.start()
        return proxy

    yield start
    for proxy in running:
        await proxy.close()


@asynccontextmanager
async def connected(where: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if where.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(where)
    else:
        host, _, port = where.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.close()
    await writer.wait_closed()


async def ask(
    proxy: Proxy, method: str, path: str, *, tcp: bool = False, token: str = ""
) -> tuple[int, Any]:
    where = proxy.facts.control[1 if tcp else 0]
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    async with connected(where) as (reader, writer):
        writer.write(f"{head}\r\n".encode())
        raw = await asyncio.wait_for(reader.read(), 60)
    lines, _, body = raw.partition(b"\r\n\r\n")
    text = body.decode()
    return int(lines.split()[1]), json.loads(text) if text.startswith(("{", "[")) else text


def port_of(proxy: Proxy) -> int:
    return int(proxy.facts.listen[0]["address"].rpartition(":")[2])


def can_connect(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(60)
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def test_it_reports_its_own_state(started: Started) -> None:
    proxy = await started()
    status, found = await ask(proxy, "GET", "/v1/proxy/status")
    assert status == 200
    assert found["proxy"]["state"] == "serving"
    assert found["targets"][0]["address"] == "127.0.0.1:1"
    assert found["problems"] == []
    assert [part["name"] for part in found["parts"]] == ["directory", "targets"]


async def test_every_series_is_rendered_once(started: Started) -> None:
    proxy = await started()
    status, text = await ask(proxy, "GET", "/metrics")
    assert status == 200
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert heads == [series.name for series in SERIES]


async def test_it_is_ready_once_there_is_a_server(started: Started) -> None:
    proxy = await started()
    assert (await ask(proxy, "GET", "/readyz"))[0] == 200
    assert (await ask(proxy, "GET", "/healthz"))[1] == {"state": "serving"}


async def test_who_changes_something_over_tcp_shows_a_token(started: Started) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens = f"[[tokens]]\nname = 'ann'\nrole = 'operator'\nsha256 = '{digest}'\n"
    proxy = await started(tokens)
    assert (await ask(proxy, "POST", "/v1/proxy/reload", tcp=True))[0] == 401
    assert (await ask(proxy, "POST", "/v1/proxy/reload", tcp=True, token="other"))[0] == 401
    assert (await ask(proxy, "POST", "/v1/proxy/reload", tcp=True, token=TOKEN))[0] == 200
    assert (await ask(proxy, "POST", "/v1/proxy/reload"))[0] == 200, "the socket's mode decides"


@pytest.mark.parametrize(
    ("method", "asked", "status"),
    [
        ("GET", "/nowhere", 404),
        ("DELETE", "/v1/proxy/sessions/99", 404),
        ("GET", "/v1/proxy/sessions?limit=0", 400),
        ("GET", "/v1/proxy/sessions?after=x", 400),
        ("GET", "/v1/proxy/reload", 405),
        ("GET", "/v1/proxy/sessions", 200),
    ],
)
async def test_odd_requests_are_answered(
    started: Started, method: str, asked: str, status: int
) -> None:
    assert (await ask(await started(), method, asked))[0] == status


# --- reload --------------------------------------------------------------------------------


async def test_a_reload_follows_what_may_change(started: Started, path: Path) -> None:
    proxy = await started()
    write(path, "[identity]\norder = ['user']\n[slowlog]\nper_s = 1\n")
    done = await proxy.reload()
    assert set(done.changed) == {"identity", "slowlog"}
    assert done.waits_for_restart == ()


async def test_a_reload_names_what_waits_for_a_restart(started: Started, path: Path) -> None:
    proxy = await started()
    write(path, **{"threads = 1": "threads = 2", "cpus = 1": "cpus = 3"})
    done = await proxy.reload()
    assert done.waits_for_restart == ("proxy.threads", "proxy.cpus")
    assert proxy.facts.settings.waits_for_restart == done.waits_for_restart


async def test_a_file_that_is_blocked_changes_nothing(started: Started, path: Path) -> None:
    proxy = await started()
    write(path, "[gate]\nmood = 'warn'\n")
    status, told = await ask(proxy, "POST", "/v1/proxy/reload")
    assert status == 422 and "did you mean 'mode'?" in told["faults"][0]
    _, found = await ask(proxy, "GET", "/v1/proxy/status")
    assert any("the settings file is invalid" in problem for problem in found["problems"])
    write(path)
    await proxy.reload()
    assert proxy.facts.settings.fault == ""


async def test_half_a_reload_is_none(started: Started, path: Path) -> None:
    """An address that is taken: identity, which was put before it, is put back."""
    proxy = await started()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        write(path, f"[identity]\norder = ['user']\n[[listen]]\naddress = '127.0.0.1:{port}'\n")
        with pytest.raises(InvalidSettings, match="Address already in use"):
            await proxy.reload()
    assert len(proxy.facts.listen) == 1
    done = await proxy.reload()
    assert set(done.changed) == {"identity", "listen"}
    assert len(proxy.facts.listen) == 2


async def test_an_address_that_is_gone_is_closed_and_its_sessions_stay(
    started: Started, path: Path
) -> None:
    second, more = path.parent / "second.sock", "[[listen]]\naddress = '{}'\n"
    proxy = await started(more.format(second))
    assert proxy.parts is not None
    with socket.socket(socket.AF_UNIX) as session:
        session.connect(str(second))
        await aeventually(proxy.parts.relay.sessions)
        write(path)
        done = await proxy.reload()
        assert (done.changed, done.waits_for_restart) == (("listen",), ())
        assert not second.exists() and len(proxy.facts.listen) == 1
        assert can_connect(port_of(proxy))
        assert any(view.peer == "unix" for view in proxy.parts.relay.sessions())
    write(path, more.format(second))
    await proxy.reload()
    with socket.socket(socket.AF_UNIX) as session:
        session.connect(str(second))


async def test_a_policy_file_is_followed(started: Started, path: Path) -> None:
    budgets = path.parent / "budgets.toml"
    budgets.write_text("[[budgets]]\nname = 'etl'\n[[budgets.rules]]\n")
    proxy = await started(f"[policy]\nfile = '{budgets}'\n")

    async def version() -> int:
        return int((await ask(proxy, "GET", "/v1/proxy/status"))[1]["policy"]["version"])

    assert proxy.parts is not None
    region = proxy.parts.relay.memory.region
    await aeventually(lambda: region.head().version)
    budgets.write_text("[[budgets]]\nname = 'other'\nrate = 120\n")
    assert proxy.mind is not None and proxy.mind.policy_file is not None
    await proxy.mind.policy_file.look()
    assert "rate" in proxy.mind.policy_file.fault
    assert await version() == 1, "the last good one stays"


# --- life ----------------------------------------------------------------------------------


async def test_a_new_process_takes_over_sockets_and_memory(started: Started, path: Path) -> None:
    old = await started()
    port = port_of(old)
    assert old.parts is not None
    old.parts.relay.memory.state.lost = 1
    new = await started()
    assert port_of(new) == port
    assert new.facts.memory == "taken over"
    assert new.parts is not None and new.parts.relay.memory.state.lost == 1
    assert old.succession.handed_over.is_set() and old.succession.memory_taken
    await asyncio.wait_for(old.wind_down(), 60)
    await old.close()
    assert can_connect(port)
    _, found = await ask(new, "GET", "/v1/proxy/status")
    assert found["proxy"]["state"] == "serving"
    assert (path.parent / "state" / "server.json").exists()


async def test_other_settings_of_the_server_begin_with_new_memory(
    started: Started, path: Path
) -> None:
    old = await started()
    new = await started(HEADGATE_PROXY_CPUS="2")
    assert new.facts.memory == "new"
    assert old.succession.handed_over.is_set() and not old.succession.memory_taken, (
        "its gates and counts stay its own"
    )


async def test_one_that_knows_no_server_does_not_take_over(
    started: Started, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.proxy.app.FIRST_TARGETS_S", 0.05)
    old = await started()
    follow = "[agent]\nurl = 'http://127.0.0.1:1'\ndatabase = 'main'\n[follow]\n"
    with pytest.raises(RelayFault, match="the old process keeps serving"):
        await started(follow)
    assert not old.succession.handed_over.is_set()
    assert (await ask(old, "GET", "/readyz"))[0] == 200
    assert (path.parent / "state" / "server.json").exists(), "agents find the old one's memory"


async def test_nothing_is_left_behind(started: Started, path: Path) -> None:
    unix = path.parent / "listen.sock"
    proxy = await started(f"[[listen]]\naddress = '{unix}'\n")
    port = port_of(proxy)
    assert unix.is_socket() and can_connect(port)
    proxy.drain()
    await asyncio.wait_for(proxy.wind_down(), 60)
    await proxy.close()
    assert not can_connect(port)
    assert not unix.exists()
    assert list((path.parent / "state").iterdir()) == []
    assert proxy.facts.state == "stopped"


async def test_a_session_that_stays_is_ended_at_the_deadline(started: Started) -> None:
    proxy = await started()
    with socket.create_connection(("127.0.0.1", port_of(proxy))):
        assert proxy.parts is not None
        await aeventually(proxy.parts.relay.sessions)
        proxy.drain()
        await asyncio.wait_for(proxy.wind_down(), 60)
        assert proxy.parts.relay.sessions() == []


async def test_the_second_signal_ends_it_at_once(started: Started) -> None:
    proxy = await started()
    proxy.signals.end()
    proxy.signals.end()
    assert proxy.signals.stop.is_set() and proxy.signals.at_once.is_set()


async def test_a_directory_that_is_not_its_own_is_blocked(path: Path) -> None:
    write(path)
    (path.parent / "state").mkdir(mode=0o755)
    (path.parent / "state").chmod(0o755)
    proxy = Proxy(load_proxy_settings(path, {}), path, {})
    with pytest.raises(Exception, match="chmod 0700"):
        await proxy.start()
    await proxy.close()
