"""Commands that run something on this host: agent, demo, metrics calibrate; reload, state.

What they start is beyond this ring: __main__.py hands it in, as the context's object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from headgate.cli import completing
from headgate.cli.options import AgentOptions, AsJson, DatabaseArgument, Duration, duration
from headgate.metrics.advice import MetricLook

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The settings file (TOML).")
]
CheckConfig = Annotated[
    bool, typer.Option("--check-config", help="Validate the settings file, and start nothing.")
]
DemoTime = Annotated[
    Duration | None,
    duration(
        "--for",
        about="How long it lasts: 60s, 10m. --headless plays all scenes first, however long they "
        "take.",
        low=1,
        default=False,
    ),
]
Headless = Annotated[
    bool,
    typer.Option(
        "--headless",
        help="Play the scenes once and check their promises. Exit code 1: one was broken; 3: one "
        "could not be tried.",
    ),
]
DemoPorts = Annotated[
    str | None,
    # For those who run several beside each other: tests, mostly.
    typer.Option("--ports", metavar="FIRST-LAST", hidden=True, help="Take ports from these only."),
]


Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="DATABASE",
        autocompletion=completing.databases,
        help="Confirm that the file omits this database on purpose; repeatable.",
    ),
]
Whole = Annotated[
    bool,
    typer.Option("--whole", help="Confirm that the file is complete, although it looks cut short."),
]


class Host(Protocol):
    """What can be started here; each raises HeadgateError where a package for it is missing."""

    def run_agent(self, settings: Path) -> int: ...

    def validate(self, settings: Path) -> None: ...

    def read_metrics(self, settings: Path) -> Sequence[MetricLook]: ...

    def play(
        self, *, seconds: float | None, headless: bool, ports: tuple[int, int] | None
    ) -> int: ...

    def calibrate(self, settings: Path, database: str) -> Mapping[str, Any]: ...


def agent(context: typer.Context, config: Config, check_config: CheckConfig = False) -> None:
    """Run the agent.

    It runs until SIGTERM or SIGINT. SIGHUP reloads the settings file. Exit code 2 if the settings
    have faults.
    """
    if not check_config:
        raise typer.Exit(_host(context).run_agent(config))
    from headgate.cli.lint import notes_on, show_notes

    notes = notes_on(config, _host(context))
    show_notes(config, notes, as_json=False)
    raise typer.Exit(2 if any(note.level == "fault" for note in notes) else 0)


def reload(
    drop: Drop = None,
    whole: Whole = False,
    *,
    agent: AgentOptions,
) -> None:
    """Reload the agent's settings file, as SIGHUP does.

    A file that lacks a database, or ends like one that was cut short, is rejected: `--drop` and
    `--whole` say that it is meant. Exit code 1 where it is rejected; the settings in force stay.
    """
    body = {"drop": drop or [], "whole": whole}
    changed = agent.connect().change("POST", "/v1/reload", body)
    agent.show(changed, "status.reloaded_view")


def acknowledge(agent: AgentOptions) -> None:
    """Continue after the agent has lost its state.

    Renames a state file that cannot be used and begins a new one: with what its copy has, or,
    where that is lost as well, with nothing. The settings file decides again. Deletes
    nothing, and changes nothing where the state can be used.
    """
    changed = agent.connect().change("POST", "/v1/state/acknowledge", {})
    agent.show(changed, "status.acknowledged_view")


def demo(
    context: typer.Context,
    lasts: DemoTime = None,
    headless: Headless = False,
    ports: DemoPorts = None,
) -> None:
    """See it work: a real Postgres shard, an agent beside each server, greedy jobs."""
    chosen = None if ports is None else _ports(ports)
    raise typer.Exit(_host(context).play(seconds=lasts, headless=headless, ports=chosen))


def _ports(said: str) -> tuple[int, int]:
    first, _, last = said.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) < 65536):
        raise typer.BadParameter(f"--ports {said!r} must read like 20000-21500")
    return int(first), int(last)


def calibrate(
    context: typer.Context,
    database: DatabaseArgument,
    config: Config,
    as_json: AsJson = False,
) -> None:
    """Propose a threshold for commit_delay.

    Measures the commits of an idle database; needs its settings, not a running agent.
    """
    from headgate.cli.output import show_blocks, show_json
    from headgate.present.metrics import settings_view

    found = _host(context).calibrate(config, database)
    if as_json:
        show_json(found)
    else:
        show_blocks(settings_view(found))


def _host(context: typer.Context) -> Host:
    host: Host = context.obj
    return host


# --- token and version -----------------------------------------------------------------------

TokenName = Annotated[
    str, typer.Option(metavar="NAME", help="Who will use the token; the audit shows this name.")
]
TokenRole = Annotated[
    str, typer.Option(metavar="viewer|operator|peer", help="What the token allows.")
]


def token(
    name: TokenName = "operator",
    role: TokenRole = "operator",
    as_json: AsJson = False,
) -> None:
    """Make a random token, shown once.

    With the lines for the agent's settings file, which keeps only its SHA-256.
    """
    import hashlib
    import json
    import secrets

    if role not in ("viewer", "operator", "peer"):
        raise typer.BadParameter(f"--role {role!r} must be viewer, operator or peer")
    made = secrets.token_urlsafe(32)
    sha256 = hashlib.sha256(made.encode()).hexdigest()
    if as_json:
        print(json.dumps({"token": made, "name": name, "role": role, "sha256": sha256}))
        return
    print(f"token, shown this once: {made}\n")
    print("for the agent's settings file, then `kill -HUP` it:\n")
    quoted = json.dumps(name, ensure_ascii=False)
    print(f'[[tokens]]\nname = {quoted}\nrole = "{role}"\nsha256 = "{sha256}"')


def version(as_json: AsJson = False) -> None:
    """Print the version of this command."""
    from headgate.version import VERSION

    print(f'{{"version": "{VERSION}"}}' if as_json else f"headgate {VERSION}")
