"""Traces of one agent, put together from its settings.   [tracing] ──► collector ──► tracer

OpenTelemetry is loaded here and nowhere else, and only where the settings have that section.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headgate.base.clock import Dice
from headgate.base.ports import Clock
from headgate.client.tls import Trust
from headgate.errors import Fault, InvalidSettings
from headgate.settings.agent import Settings
from headgate.settings.tracing import TracingSettings
from headgate.version import VERSION

if TYPE_CHECKING:
    from headgate.tracing.spans import OtelTracer

_NEEDED = "needs OpenTelemetry, which is not installed: pip install 'headgate[otel]'"


def check_tracing(settings: Settings) -> None:
    """What only building it can tell, as InvalidSettings; connects to nothing."""
    if settings.tracing is not None:
        _library()
        settings.tracing.headers()
        _trust(settings.tracing)


def assemble(settings: Settings, clock: Clock) -> OtelTracer | None:
    tracing = settings.tracing
    if tracing is None:
        return None
    _library()
    from headgate.tracing.outbox import Collector, Outbox
    from headgate.tracing.spans import OtelTracer, Shares, TraceResource, encoded, rejected

    collector = Collector(
        tracing.endpoint,
        rejected,
        headers=tracing.headers(),
        trust=_trust(tracing),
        timeout_s=tracing.timeout_s,
    )
    return OtelTracer(
        Outbox(encoded, collector, tracing.max_waiting),
        TraceResource(tracing.service_name, settings.agent.name, VERSION),
        Shares(tracing.ratio, tracing.background_ratio),
        roll=Dice().roll,  # Of its own: what is traced must not change what is decided.
        mono_s=lambda: clock.now().mono_s,
    )


def _library() -> None:
    try:
        import headgate.tracing.spans  # noqa: F401 -- whether it can be
    except ImportError as error:
        if not (error.name or "").startswith(("opentelemetry", "google")):
            raise
        raise InvalidSettings([Fault("tracing", _NEEDED)]) from None


def _trust(tracing: TracingSettings) -> Trust | None:
    parts = urlsplit(tracing.endpoint)
    if parts.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=tracing.ca)
        if tracing.cert is not None and tracing.key is not None:
            context.load_cert_chain(tracing.cert, tracing.key)
    except OSError as error:
        message = f"ca, cert or key cannot be used: {error.strerror or error}"
        raise InvalidSettings([Fault("tracing.ca", message)]) from None
    return Trust(context, parts.hostname or "")
