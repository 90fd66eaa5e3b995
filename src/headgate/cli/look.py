"""Commands that only read: status, rejections, audit, metrics, clients, starvation."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.options import (
    AgentOptions,
    AnyClient,
    AnyDatabase,
    DatabaseArgument,
    MetricArgument,
)

Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")]


def status(agent: AgentOptions) -> None:
    """Show databases, metrics, clients, the store, and advice."""
    from headgate.check.api import StatusDoc
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import status_page

    answered = agent.connect().get("/v1/status")
    show(
        answered,
        agent.as_json,
        lambda canvas: status_page(read(StatusDoc, answered.document), canvas),
    )


def rejections(
    app: AnyClient = None,
    limit: Limit = 100,
    *,
    agent: AgentOptions,
) -> None:
    """Show recent rejections in full, newest first."""
    from headgate.check.api import RejectionsDoc
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import rejections_page

    answered = agent.connect().get("/v1/rejections", limit=str(limit), app=app)
    show(
        answered,
        agent.as_json,
        lambda _: rejections_page(read(RejectionsDoc, answered.document).rejections),
    )


def audit(limit: Limit = 100, *, agent: AgentOptions) -> None:
    """Show who changed what, newest first."""
    from headgate.check.api import AuditsDoc
    from headgate.cli.output import show_view
    from headgate.present.changes import audit_view

    answered = agent.connect().get("/v1/audit", limit=str(limit))
    show_view(answered, agent.as_json, AuditsDoc, audit_view)


def list_metrics(database: AnyDatabase = None, *, agent: AgentOptions) -> None:
    """List metrics with values, thresholds and origins."""
    from headgate.check.api import MetricsDoc
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import metrics_page

    answered = agent.connect().get("/v1/metrics", database=database)
    show(
        answered,
        agent.as_json,
        lambda canvas: metrics_page(read(MetricsDoc, answered.document), canvas),
    )


def show_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    *,
    agent: AgentOptions,
) -> None:
    """Show a metric's reading, settings and timing."""
    from headgate.check.api import MetricView
    from headgate.cli.api import metric_path
    from headgate.cli.documents import read
    from headgate.cli.output import show
    from headgate.cli.pages import metric_page

    answered = agent.connect().get(metric_path(database, metric))
    show(
        answered,
        agent.as_json,
        lambda canvas: metric_page(read(MetricView, answered.document), canvas),
    )


# --- clients -------------------------------------------------------------------------------------

# Commands about clients: clients, with --rogue rogue clients, and starvation.

Rogue = Annotated[
    bool,
    typer.Option("--rogue", help="Rogue clients instead: at work in a database, and never check."),
]


def clients(rogue: Rogue = False, *, agent: AgentOptions) -> None:
    """List clients that checked lately: which are throttled, and by what."""
    from headgate.check.api import ClientsDoc
    from headgate.cli.documents import read
    from headgate.cli.output import show, show_view
    from headgate.cli.pages import clients_page
    from headgate.history.api import RoguesDoc
    from headgate.present.starvation import rogues_view

    api = agent.connect()
    if rogue:
        show_view(api.get("/v1/rogues"), agent.as_json, RoguesDoc, rogues_view)
        return
    listed = api.get("/v1/clients")
    show(
        listed,
        agent.as_json,
        lambda canvas: clients_page(read(ClientsDoc, listed.document).clients, canvas),
    )


def starvation(agent: AgentOptions) -> None:
    """Show starved clients: rejected by metrics for long while others progress, and why."""
    from headgate.cli.output import show_view
    from headgate.history.api import StarvationDoc
    from headgate.present.starvation import starvation_view

    answered = agent.connect().get("/v1/starvation")
    show_view(answered, agent.as_json, StarvationDoc, lambda found: starvation_view(found.starved))
