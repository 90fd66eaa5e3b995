"""Events as OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.client import events
from headgate.client.hooks.measures import INSTRUMENTS, Instrument, measures_of, needed


def opentelemetry(meter: Any = None) -> Callable[[events.Event], None]:
    """By `meter`, by default the global provider's. Names have dots: `headgate.client.asked`."""
    if meter is None:
        library = needed("opentelemetry.metrics", "opentelemetry-api", "opentelemetry")
        meter = library.get_meter("headgate.client")
    series = {name: _made(name, row, meter) for name, row in INSTRUMENTS.items()}

    def hook(event: events.Event) -> None:
        for measure in measures_of(event):
            row, one = INSTRUMENTS[measure.name], series[measure.name]
            attributes = dict(zip(row.labels, measure.labels, strict=True))
            if row.kind == "counter":
                one.add(measure.value, attributes)
            elif row.kind == "gauge":
                one.set(measure.value, attributes)
            else:
                one.record(measure.value, attributes)

    return hook


def _made(name: str, row: Instrument, meter: Any) -> Any:
    dotted = name.replace("headgate_client_", "headgate.client.").removesuffix("_seconds")
    if row.kind == "histogram":
        return meter.create_histogram(dotted, unit="s", description=row.about)
    made = meter.create_counter if row.kind == "counter" else meter.create_gauge
    return made(dotted, description=row.about)
