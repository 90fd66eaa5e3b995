"""Events as Prometheus series."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from headgate.client import events
from headgate.client.hooks.measures import INSTRUMENTS, Instrument, measures_of, needed

# A wait is over at once or takes minutes; the default buckets end at ten seconds.
BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


def prometheus(registry: Any = None) -> Callable[[events.Event], None]:
    """Counts in `registry`, by default that of prometheus-client; several clients may share it."""
    library = needed("prometheus_client", "prometheus-client", "prometheus")
    series = _series(library.REGISTRY if registry is None else registry)

    def hook(event: events.Event) -> None:
        for measure in measures_of(event):
            kind, one = INSTRUMENTS[measure.name].kind, series[measure.name]
            chosen = one.labels(*measure.labels)
            if kind == "counter":
                chosen.inc(measure.value)
            elif kind == "gauge":
                chosen.set(measure.value)
            else:
                chosen.observe(measure.value)

    return hook


@cache
def _series(registry: Any) -> dict[str, Any]:
    """Once for each registry: a registry does not accept the same name twice."""
    return {name: _made(name, row, registry) for name, row in INSTRUMENTS.items()}


def _made(name: str, row: Instrument, registry: Any) -> Any:
    library = needed("prometheus_client", "prometheus-client", "prometheus")
    if row.kind == "histogram":
        return library.Histogram(name, row.about, row.labels, registry=registry, buckets=BUCKETS)
    made = library.Counter if row.kind == "counter" else library.Gauge
    return made(name, row.about, row.labels, registry=registry)
