"""Fill a new column of a large table, a chunk at a time, while the database stays healthy.

    PGHOST=… PGDATABASE=… HEADGATE_URL=http://127.0.0.1:8087 python examples/backfill.py

Reads its target from libpq's own variables (PGHOST, PGUSER …). Interrupt it at will: each
chunk is a transaction, and a second run takes up what is left.
"""

from __future__ import annotations

import psycopg

import headgate

UNFILLED = "SELECT id FROM orders WHERE total_cents IS NULL ORDER BY id"
FILL = "UPDATE orders SET total_cents = round(total * 100) WHERE id = ANY(%s)"


def main() -> None:
    with (
        psycopg.connect(autocommit=True) as connection,
        headgate.Client("orders-total:backfill", database="main", max_wait_s=600) as gate,
    ):
        ids = [row[0] for row in connection.execute(UNFILLED)]
        for chunk in gate.chunks(ids, size=500):
            connection.execute(FILL, [chunk])


if __name__ == "__main__":
    main()
