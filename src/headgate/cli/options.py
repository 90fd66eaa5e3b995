"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from headgate.cli import completing

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_URL",
        show_default=False,
        metavar="URL",
        help="The agent: http://host:port, https://host:port or unix:///path. Default: the "
        "Unix socket of an agent on this host, else http://127.0.0.1:8087.",
    ),
]
Token: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_TOKEN",
        show_default=False,
        metavar="TOKEN",
        help="Token of an operator; changes over TCP need one. Others on this host can see "
        "arguments, so prefer the environment.",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the agent's document as it came, for programs.")
]
App: TypeAlias = Annotated[
    str,
    typer.Option(
        "--as",
        envvar="HEADGATE_APP",
        metavar="NAME",
        autocompletion=completing.clients,
        help="The client's name: levels joined by colons, such as etl:nightly.",
    ),
]
Database: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="HEADGATE_DATABASE",
        metavar="NAME",
        autocompletion=completing.databases,
        help="The database to be worked on.",
    ),
]
Metrics: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_METRICS",
        metavar="M1,M2",
        show_default=False,
        help="Metrics to go by, instead of the database's default set.",
    ),
]
Scope: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_SCOPE",
        metavar="host|shard",
        show_default=False,
        help="Whose metrics: of the agent's own server, or of its whole shard. Default: each "
        "metric's own.",
    ),
]
DatabaseArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="DATABASE", autocompletion=completing.databases)
]
MetricArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="METRIC", autocompletion=completing.metrics)
]
MemberArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MEMBER", autocompletion=completing.members)
]
DryRun: TypeAlias = Annotated[
    bool,
    typer.Option("--dry-run", help="Validate and probe once, and change nothing."),
]
