"""`headgate` and `python -m headgate`: the command line, and the agent that it can start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

try:
    import typer

    from headgate.cli.app import HOST_PANEL, app, metrics_app
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich"):
        raise
    sys.exit(f"headgate: the command line needs {missing.name}: pip install 'headgate[cli]'")

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The settings file (TOML).")
]
CheckConfig = Annotated[
    bool, typer.Option("--check-config", help="Judge the settings file, and start nothing.")
]
DemoSeconds = Annotated[
    float | None,
    typer.Option(min=1, metavar="SECONDS", show_default=False, help="End after this long."),
]
Headless = Annotated[
    bool, typer.Option("--headless", help="Play the scenes once; fail if one does not hold.")
]
CalibrateJson = Annotated[bool, typer.Option("--json", help="Print as JSON, for programs.")]


@app.command("agent", rich_help_panel=HOST_PANEL)
def agent(config: Config, check_config: CheckConfig = False) -> None:
    """Run the agent until SIGTERM or SIGINT; SIGHUP reloads the settings file.

    Exit code 2 where the settings are refused.
    """
    if check_config:
        from headgate.cli.lint import notes_on, show_notes

        notes = notes_on(config)
        show_notes(config, notes, as_json=False)
        raise typer.Exit(2 if any(note.level == "fault" for note in notes) else 0)
    try:
        from headgate.main import run_agent
    except ModuleNotFoundError as missing:
        raise _extra_missing(missing, "agent") from None
    raise typer.Exit(run_agent(config))


@app.command("demo", rich_help_panel=HOST_PANEL)
def demo(seconds: DemoSeconds = None, headless: Headless = False) -> None:
    """See it work: a real Postgres with a replica, an agent, and jobs that ask."""
    try:
        from headgate.demo.play import main as play
    except ModuleNotFoundError as missing:
        raise _extra_missing(missing, "demo") from None
    raise typer.Exit(play(seconds=seconds, headless=headless))


@metrics_app.command("calibrate")
def calibrate(
    database: Annotated[str, typer.Argument(metavar="DATABASE")],
    config: Config,
    as_json: CalibrateJson = False,
) -> None:
    """Measure the commit delay of a database at rest, and propose a threshold from it."""
    from headgate.cli.output import show_json, show_page

    try:
        from headgate.main import calibrate as measure
    except ModuleNotFoundError as missing:
        raise _extra_missing(missing, "agent") from None
    found = measure(config, database)
    if as_json:
        show_json(found)
        return
    from headgate.cli.pages import settings_table

    show_page(lambda _: settings_table(found))


def _extra_missing(missing: ModuleNotFoundError, extra: str) -> Exception:
    """A missing package is the installation's doing; a missing part of ours is a fault."""
    if missing.name is None or missing.name.startswith("headgate"):
        return missing
    from headgate.errors import HeadgateError

    return HeadgateError(f"this needs {missing.name}: pip install 'headgate[{extra}]'")


def main() -> None:
    from headgate.errors import HeadgateError

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows another one: no reason to fail.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    try:
        app(prog_name="headgate")
    except HeadgateError as error:
        from headgate.cli.exits import exit_code_of_error
        from headgate.cli.words import plain

        lines = (plain(line) for line in str(error).splitlines())
        print("headgate: " + "\n".join(lines), file=sys.stderr)
        sys.exit(exit_code_of_error(error))


if __name__ == "__main__":
    main()
