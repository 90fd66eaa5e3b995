"""`headgate run -- COMMAND`: throttles a command that does not check.

    Client.check ──► JobPacer (stop? go on?) ──► Job (process group)
          ▲                                      │
          └───────── every second ◄── sigtimedwait: signals, or its end

One thread and no handlers: the signals are blocked and waited for, so that nothing happens
between two lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headgate.cli.asking import (
    About,
    AgentAddress,
    ClientOptions,
    MaxWait,
    Quiet,
    UnavailablePolicy,
    say,
    wait_for_permission,
)
from headgate.cli.options import AgentOptions, Duration, duration
from headgate.cli.signals import ignores_hangups, restore_signals
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.client.answers import Answer
    from headgate.client.sync_client import Client

MODES = ("stop", "start", "env")
EVERY, STEADY = Duration("1s"), Duration("2s")


@dataclass(frozen=True, slots=True)
class Running:
    """How a running job is throttled."""

    mode: Annotated[
        str,
        typer.Option(
            metavar="stop|start|env",
            help="stop: wait until admitted, then stop and continue the job as the answers change. "
            "start: only wait until admitted. env: start at once; the job itself checks.",
        ),
    ] = "stop"
    max_wait: MaxWait = None
    every: Annotated[
        Duration,
        duration(
            "--every",
            about="Time between two checks; while rejected, up to twice as long.",
            low=0.05,
        ),
    ] = EVERY
    steady: Annotated[
        Duration, duration("--steady", about="Each stop and each run lasts at least this long.")
    ] = STEADY
    max_stop: Annotated[
        Duration | None,
        duration(
            "--max-stop",
            about="A stop that lasts longer ends the job: it is continued and sent SIGTERM. "
            "Default: a job is stopped for as long as it is rejected.",
            default=False,
        ),
    ] = None
    pause_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Instead of being stopped, the command pauses: this file exists while "
            "it is rejected. For programs that look for such a file between two chunks, as "
            "pt-online-schema-change and gh-ost do.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise typer.BadParameter(f"--mode {self.mode!r} must be one of {', '.join(MODES)}")


Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND")]


def run(
    command: Command,
    about: About,
    running: Running,
    silence: UnavailablePolicy,
    agent: AgentOptions,
    quiet: Quiet = False,
) -> None:
    """Run a command, and stop it while the database is unhealthy.

    Waits until admitted, and starts the command in a process group of its own. Checks every second,
    stops the group (SIGSTOP) while rejected and continues it (SIGCONT) once admitted, at most two
    seconds later. A stopped program keeps its transactions and locks: stop only what works in
    short transactions, and use --mode start or env for the rest.

    Signals are passed on. The exit code is the command's own, or 128 and the signal that ended
    it; where it never started, that of `headgate wait`, 126 or 127. In every mode the command
    finds HEADGATE_APP, HEADGATE_DATABASE, HEADGATE_URL and so on in its environment. Standard
    output is the command's: with --json the summary is one line of JSON on standard error.
    """
    asking = ClientOptions(about, silence, AgentAddress.found(agent), quiet)
    pace = JobPace(running.steady, silence.after_s, silence.on_unavailable)
    is_env = running.mode == "env"
    waited_s = 0.0 if is_env else wait_for_permission(asking, running.max_wait).waited_s
    if running.mode != "stop":
        _become(command, asking)
    pause_file = checked_file(running.pause_file)
    watch = RunOptions(asking, running.every, running.max_stop, pause_file, agent.as_json)
    raise typer.Exit(_run(command, watch, pace, waited_s))


def _become(command: Sequence[str], asking: ClientOptions) -> None:
    """Nothing is left for us to do: the job takes our place, with its own signals and end."""
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


def environment_of(asking: ClientOptions) -> dict[str, str]:
    """Of the job: ours, and what `headgate wait` and the SDK in it need to check alike."""
    about, whom = asking.about, asking.agent
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
class RunOptions:
    """How a running job is asked for."""

    asking: ClientOptions
    every_s: float
    max_stop_s: float | None
    pause_file: Path | None = None
    as_json: bool = False
    """Of the summary."""


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


def _run(command: Sequence[str], watch: RunOptions, pace: JobPace, waited_s: float) -> int:
    started_s = time.monotonic()
    try:
        with (
            _signals_blocked(),
            Job(command, environment_of(watch.asking), watch.pause_file) as job,
            watch.asking.client() as client,
        ):
            pacer = JobPacer(pace, started_s)
            JobRun(watch, client, job, pacer).until_its_end()
    except CannotStart as fault:
        print(f"headgate: {fault}", file=sys.stderr)
        return fault.exit_code
    ended_s = time.monotonic()
    assert job.exit_code is not None
    tally = pacer.end(ended_s)
    if watch.as_json:
        told = {"waited_s": waited_s, "ran_s": ended_s - started_s, **asdict(tally)}
        rounded = {name: round(value, 3) for name, value in told.items()}
        print(json.dumps({**rounded, "exit_code": job.exit_code}), file=sys.stderr)
    else:
        say(watch.asking, summary(tally, waited_s, ended_s - started_s, job.exit_code))
    return job.exit_code


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def summary(tally: RunSummary, waited_s: float, ran_s: float, exit_code: int) -> str:
    times = "once" if tally.stops == 1 else f"{tally.stops} times"
    stopped = f"stopped {times}, for {tally.stopped_s:.1f} s" if tally.stops else "never stopped"
    silent = f"; for {tally.silent_s:.1f} s no agent answered" if tally.silent_s else ""
    return f"waited {waited_s:.1f} s, ran {ran_s:.1f} s, {stopped}{silent}; exit code {exit_code}"


class JobRun:
    """One job from its start to its end."""

    def __init__(self, watch: RunOptions, client: Client, job: Job, pacer: JobPacer) -> None:
        self._watch = watch
        self._client = client
        self._job = job
        self._pacer = pacer
        self._ending = False
        """It is ending: it is not stopped any more."""
        self._why_stopped = ""

    def until_its_end(self) -> None:
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
        """When to check again."""
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
            # A question that is rejected as such (a token that was withdrawn) is no answer, either.
            return None, str(fault)
        if answer.unthrottled:
            return None, answer.reason
        return answer, answer.reason or answer.verdict

    def _move(self, move: Move, told: str) -> None:
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


# --- when it is stopped and continued --------------------------------------------------------
#
# Each stop and each run lasts `steady_s` at least: a metric that hovers about its threshold would
# otherwise stop the job at every second check. Silence is no rejection (R50): for
# `unavailable_after_s` it changes nothing, and then the caller's own policy decides (R48).


class Move(Enum):
    STAY = auto()
    STOP = auto()
    GO_ON = auto()


@dataclass(frozen=True, slots=True)
class JobPace:
    steady_s: float = 2.0
    unavailable_after_s: float = 10.0
    on_unavailable: Literal["closed", "open"] = "closed"


@dataclass(slots=True)
class RunSummary:
    """What the summary tells."""

    stops: int = 0
    stopped_s: float = 0.0
    silent_s: float = 0.0
    """Without an answer, until the last question that had none."""


def pause_s(every_s: float, advised_s: float, roll: float) -> float:
    """Until the next question. Advice of a minute, as of a hold, bounds when work is tried again;
    a job that is stopped is to continue soon after the hold is lifted. So it is followed up
    to twice `every_s`, and jobs with the same advice come back at different times."""
    if advised_s <= 2 * every_s:
        return max(every_s, advised_s)
    return every_s * (1 + roll)


class JobPacer:
    """Of one running job. Times are monotonic."""

    def __init__(self, pace: JobPace, started_s: float) -> None:
        self.pace = pace
        self.stopped = False
        self.tally = RunSummary()
        self._since_s = started_s
        self._silent_since_s: float | None = None

    def heard(self, admitted: bool, now_s: float) -> Move:
        self._end_silence(now_s)
        return self._move(stop=not admitted, now_s=now_s)

    def unheard(self, asked_s: float, now_s: float) -> Move:
        if self._silent_since_s is None:
            self._silent_since_s = asked_s
        if now_s - self._silent_since_s < self.pace.unavailable_after_s:
            return Move.STAY
        return self._move(stop=self.pace.on_unavailable == "closed", now_s=now_s)

    def stopped_for_s(self, now_s: float) -> float:
        return now_s - self._since_s if self.stopped else 0.0

    def end(self, now_s: float) -> RunSummary:
        """The job is over."""
        self._end_silence(now_s)
        self.tally.stopped_s += self.stopped_for_s(now_s)
        return self.tally

    def _move(self, *, stop: bool, now_s: float) -> Move:
        if stop == self.stopped or now_s - self._since_s < self.pace.steady_s:
            return Move.STAY
        self.tally.stopped_s += self.stopped_for_s(now_s)
        self.tally.stops += stop
        self.stopped, self._since_s = stop, now_s
        return Move.STOP if stop else Move.GO_ON

    def _end_silence(self, now_s: float) -> None:
        if self._silent_since_s is not None:
            self.tally.silent_s += now_s - self._silent_since_s
            self._silent_since_s = None


# --- the command in its process group --------------------------------------------------------
#
#   Job ──SIGSTOP, SIGCONT──► process group        JobGuard (sh): continues it if we are killed
#    └──or a file that it looks for: it pauses at the end of its chunk
#
# Nobody can act after `kill -9`. So a small process in a session of its own reads from a pipe that
# only we hold open: when that ends without a farewell, it continues the group. The kernel's own
# PR_SET_PDEATHSIG would reach the group's leader alone, and not what that has started.
#
# Without a terminal the job gets a session of its own as well. A stopped group that loses its last
# parent in the same session is sent SIGHUP by the kernel, and SIGCONT: that would end the job. With
# a terminal it stays in the session, to read from the keyboard, and `kill -9` is such a loss.

# Waited for with sigtimedwait, and so blocked in us; the job gets them as it would without us.
FORWARDED = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
WATCHED = FORWARDED | {signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT}
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})

NOT_FOUND = 127
NOT_EXECUTABLE = 126
# Ignores what ends us: it is to outlive us, and ends when the pipe does.
_KEEPER = """
trap '' TERM INT HUP QUIT TSTP USR1 USR2
read -r group && read -r pause_file || exit 0
read -r farewell && exit 0
[ -z "$pause_file" ] || rm -f -- "$pause_file"
kill -s CONT -- "-$group" 2>/dev/null &&
  echo "headgate: run was killed; its job (process group $group) goes on unthrottled" >&2
"""


class CannotStart(HeadgateError):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class JobGuard:
    """Continues the group if we die without a farewell."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 -- a constant of ours
            ["/bin/sh", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            restore_signals=True,
        )

    def watch(self, group: int, pause_file: Path | None) -> None:
        self._say(f"{group}\n{pause_file or ''}\n")

    def dismiss(self) -> None:
        self._say("over\n")
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(timeout=5)

    def _say(self, line: str) -> None:
        assert self._shell.stdin is not None
        try:
            self._shell.stdin.write(line.encode())
            self._shell.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed: the job is then watched by us alone


class TerminalOwner:
    """Who reads the keyboard: the job while it runs, we while it is stopped.

    A stopped job would leave Ctrl-C pending; in our hands it ends the job.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._ours = os.getpgrp()

    def give(self, group: int) -> bool:
        """Whether `group` has it now. Only what is ours can be given: after `bg` it is not."""
        if self._holder() == self._ours:
            self._set(group)
        return self._holder() == group

    def take(self, group: int) -> None:
        if self._holder() == group:
            self._set(self._ours)

    def _holder(self) -> int | None:
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return None  # no terminal, or not ours

    def _set(self, group: int) -> None:
        # A process that sets it from the background is stopped, unless that signal is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._descriptor, group)
        except OSError:
            pass  # the group, or the terminal, is gone: nobody reads there any more
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Job:
    """Started when made. Leaving the `with` block continues it, whatever happened."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        pause_file: Path | None = None,
    ) -> None:
        self._pause_file = pause_file
        self._keeper = JobGuard()
        self._terminal = TerminalOwner()
        self._has_terminal = has_terminal()
        self._stopped = False
        """By our SIGSTOP."""
        self.exit_code: int | None = None
        try:
            self._process = _start(command, environment, own_session=not self._has_terminal)
        except BaseException:
            self._keeper.dismiss()
            raise
        self.pid = self._process.pid
        self._keeper.watch(self.pid, pause_file)
        self._terminal.give(self.pid)

    def stop(self) -> None:
        if self._pause_file is not None:
            self._pause_file.touch()
            return
        self._stopped = True
        # First: a Ctrl-C that finds the job stopped and still in front would be nobody's.
        self._terminal.take(self.pid)
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._unpause()
        self._stopped = False
        self._terminal.give(self.pid)
        self._signal(signal.SIGCONT)

    def forward(self, number: int) -> None:
        """A stopped job takes no signal but SIGKILL: one that ends it lets it go on, too."""
        self._signal(number)
        if number in ENDING:
            self.go_on()

    def suspend(self) -> None:
        """Ctrl-Z: the job and we stop together, and the shell has the terminal."""
        # In a session of its own nobody could resume it: there the kernel drops SIGTSTP.
        self._signal(signal.SIGTSTP if self._has_terminal else signal.SIGSTOP)
        self._suspend_us()

    def resume(self) -> None:
        """After `fg` or `bg`."""
        if not self._stopped:
            self.go_on()

    def reap(self) -> bool:
        """Whether it is over; a stop that was none of ours is taken over by us."""
        while self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return False
            if not os.WIFSTOPPED(status):
                self.exit_code = _exit_code(status)
            elif not self._stopped:
                self._stopped_by(os.WSTOPSIG(status))
        self._process.returncode = self.exit_code  # so that it does not look for its end itself
        return True

    def _stopped_by(self, number: int) -> None:
        wants_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if wants_terminal and self._terminal.give(self.pid):
            self._signal(signal.SIGCONT)  # it was quicker than we were to give it
        elif wants_terminal or number == signal.SIGTSTP:
            self._suspend_us()

    def _suspend_us(self) -> None:
        self._terminal.take(self.pid)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.resume()

    def _unpause(self) -> None:
        if self._pause_file is not None:
            self._pause_file.unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # over, and reaped by and by
            os.killpg(self.pid, number)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._unpause()
        if self._stopped:
            self._signal(signal.SIGCONT)
        self._terminal.take(self.pid)
        self._keeper.dismiss()


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _start(
    command: Sequence[str], environment: Mapping[str, str], *, own_session: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 -- running what we are given is the purpose
            list(command),
            env=dict(environment),
            start_new_session=own_session,
            process_group=None if own_session else 0,
            preexec_fn=_unblock,  # noqa: PLW1509 -- there is one thread here
        )
    except FileNotFoundError:
        message = f"{command[0]}: command not found; give its path, or look at PATH"
        raise CannotStart(message, NOT_FOUND) from None
    except OSError as fault:
        message = f"{command[0]}: cannot be started: {str(fault.strerror).lower()}"
        raise CannotStart(message, NOT_EXECUTABLE) from None


def _unblock() -> None:
    """In the child, before it becomes the job: a mask is inherited, and ours is none of its."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def _exit_code(status: int) -> int:
    """As a shell has it: 128 and the signal's number where one ended the job."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
