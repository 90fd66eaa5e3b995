"""The first settings file: what `headgate init` found on a server, as commented TOML.

commands.discover ──► Discovery ──► starter_text ──► headgate.toml
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal, NamedTuple

from headgate.base.units import amount_text
from headgate.metrics.advice import MetricLook
from headgate.metrics.builtins import BUILTINS, BuiltinMetric
from headgate.metrics.model import Engine

SUGGESTED = (
    "lag",
    "threads_running",
    "commit_delay",
    "pool_usage",
    "longest_lock_wait",
    "disk_used",
    "archive_backlog",
    "history_list_length",
    "flow_control",
)
"""What every database wants, where the server can measure it. The others depend on how a server
is used (an open transaction of an hour may be normal), so their lines are there as comments."""
OFFERED_ANYWHERE = ("lock_waits", "oldest_transaction")
OFFERED = (*OFFERED_ANYWHERE, "loadavg", "psi_io", "psi_cpu", "psi_memory")
"""Where the server is on the agent's host."""

SERVICES = (
    ("aurora", "Amazon Aurora"),
    ("rds", "Amazon RDS"),
    ("alloydb", "Google AlloyDB"),
    ("cloudsql", "Google Cloud SQL"),
    ("google", "Google Cloud SQL"),
    ("azure", "Azure Database"),
)
MYSQL_RIGHTS = (
    ("process", ("PROCESS",)),
    ("replication client", ("REPLICATION CLIENT", "BINLOG MONITOR")),
)
# As servers and drivers word it; a host that does not answer, or another database, is neither.
LOGIN_REJECTED = re.compile(
    r"password|authentication|pg_hba|role .* does not exist|Access denied for user"
)
SCHEMA_REJECTED = re.compile(r"Access denied for user .* to database|Unknown database")
MARIADB_RIGHTS = (*MYSQL_RIGHTS, ("slave monitor", ("SLAVE MONITOR", "REPLICA MONITOR")))


@dataclass(frozen=True, slots=True)
class Discovery:
    """One server, as a role sees it."""

    engine: Engine
    where: str
    """`127.0.0.1:5432/app`."""
    facts: Mapping[str, str]
    looks: Sequence[MetricLook]
    is_replica: bool | None = None
    """None: this role may not see it."""
    replicas: int = 0
    """That replicate from it now, as far as this role sees them."""

    @property
    def is_postgres(self) -> bool:
        return self.engine is Engine.POSTGRES

    @property
    def flavor(self) -> str:
        if self.engine is Engine.POSTGRES:
            return "Postgres"
        return "MariaDB" if "mariadb" in self.facts["version"].lower() else "MySQL"

    @property
    def server(self) -> str:
        """`Postgres 15.4`, `MariaDB 10.11.6`."""
        found = re.search(r"\d+(\.\d+)+|\d+", self.facts["version"])
        return f"{self.flavor} {found[0]}" if found else self.flavor

    @property
    def service(self) -> str:
        """The managed service that runs it; empty: none that is known here."""
        told = self.facts.get("service", "").lower()
        return next((name for mark, name in SERVICES if mark in told), "")

    @property
    def role(self) -> str:
        if self.is_replica is None:
            return "primary or replica: not visible to this role"
        if self.is_replica:
            return "a replica"
        if not self.replicas:  # Without the right to see them, there may be some.
            return f"a primary{', no replica connected' * (not self.missing_grants())}"
        return f"a primary, {self.replicas} replica{'s' * (self.replicas > 1)} connected"

    @property
    def heartbeat_table(self) -> str:
        """Empty: there is none that this role can see."""
        return self.facts.get("heartbeat_table", "")

    def missing_grants(self) -> list[str]:
        """SQL for an administrator."""
        user = self.facts.get("user", "headgate")
        if self.engine is Engine.POSTGRES:
            if self.facts.get("may_monitor") == "true":
                return []
            return [f"grant pg_monitor to {_role(user)};"]
        held = {one.strip().upper() for one in self.facts.get("privileges", "").split(",")}
        rights = MARIADB_RIGHTS if self.flavor == "MariaDB" else MYSQL_RIGHTS
        lacking = [right for right, names in rights if not held & set(names)]
        name, _, host = user.rpartition("@")
        account = f"'{name}'@'{host}'"
        grants = [f"grant {', '.join(lacking)} on *.* to {account};"] if lacking else []
        if any(look.metric == "commit_delay" and look.cause == "failed" for look in self.looks):
            grants += [
                "create schema if not exists headgate;",
                f"grant all on headgate.* to {account};",
            ]
        return grants


class Diagnosis(NamedTuple):
    """One line of `headgate doctor`."""

    level: Literal["ok", "advice", "fault"]
    subject: str
    says: str


def is_here(host: str) -> bool:
    return host in ("", "localhost", "::1") or host.startswith("127.")


def role_sql(engine: Engine, user: str, host: str) -> Iterator[tuple[str, list[str]]]:
    """(server, statements): a role with what the agent reads, for an administrator to run."""
    if engine is Engine.POSTGRES:
        yield "Postgres", [f"create role {_role(user)} login password '…' in role pg_monitor;"]
        return
    account = f"'{user}'@'{host}'"
    for server, rights in (("MySQL", MYSQL_RIGHTS), ("MariaDB", MARIADB_RIGHTS)):
        yield (
            server,
            [
                f"create user {account} identified by '…';",
                f"grant {', '.join(right for right, _ in rights)} on *.* to {account};",
                "create schema headgate;",
                f"grant all on headgate.* to {account};",
            ],
        )


def _role(name: str) -> str:
    return (
        name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"{}"'.format(name.replace('"', '""'))
    )


# --- the file ----------------------------------------------------------------------------------


def starter_text(
    found: Discovery, *, database: str, dsn: str, password_file: str | None, folder: str = ""
) -> str:
    """A whole file that `headgate lint` has no fault in. `folder` is for an agent that is started
    elsewhere: empty, or a path that ends in a slash."""
    looks = {look.metric: look for look in found.looks}
    table = (
        f"databases.{database if re.fullmatch(r'[A-Za-z0-9_-]+', database) else _toml(database)}"
    )
    lines = [
        f"# {found.server}{f' ({found.service})' if found.service else ''}, {found.role}.",
        "# Written by headgate init from what the server answered. All settings have a page in the",
        "# docs: reference/settings. Validate a change with: headgate lint --connect THIS-FILE",
        "",
        "[agent]",
        "# Checks, the page and /metrics.",
        'listen = "127.0.0.1:8087"',
        "# For the command line: users who can open it are operators.",
        f"socket = {_toml(folder + 'headgate.sock')}",
        "# Changes, audit, history.",
        f"state = {_toml(folder + 'headgate.db')}",
        "",
        f"[{table}]",
        f'engine = "{found.engine.value}"',
        f"dsn = {_toml(dsn)}",
        *([f"password_file = {_toml(password_file)}"] if password_file else []),
        *_heartbeat(found),
    ]
    for name in SUGGESTED:
        if name in looks and looks[name].value is not None:
            lines += ["", *_metric(table, looks[name])]
    lines += ["", "# More that this server can measure; remove the # of those that you want."]
    for name in OFFERED:
        if name in looks and looks[name].value is not None:
            lines += ["#", *(f"# {one}" for one in _metric(table, looks[name]))]
    left = [look for look in found.looks if look.value is None]
    if left:
        lines += ["", "# Not measured here:"]
    for look in left:
        reason = f"{look.metric}: {look.detail}"
        lines += wrap(reason, 98, initial_indent="#   ", subsequent_indent="#     ")
    return "\n".join(lines) + "\n"


def _heartbeat(found: Discovery) -> list[str]:
    if found.engine is Engine.MYSQL and found.is_replica is False:
        return ["# heartbeat_interval_s = 1    # lag by a replicated row; 0 for none: howto/set-up"]
    return []


def _metric(table: str, look: MetricLook) -> list[str]:
    row: BuiltinMetric = BUILTINS[look.metric]
    limit = amount_text(row.threshold, row.unit)
    shown = f"{row.threshold * 100:g}%" if row.unit == "ratio" else limit
    threshold = _toml(shown) if isinstance(shown, str) else _number(shown)
    now = amount(look.value or 0.0, row.unit).replace(" ", "\N{NO-BREAK SPACE}")
    about = wrap(f"{row.about} Now {now}.", 98, initial_indent="# ", subsequent_indent="# ")
    return [
        *(one.replace("\N{NO-BREAK SPACE}", " ") for one in about),
        f"[{table}.metrics.{look.metric}]",
        f"threshold = {threshold}    # {row.why}",
    ]


def amount(value: float, unit: str) -> str:
    """`12 ms`, `3.2 s`, `40%`, `7 files`."""
    if unit == "ratio":
        return f"{value * 100:.3g}%"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.4g} s"
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
