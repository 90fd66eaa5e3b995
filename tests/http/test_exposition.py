"""Prometheus text: parses, and stays bounded whatever clients call themselves."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.http.exposition import SERIES
from tests.http.conftest import Serve
from tests.http.serving import Plan, Served
from tests.http.talk import get
from tests.http.test_checks import CHECK

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(served: Served) -> Samples:
    reply = served.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


def test_it_parses_and_every_series_is_there(serve: Serve) -> None:
    served = serve(Plan())
    served.ask("GET", CHECK)
    samples = scraped(served)
    names = {name for name, _ in samples}
    expected = {series.name for series in SERIES} - {"headgate_heartbeats_total"}
    assert expected <= names
    assert value(samples, "headgate_metric_value", database="main", metric="lag") == 0.25
    assert value(samples, "headgate_metric_threshold", database="main", metric="lag") == 5
    assert value(samples, "headgate_database_admitting", database="main") == 1
    assert value(samples, "headgate_store_writable") == 1


def test_counts_are_exact_by_verdict_and_metric(serve: Serve) -> None:
    served = serve(Plan())
    with served.talk() as talk:
        for _ in range(7):
            talk.ask("GET", CHECK)
        served.measure(lag=7.0)
        for _ in range(5):
            talk.ask("GET", CHECK)
    samples = scraped(served)
    labels = {"database": "main", "client": "etl:nightly"}
    checks = "headgate_checks_total"
    assert value(samples, checks, verdict="OK", metric="", **labels) == 7
    assert value(samples, checks, verdict="THRESHOLD_EXCEEDED", metric="lag", **labels) == 5


def test_an_absent_metric_has_no_value(served: Served) -> None:
    """Misleading zero, and its twin, the frozen value."""
    served.lose("lag")
    samples = scraped(served)
    place = {"database": "main", "metric": "lag"}
    assert value(samples, "headgate_metric_value", **place) is None
    assert value(samples, "headgate_metric_healthy", **place) == 0
    assert value(samples, "headgate_database_admitting", database="main") == 0


@pytest.mark.parametrize(
    ("target", "count"),
    [("/v1/check?app=c{}:x&database=main", 10_000), ("/check/c{}/mysql/d{}", 1000)],
    ids=["client", "database"],
)
def test_made_up_names_do_not_fill_the_memory(serve: Serve, target: str, count: int) -> None:
    """R135: bounded series, exact sums."""
    served = serve(Plan(max_clients=100))
    asked = [get(target.format(number, number)) for number in range(count - 1)]
    with served.talk() as talk:
        last = get(target.format("z", "z"), Connection="close")
        answers = talk.all_at_once(b"".join([*asked, last]))
    assert answers.count(b"HTTP/1.1 ") == count
    checks = {
        labels: total
        for (name, labels), total in scraped(served).items()
        if name == "headgate_checks_total"
    }
    assert sum(checks.values()) == count
    assert len(checks) <= 100 + 5
    assert len({dict(labels)["database"] for labels in checks}) <= 2
    assert len(served.ask("GET", "/v1/clients").json["clients"]) <= 100 + 5


@pytest.mark.parametrize("app", ["%C3%BC", "a%25b", "a=b"])
def test_labels_are_escaped(served: Served, app: str) -> None:
    name = served.ask("GET", f"/v1/check?app={app}&database=main").json["app"]
    clients = {
        dict(labels)["client"]
        for (series, labels) in scraped(served)
        if series == "headgate_checks_total"
    }
    assert name in clients
