"""Tasks that go back to the broker while they are rejected, so that the worker is free.

HEADGATE_URL=http://127.0.0.1:8087 celery -A celery_tasks worker
"""

from __future__ import annotations

from celery import Celery

from headgate.integrations.celery import ThrottledTask

app = Celery("shop", broker="memory://")


@app.task(
    base=ThrottledTask,
    name="orders.purge",
    expires=3600,  # rejected for an hour: given up
    headgate_app="nightly",  # checks as orders.purge:nightly
    headgate={"database": "main", "on_unavailable": "closed"},
)
def purge(first_id: int) -> int:
    return first_id + 500
