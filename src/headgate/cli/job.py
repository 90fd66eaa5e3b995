"""A command in a process group of its own, which can be stopped and never stays so.

    Job ──SIGSTOP, SIGCONT──► process group        Keeper (sh): continues it if we are killed
     └──or a file that it looks for, and pauses by itself at the end of its chunk

Nobody can act after `kill -9`. So a small process in a session of its own reads from a pipe that
only we hold open: when that ends without a farewell, it continues the group. The kernel's own
PR_SET_PDEATHSIG would reach the group's leader alone, and not what that has started.

Without a terminal the job gets a session of its own as well. A stopped group that loses its last
parent in the same session is sent SIGHUP by the kernel, and SIGCONT: that would end the job. With
a terminal it stays in the session, to read from the keyboard, and `kill -9` is such a loss.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from headgate.errors import HeadgateError

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


class Keeper:
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
            pass  # somebody ended it: the job is then watched by us alone


class Terminal:
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
        # Whoever sets it from the background is stopped for it, unless that signal is blocked.
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
        self._keeper = Keeper()
        self._terminal = Terminal()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
