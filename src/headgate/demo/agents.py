"""An agent beside each server of the demo's shard, as a process of its own.

They know each other from their settings and show each other one token. What is set at the primary's
agent is handed to the others. Each runs under a guard, so that it does not
outlive the demo however that ends.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.demo import servers
from headgate.demo.postgres import PostgresServer
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec, ServiceUser

SHARD = "commerce/-80"
AGENT_ROLE = "headgate"
LAG_THRESHOLD_S = 2.0
TIMEOUT_S = CHANGE_TIMEOUT_S = 30.0
STOP_S = 8.0

_SETTINGS = """\
[agent]
name = "{name}"
listen = "127.0.0.1:{port}"
socket = {socket}
state = {state}

[databases.main]
engine = "postgres"
dsn = "{dsn}"
shard = "{shard}"

[databases.main.metrics.lag]
threshold = "{threshold_s:g}s"
interval_s = 0.25
timeout_s = 1

[databases.main.metrics.threads_running]
[databases.main.metrics.pool_usage]

[peers]
token_file = {token}

[page]
tour = "{tour}"
"""
_PEER = """
[databases.main.peers.{name}]
url = "{url}"
"""
_TRAFFIC = """
[databases.main.traffic]
policy = {policy}
"""
_TOKEN = """
[[tokens]]
name = "{name}"
role = "{role}"
sha256 = "{sha256}"
"""


def quoted(path: Path) -> str:
    """As TOML has it, which takes JSON's escapes."""
    return json.dumps(str(path), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a person shows to the page: one to change things with, one to look only."""

    operator: str
    viewer: str

    @classmethod
    def new(cls) -> Tokens:
        return cls(secrets.token_urlsafe(16), secrets.token_urlsafe(16))

    def settings(self) -> str:
        held = {"operator": self.operator, "viewer": self.viewer}
        return "".join(
            _TOKEN.format(
                name=f"demo-{role}",
                role=role,
                sha256=hashlib.sha256(token.encode()).hexdigest(),
            )
            for role, token in held.items()
        )


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The agents' settings, besides where their servers are."""

    tokens: Tokens
    tour: str
    policy: Path
    directories: Mapping[str, Path]
    """server → where its agent publishes the policy; empty where no server takes one."""


@dataclass(frozen=True, slots=True)
class DemoAgent:
    name: str
    """As its server: that is the member it speaks for."""
    port: int
    folder: Path
    token: str
    sockets: Path | None = None
    """A folder with a short path, where `folder` has none."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Path:
        return self.folder / f"{self.name}.toml"

    def get(self, path: str) -> dict[str, Any]:
        """OSError where there is no valid answer. Not by urllib, which would use the proxy that
        `http_proxy` names for an agent on this very host."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            line.request("GET", path)
            answer = line.getresponse()
            said = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"{self.url}{path}: {error}") from None
        finally:
            line.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise OSError(f"{self.url}{path}: {answer.status}")
        return dict(json.loads(said))

    def change(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """As an operator would, over the agent's own API; ServerFailed with its words."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CHANGE_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            line.request(method, path, json.dumps(body), headers)
            answer = line.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"{self.name}'s agent: {method} {path}: {error}") from None
        finally:
            line.close()
        if answer.status >= http.client.BAD_REQUEST:
            words = said.decode(errors="replace")[:500]
            raise ServerFailed(f"{self.name}'s agent: {method} {path}: {answer.status} {words}")
        return dict(json.loads(said))

    def write_settings(
        self, server: PostgresServer, peers: Sequence[DemoAgent], plan: DemoPlan
    ) -> None:
        own = _SETTINGS.format(
            name=self.name,
            port=self.port,
            socket=quoted((self.sockets or self.folder) / f"{self.name}.sock"),
            state=quoted(self.folder / f"{self.name}.db"),
            token=quoted(self.folder / "peers.token"),
            dsn=server.dsn(user=AGENT_ROLE),
            shard=SHARD,
            threshold_s=LAG_THRESHOLD_S,
            tour=plan.tour,
        )
        others = "".join(_PEER.format(name=peer.name, url=peer.url) for peer in peers)
        traffic = _TRAFFIC.format(policy=quoted(plan.policy))
        if self.name in plan.directories:
            traffic += f"directory = {quoted(plan.directories[self.name])}\n"
        told = own + others + traffic + plan.tokens.settings()
        self.settings.write_text(told, encoding="utf-8")

    def spec(self) -> ServerSpec:
        return ServerSpec(
            argv=[sys.executable, "-m", "headgate", "agent", "--config", str(self.settings)],
            cwd=self.folder,
            log_path=self.folder / f"{self.name}.log",
            folders=[self.folder, *([self.sockets] if self.sockets else [])],
            quit_signal=signal.SIGTERM,
            env=None,
            user=ServiceUser(),
        )


class Crew:
    """The agents, and the process of each."""

    def __init__(self, agents: Sequence[DemoAgent]) -> None:
        self.agents: Mapping[str, DemoAgent] = {agent.name: agent for agent in agents}
        self._processes: dict[str, ServerProcess] = {}

    def start(self, *names: str) -> None:
        """All at once; returns when each answers, and has read its own server."""
        for name in names:
            self._processes[name] = ServerProcess(self.agents[name].spec())
        for name in names:
            servers.wait_until(lambda name=name: self._ready(name), what=f"{name}'s agent")  # type: ignore[misc]

    def kill(self, name: str) -> None:
        """SIGKILL: it can say goodbye to nobody."""
        self._processes[name].kill()

    def is_up(self, name: str) -> bool:
        return self._processes[name].is_running()

    def revive(self) -> list[str]:
        """Start those that are dead; their names."""
        dead = [name for name, process in self._processes.items() if not process.is_running()]
        self.start(*dead)
        return dead

    def stop(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except ServerFailed:
                process.kill()

    def _ready(self, name: str) -> bool:
        process = self._processes[name]
        if not process.is_running():
            raise ServerFailed(f"{name}'s agent ended: {process.log()[-2000:]}")
        try:
            return bool(self.agents[name].get("/readyz")["ready"])
        except OSError:
            return False


@contextmanager
def run_agents(shard: Sequence[PostgresServer], folder: Path, plan: DemoPlan) -> Iterator[Crew]:
    ports = servers.distinct_ports(len(shard))
    sockets = Path(tempfile.mkdtemp(prefix="hg-", dir=servers.short_parent()))
    agents = [
        DemoAgent(server.name, port, folder, plan.tokens.operator, sockets)
        for server, port in zip(shard, ports, strict=True)
    ]
    token = folder / "peers.token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(16), encoding="utf-8")
    for agent, server in zip(agents, shard, strict=True):
        agent.write_settings(server, [other for other in agents if other is not agent], plan)
    with ExitStack() as ends:
        ends.callback(servers.remove_folders, [sockets])
        crew = Crew(agents)
        ends.callback(crew.stop)
        crew.start(*crew.agents)
        yield crew
