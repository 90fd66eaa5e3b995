"""Commands that look: status, refusals, audit, metrics list and show."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.options import AsJson, DatabaseArgument, MetricArgument, Token, Url

AnyDatabase = Annotated[
    str | None, typer.Argument(metavar="DATABASE", show_default=False, help="Default: all.")
]
AnyApp = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", show_default=False, help="One client, or one level of its name (etl)."
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")]


def status(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show databases, metrics, clients, the store, and advice."""
    from headgate.cli.api import connect
    from headgate.cli.documents import Status, read
    from headgate.cli.output import show
    from headgate.cli.render import status_page

    answered = connect(url, token).get("/v1/status")
    show(answered, as_json, lambda canvas: status_page(read(Status, answered.document), canvas))


def refusals(
    app: AnyApp = None,
    limit: Limit = 100,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show recent refusals in full, newest first."""
    from headgate.cli.api import connect
    from headgate.cli.documents import Refusal, read_list
    from headgate.cli.output import show
    from headgate.cli.pages import refusals_page

    answered = connect(url, token).get("/v1/refusals", limit=str(limit), app=app)
    show(
        answered,
        as_json,
        lambda _: refusals_page(read_list(Refusal, answered.document, "refusals")),
    )


def audit(
    limit: Limit = 100, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Show who changed what, newest first."""
    from headgate.cli.api import connect
    from headgate.cli.documents import AuditEntry, read_list
    from headgate.cli.output import show
    from headgate.cli.pages import audit_page

    answered = connect(url, token).get("/v1/audit", limit=str(limit))
    show(
        answered,
        as_json,
        lambda canvas: audit_page(read_list(AuditEntry, answered.document, "audit"), canvas),
    )


def list_metrics(
    database: AnyDatabase = None, url: Url = None, token: Token = None, as_json: AsJson = False
) -> None:
    """List metrics with values, thresholds and origins."""
    from headgate.cli.api import connect
    from headgate.cli.documents import MetricView, read_list
    from headgate.cli.output import show
    from headgate.cli.pages import metrics_page

    answered = connect(url, token).get("/v1/metrics", database=database)
    told = answered.document
    refused = [line for line in told.get("refused") or () if isinstance(line, str)]
    show(
        answered,
        as_json,
        lambda canvas: metrics_page(read_list(MetricView, told, "metrics"), canvas, refused),
    )


def show_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show a metric's reading, settings and timing."""
    from headgate.cli.api import connect, metric_path
    from headgate.cli.documents import MetricView, read
    from headgate.cli.output import show
    from headgate.cli.pages import metric_page

    answered = connect(url, token).get(metric_path(database, metric))
    show(answered, as_json, lambda canvas: metric_page(read(MetricView, answered.document), canvas))
