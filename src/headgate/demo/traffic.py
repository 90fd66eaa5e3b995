"""Traffic control in the demo: the extension inside Postgres, else a proxy, else none.

extension.py ──library──► the servers          the agents publish into their data folders
headgate proxy run ──────► in front of them    db-a's agent publishes into its folder
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psycopg

from headgate.budgets.pgext.build import BuildFailed
from headgate.demo import extension, servers
from headgate.demo.agents import DemoAgent, quoted
from headgate.demo.postgres import PostgresServer
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec, ServiceUser
from headgate.errors import NativeUnavailable
from headgate.proxy.memory import relay_library

ROGUE_BUDGET = "best-effort"
JOBS_ROLE, CRITICAL_ROLE, ROGUE_ROLE = "jobs", "web", "adhoc"
READY_S = servers.LONGEST_S

POLICY = f"""\
# Tiers: the web's statements are critical and under no budget; jobs are important;
# what people run by hand is best effort, and sheds first.
[policy]
exempt_usernames = ["postgres"]

[[budgets]]
name = "important"
mode = "warn"
rate = 60
capacity = 400
comment = "jobs: more than this is looked at, not blocked"

[[budgets.rules]]
match = {{ username = "{JOBS_ROLE}" }}

[[budgets]]
name = "{ROGUE_BUDGET}"
mode = "warn"
rate = 5
capacity = 20
comment = "what people run by hand"

[[budgets.rules]]
match = {{ username = "{ROGUE_ROLE}" }}
"""

_PROXY = """\
[proxy]
protocol = "postgres"
directory = {directory}
cpus = {cpus}
drain_timeout_s = 1

[[listen]]
address = "127.0.0.1:{port}"

[control]
address = ""

# The proxy can report its clients to the agents. Here it does not, so that a client that never
# checks is listed as a rogue.
[agent]
url = [{urls}]
database = "main"
report = false

[follow]
"""
_SERVER = """
[[server]]
name = "{name}"
address = "127.0.0.1:{port}"
"""


class Enforcement(Enum):
    EXTENSION = "inside Postgres"
    PROXY = "in a proxy"
    NONE = "nowhere"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Where traffic control happens, and why there."""

    way: Enforcement
    why: str
    """Why not by something better; empty for the extension."""
    library: Path | None = None
    proxy_dir: Path | None = None

    @property
    def server_settings(self) -> dict[str, str]:
        return {} if self.library is None else extension.settings_for(self.library)

    def directories(self, shard: Sequence[PostgresServer]) -> dict[str, Path]:
        """server → where its agent publishes to. Of a proxy there is one, for one agent."""
        if self.proxy_dir is not None:
            return {shard[0].name: self.proxy_dir}
        if self.library is None:
            return {}
        return {server.name: extension.directory_of(server.data_dir) for server in shard}

    def words(self) -> str:
        match self.way:
            case Enforcement.EXTENSION:
                return "traffic control inside Postgres, by the extension pg_headgate"
            case Enforcement.PROXY:
                return f"traffic control in a proxy before Postgres ({self.why})"
            case Enforcement.NONE:
                return f"no traffic control: {self.why}"


def choose(
    folder: Path,
    library_for: Callable[[Path], Path] = extension.library_for,
    relay: Callable[[], object] = relay_library,
) -> Traffic:
    """The best that can be built here; what is left out says what it lacks."""
    try:
        return Traffic(Enforcement.EXTENSION, "", library=library_for(folder))
    except BuildFailed as failure:
        first = f"the extension cannot be built: {_brief(failure)}"
    try:
        relay()
    except NativeUnavailable as failure:
        return Traffic(Enforcement.NONE, f"{first}; nor can the proxy: {_brief(failure)}")
    # Our own, as the proxy is; and short: a Unix socket's whole path has room for 107 bytes.
    return Traffic(Enforcement.PROXY, first, proxy_dir=_own_folder())


def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="hg-", dir=servers.short_parent()))


def _brief(failure: Exception) -> str:
    return " ".join(str(failure).split())[:300]


class DemoProxy:
    """A real proxy that follows the shard's primary."""

    def __init__(
        self,
        folder: Path,
        directory: Path,
        shard: Sequence[PostgresServer],
        agents: Mapping[str, DemoAgent],
        cpus: int,
    ) -> None:
        self.port = servers.distinct_ports(1)[0]
        settings = folder / "proxy.toml"
        urls = ", ".join(f'"{agent.url}"' for agent in agents.values())
        own = _PROXY.format(directory=quoted(directory), cpus=cpus, port=self.port, urls=urls)
        known = (_SERVER.format(name=server.name, port=server.port) for server in shard)
        settings.write_text(own + "".join(known), encoding="utf-8")
        self._process = ServerProcess(
            ServerSpec(
                argv=[sys.executable, "-m", "headgate", "proxy", "run", str(settings)],
                cwd=folder,
                log_path=folder / "proxy.log",
                folders=[folder, directory],
                quit_signal=signal.SIGTERM,
                env=None,
                user=ServiceUser(),
            )
        )

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} dbname=postgres connect_timeout=10"

    def await_ready(self) -> None:
        servers.wait_until(self._answers, what="the proxy", within_s=READY_S)

    def _answers(self) -> bool:
        if not self._process.is_running():
            raise ServerFailed(f"the proxy ended: {self._process.log()[-2000:]}")
        try:
            with psycopg.connect(f"{self.dsn} user={ROGUE_ROLE}", autocommit=True) as session:
                session.execute("select 1")
        except psycopg.Error:
            return False
        return True

    def stop(self) -> None:
        self._process.signal(signal.SIGTERM)
        try:
            self._process.wait(5.0)
        except ServerFailed:
            self._process.kill()
