"""The commands, put together. Their bodies import what they need: `--help` stays quick."""

from __future__ import annotations

import typer

from headgate.cli import ask, change, lint, look, small, top

_WORK = "Before work"
_LOOK = "Looking"
_CHANGE = "Changing"
HOST_PANEL = "Running an agent"

app = typer.Typer(
    name="headgate",
    help="Keep Postgres and MySQL/MariaDB healthy: ask before each piece of work.",
    no_args_is_help=True,
    # A traceback with local variables would show tokens.
    pretty_exceptions_enable=False,
)
metrics_app = typer.Typer(help="List, add, change and remove metrics.", no_args_is_help=True)

app.command("check", rich_help_panel=_WORK)(ask.check)
app.command("explain", rich_help_panel=_WORK)(ask.explain)
app.command("top", rich_help_panel=_LOOK)(top.top)
app.command("status", rich_help_panel=_LOOK)(look.status)
app.command("clients", rich_help_panel=_LOOK)(look.clients)
app.command("history", rich_help_panel=_LOOK)(look.history)
app.command("audit", rich_help_panel=_LOOK)(look.audit)
app.add_typer(metrics_app, name="metrics", rich_help_panel=_CHANGE)
app.command("lint", rich_help_panel=HOST_PANEL)(lint.lint)
app.command("token", rich_help_panel=HOST_PANEL)(small.token)
app.command("version", rich_help_panel=HOST_PANEL)(small.version)

metrics_app.command("list")(look.list_metrics)
metrics_app.command("show")(look.show_metric)
metrics_app.command("add")(change.add_metric)
metrics_app.command("set")(change.set_metric)
metrics_app.command("remove")(change.remove_metric)
