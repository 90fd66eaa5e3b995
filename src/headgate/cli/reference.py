"""docs/reference/cli.md, from the commands themselves.   typer app ──render──► Markdown"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from headgate.cli.app import app
from headgate.cli.exits import exit_code_rows

# What `--json` prints, by command: documents of the API, as docs/reference/documents.md has them.
# The tests of the command line compare each with the route that is called. What is in OWN is made
# here and not by an agent.
DOCUMENTS: Mapping[str, str] = {
    command: names
    for names, commands in {
        "AcknowledgedDoc": ("state acknowledge",),
        "AnswerDoc BatchDoc": ("check",),
        "AuditsDoc": ("audit",),
        "BudgetDoc": ("budget show",),
        "BudgetReplayDoc": ("budget replay",),
        "ChangeMadeDoc": ("changes apply", "changes diff", "changes restore", "changes rollback"),
        "ChangeRevisionsDoc ChangeRevisionWholeDoc": ("changes history",),
        "ChangesDoc": ("changes list",),
        "ClientsDoc RoguesDoc": ("clients",),
        "ExplainDoc PastDoc": ("explain",),
        "FleetDoc": ("fleet status",),
        "HistoryDoc TimelineDoc": ("history",),
        "LinkDoc": ("page",),
        "MetricView": ("metrics show",),
        "MetricView RemovedDoc WideMetricDoc": ("metrics revert",),
        "MetricView WideMetricDoc": ("metrics add", "metrics set"),
        "MetricsDoc": ("metrics list",),
        "PoliciesDoc PolicyDoc": ("budget list",),
        "PolicyChangeDoc": (
            "budget create", "budget delete", "budget forgive", "budget mode", "budget set",
        ),
        "ReachedDoc": ("fleet reach",),
        "RejectionsDoc": ("rejections",),
        "ReloadedDoc": ("reload",),
        "RemovedDoc WideMetricDoc": ("metrics remove",),
        "ReplayDoc": ("replay",),

        "RuleDoc": (
            "hold", "rule change", "rule exempt", "rule extend", "rule hold", "rule metrics",
            "rule ratio", "rule show", "rule thresholds",
        ),
        "RulesDoc": ("favor", "rule lift", "rule resume", "rule suspend", "rules"),
        "ShardDoc": (
            "shard add-peer", "shard handover", "shard remove-peer", "shard show", "shard skip",
            "shard take-back", "shard unskip",
        ),
        "StarvationDoc": ("starvation",),
        "StatementExplainDoc": ("budget explain",),
        "StatusDoc": ("status",),
        "ViolationsDoc": ("budget violations",),
        "WokenDoc": ("wake",),
    }.items()
    for command in commands
}  # fmt: skip
_LINTED = "`file` and its `notes`"
_SERVER = "what the Postgres server beside this command says"
_PROXY = "what [the proxy](proxy.md) answers"
_SCREEN = "what one screen is made of: the answers of several routes, by name"
OWN: Mapping[str, str] = {
    "budget compile": "`file`, `parameter` and its `value`",

    "doctor": "a list of findings: `level` (ok, advice, fault), `subject` and `says`",
    "files": "the list: `name`, `path`, `about` and `place`",
    "init": "what was found on the server (`server`, `readings`, `missing_grants`, …), and the "
    "files that were written: `settings`, `password_file`",
    "changes export": "the file that `headgate changes apply` takes",
    "budget lint": _LINTED, "lint": _LINTED, "proxy lint": _LINTED,
    "proxy check": _LINTED,
    "debug bundle": "the manifest: each file of the bundle, or why it is missing",
    "metrics calibrate": "the proposed settings of `commit_delay`",
    "pg disable": _SERVER, "pg enable": _SERVER, "pg install": _SERVER, "pg publish": _SERVER,
    "pg status": _SERVER,
    "proxy reload": _PROXY, "proxy sessions": _PROXY, "proxy status": _PROXY,
    "token": "`token`, `name`, `role` and `sha256`",
    "proxy build": "`library`: its path",
    "proxy drain": "`draining`", "proxy kill": "`ended`: the session's id",
    "proxy restart": "`successor`, a process id, and its `memory`: `kept` or `new`",
    "run": "`waited_s`, `ran_s`, `stops`, `stopped_s`, `silent_s` and `exit_code`, as one line on "
    "standard error",
    "top": _SCREEN, "budget top": _SCREEN,
    "wait": "`admitted`, `verdict`, `reason`, `unthrottled` and `waited_s`",
    "version": "`version`",
}  # fmt: skip

COMMON = ("url", "token")
_OPTIONS_HEAD = ("| option | meaning |", "|---|---|")
_HEAD = """\
# Command line

Tables are for people. `--json` prints the agent's document for programs, on standard output;
errors go to standard error. `NO_COLOR` is obeyed, and no state is shown by color alone.
`headgate --install-completion` teaches your shell to complete commands and options, and
the names of databases, metrics, clients, rules and budgets that the agent knows;
`headgate --show-completion` prints the script instead.

The agent is found by `--url` or `HEADGATE_URL`; without one, at the Unix socket
`$XDG_RUNTIME_DIR/headgate.sock` or `/run/headgate/agent.sock` where that exists, else at
`http://127.0.0.1:8087`. For an `https://` agent with a private certificate authority, name
its certificate in `SSL_CERT_FILE`.
"""

_EXAMPLES = """\
## Examples

```sh
# One job, if the database is healthy; wait up to a minute for permission.
headgate check --as etl:nightly --database main --wait 60s && ./purge_one_batch

# A metric of your own, tried first and then set (needs allow_runtime_sql = true).
headgate metrics add main queue_depth sql="select count(*) from jobs" threshold=1000 --dry-run
headgate metrics add main queue_depth sql="select count(*) from jobs" threshold=1000
headgate metrics set main queue_depth threshold=500 debounce="3 of 5"

# A higher threshold for the next two hours; without --for it ends after one.
headgate metrics set main lag threshold=10s --for 2h

# Let the settings file decide about lag again.
headgate metrics revert main lag

# Why does my job wait?
headgate explain --as etl:nightly --database main
```
"""


def render() -> str:
    root: Any = typer.main.get_command(app)
    sections = [_section(path, command) for path, command in _commands(root, "headgate")]
    return "\n".join([_HEAD, _exit_codes(), _EXAMPLES, _common(root), *sections]).rstrip() + "\n"


def _common(root: Any) -> str:
    params = {param.name: param for param in root.commands["status"].load().params}
    rows = [_option(params[name]) for name in COMMON]
    return "\n".join(["## Common options", "", *_OPTIONS_HEAD, *rows, ""])


def _exit_codes() -> str:
    rows = [f"| {code} | `{name}` | {meaning} |" for code, name, meaning in exit_code_rows()]
    head = ["## Exit codes", "", "| code | answer | meaning |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Leaves, depth first, by name: the order of definition is nobody's business."""
    for name, command in sorted(group.commands.items()):
        path = f"{prefix} {name}"
        if getattr(command, "commands", None):
            yield from _commands(command, path)
        else:
            yield path, command.load()


def _section(path: str, command: Any) -> str:
    params = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option" and p.name not in COMMON]
    common = [f"`--{name}`" for name in COMMON if any(p.name == name for p in params)]
    usage = " ".join(
        [path, *(_argument(p) for p in arguments), "[OPTIONS]" if options or common else ""]
    )
    lines = [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
    lines += ["```", usage.rstrip(), "```", ""]
    if options:
        lines += [*_OPTIONS_HEAD, *(_option(p) for p in options), ""]
    if any("--json" in p.opts for p in options):
        lines += [f"`--json` prints {_printed(path.removeprefix('headgate '))}.", ""]
    if common:
        lines += [f"And {' and '.join(common)}, see [common options](#common-options).", ""]
    return "\n".join(lines)


def _printed(command: str) -> str:
    names = DOCUMENTS.get(command, "").split()
    links = (f"[{name}](documents.md#{name.lower()})" for name in names)
    return " or ".join(links) or OWN[command]


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required else f"[{name}]"


def _option(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    metavar = f" `{_cell(param.metavar)}`" if param.metavar else ""
    notes = [_cell(" ".join((param.help or "").split()))]
    if param.required:
        notes.append("Required.")
    if param.envvar:
        notes.append(f"Environment: `{param.envvar}`.")
    if param.default not in (None, False, 0.0) and not param.required:
        notes.append(f"Default: `{param.default}`.")
    return f"| {names}{metavar} | {' '.join(notes)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
