"""env.py of an Alembic environment whose migrations wait until the database has room.

HEADGATE_URL=http://127.0.0.1:8087 alembic upgrade head
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool

import headgate
from headgate.integrations.alembic import throttle

APP = "schema:alembic"


def run_online() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    engine = create_engine(url or "", poolclass=pool.NullPool)
    with headgate.Client(APP, database="main", max_wait_s=1800) as gate:
        throttle(engine, gate, tags={"app": gate.app})
        # For migrations that work in batches: op.get_context().config.attributes["gate"]
        context.config.attributes["gate"] = gate
        with engine.connect() as connection:
            # One transaction for each migration, and each checks before it begins.
            context.configure(connection=connection, transaction_per_migration=True)
            with context.begin_transaction():
                context.run_migrations()


def run_offline() -> None:
    context.configure(url=context.config.get_main_option("sqlalchemy.url"), literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
