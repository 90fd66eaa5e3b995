"""A purge with psycopg: every transaction waits until admitted; application_name is its identity.

PGHOST=… PGDATABASE=… HEADGATE_URL=http://127.0.0.1:8087 python examples/psycopg_purge.py
"""

from __future__ import annotations

import headgate
from headgate.integrations.psycopg import connection_class

PURGE = "DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE total < %s LIMIT 500)"


def main() -> None:
    with headgate.Client("orders:purge", database="main", max_wait_s=600) as gate:
        throttled = connection_class(gate, tags={"app": gate.app})
        with throttled.connect(autocommit=True) as connection:
            while connection.execute(PURGE, [6]).rowcount:  # checks before each statement
                pass


if __name__ == "__main__":
    main()
