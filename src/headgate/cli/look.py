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
    from headgate.cli.output import show_drawn
    from headgate.cli.pages import status_page

    answered = agent.connect().get("/v1/status")
    show_drawn(answered, agent.as_json, StatusDoc, status_page)


def rejections(
    app: AnyClient = None,
    limit: Limit = 100,
    *,
    agent: AgentOptions,
) -> None:
    """Show recent rejections in full, newest first."""
    answered = agent.connect().get("/v1/rejections", limit=str(limit), app=app)
    agent.show(answered, "history.rejections_view")


def audit(limit: Limit = 100, *, agent: AgentOptions) -> None:
    """Show who changed what, newest first."""
    answered = agent.connect().get("/v1/audit", limit=str(limit))
    agent.show(answered, "changes.audit_view")


def list_metrics(database: AnyDatabase = None, *, agent: AgentOptions) -> None:
    """List metrics with values, thresholds and origins."""
    agent.show(agent.connect().get("/v1/metrics", database=database), "metrics.metrics_view")


def show_metric(
    database: DatabaseArgument,
    metric: MetricArgument,
    *,
    agent: AgentOptions,
) -> None:
    """Show a metric's reading, settings and timing."""
    from headgate.cli.api import metric_path

    agent.show(agent.connect().get(metric_path(database, metric)), "metrics.metric_view")


# --- clients -------------------------------------------------------------------------------------

# Commands about clients: clients, with --rogue rogue clients, and starvation.

Rogue = Annotated[
    bool,
    typer.Option("--rogue", help="Rogue clients instead: at work in a database, and never check."),
]


def clients(rogue: Rogue = False, *, agent: AgentOptions) -> None:
    """List clients that checked lately: which are throttled, and by what."""
    api = agent.connect()
    if rogue:
        agent.show(api.get("/v1/rogues"), "starvation.rogues_view")
    else:
        agent.show(api.get("/v1/clients"), "clients.clients_view")


def starvation(agent: AgentOptions) -> None:
    """Show starved clients: rejected by metrics for long while others progress, and why."""
    answered = agent.connect().get("/v1/starvation")
    agent.show(answered, "starvation.starvation_view")
