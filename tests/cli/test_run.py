"""`headgate run`: a real command, really stopped, never left so."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.cli.run import JobPace, JobPacer, Move, pause_s
from tests.client import bodies
from tests.client.scripted import OK, REJECTED, ScriptedAgent, answer
from tests.fixtures.eventually import eventually
from tests.fixtures.forking import Forked, Forks

HELD = answer(429, bodies.rejection(retry_after_ms=60_000), Retry_After="60")
# A leader with a child, as any script has: the whole group is to stop. `wait` lets traps run.
JOB = "echo $$ > pid.new; sleep 600 & echo $! >> pid.new; mv pid.new pids; wait; echo over"
QUICK = ("--every", "50ms", "--steady", "0")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.end()


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent() as agent:
        yield agent


class Running:
    """`headgate run … -- sh -c JOB`, and the processes of the job."""

    def __init__(self, process: Forked, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.pids = [int(pid) for pid in eventually(self._pids).split()]

    def _pids(self) -> str:
        assert self.process.poll() is None, self.told
        path = self.folder / "pids"
        return path.read_text() if path.exists() else ""

    @property
    def told(self) -> str:
        return self.process.err

    def all_in(self, states: str) -> bool:
        return all(state_of(pid) in states for pid in self.pids)

    def until(self, states: str) -> None:
        eventually(lambda: self.all_in(states))

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait()


def state_of(pid: int) -> str:
    """R, S, D, T (stopped), Z; X where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def running(agent: ScriptedAgent, forks: Forks, tmp_path: Path) -> Start:
    @contextmanager
    def running(*options: str, job: str = JOB) -> Iterator[Running]:
        command = ("run", "--as", "etl:nightly", *QUICK, *options, "--", "sh", "-c", job)
        run = Running(forks.start(tmp_path, *command, HEADGATE_URL=agent.url), tmp_path)
        try:
            yield run
        finally:
            for pid in (run.process.pid, *run.pids):
                if state_of(pid) not in "XZ":
                    os.kill(pid, signal.SIGKILL)
            run.process.wait()

    return running


def test_the_whole_group_is_stopped_while_rejected(
    agent: ScriptedAgent, running: Start, tmp_path: Path
) -> None:
    with running() as run:
        agent.script.default = HELD  # for a minute; and then it is lifted
        run.until("T")
        agent.script.default = OK
        run.until("SR")
        os.kill(run.pids[1], signal.SIGTERM)
        assert run.process.wait() == 0
    assert (tmp_path / "out").read_text() == "over\n"
    assert "etl:nightly: stopped: main: lag is 7.2 s" in run.told
    assert "stopped once, for " in run.told and run.told.rstrip().endswith("exit code 0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_job_can_be_ended(
    agent: ScriptedAgent, running: Start, number: signal.Signals
) -> None:
    """A signal to a stopped process waits for its end otherwise: it is continued as well."""
    with running(job=f"trap 'exit 7' {int(number)}; {JOB}") as run:
        agent.script.default = REJECTED
        run.until("T")
        assert run.end(number) == 7
        assert state_of(run.pids[1]) != "T"


def test_a_job_that_a_signal_ends_is_reported_as_a_shell_does(
    agent: ScriptedAgent, running: Start
) -> None:
    with running() as run:
        assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM


def test_killing_the_wrapper_does_not_leave_the_job_stopped(
    agent: ScriptedAgent, running: Start
) -> None:
    with running() as run:
        agent.script.default = REJECTED
        run.until("T")
        assert run.end(signal.SIGKILL) == -signal.SIGKILL
        run.until("SR")
        told = f"its job (process group {run.pids[0]}) goes on unthrottled"
        eventually(lambda: told in run.told)


@pytest.mark.parametrize(("policy", "states"), [("open", "SR"), ("closed", "T")])
def test_a_lost_agent_is_answered_by_the_policy(
    agent: ScriptedAgent, running: Start, policy: str, states: str
) -> None:
    """R48: stopped or running when the agent went, the policy decides."""
    with running("--on-unavailable", policy, "--unavailable-after", "300ms") as run:
        if policy == "open":
            agent.script.default = REJECTED
            run.until("T")
        agent.stop()
        run.until(states)
        agent.script.default = OK
        agent.start()
        run.until("SR")
        run.end(signal.SIGTERM)
    assert "no agent answered" in run.told


def test_a_stop_has_an_end_where_one_was_set(agent: ScriptedAgent, running: Start) -> None:
    """Also where the agent would have nobody ask for a minute."""
    with running("--max-stop", "200ms") as run:
        agent.script.default = HELD
        assert run.process.wait() == 128 + signal.SIGTERM
    assert "of at most 0.2 s: main: lag is 7.2 s" in run.told.partition("ended with SIGTERM")[2]


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_can_pause_is_notified_by_a_file(
    agent: ScriptedAgent, running: Start, tmp_path: Path, killed: bool
) -> None:
    pause = tmp_path / "pause"
    with running("--pause-file", str(pause)) as run:
        agent.script.default = REJECTED
        eventually(pause.exists)
        assert run.all_in("SR")
        if killed:
            run.end(signal.SIGKILL)
        else:
            agent.script.default = OK
        eventually(lambda: not pause.exists())
        if not killed:
            assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM


def test_suspending_takes_the_job_along(agent: ScriptedAgent, running: Start) -> None:
    with running() as run:
        run.process.send_signal(signal.SIGTSTP)
        run.until("T")
        eventually(lambda: state_of(run.process.pid) == "T")
        run.process.send_signal(signal.SIGCONT)
        run.until("SR")


def test_at_a_terminal_the_keyboard_is_the_jobs(agent: ScriptedAgent, tmp_path: Path) -> None:
    """A password is read from it; Ctrl-C reaches the job while it is stopped, too."""
    code, shown = at_a_terminal(
        agent,
        tmp_path,
        lambda write: write("secret\n"),
        "read -r word; echo got $word",
    )
    assert (code, "got secret" in shown) == (0, True)


def test_ctrl_c_ends_a_stopped_job(agent: ScriptedAgent, tmp_path: Path) -> None:
    def press(write: Callable[[str], None]) -> None:
        pid = int(eventually(lambda: _text(tmp_path / "pid")))
        agent.script.default = REJECTED
        eventually(lambda: state_of(pid) == "T")
        write("\x03")

    code, _ = at_a_terminal(agent, tmp_path, press, "echo $$ > pid; exec sleep 600")
    assert code == 128 + signal.SIGINT


def test_killing_the_wrapper_at_a_terminal_does_not_leave_the_job_stopped(
    agent: ScriptedAgent, tmp_path: Path
) -> None:
    def press(_: Callable[[str], None]) -> None:
        pid, wrapper = eventually(lambda: _text(tmp_path / "pid")).split()
        agent.script.default = REJECTED
        eventually(lambda: state_of(int(pid)) == "T")
        os.kill(int(wrapper), signal.SIGKILL)
        eventually(lambda: state_of(int(pid)) != "T")
        # Whether the kernel's SIGHUP or our SIGCONT came first is not ours to say.
        if state_of(int(pid)) not in "XZ":
            os.kill(int(pid), signal.SIGKILL)

    code, _ = at_a_terminal(agent, tmp_path, press, "echo $$ $PPID > pid; exec sleep 600")
    assert code == -signal.SIGKILL


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def at_a_terminal(
    agent: ScriptedAgent, folder: Path, press: Callable[[Callable[[str], None]], None], job: str
) -> tuple[int, str]:
    """In a session of its own, in the foreground of a new terminal."""
    pid, keyboard = pty.fork()
    if pid == 0:  # pragma: no cover -- the child
        os.chdir(folder)
        os.environ["HEADGATE_URL"] = agent.url
        os.execv(
            sys.executable,
            [sys.executable, "-m", "headgate", "run", "--as", "etl", *QUICK, "--", "sh", "-c", job],
        )
    press(lambda text: void(os.write(keyboard, text.encode())))
    shown = b""
    try:
        while piece := os.read(keyboard, 4096):
            shown += piece
    except OSError:
        pass  # Linux's way to say that nobody has the terminal open any more
    finally:
        os.close(keyboard)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def void(_: object) -> None:
    return None


# --- starting ---------------------------------------------------------------------------------


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def start(agent: ScriptedAgent, forks: Forks, tmp_path: Path) -> Callable[..., Ended]:
    def start(*argv: str) -> Ended:
        process = forks.start(tmp_path, "run", "--as", "etl:nightly", *argv, HEADGATE_URL=agent.url)
        return Ended(process.wait(), process.out, process.err)

    return start


@pytest.mark.parametrize("mode", ["stop", "start"])
def test_nothing_starts_before_it_is_admitted(
    agent: ScriptedAgent, start: Callable[..., Ended], mode: str
) -> None:
    agent.script.plays.extend([REJECTED, REJECTED])
    ran = start("--mode", mode, "--", "sh", "-c", "echo ran; exit 3")
    assert (ran.code, ran.out) == (3, "ran\n")
    assert "etl:nightly: waits: main: lag is 7.2 s" in ran.err
    assert len(agent.heard) >= 3


def test_nothing_starts_where_it_waited_too_long(
    agent: ScriptedAgent, start: Callable[..., Ended]
) -> None:
    agent.script.default = HELD
    ran = start("--max-wait", "1s", "--", "echo", "ran")
    assert (ran.code, ran.out) == (10, "")


def test_the_environment_is_passed_on(agent: ScriptedAgent, start: Callable[..., Ended]) -> None:
    """In mode env the job asks for itself: with `headgate wait`, without repeating a word."""
    inner = f'"{sys.executable}" -m headgate wait -q && echo "$HEADGATE_APP on $HEADGATE_DATABASE"'
    ran = start("--mode", "env", "--token", "t0k", "--", "sh", "-c", inner)
    assert (ran.code, ran.out) == (0, "etl:nightly on main\n")
    asked = agent.heard[0]
    assert "app=etl%3Anightly&database=main" in asked.line
    assert asked.headers["Authorization"] == "Bearer t0k"


@pytest.mark.parametrize(
    ("mode", "command", "code"),
    [("stop", "no-such-command", 127), ("stop", "/", 126), ("start", "no-such-command", 127)],
)
def test_a_command_that_cannot_start(
    start: Callable[..., Ended], mode: str, command: str, code: int
) -> None:
    ran = start("--mode", mode, "--", command)
    assert ran.code == code
    assert ran.err.startswith(f"headgate: {command}: ")


def test_options_behind_the_command_are_its_own(start: Callable[..., Ended]) -> None:
    assert start("-q", "echo", "--max-wait").out == "--max-wait\n"


# --- when it stops, as values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advised_s", "pause"), [(0.0, 1.0), (0.4, 1.0), (1.7, 1.7), (2.0, 2.0), (60.0, 1.25)]
)
def test_a_hold_that_is_lifted_is_noticed_soon(advised_s: float, pause: float) -> None:
    """R32: rejected for a minute, a job that is stopped checks within two seconds."""
    assert pause_s(1.0, advised_s, roll=0.25) == pause


def test_a_hovering_metric_does_not_make_it_flap() -> None:
    """Rejected and admitted in turn each second: one change in `steady_s` at most."""
    pacer = JobPacer(JobPace(steady_s=4.0), started_s=0.0)
    moves = [pacer.heard(second % 2 == 0, float(second)) for second in range(1, 41)]
    assert sum(move is not Move.STAY for move in moves) <= 10
    assert {Move.STOP, Move.GO_ON} <= set(moves)


def test_a_rejection_stops_at_once_after_a_steady_run() -> None:
    pacer = JobPacer(JobPace(steady_s=2.0), started_s=0.0)
    assert pacer.heard(False, 1.0) is Move.STAY
    assert pacer.heard(False, 2.0) is Move.STOP
    assert pacer.heard(True, 3.0) is Move.STAY
    assert pacer.heard(True, 4.0) is Move.GO_ON
    assert (pacer.end(9.0).stops, pacer.tally.stopped_s) == (1, 2.0)


def test_silence_changes_nothing_for_a_while() -> None:
    """R50: and an answer in between starts that time again."""
    pacer = JobPacer(JobPace(0.0, unavailable_after_s=3.0, on_unavailable="closed"), started_s=0.0)
    assert [pacer.unheard(t, t + 1.0) for t in (1.0, 2.0)] == [Move.STAY, Move.STAY]
    assert pacer.heard(True, 3.5) is Move.STAY
    assert pacer.unheard(4.0, 5.0) is Move.STAY
    assert pacer.unheard(6.0, 7.0) is Move.STOP
    assert pacer.end(8.0).silent_s == 6.5
