"""A backfill with SQLAlchemy: every transaction waits until admitted, tagged with its identity.

    DATABASE_URL=postgresql+psycopg://… HEADGATE_URL=http://127.0.0.1:8087 \\
        python examples/sqlalchemy_backfill.py
"""

from __future__ import annotations

import os

from sqlalchemy import create_engine, text

import headgate
from headgate.integrations.sqlalchemy import throttle

FILL = text("""UPDATE orders SET total_cents = round(total * 100) WHERE id IN
    (SELECT id FROM orders WHERE total_cents IS NULL LIMIT 500)""")


def main() -> None:
    engine = create_engine(os.environ["DATABASE_URL"])  # noqa: TID251 -- a program's own setting
    with headgate.Client("orders:backfill", database="main", max_wait_s=600) as gate:
        throttle(engine, gate, tags={"app": gate.app})
        while True:
            with engine.begin() as connection:  # checks here, before the transaction begins
                if connection.execute(FILL).rowcount == 0:
                    break
    engine.dispose()


if __name__ == "__main__":
    main()
