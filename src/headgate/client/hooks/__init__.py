"""Ready hooks for `on_event`: what happens to a client, in the words of the tool that watches it.

    headgate.Client("etl:nightly", database="main", on_event=hooks.prometheus())

`prometheus` and `opentelemetry` need their libraries when called, and not before.
"""

from headgate.client.hooks.logs import logging
from headgate.client.hooks.otel import opentelemetry
from headgate.client.hooks.prom import prometheus

__all__ = ["logging", "opentelemetry", "prometheus"]
