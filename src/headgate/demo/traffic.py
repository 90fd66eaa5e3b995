"""Traffic control in the demo: the extension inside Postgres, else a proxy, else none.

built library ──────────► the servers          the agents publish into their data folders
headgate proxy run ──────► in front of them    db-a's agent publishes into its folder
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psycopg

from headgate.base.paths import cache_below_home
from headgate.budgets.pgext.build import (
    EXTENSION,
    NO_SOURCES,
    PARTS,
    BuildFailed,
    PgConfig,
    missing_for,
    pg_config_for_make,
    read_pg_config,
    sources,
    sources_hash,
)
from headgate.demo import servers
from headgate.demo.agents import DemoAgent, quoted
from headgate.demo.postgres import PostgresServer, find_binaries
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec, ServiceUser
from headgate.errors import NativeUnavailable
from headgate.proxy.memory import relay_library

# --- the extension -------------------------------------------------------------------------
# The extension for the demo's own Postgres, where there is a compiler to build it with.
#
# The library alone is wanted, loaded by its path: the wheel that Postgres came in is not ours to
# install into. It is built once for each state of its sources and each Postgres, and kept.

BUILD_TIMEOUT_S = 300.0
QUOTED_BYTES = 600
# In place of the flags by which this Postgres was built: its compiler is newer than most, and
# others fail on warnings that they do not know. What its headers rely on is among these.
FLAGS = "-O2 -fno-strict-aliasing -fwrapv"


def library_for(folder: Path) -> Path:
    """A copy in `folder`, where the servers' user can read it; BuildFailed says what is missing."""
    config = read_pg_config(find_binaries() / "pg_config")
    kept = kept_at(config)
    if not kept.is_file():
        if missing := missing_for(config):
            raise BuildFailed("; ".join(missing))
        _build(config, kept)
    target = folder / f"{EXTENSION}.so"
    shutil.copyfile(kept, target)
    target.chmod(0o644)
    return target


def kept_at(config: PgConfig) -> Path:
    what = f"{config.version} {FLAGS} {sources_hash()}"
    name = f"demo-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    return _cache() / name


def _cache() -> Path:
    """A checkout keeps its own; an installed package may belong to another user."""
    root = sources()
    if (root / "pyproject.toml").is_file():
        return root / ".cache" / EXTENSION
    try:
        return cache_below_home(EXTENSION)
    except ValueError:
        raise BuildFailed("it is kept in the user's home, and this user has none") from None


def _build(config: PgConfig, kept: Path) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".demo-") as work:
            built = Path(work)
            for part in PARTS:
                shutil.copytree(sources() / part, built / part, ignore=NO_SOURCES)
            _make(config, built / EXTENSION)
            # Whole or not at all: another demo may be looking.
            (built / EXTENSION / f"{EXTENSION}.so").rename(kept)
    except OSError as error:
        raise BuildFailed(f"nothing can be built in {kept.parent}: {error.strerror}") from None


def _make(config: PgConfig, where: Path) -> None:
    settings = ["USE_PGXS=1", "with_llvm=no", f"CFLAGS={FLAGS}"]
    try:
        with pg_config_for_make(config.path, config.bin_dir.parent) as told:
            done = subprocess.run(
                ["make", "-s", "-j2", "-C", str(where), f"PG_CONFIG={told}", *settings, "all"],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"make did not end within {BUILD_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise BuildFailed(f"make failed: {(done.stdout + done.stderr).strip()[-QUOTED_BYTES:]}")


def settings_for(library: Path) -> dict[str, str]:
    """Of a server that loads it."""
    return {"shared_preload_libraries": str(library)}


def directory_of(data_dir: Path) -> Path:
    """Where a server with the extension looks for its policy."""
    folder = data_dir / EXTENSION
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        servers.service_user().own(folder)
    return folder


# --- the traffic control of a stage --------------------------------------------------------


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
        return {} if self.library is None else settings_for(self.library)

    def directories(self, shard: Sequence[PostgresServer]) -> dict[str, Path]:
        """server → where its agent publishes to. Of a proxy there is one, for one agent."""
        if self.proxy_dir is not None:
            return {shard[0].name: self.proxy_dir}
        if self.library is None:
            return {}
        return {server.name: directory_of(server.data_dir) for server in shard}

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
    library_for: Callable[[Path], Path] = library_for,
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
