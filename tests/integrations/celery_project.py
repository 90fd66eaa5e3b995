"""A Celery application in one file, whose broker and results are in memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed")

from celery import Celery

from headgate.integrations.celery import ThrottledTask

app = Celery("shop")
app.conf.update(
    broker_url="memory://",
    broker_transport_options={"polling_interval": 0.01},
    worker_timer_precision=0.02,
    result_backend="cache+memory://",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(base=ThrottledTask, name="shop.purge", bind=True, max_retries=1, headgate_app="nightly")  # type: ignore[untyped-decorator] # Celery has no types
def purge(self: Any, number: int) -> str:
    return f"{number} after {self.request.retries} retries"


@app.task(base=ThrottledTask, name="shop.flaky", bind=True, max_retries=1)  # type: ignore[untyped-decorator] # likewise
def flaky(self: Any) -> str:
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return f"done after {self.request.retries} retries"
