"""The commands: name, one line of help, and where each is at home.

table.py ──names, lines──► app.py: groups that list them, and load the module of the one command
                           that is called

A line here is the first paragraph of the command's docstring: tests/cli/test_table.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandRow(NamedTuple):
    home: str  # module:attribute, below headgate.cli
    about: str
    cls: str = ""  # module:attribute of a class of its own
    takes_the_rest: bool = False  # what follows its first argument is not read for options
    settings: str = ""  # module:attribute of the table whose SETTING=VALUE it takes


class Group(NamedTuple):
    about: str
    commands: Mapping[str, CommandRow]
    default: str = ""  # `headgate shard main` is `headgate shard show main`
    alone: bool = False  # without arguments it is the default, and not the list of commands


METRIC_TABLE = "headgate.metrics.settings:METRIC_SETTINGS"
BUDGET_TABLE = "headgate.budgets.limits:BUDGET_SETTINGS"
ABOUT = "Keep Postgres and MySQL/MariaDB healthy: check before each job."

COMMANDS: Mapping[str, CommandRow] = {
    "check": CommandRow("check:check", "Check whether a job may run now."),
    "wait": CommandRow("check:wait", "Wait until a job may run."),
    # What follows the command's name is the command's: no option of ours comes after it.
    "run": CommandRow(
        "run:run",
        "Run a command, and stop it while the database is unhealthy.",
        takes_the_rest=True,
    ),
    "explain": CommandRow("check:explain", "Show how a check would be answered, and why."),
    "top": CommandRow(
        "top:top", "Watch what is unhealthy, who is throttled, by what, and what to do; q quits."
    ),
    "status": CommandRow("look:status", "Show databases, metrics, clients, the store, and advice."),
    "clients": CommandRow(
        "look:clients", "List clients that checked lately: which are throttled, and by what."
    ),
    "history": CommandRow(
        "history:history",
        "Show when a client or a level was throttled, by what, and which of its clients most.",
    ),
    "replay": CommandRow(
        "history:replay",
        "Replay recorded decisions against a proposed rule, and print the difference.",
    ),
    "starvation": CommandRow(
        "look:starvation",
        "Show starved clients: rejected by metrics for long while others progress, and why.",
    ),
    "rejections": CommandRow("look:rejections", "Show recent rejections in full, newest first."),
    "audit": CommandRow("look:audit", "Show who changed what, newest first."),
    "rules": CommandRow(
        "rules:rules", "List the rules: target, effect, time left, author and reason."
    ),
    "favor": CommandRow(
        "rules:favor",
        "Prioritize one client by throttling all the others.",
    ),
    "hold": CommandRow(
        "rules:hold", "Reject every check of a client, for a while and for a reason."
    ),
    "wake": CommandRow(
        "shard:wake", "Wake a database that hibernates, and its shard, as a client's check would."
    ),
    "init": CommandRow(
        "init:init", "Write a first settings file from what a database server can measure."
    ),
    "agent": CommandRow("host:agent", "Run the agent."),
    "reload": CommandRow("host:reload", "Reload the agent's settings file, as SIGHUP does."),
    "demo": CommandRow(
        "host:demo", "See it work: a real Postgres shard, an agent beside each server, greedy jobs."
    ),
    "doctor": CommandRow(
        "init:doctor", "Try what an agent needs: databases, rights, clocks, ports, disk, peers."
    ),
    "lint": CommandRow("lint:lint", "Validate a settings file."),
    "files": CommandRow(
        "files:files", "Print a file for the host: systemd units, alert rules, a dashboard."
    ),
    "page": CommandRow("page:page", "Print a link that signs in at the agent's page, once."),
    "token": CommandRow("host:token", "Make a random token, shown once."),
    "version": CommandRow("host:version", "Print the version of this command."),
}

_RULE: Mapping[str, CommandRow] = {
    "show": CommandRow("rules:show_rule", "Show one rule in full, and the clients it applies to."),
    "ratio": CommandRow(
        "rules:ratio", "Reject a share of a client's checks, at random.", cls="rules:RatioCommand"
    ),
    "hold": COMMANDS["hold"],
    "exempt": CommandRow(
        "rules:exempt", "Admit a client although metrics breach: all of them, or the named ones."
    ),
    "metrics": CommandRow(
        "rules:metrics", "Decide a client's checks by these metrics, where a check names none."
    ),
    "thresholds": CommandRow(
        "rules:thresholds", "Decide a client's checks by stricter thresholds than others have."
    ),
    "extend": CommandRow(
        "rules:extend", "Change when a rule ends, counted from now; nothing else changes."
    ),
    "change": CommandRow(
        "rules:change", "Change settings of a rule, such as its ratio; its end stays."
    ),
    "lift": CommandRow("rules:lift", "End a rule now, and the one that was set together with it."),
    "suspend": CommandRow(
        "rules:suspend", "Suspend a rule of the fleet or the shard at this agent."
    ),
    "resume": CommandRow("rules:resume", "End the suspension of a rule at this agent."),
}

_METRICS: Mapping[str, CommandRow] = {
    "list": CommandRow("look:list_metrics", "List metrics with values, thresholds and origins."),
    "show": CommandRow("look:show_metric", "Show a metric's reading, settings and timing."),
    "add": CommandRow(
        "change:add_metric",
        "Add a metric, a built-in one or one of your own.",
        settings=METRIC_TABLE,
    ),
    "set": CommandRow(
        "change:set_metric",
        "Change some settings of a metric; the others stay.",
        settings=METRIC_TABLE,
    ),
    "remove": CommandRow("change:remove_metric", "Remove a metric; it then rejects no check."),
    "revert": CommandRow(
        "change:revert_metric", "Drop runtime changes: the settings file decides again."
    ),
    "calibrate": CommandRow("host:calibrate", "Propose a threshold for commit_delay."),
}

_SHARD: Mapping[str, CommandRow] = {
    "show": CommandRow("shard:show", "Draw the shard of a database, with every detail."),
    "skip": CommandRow(
        "shard:skip", "Skip a replica in the rollup of its shard, for a while and for a reason."
    ),
    "unskip": CommandRow("shard:unskip", "Count a skipped replica again, wherever it was skipped."),
    "handover": CommandRow(
        "shard:handover", "Announce a planned switchover, before the primary steps down."
    ),
    "take-back": CommandRow(
        "shard:take_back", "Cancel an announced switchover: the primary stays."
    ),
    "add-peer": CommandRow(
        "shard:add_peer", "Add a member to the shard of a database, without a restart."
    ),
    "remove-peer": CommandRow(
        "shard:remove_peer", "Remove a member that was added at run time; it then counts nowhere."
    ),
}

_BUDGET: Mapping[str, CommandRow] = {
    "list": CommandRow(
        "budget:list_budgets", "List budgets: how full, what they block, and what to do about it."
    ),
    "show": CommandRow(
        "budget:show_budget", "Show one budget: its settings, its buckets, and what it has blocked."
    ),
    "create": CommandRow(
        "budget:create",
        "Create a budget. It starts in `warn` unless you say mode=enforce.",
        settings=BUDGET_TABLE,
    ),
    "set": CommandRow(
        "budget:set_budget",
        "Change some settings of a budget; --match and --each replace all of its rules.",
        settings=BUDGET_TABLE,
    ),
    "mode": CommandRow("budget:mode", "Switch a budget, or all of them: off, warn, enforce."),
    "delete": CommandRow("budget:delete", "Delete a budget; its statements then run without it."),
    "forgive": CommandRow("budget:forgive", "Clear the debt of a budget's buckets."),
    "lint": CommandRow(
        "budget:lint",
        "Validate a policy file without an agent: faults with their lines, and advice.",
    ),
    "compile": CommandRow(
        "budget:compile_file",
        "Compile a policy file for the Postgres parameter pg_headgate.policy, without an agent.",
    ),
    "violations": CommandRow(
        "budget:violations",
        "Show what was blocked, warned and delayed: by budget, limit and minute.",
    ),
    "top": CommandRow(
        "budget:top",
        "Watch a database's budgets live: fill, blocked a second, what to do; q quits.",
    ),
    "explain": CommandRow(
        "budget:explain",
        "Explain whether a statement would run, by which rule and budget, and what would help.",
    ),
    "replay": CommandRow(
        "budget:replay",
        "Replay recorded statements against another policy, and print what would have changed.",
    ),
}

_FLEET: Mapping[str, CommandRow] = {
    "status": CommandRow(
        "fleet:status",
        "Show the fleet: unhealthy shards first, rules and who has them, agents that lag behind.",
    ),
    "reach": CommandRow(
        "fleet:reach",
        "Show which shards and hosts a reach applies to, unhealthy ones first.",
    ),
}

_CHANGES: Mapping[str, CommandRow] = {
    "list": CommandRow(
        "changes:list_changes",
        "List what operators changed: rules, budgets, metrics, skipped replicas, peers.",
    ),
    "export": CommandRow(
        "changes:export", "Print what operators changed as a file: TOML, or with --json as JSON."
    ),
    "diff": CommandRow("changes:diff", "Show what a file would change, and change nothing."),
    "apply": CommandRow("changes:apply", "Make the changes of a file."),
    "history": CommandRow(
        "changes:history",
        "List revisions: time, author and what changed; or what one of them did.",
    ),
    "rollback": CommandRow(
        "changes:rollback", "Set everything as it was after a revision, as a new revision."
    ),
    "restore": CommandRow(
        "changes:restore",
        "Write changes back to etcd that it has lost and this agent still has (--fleet).",
    ),
}

_PG: Mapping[str, CommandRow] = {
    "install": CommandRow("pg:install", "Build the extension for a server, and install it."),
    "enable": CommandRow("pg:enable", "Put a policy in force, or the one that was switched off."),
    "publish": CommandRow("pg:publish", "Replace the policy."),
    "disable": CommandRow(
        "pg:disable", "Switch traffic control off at once: no budget applies any more."
    ),
    "status": CommandRow(
        "pg:status", "Show what is in force on a server, and which budgets need attention."
    ),
}

_PROXY: Mapping[str, CommandRow] = {
    "run": CommandRow("proxy:run", "Run the proxy, or take over from the one that runs."),
    "lint": CommandRow("proxy:lint", "Validate a proxy's settings file."),
    "check": CommandRow(
        "proxy:check",
        "Validate the settings file, and what it names: files, policy, the relay's library.",
    ),
    "status": CommandRow(
        "proxy:status", "Show sessions, clients, budgets, servers, and what needs attention."
    ),
    "sessions": CommandRow("proxy:sessions", "List sessions: who, since when, and what they do."),
    "kill": CommandRow("proxy:kill", "End a session."),
    "reload": CommandRow("proxy:reload", "Reload the settings file, all or nothing."),
    "restart": CommandRow(
        "proxy:restart", "Start a successor that takes over; no client is disconnected."
    ),
    "drain": CommandRow("proxy:drain", "Accept no new sessions, and exit after the last one ends."),
    "build": CommandRow("proxy:build", "Build the relay's library for this installation."),
}

_DEBUG = {
    "bundle": CommandRow(
        "debug:bundle", "Pack what a maintainer needs into one file, secrets removed."
    ),
}

_STATE: Mapping[str, CommandRow] = {
    "acknowledge": CommandRow("host:acknowledge", "Continue after the agent has lost its state."),
}

GROUPS: Mapping[str, Group] = {
    "rule": Group("Set, change, extend and lift rules on clients.", _RULE),
    "metrics": Group("List, add, change and remove metrics.", _METRICS),
    "shard": Group(
        "Show a database's shard; skip members, add and remove peers.",
        _SHARD,
        default="show",
    ),
    "budget": Group(
        "Traffic control: budgets on what statements may cost, and how many run at once.", _BUDGET
    ),
    "changes": Group(
        "What operators changed, at an agent or in its fleet: list, files, history, rollback.",
        _CHANGES,
        default="list",
        alone=True,
    ),
    "fleet": Group("Show the fleet: many shards that share one set of rules.", _FLEET),
    "proxy": Group(
        "Traffic control in front of Postgres and MySQL/MariaDB: a proxy in the query path.",
        _PROXY,
        default="run",
    ),
    "state": Group("The agent's stored state: operators' changes, audit and history.", _STATE),
    "debug": Group("Collect what a maintainer needs to find a fault.", _DEBUG),
    "pg": Group(
        "Traffic control inside a Postgres on this host: its extension and its policy.", _PG
    ),
}
