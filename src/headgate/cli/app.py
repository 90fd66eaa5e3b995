"""The commands, put together. Their bodies import what they need: `--help` stays quick."""

from __future__ import annotations

import typer

from headgate.cli import (
    ask,
    budget,
    budget_replay,
    change,
    history,
    host,
    lint,
    look,
    pg,
    replay,
    rules,
    run,
    shard,
    small,
    top,
    watch,
)

# Plain help: it reads well on any terminal, and comes twice as fast as the one in boxes.
_PLAIN = None

app = typer.Typer(
    name="headgate",
    help="Keep Postgres and MySQL/MariaDB healthy: ask before each piece of work.",
    no_args_is_help=True,
    rich_markup_mode=_PLAIN,
    # A traceback with local variables would show tokens.
    pretty_exceptions_enable=False,
)
metrics_app = typer.Typer(
    help="List, add, change and remove metrics.", no_args_is_help=True, rich_markup_mode=_PLAIN
)

shard_app = typer.Typer(
    cls=shard.ShowByDefault,
    help="Look at a database's shard; set members aside, add and remove peers.",
    no_args_is_help=True,
    rich_markup_mode=_PLAIN,
)

rule_app = typer.Typer(
    help="Set, change, extend and lift rules on clients.",
    no_args_is_help=True,
    rich_markup_mode=_PLAIN,
)

budget_app = typer.Typer(
    help="Traffic control: budgets on what statements may cost, and how many run at once.",
    no_args_is_help=True,
    rich_markup_mode=_PLAIN,
)

pg_app = typer.Typer(
    help="Traffic control inside a Postgres on this host: its extension and its policy.",
    no_args_is_help=True,
    rich_markup_mode=_PLAIN,
)

app.command("check")(ask.check)
app.command("wait")(ask.wait)
# What follows the command's name is the command's: no option of ours stands behind it.
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("explain")(ask.explain)
app.command("top")(top.top)
app.command("status")(look.status)
app.command("clients")(watch.clients)
app.command("history")(history.history)
app.command("replay")(replay.replay)
app.command("starvation")(watch.starvation)
app.command("refusals")(look.refusals)
app.command("audit")(look.audit)
app.command("rules")(rules.rules)
app.add_typer(rule_app, name="rule")
app.command("favor")(rules.favor)
app.command("hold")(rules.hold)
app.add_typer(metrics_app, name="metrics")
app.add_typer(shard_app, name="shard")
app.command("wake")(shard.wake)
app.add_typer(budget_app, name="budget")
app.add_typer(pg_app, name="pg")
app.command("agent")(host.agent)
app.command("demo")(host.demo)
app.command("lint")(lint.lint)
app.command("token")(small.token)
app.command("version")(small.version)

metrics_app.command("list")(look.list_metrics)
metrics_app.command("show")(look.show_metric)
metrics_app.command("add")(change.add_metric)
metrics_app.command("set")(change.set_metric)
metrics_app.command("remove")(change.remove_metric)
metrics_app.command("revert")(change.revert_metric)
metrics_app.command("calibrate")(host.calibrate)

shard_app.command("show")(shard.show)
shard_app.command("skip")(shard.skip)
shard_app.command("unskip")(shard.unskip)
shard_app.command("add-peer")(shard.add_peer)
shard_app.command("remove-peer")(shard.remove_peer)

rule_app.command("show")(rules.show_rule)
rule_app.command("ratio", cls=rules.RatioCommand)(rules.ratio)
rule_app.command("hold")(rules.hold)
rule_app.command("exempt")(rules.exempt)
rule_app.command("metrics")(rules.metrics)
rule_app.command("thresholds")(rules.thresholds)
rule_app.command("extend")(rules.extend)
rule_app.command("change")(rules.change)
rule_app.command("lift")(rules.lift)

budget_app.command("list")(budget.list_budgets)
budget_app.command("show")(budget.show_budget)
budget_app.command("create")(budget.create)
budget_app.command("set")(budget.set_budget)
budget_app.command("mode")(budget.mode)
budget_app.command("delete")(budget.delete)
budget_app.command("forgive")(budget.forgive)
budget_app.command("lint")(budget.lint)
budget_app.command("apply")(budget.apply)
budget_app.command("diff")(budget.diff)
budget_app.command("export")(budget.export)
budget_app.command("history")(budget.history)
budget_app.command("rollback")(budget.rollback)
budget_app.command("violations")(budget.violations)
budget_app.command("top")(budget.top)
budget_app.command("explain")(budget.explain)
budget_app.command("replay")(budget_replay.replay)

pg_app.command("install")(pg.install)
pg_app.command("enable")(pg.enable)
pg_app.command("publish")(pg.publish)
pg_app.command("disable")(pg.disable)
pg_app.command("status")(pg.status)
