"""`headgate` and `python -m headgate`: the command line, and what it can start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.cli.signals import flushed, open_streams, reset_signals
from headgate.errors import HeadgateError

gc.disable()  # What is loaded stays: to look for garbage in it takes a tenth of a short command.
try:
    from headgate.cli.app import app
except ModuleNotFoundError as missing:
    if missing.name not in ("typer", "rich"):
        raise
    sys.exit(f"headgate: the command line needs {missing.name}: pip install 'headgate[cli]'")

gc.freeze()
gc.enable()

if TYPE_CHECKING:
    from headgate.cli.pg import PgExtension
    from headgate.cli.top import TopOptions
    from headgate.metrics.advice import MetricLook
    from headgate.metrics.model import DsnParts, Engine
    from headgate.settings.starter import Diagnosis, Discovery


class ThisHost:
    """Imports happen inside: a command that only talks to an agent does not load one."""

    def watch(self, wanted: TopOptions) -> None:
        from headgate.tui.program import watch

        watch(wanted)

    def run_agent(self, settings: Path) -> int:
        with _needing("agent"):
            from headgate.app import run_agent
        return run_agent(settings)

    def validate(self, settings: Path) -> None:
        with _needing("agent"):
            from headgate.commands import validated
        validated(settings)

    def read_metrics(self, settings: Path) -> Sequence[MetricLook]:
        with _needing("agent"):
            from headgate.commands import read_metrics
        return read_metrics(settings)

    def parts_of(self, name: str, engine: Engine, dsn: str) -> DsnParts:
        with _needing("agent"):
            from headgate.commands import parts_of
        return parts_of(name, engine, dsn)

    def discover(self, name: str, engine: Engine, dsn: str, password: str | None) -> Discovery:
        with _needing("agent"):
            from headgate.commands import discover
        return discover(name, engine, dsn, password)

    def examine(self, settings: Path) -> Sequence[Diagnosis]:
        with _needing("agent"):
            from headgate.doctor import examine
        return examine(settings)

    def play(self, *, seconds: float | None, headless: bool, ports: tuple[int, int] | None) -> int:
        with _needing("demo"):
            from headgate.demo.play import main as play
        return play(seconds=seconds, headless=headless, ports=ports)

    def calibrate(self, settings: Path, database: str) -> dict[str, Any]:
        with _needing("agent"):
            from headgate.commands import calibrate
        return calibrate(settings, database)

    def run_proxy(self, settings: Path) -> int:
        with _needing("agent"):
            from headgate.proxy.app import run_proxy
        return run_proxy(settings)

    def check_proxy(self, settings: Path) -> None:
        with _needing("agent"):
            from headgate.proxy.app import check_proxy
        check_proxy(settings)

    def build_proxy(self) -> Path:
        with _needing("agent"):
            from headgate.proxy.app import build_relay
        return build_relay()

    def pg_extension(self) -> PgExtension:
        with _needing("postgres"):
            from headgate.budgets.pgext.operate import Extension
        return Extension()


@contextmanager
def _needing(extra: str) -> Iterator[None]:
    """A package that is missing is named with its remedy; a missing part of ours is a fault."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "headgate":
            raise
        message = f"this needs {missing.name}: pip install 'headgate[{extra}]'"
        raise HeadgateError(message) from None


def main() -> None:
    reset_signals()
    open_streams()
    try:
        _run()
    except SystemExit as end:
        if not flushed() and not end.code:
            sys.exit(1)
        raise


def _run() -> None:
    try:
        app(prog_name="headgate", obj=ThisHost())
    except HeadgateError as error:
        from headgate.cli.documents import plain
        from headgate.cli.exits import exit_code_of_error

        lines = (plain(line) for line in str(error).splitlines())
        print("headgate: " + "\n".join(lines), file=sys.stderr)
        sys.exit(exit_code_of_error(error))


if __name__ == "__main__":
    main()
