"""What the shell of a demo's user says about other servers and agents, and is none of its own."""

from __future__ import annotations

import os

# libpq and the drivers of MySQL read theirs, our agents and commands theirs; the rest is what a
# service manager says to a service, and the settings of trace exporters.
PREFIXES = ("PG", "MYSQL_", "MARIADB_", "HEADGATE_", "OTEL_", "LISTEN_", "WATCHDOG_", "NOTIFY_")


def forget_others() -> None:
    """PGSSLMODE or PGSERVICE would keep us from our servers, HEADGATE_LISTEN would be the address
    of all three agents. What we start inherits that they are gone."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:  # noqa: TID251
        del os.environ[name]  # noqa: TID251
