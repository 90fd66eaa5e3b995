"""`headgate run -- COMMAND`: throttles what cannot ask for itself.

    Client.check ──► Pacer (stop? go on?) ──► Job (process group)
          ▲                                      │
          └───────── every second ◄── sigtimedwait: signals, or its end

One thread and no handlers: the signals are blocked and waited for, so that nothing happens
between two lines.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.asking import (
    About,
    Asker,
    Databases,
    Duration,
    MaxWait,
    OnUnavailable,
    Quiet,
    Silence,
    UnavailableAfter,
    Whom,
    say,
    wait_for_leave,
)
from headgate.cli.options import App, Metrics, Scope, Token, Url
from headgate.cli.signals import ignores_hangups, restore_signals
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.cli.job import Job
    from headgate.cli.pacer import Move, Pace, Pacer, Tally
    from headgate.client.answers import Answer
    from headgate.client.sync_client import Client

MODES = ("stop", "start", "env")


Mode = Annotated[
    str,
    typer.Option(
        metavar="stop|start|env",
        help="stop: wait for leave to start, then stop and continue the job as the answers change. "
        "start: only wait for leave to start. env: start at once, and leave the asking to the job.",
    ),
]
Every = Annotated[
    float,
    typer.Option(
        min=0.05,
        metavar="SECONDS",
        help="Time between two questions; while refused, up to twice as long.",
    ),
]
Steady = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Each stop and each run lasts at least this long."),
]
MaxStop = Annotated[
    Duration | None,
    typer.Option(
        metavar="DURATION",
        parser=Duration,
        show_default=False,
        help="A stop that lasts longer ends the job: it is continued and sent SIGTERM. "
        "Default: a job is stopped for as long as it is refused.",
    ),
]
PauseFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Instead of being stopped, the command is told to pause: this file is there while it "
        "is refused. For what looks for such a file between two chunks, as "
        "pt-online-schema-change and gh-ost do.",
    ),
]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND")]


def run(
    command: Command,
    app: App,
    database: Databases = "main",
    metrics: Metrics = None,
    scope: Scope = None,
    mode: Mode = "stop",
    max_wait: MaxWait = None,
    every: Every = 1.0,
    steady: Steady = 2.0,
    max_stop: MaxStop = None,
    pause_file: PauseFile = None,
    on_unavailable: OnUnavailable = "closed",
    unavailable_after: UnavailableAfter = 10.0,
    quiet: Quiet = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Run a command that cannot ask for itself, when the database can bear it.

    Waits for leave, starts the command in a process group of its own, asks on every second,
    stops the group (SIGSTOP) while refused and continues it (SIGCONT) once admitted, at most two
    seconds later. A stopped program keeps its transactions and locks: stop only what works in
    short transactions, and use --mode start or env for the rest.

    Signals are passed on. The exit code is the command's own, or 128 and the signal that ended
    it; where it never started, that of `headgate wait`, 126 or 127. In every mode the command
    finds HEADGATE_APP, HEADGATE_DATABASE, HEADGATE_URL and so on in its environment.
    """
    from headgate.cli.pacer import Pace

    if mode not in MODES:
        raise typer.BadParameter(f"--mode {mode!r} must be one of {', '.join(MODES)}")
    about = About(app, database, metrics, scope)
    silence = Silence(on_unavailable, unavailable_after)
    asking = Asker(about, silence, Whom.found(url, token), quiet)
    pace = Pace(steady, silence.after_s, silence.on_unavailable)
    waited_s = 0.0 if mode == "env" else wait_for_leave(asking, max_wait)
    if mode != "stop":
        _become(command, asking)
    watch = Watch(
        asking, every, None if max_stop is None else max_stop.seconds, checked_file(pause_file)
    )
    raise typer.Exit(_run(command, watch, pace, waited_s))


def _become(command: Sequence[str], asking: Asker) -> None:
    """Nothing is left for us to do: the job takes our place, with its own signals and end."""
    from headgate.cli.job import NOT_EXECUTABLE, NOT_FOUND

    with suppress(OSError):  # Whether anybody reads is the job's own concern.
        sys.stdout.flush()
        sys.stderr.flush()
    restore_signals()
    try:
        os.execvpe(command[0], list(command), environment_of(asking))  # noqa: S606 -- no shell is meant
    except OSError as fault:
        print(f"headgate: {command[0]}: {str(fault.strerror).lower()}", file=sys.stderr)
        missing = isinstance(fault, FileNotFoundError)
        raise typer.Exit(NOT_FOUND if missing else NOT_EXECUTABLE) from None


def environment_of(asking: Asker) -> dict[str, str]:
    """Of the job: ours, and what `headgate wait` and the SDK in it need to ask alike."""
    about, whom = asking.about, asking.whom
    said = {
        "HEADGATE_APP": about.app,
        "HEADGATE_DATABASE": about.database,
        "HEADGATE_METRICS": about.metrics,
        "HEADGATE_SCOPE": about.scope,
        "HEADGATE_URL": whom.url,
        "HEADGATE_TOKEN": whom.token,
    }
    ours = os.environ  # noqa: TID251 -- a job inherits the environment
    return {**ours, **{name: value for name, value in said.items() if value}}


# --- stopping and continuing -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """How a running job is asked for."""

    asking: Asker
    every_s: float
    max_stop_s: float | None
    pause_file: Path | None = None


def checked_file(pause_file: Path | None) -> Path | None:
    """One of our own making: a file that is there already would be removed."""
    if pause_file is None:
        return None
    full = pause_file.absolute()
    if full.exists():
        raise typer.BadParameter(
            f"--pause-file {full} is there already; remove it, or name another"
        )
    if not full.parent.is_dir() or "\n" in str(full):
        raise typer.BadParameter(f"--pause-file {str(full)!r}: there is no such folder")
    return full


def _run(command: Sequence[str], watch: Watch, pace: Pace, waited_s: float) -> int:
    from headgate.cli.job import CannotStart, Job
    from headgate.cli.pacer import Pacer

    started_s = time.monotonic()
    try:
        with (
            _signals_blocked(),
            Job(command, environment_of(watch.asking), watch.pause_file) as job,
            watch.asking.client() as client,
        ):
            pacer = Pacer(pace, started_s)
            Watching(watch, client, job, pacer).until_its_end()
    except CannotStart as fault:
        print(f"headgate: {fault}", file=sys.stderr)
        return fault.exit_code
    ended_s = time.monotonic()
    assert job.exit_code is not None
    say(watch.asking, summary(pacer.end(ended_s), waited_s, ended_s - started_s, job.exit_code))
    return job.exit_code


@contextmanager
def _signals_blocked() -> Iterator[None]:
    from headgate.cli.job import WATCHED

    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def summary(tally: Tally, waited_s: float, ran_s: float, exit_code: int) -> str:
    times = "once" if tally.stops == 1 else f"{tally.stops} times"
    stopped = f"stopped {times}, for {tally.stopped_s:.1f} s" if tally.stops else "never stopped"
    silent = f"; for {tally.silent_s:.1f} s no agent answered" if tally.silent_s else ""
    return f"waited {waited_s:.1f} s, ran {ran_s:.1f} s, {stopped}{silent}; exit code {exit_code}"


class Watching:
    """One job from its start to its end."""

    def __init__(self, watch: Watch, client: Client, job: Job, pacer: Pacer) -> None:
        self._watch = watch
        self._client = client
        self._job = job
        self._pacer = pacer
        self._ending = False
        """Told to end: it is not stopped any more."""
        self._why_stopped = ""

    def until_its_end(self) -> None:
        from headgate.cli.job import WATCHED

        ask_at_s = time.monotonic() + self._watch.every_s
        while not self._job.reap():
            came = signal.sigtimedwait(WATCHED, self._idle_s(ask_at_s))
            if came is not None:
                self._act_on(came.si_signo)
            elif time.monotonic() >= ask_at_s:
                ask_at_s = self._ask()
            self._end_overlong(time.monotonic())

    def _idle_s(self, ask_at_s: float) -> float:
        """Until there is something to do: a stop may have to end before the next question."""
        now_s, limit_s = time.monotonic(), self._watch.max_stop_s
        left_s = ask_at_s - now_s
        if limit_s is not None and self._pacer.stopped and not self._ending:
            left_s = min(left_s, limit_s - self._pacer.stopped_for_s(now_s))
        return max(0.0, left_s)

    def _act_on(self, number: int) -> None:
        from headgate.cli.job import ENDING

        if number == signal.SIGHUP and ignores_hangups():
            return  # blocked, it comes all the same
        if number == signal.SIGTSTP:
            self._job.suspend()
        elif number == signal.SIGCONT:
            self._job.resume()
        elif number != signal.SIGCHLD:
            self._ending = self._ending or number in ENDING
            self._job.forward(number)

    def _ask(self) -> float:
        """When to ask again."""
        from headgate.cli.pacer import pause_s
        from headgate.client.gate import system_dice

        asked_s = time.monotonic()
        answer, told = self._answer()
        now_s = time.monotonic()
        pacer = self._pacer
        move = pacer.unheard(asked_s, now_s) if answer is None else pacer.heard(bool(answer), now_s)
        self._move(move, told)
        advised_s = 0.0 if answer is None else answer.retry_after_s or 0.0
        return now_s + pause_s(self._watch.every_s, advised_s, system_dice())

    def _answer(self) -> tuple[Answer | None, str]:
        try:
            answer = self._client.check()
        except HeadgateError as fault:
            # A question that is refused as such (a token that was withdrawn) is no answer, either.
            return None, str(fault)
        if answer.unthrottled:
            return None, answer.reason
        return answer, answer.reason or answer.verdict

    def _move(self, move: Move, told: str) -> None:
        from headgate.cli.pacer import Move

        if self._ending or move is Move.STAY:
            return
        if move is Move.STOP:
            self._why_stopped = told
            self._job.stop()
            say(self._watch.asking, f"stopped: {told}")
        else:
            self._job.go_on()
            say(self._watch.asking, "goes on")

    def _end_overlong(self, now_s: float) -> None:
        limit_s = self._watch.max_stop_s
        stopped_s = self._pacer.stopped_for_s(now_s)
        if limit_s is None or self._ending or stopped_s < limit_s or not self._pacer.stopped:
            return
        self._ending = True
        told = f"stopped for {stopped_s:.1f} s of at most {limit_s:g} s: {self._why_stopped}"
        say(self._watch.asking, f"ended with SIGTERM, {told}")
        self._job.forward(signal.SIGTERM)
