"""What `headgate pg` does on a server's host.   cli ──► Extension ──► files, region, make

Each returns a document: what a program gets by --json, and what the page for people is made of.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.base.advice import Advice, Severity
from headgate.base.clock import SystemClock
from headgate.base.places import with_lines
from headgate.base.ports import Clock
from headgate.budgets.advice import advise
from headgate.budgets.compiled import CompiledPolicy, read_compiled
from headgate.budgets.native.library import progress
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext import directory as files
from headgate.budgets.pgext.build import (
    EXTENSION,
    BuildFailed,
    PgConfig,
    build_extension,
    headers_version,
    install_built,
    minor_fault,
    read_pg_config,
    version_of,
)
from headgate.budgets.pgext.directory import MAX_POLICY_BYTES, ServerFile
from headgate.budgets.pgext.meter import Force, RegionMeter, force_in
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.policy import Mode, Policy
from headgate.budgets.readings import BudgetReadings, Published, ServerHealth
from headgate.errors import Fault, HeadgateError, InvalidSettings, MeterFailed, PolicyRejected

if TYPE_CHECKING:
    import psycopg


AGENTS = ("headgate",)
"""The role that the set-up page gives an agent; one that publishes itself exempts its own."""
POLL_S = 0.002
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """How a policy fared after it was published."""

    state: str
    """`in force`; `waiting` for a statement, of which there has been none; `not running`."""
    took_ms: float | None
    detail: str = ""


class Extension:
    """The Postgres extension of servers on this host."""

    def install(
        self, *, pg_config: Path | None, data_directory: Path | None, dsn: str | None
    ) -> Document:
        server = None if dsn is None else ask_server(dsn)
        config = find_pg_config(pg_config, data_directory, server)
        if server is not None and config.major != server.major:
            raise HeadgateError(
                f"{config.path} is of {config.version}, and the server is a Postgres "
                f"{server.major}: name the right one by --pg-config"
            )
        if fault := _minor_fault(config, data_directory, server):
            raise HeadgateError(fault)
        building = f"building the extension for {config.version} (about 20 s) …"
        with tempfile.TemporaryDirectory(prefix="headgate-build-") as work:
            with progress(building):
                build_extension(config.path, Path(work))
            install_built(config.path, Path(work))
        return {
            "postgres": config.version,
            "pg_config": str(config.path),
            "library": str(config.library_dir / f"{EXTENSION}.so"),
            "control": str(config.extension_dir / f"{EXTENSION}.control"),
            "settings": conf_lines(server),
        }

    def enable(
        self, directory: Path, policy_file: Path | None, *, within_s: float, anyway: bool
    ) -> Document:
        """From the file, or what was switched off before."""
        server = _prepare(directory)
        policy, advice = None, list[Advice]()
        if policy_file is not None:
            policy, advice = load_policy(policy_file, server, anyway=anyway)
        return _publish(directory, lambda sink: sink.switch_on(policy), within_s, advice)

    def publish(
        self, directory: Path, policy_file: Path, *, within_s: float, anyway: bool
    ) -> Document:
        server = _prepare(directory)
        policy, advice = load_policy(policy_file, server, anyway=anyway)
        return _publish(directory, lambda sink: sink.publish_now(policy), within_s, advice)

    def disable(self, directory: Path, *, purge: bool, within_s: float) -> Document:
        done = _publish(directory, FilePolicySink.switch_off, within_s, [])
        if purge:
            done["removed"] = _purge(directory, done["state"])
        return done

    def status(self, directory: Path | None, dsn: str | None) -> Document:
        """From outside; over SQL only where that is all there is."""
        if directory is None:
            assert dsn is not None
            return status_by_sql(dsn)
        try:
            return status_of(directory, SystemClock())
        except MeterFailed as error:
            if dsn is None:
                raise
            return {**status_by_sql(dsn), "from_outside": str(error)}


def conf_lines(server: ServerSettings | None) -> list[str]:
    """For postgresql.conf; what is preloaded already stays."""
    loaded = [] if server is None else [name.strip() for name in server.preloaded.split(",")]
    names = [name for name in loaded if name and name != EXTENSION]
    return [
        f"shared_preload_libraries = '{','.join([*names, EXTENSION])}'",
        "pg_headgate.enabled = on",
    ]


def load_policy(
    path: Path, server: ServerFile | None, *, anyway: bool
) -> tuple[Policy, list[Advice]]:
    """A policy document that may be published; InvalidSettings with every fault and its line."""
    policy = _parsed(path, _text(path))
    advice = _advice(policy, server)
    errors = [one for one in advice if one.severity is Severity.ERROR]
    if errors and not anyway:
        faults = [Fault(one.place, f"{one.message} [{one.code}]") for one in errors]
        faults.append(Fault("", "nothing was published; add --anyway if this is intended"))
        raise InvalidSettings(faults, str(path))
    return policy, advice


def _advice(policy: Policy, server: ServerFile | None) -> list[Advice]:
    wall_ms = int(SystemClock().now().wall_s * 1000)
    if server is None:
        return advise(policy, agents=AGENTS, wall_ms=wall_ms)
    workers, cpus = server.max_connections, server.cpus_milli / 1000
    return advise(policy, agents=AGENTS, workers=workers, cpus=cpus, wall_ms=wall_ms)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            body = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(body) > MAX_DOCUMENT_BYTES:
            raise InvalidSettings(
                [Fault("", f"is larger than {MAX_DOCUMENT_BYTES} bytes")], str(path)
            )
        return body.decode()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")], str(path)) from None
    except UnicodeDecodeError:
        raise InvalidSettings([Fault("", "is not UTF-8")], str(path)) from None


def _parsed(path: Path, text: str) -> Policy:
    as_json = path.suffix == ".json"
    try:
        raw = json.loads(text, object_pairs_hook=_once) if as_json else tomllib.loads(text)
        return parse_policy(raw)
    except InvalidSettings as error:
        faults = error.faults if as_json else with_lines(error.faults, text)
        raise InvalidSettings(faults, str(path)) from None
    except ValueError as error:  # both JSONDecodeError and TOMLDecodeError are
        raise InvalidSettings([Fault("", str(error))], str(path)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"says {key!r} twice; say it once")
        found[key] = value
    return found


def _prepare(directory: Path) -> ServerFile | None:
    """A running server must have the extension; one that is down may get its policy before."""
    if (directory.parent / "postmaster.pid").exists() or not directory.parent.is_dir():
        return files.read_server_file(directory)
    files.make_directory(directory)
    return None


def _publish(
    directory: Path,
    put: Callable[[FilePolicySink], Published],
    within_s: float,
    advice: Sequence[Advice],
) -> Document:
    began_s = time.monotonic()
    before = _force(directory)
    sink = FilePolicySink(directory, SystemClock())
    published = put(sink)
    outcome = await_in_force(directory, published, before, began_s, within_s)
    return {
        "directory": str(directory),
        "version": published.version,
        "checksum": f"{published.checksum:08x}",
        "off": sink.off,
        "state": outcome.state,
        "took_ms": outcome.took_ms,
        "detail": outcome.detail,
        "advice": [{"code": a.code, "place": a.place, "message": a.message} for a in advice],
    }


def _force(directory: Path) -> Force | str:
    """Or why it is not known."""
    try:
        return force_in(directory)
    except MeterFailed as error:
        return str(error)


def await_in_force(
    directory: Path, published: Published, before: Force | str, began_s: float, within_s: float
) -> PublishOutcome:
    """Until the server has taken it, for `within_s` at most; PolicyRejected if it does not."""
    while True:
        now = _force(directory)
        took_ms = (time.monotonic() - began_s) * 1000
        if isinstance(now, str):
            return PublishOutcome("not seen", None, now)
        if now.version >= published.version:
            return PublishOutcome("in force", took_ms)
        if isinstance(before, Force) and now.rejected > before.rejected:
            raise PolicyRejected(
                f"the server rejected version {published.version}: {now.rejection}; version "
                f"{now.version} stays in force"
            )
        if took_ms > within_s * 1000:
            return PublishOutcome("waiting", None, _why_waiting(before, now, within_s))
        time.sleep(POLL_S)


def _why_waiting(before: Force | str, now: Force, within_s: float) -> str:
    if isinstance(before, Force) and now.statements == before.statements:
        return "no statement has run since; the next one uses it"
    return f"not in force after {within_s:g} s; see headgate pg status"


def _purge(directory: Path, state: str) -> list[str]:
    """Only once nobody decides by it any more: without its file a policy stays in force."""
    if state == "waiting":
        raise PolicyRejected(
            "switched off, but no backend has noticed yet, so the files stay: run it again with "
            "--purge once a statement has run"
        )
    with files.opened(directory) as folder:
        # Else an agent that did not know would put its policy back, and in force.
        folder.replace(files.OFF_FILE, b"")
        return [name for name in (files.POLICY_FILE, files.HEALTH_FILE) if folder.remove(name)]


# --- status by SQL -------------------------------------------------------------------------------

# The same status over SQL, for servers whose memory cannot be read from outside.

ABOUT = """
SELECT current_setting('server_version_num')::int AS version_num,
       current_setting('max_connections')::int AS max_connections,
       extract(epoch FROM now() - pg_postmaster_start_time())::float8 AS started_s_ago,
       to_regprocedure('headgate.status()') IS NOT NULL AS created,
       current_database() AS database
"""
STATUS = """
SELECT *, extract(epoch FROM health_until - now())::float8 AS health_left_s
FROM headgate.status()
"""
BACKENDS = (
    "SELECT pid, policy_version AS version, policy_checksum AS checksum FROM headgate.backends"
)
BUDGETS = """
SELECT budget, fill_percent / 100 AS fill, '' AS bucket, running, sleeping, admitted,
       warned_threshold + warned_concurrency + warned_burst + warned_capacity AS warned,
       blocked_concurrency + blocked_burst + blocked_capacity AS blocked, delayed,
       extract(epoch FROM now() - last_violation_at)::float8 AS last_violation_s_ago
FROM headgate.budgets
"""


def status_by_sql(dsn: str) -> Document:
    with session_with(dsn) as session:
        (about,) = _rows(session, ABOUT)
        if not about["created"]:
            raise HeadgateError(
                f"the database {about['database']!r} does not have the extension: run CREATE "
                "EXTENSION pg_headgate there, or read from outside (--data-directory)"
            )
        status = next(iter(_rows(session, STATUS)), None)
        if status is None:
            raise HeadgateError(
                "the server was started without pg_headgate in shared_preload_libraries"
            )
        budgets = _rows(session, BUDGETS)
        for row in budgets:
            row["trouble"] = list(troubles(row, full=False))
        return _document(about, status, _rows(session, BACKENDS), in_trouble(budgets))


def _document(
    about: Mapping[str, Any],
    status: Mapping[str, Any],
    backends: list[Document],
    budgets: list[Document],
) -> Document:
    in_force = {
        "version": status["policy_version"] or 0,
        "checksum": status["policy_checksum"] or "",
        "enabled": status["enabled"],
        "off": None,
        "since_ms": _ms(status["published_at"]),
        "rejected": status["rejected_policies"],
        "rejection": status["last_rejection"] or "",
    }
    left_s = status["health_left_s"]
    known = left_s is not None and left_s > 0
    return {
        "directory": None,
        "source": "sql",
        "server": {
            "pid": None,
            "version_num": about["version_num"],
            "extension": status["extension_version"],
            "max_connections": about["max_connections"],
            "cpus": status["server_cpus"],
            "started_s_ago": about["started_s_ago"],
        },
        "published": None,
        "in_force": in_force,
        "health": {"state": status["health"] if known else "unknown", "until_s": left_s},
        "backends": backends,
        "budgets": budgets,
        "problems": list(problems_of(None, in_force)),
    }


def _rows(session: psycopg.Connection[Any], query: str) -> list[Document]:
    from psycopg.rows import dict_row

    with session.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)


# --- locate --------------------------------------------------------------------------------------

# Find the pg_config of a server, from whatever is known of it.
#
# --pg-config · --data-directory (its process, or its version) · --server (by SQL) · what is here

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 10
# Where the packages of Debian, of PGDG for RPM, of Alpine and of the official images put it.
PLACES = (
    "/usr/lib/postgresql/{major}/bin/pg_config",
    "/usr/pgsql-{major}/bin/pg_config",
    "/usr/libexec/postgresql{major}/pg_config",
    "/usr/local/bin/pg_config",
)
KNOWN_MAJORS = tuple(range(14, 19))
ASK = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
ASKED = ("server_version_num", "server_version", "data_directory", "shared_preload_libraries")


class ServerNotFound(HeadgateError):
    """Nobody can tell which Postgres is meant; says how to name it."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server that accepts connections says about its installation."""

    major: int
    version: str
    """Such as 15.18."""
    data_directory: Path | None
    """None: the role may not see it."""
    preloaded: str


def find_pg_config(
    pg_config: Path | None, data_directory: Path | None, server: ServerSettings | None
) -> PgConfig:
    """Of the server that is meant, by the most certain of what is given."""
    if pg_config is not None:
        return read_pg_config(pg_config)
    if server is not None:
        data_directory = data_directory or server.data_directory
    if data_directory is not None and (running := _of_process(data_directory)) is not None:
        return running
    if server is not None:
        return _of_major(server.major)
    if data_directory is not None:
        return _of_major(major_of_data(data_directory))
    return _the_only_one()


@contextmanager
def session_with(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for a few questions. Nothing else here needs the driver."""
    try:
        import psycopg
    except ModuleNotFoundError:
        message = "connecting to the server needs psycopg: pip install 'headgate[postgres]'"
        raise HeadgateError(message) from None
    try:
        with psycopg.connect(dsn, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True) as session:
            session.execute(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
            yield session
    except psycopg.Error as error:
        # The driver's message names host and user; a password it never repeats.
        raise ServerNotFound(f"cannot connect to the server: {str(error).strip()}") from None


def ask_server(dsn: str) -> ServerSettings:
    with session_with(dsn) as session:
        said: dict[str, Any] = dict(session.execute(ASK, [list(ASKED)]).fetchall())
    folder = said.get("data_directory")
    return ServerSettings(
        major=int(said["server_version_num"]) // 10_000,
        version=str(said["server_version"]).split()[0],
        data_directory=Path(folder) if folder else None,
        preloaded=said.get("shared_preload_libraries") or "",
    )


def major_of_data(data_directory: Path) -> int:
    path = data_directory / "PG_VERSION"
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ServerNotFound(f"{data_directory} is no data directory: no PG_VERSION") from None
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; be the server's own user, or root"
        raise ServerNotFound(message) from None
    except ValueError:
        raise ServerNotFound(f"{path} is not what initdb writes") from None


def _of_process(data_directory: Path) -> PgConfig | None:
    """Beside the very program that runs on these files; None if that is not known."""
    try:
        program = _program_of(data_directory).readlink()
    except (OSError, ValueError):
        return None
    beside = program.with_name("pg_config")
    return read_pg_config(beside) if beside.is_file() else None


def _program_of(data_directory: Path) -> Path:
    """It runs, also where the file that it was started from has been replaced."""
    pid = (data_directory / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0]
    return Path(f"/proc/{int(pid)}/exe")


def _minor_fault(
    config: PgConfig, data_directory: Path | None, server: ServerSettings | None
) -> str | None:
    running = None if server is None else server.version
    data_directory = data_directory or (None if server is None else server.data_directory)
    if running is None and data_directory is not None:
        with suppress(OSError, ValueError):
            running = version_of(_program_of(data_directory))
    return minor_fault(
        config.major,
        running=running,
        installed=version_of(config.bin_dir / "postgres"),
        headers=headers_version(config),
    )


def _of_major(major: int) -> PgConfig:
    for found in _installed(major):
        if found.major == major:
            return found
    raise ServerNotFound(
        f"no pg_config of Postgres {major} was found: install postgresql-server-dev-{major} "
        f"(RPM: postgresql{major}-devel), or name it by --pg-config"
    )


def _the_only_one() -> PgConfig:
    found = {one.bin_dir: one for major in KNOWN_MAJORS for one in _installed(major)}
    if len(found) == 1:
        return next(iter(found.values()))
    here = ", ".join(f"{one.path} ({one.version})" for one in found.values()) or "none"
    raise ServerNotFound(
        "which Postgres is meant? Name it by --pg-config, --data-directory or --server; "
        f"pg_config found here: {here}"
    )


def _installed(major: int) -> Iterator[PgConfig]:
    places = [Path(place.format(major=major)) for place in PLACES]
    if on_path := shutil.which("pg_config"):
        places.append(Path(on_path))
    for place in places:
        if place.is_file():
            try:
                yield read_pg_config(place)
            except BuildFailed:
                continue  # Debian's wrapper, where the package behind it is not installed


# --- status --------------------------------------------------------------------------------------

# What is published, what is in force, and what is wrong, of one server, as a document.

FULL = 0.8
"""Of its capacity or its workers: a budget that has reached this is worth a look."""
RECENT_S = 300.0
MAX_TROUBLED = 100
Document = dict[str, Any]


def status_of(directory: Path, clock: Clock) -> Document:
    """MeterFailed where the server's memory cannot be read."""
    meter = RegionMeter(directory)
    server, readings = meter.read_now()
    published = _published(directory)
    wall_s = clock.now().wall_s
    in_force = _in_force(readings, off=meter.off)
    return {
        "directory": str(directory),
        "source": "region",
        "server": {
            "pid": server.pid,
            "version_num": server.server_version_num,
            "extension": server.extension,
            "max_connections": server.max_connections,
            "cpus": server.cpus_milli / 1000,
            "started_s_ago": wall_s - readings.started_ms / 1000,
        },
        "published": published,
        "in_force": in_force,
        "health": _health(readings, wall_s),
        "backends": [
            {"pid": s.pid, "version": s.version, "checksum": f"{s.checksum:08x}"}
            for s in readings.seats
        ],
        "budgets": in_trouble(_budget(name, readings, wall_s) for name in readings.budgets),
        "problems": list(problems_of(published, in_force)),
    }


def _published(directory: Path) -> Document | None:
    """The file as it lies there; None if there is none."""
    path = directory / files.POLICY_FILE
    try:
        with files.opened(directory) as folder:
            body = folder.read(files.POLICY_FILE, MAX_POLICY_BYTES)
        if body is None:
            return None
        return _described(read_compiled(body, str(path)), path)
    except (InvalidSettings, PolicyRejected) as error:
        return {"fault": str(error)}


def _described(found: CompiledPolicy, path: Path) -> Document:
    return {
        "version": found.version,
        "checksum": found.checksum,
        "off": found.off,
        "bytes": found.length,
        "budgets": len(found.policy.budgets),
        "enforced": sum(b.mode is Mode.ENFORCE for b in found.policy.budgets),
        "rules": found.rules,
        "file": str(path),
    }


def _in_force(readings: BudgetReadings, *, off: bool) -> Document:
    return {
        "version": readings.version,
        "checksum": f"{readings.checksum:08x}",
        "enabled": readings.enabled,
        "off": off,
        "since_ms": readings.published_ms,
        "rejected": readings.rejected,
        "rejection": readings.rejection,
    }


def _health(readings: BudgetReadings, wall_s: float) -> Document:
    left_s = readings.health_until_ms / 1000 - wall_s
    known = readings.health is not ServerHealth.UNKNOWN and left_s > 0
    told = readings.health if known else ServerHealth.UNKNOWN
    return {"state": told.value, "until_s": max(left_s, 0) if known else None}


def in_trouble(rows: Iterable[Document]) -> list[Document]:
    """Those of the budgets that are full, hold sessions back, or were violated lately."""
    chosen = [row for row in rows if row["trouble"]]
    chosen.sort(key=lambda row: (-(row["fill"] or 0), -row["blocked"], row["budget"]))
    return chosen[:MAX_TROUBLED]


def _budget(name: str, readings: BudgetReadings, wall_s: float) -> Document:
    counts = readings.budgets[name]
    buckets = [bucket for bucket in readings.buckets if bucket.budget == name]
    fullest = max(buckets, key=lambda bucket: bucket.fill or 0, default=None)
    since = wall_s - counts.last_violation_ms / 1000 if counts.last_violation_ms else None
    row: Document = {
        "budget": name,
        "fill": None if fullest is None else fullest.fill,
        "bucket": "" if fullest is None else fullest.label,
        "running": sum(bucket.running for bucket in buckets),
        "sleeping": counts.sleeping,
        "admitted": counts.admitted,
        "warned": sum(counts.warned.values()),
        "blocked": sum(counts.blocked.values()),
        "delayed": counts.delayed,
        "last_violation_s_ago": since,
    }
    full = any(
        bucket.max_workers is not None and bucket.running >= bucket.max_workers > 0
        for bucket in buckets
    )
    row["trouble"] = list(troubles(row, full=full))
    return row


def troubles(row: Mapping[str, Any], *, full: bool) -> Iterator[str]:
    if (row["fill"] or 0) >= FULL:
        yield f"its bucket is {row['fill']:.0%} full"
    if full:
        yield "all its workers are in use"
    if row["sleeping"]:
        yield f"{row['sleeping']} sessions are delayed by a budget"
    if row["last_violation_s_ago"] is not None and row["last_violation_s_ago"] < RECENT_S:
        yield "violated in the last five minutes"


def problems_of(published: Mapping[str, Any] | None, in_force: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it should be. A budget that blocks is at work, and none of these."""
    if published is not None and "fault" in published:
        yield (
            f"the published file cannot be used: {published['fault']}; version "
            f"{in_force['version']} stays in force"
        )
    elif published is not None and published["version"] > in_force["version"]:
        yield _not_taken(published, in_force)
    elif published is not None and _differs(published, in_force):
        yield (
            f"version {in_force['version']} is in force with checksum {in_force['checksum']}, "
            f"and the file has version {published['version']} with {published['checksum']}: "
            "publish again"
        )
    if not in_force["enabled"]:
        yield "pg_headgate.enabled is off: budgets have no effect, whatever is published"


def _not_taken(published: Mapping[str, Any], in_force: Mapping[str, Any]) -> str:
    still = f"version {in_force['version']} is in force" if in_force["version"] else "none is"
    if in_force["rejection"]:
        return (
            f"version {published['version']} is published, but {still}; the last policy that "
            f"the server did not take: {in_force['rejection']}"
        )
    return (
        f"version {published['version']} is published, but {still}: the server takes it with the "
        "next statement of any session"
    )


def _differs(published: Mapping[str, Any], in_force: Mapping[str, Any]) -> bool:
    return (published["version"], published["checksum"]) != (
        in_force["version"],
        in_force["checksum"],
    )
