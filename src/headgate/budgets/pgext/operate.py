"""What `headgate pg` does on a server's host.   cli ──► Extension ──► files, region, make

Each returns a document: what a program gets by --json, and what the page for people is made of.
"""

from __future__ import annotations

import json
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.base.clock import SystemClock
from headgate.base.places import with_lines
from headgate.budgets.lint import advise
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext import directory as files
from headgate.budgets.pgext.build import EXTENSION, build_extension, install_built
from headgate.budgets.pgext.directory import ServerFile
from headgate.budgets.pgext.locate import ServerSettings, ask_server, find_pg_config, session_with
from headgate.budgets.pgext.meter import Force, force_in
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.pgext.status import Document, in_trouble, problems_of, status_of, troubles
from headgate.budgets.policy import Policy
from headgate.budgets.readings import Published
from headgate.errors import Fault, HeadgateError, InvalidSettings, MeterFailed, PolicyRefused
from headgate.metrics.lint import Advice, Severity

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
        with tempfile.TemporaryDirectory(prefix="headgate-build-") as work:
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
    """Until the server has taken it, for `within_s` at most; PolicyRefused if it does not."""
    while True:
        now = _force(directory)
        took_ms = (time.monotonic() - began_s) * 1000
        if isinstance(now, str):
            return PublishOutcome("not seen", None, now)
        if now.version >= published.version:
            return PublishOutcome("in force", took_ms)
        if isinstance(before, Force) and now.refused > before.refused:
            raise PolicyRefused(
                f"the server rejected version {published.version}: {now.refusal}; version "
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
        raise PolicyRefused(
            "switched off, but no backend has noticed yet, so the files stay: run it again with "
            "--purge once a statement has run"
        )
    with files.opened(directory) as folder:
        # Else an agent that did not know would put its policy back, and in force.
        folder.replace(files.OFF_FILE, b"")
        return [name for name in (files.POLICY_FILE, files.HEALTH_FILE) if folder.remove(name)]


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
        "refused": status["refused_policies"],
        "refusal": status["last_refusal"] or "",
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
