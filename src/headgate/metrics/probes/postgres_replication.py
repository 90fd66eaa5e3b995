"""Where a Postgres standby gets its log from, and what a role may see of that."""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headgate.metrics.probes.postgres_session import PostgresSession

# The setting holds a password, so that not every role may see it.
PRIMARY_CONNINFO = """
CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
     THEN current_setting('primary_conninfo', true) END
"""


def upstream_of(host: str | None, port: int | None, conninfo: str | None) -> str:
    """host:port of the receiver's sender, else what is set; nothing else of the setting."""
    if host:
        return f"{host}:{port or 5432}"
    return _address_in(conninfo or "")


def _address_in(conninfo: str) -> str:
    # libpq quotes the part it cannot read, which may be the password.
    with suppress(psycopg.Error):
        params = conninfo_to_dict(conninfo)
        host = str(params.get("host") or params.get("hostaddr") or "")
        # Of several hosts, which one it is going to be nobody knows.
        if host and "," not in host:
            return f"{host}:{params.get('port') or 5432}"
    return ""


def may_not_see(session: PostgresSession, view: str) -> str:
    return (
        f"role {session.user} may not see other sessions in {view}, and what it cannot see is "
        f"not 0: GRANT pg_monitor TO {session.user}"
    )
