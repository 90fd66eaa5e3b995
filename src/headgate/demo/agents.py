"""An agent beside each server of the demo's shard, as a process of its own.

They know each other from their settings and show each other one token. Each runs under a
guard, so that it does not outlive the demo however that ends.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec, ServiceUser

SHARD = "commerce/-80"
LAG_THRESHOLD_S = 2.0
TIMEOUT_S = 2.0
STOP_S = 8.0

_SETTINGS = """\
[agent]
name = "{name}"
listen = "127.0.0.1:{port}"
socket = "{folder}/{name}.sock"
state = "{folder}/{name}.db"

[databases.main]
engine = "postgres"
dsn = "{dsn}"
shard = "{shard}"

[databases.main.metrics.lag]
threshold = {threshold_s}
interval_s = 0.25
timeout_s = 0.25

[databases.main.metrics.threads_running]
[databases.main.metrics.pool_usage]

[peers]
token_file = "{folder}/peers.token"
"""
_PEER = """
[databases.main.peers.{name}]
url = "{url}"
"""


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    """As its server: that is the member it speaks for."""
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Path:
        return self.folder / f"{self.name}.toml"

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S) as response:
            return dict(json.load(response))

    def write_settings(self, server: PostgresServer, peers: Sequence[Agent]) -> None:
        own = _SETTINGS.format(
            name=self.name,
            port=self.port,
            folder=self.folder,
            dsn=server.dsn(),
            shard=SHARD,
            threshold_s=LAG_THRESHOLD_S,
        )
        others = (_PEER.format(name=peer.name, url=peer.url) for peer in peers)
        self.settings.write_text(own + "".join(others))

    def spec(self) -> ServerSpec:
        return ServerSpec(
            argv=[sys.executable, "-m", "headgate", "agent", "--config", str(self.settings)],
            cwd=self.folder,
            log_path=self.folder / f"{self.name}.log",
            folders=[self.folder],
            quit_signal=signal.SIGTERM,
            env=None,
            user=ServiceUser(),
        )


@contextmanager
def run_agents(shard: Sequence[PostgresServer], folder: Path) -> Iterator[Mapping[str, Agent]]:
    """By the name of their servers; each answers, and has read its own server."""
    agents = [Agent(server.name, _free_port(), folder) for server in shard]
    token = folder / "peers.token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(16))
    with ExitStack() as ends:
        for agent, server in zip(agents, shard, strict=True):
            agent.write_settings(server, [other for other in agents if other is not agent])
        processes = {agent: ServerProcess(agent.spec()) for agent in agents}
        for process in processes.values():
            ends.callback(_stop, process)
        for agent, process in processes.items():
            servers.wait_until(
                lambda agent=agent, process=process: _ready(agent, process),  # type: ignore[misc]
                what=f"{agent.name}'s agent",
            )
        yield {agent.name: agent for agent in agents}


def _free_port() -> int:
    return next(servers.free_ports())


def _ready(agent: Agent, process: ServerProcess) -> bool:
    if not process.is_running():
        raise ServerFailed(f"{agent.name}'s agent ended: {process.log()[-2000:]}")
    try:
        return bool(agent.get("/readyz")["ready"])
    except OSError:
        return False


def _stop(process: ServerProcess) -> None:
    process.signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except ServerFailed:
        process.kill()
