"""Start, freeze and end a real database server.

    postgres.py, the tests' MariaDB ──launch──► ServerProcess ──► guard.py ──► server

What both engines share: who runs the server, where its files are, which port it gets.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headgate.demo.guard import KILL_ORDER, children_of, signal_each
from headgate.errors import HeadgateError

GUARD = Path(__file__).with_name("guard.py")
POLL_S = 0.02
LONGEST_S = 120.0
"""What a server or one of its tools may take: a busy machine is slow, and that is no failure."""
ROOMY_BYTES = 2 * 1024**3
PORT_ATTEMPTS = 8
OVERFLOW_ID = 65534
SHORT_BYTES = 48
"""Of a folder for sockets: below it come a folder and a name."""
# Below the kernel's range for outgoing connections: none of them can take the port
# of a server that is down for a moment.
FIRST_PORT, PORT_COUNT = 20_000, 12_000
# Fixed, not inherited: PGPORT or MYSQL_HOME in the caller's shell must not matter.
BASE_ENV = {"PATH": os.defpath, "LC_ALL": "C"}


class ServerFailed(HeadgateError, RuntimeError):
    """A database server did not start, stop or answer; carries the end of its log."""


class PortTaken(ServerFailed):
    """Another process was faster."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user that runs the servers; None for the current user."""

    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def service_user() -> ServiceUser:
    """Database servers do not run as root, so root lends them an account."""
    if os.geteuid() != 0:
        return ServiceUser()
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:  # A small container has no such line; the number is the kernel's own.
        return ServiceUser(OVERFLOW_ID, OVERFLOW_ID)
    return ServiceUser(nobody.pw_uid, nobody.pw_gid)


def check_known() -> None:
    """Postgres looks up the name of the user who runs it, and does not start without one."""
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        line = f"headgate:x:{uid}:{os.getegid()}::/tmp:/bin/sh"
        message = f"user id {uid} has no line in /etc/passwd, and Postgres needs one: add {line!r}"
        raise ServerFailed(message) from None


def can_reach(path: Path) -> bool:
    """Whether the service user can walk to `path`."""
    if os.geteuid() != 0:
        return True
    path = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def scratch_parent() -> Path:
    """Where to put servers that need not last: in memory, if there is room for some."""
    memory = Path("/dev/shm")
    if _is_usable(memory) and shutil.disk_usage(memory).free >= ROOMY_BYTES:
        return memory
    chosen = Path(tempfile.gettempdir())
    # A TMPDIR in root's home is of no use to the user who runs the servers.
    others = (Path("/tmp"), Path("/var/tmp"))
    return next(filter(_is_usable, (chosen, *others)), chosen)


def _is_usable(folder: Path) -> bool:
    """For us, and for the service user."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and can_reach(folder)


def open_base(base_dir: Path) -> Path:
    """A folder to put servers in, with a way in for the service user."""
    base_dir.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        base_dir.chmod(base_dir.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    if not can_reach(base_dir):
        raise ServerFailed(f"{base_dir}: a folder above it is closed to the user 'nobody'")
    return base_dir.resolve()


def make_folder(parent: Path, prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    service_user().own(folder)
    return folder


def make_socket_folder() -> Path:
    """Of the service user's own, and short: a Unix socket's whole path has room for 107 bytes."""
    return make_folder(short_parent(), "hg-")


def short_parent() -> Path:
    """Where temporary files are, unless that is a long way down or closed to the service user."""
    for parent in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if len(os.fsencode(parent)) <= SHORT_BYTES and _is_usable(parent):
            return parent
    raise ServerFailed("neither TMPDIR nor /tmp has room for a socket: set TMPDIR to a short path")


def run_tool(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] = BASE_ENV) -> None:
    """Run a server's own tool to its end, as the service user."""
    user = service_user()
    try:
        done = _run(argv, cwd, env, user)
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"{argv[0]} did not end in {LONGEST_S:g} s") from None
    if done.returncode != 0:
        raise ServerFailed(f"{argv[0]} exited with {done.returncode}: {done.stderr[-2000:]}")


def _run(
    argv: Sequence[str | Path], cwd: Path, env: Mapping[str, str], user: ServiceUser
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env=env,
        user=user.uid,
        group=user.gid,
        extra_groups=None if user.uid is None else [],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=LONGEST_S,
        check=False,
    )


def copy_tree(source: Path, target: Path) -> None:
    # cp keeps owner and mode, and is several times faster than shutil.copytree.
    subprocess.run(["cp", "-a", source, target], check=True, timeout=LONGEST_S)


def let_all_read(tree: Path) -> None:
    """Whatever umask its files were made with."""
    subprocess.run(["chmod", "-R", "a+rX", tree], check=True, timeout=LONGEST_S)


def fill_folder(
    target: Path, *, cache_dir: Path | None, key: str, build: Callable[[Path], None]
) -> None:
    """Make `target`: copied from the cache where it was built before, else built now."""
    if cache_dir is None:
        build(target)
        return
    kept = cache_dir / f"{key}-uid{os.geteuid()}"
    if not kept.is_dir():
        build(target)
        _keep(target, kept)
        return
    copy_tree(kept, target)


def _keep(built: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as staging:
        copy_tree(built, Path(staging) / "tree")
        # Another run may have been faster; then its copy is as good.
        with suppress(OSError):
            (Path(staging) / "tree").rename(kept)


def use_ports(first: int, last: int) -> None:
    """Take ports from this range only: others on this machine keep to theirs."""
    global FIRST_PORT, PORT_COUNT
    FIRST_PORT, PORT_COUNT = first, last - first + 1


def distinct_ports(count: int) -> list[int]:
    """Of programs that get their port and start later."""
    found: set[int] = set()
    for port in free_ports():
        found.add(port)
        if len(found) == count:
            return list(found)
    raise PortTaken(f"no {count} free ports found in {PORT_ATTEMPTS} attempts")


def free_ports() -> Iterator[int]:
    """Ports that were free a moment ago; the caller goes on when one is taken since."""
    for _ in range(PORT_ATTEMPTS):
        port = FIRST_PORT + secrets.randbelow(PORT_COUNT)
        if _is_free(port):
            yield port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What to run, and what to remove should we die without closing it."""

    argv: Sequence[str]
    cwd: Path
    log_path: Path
    folders: Sequence[Path]
    quit_signal: signal.Signals = signal.SIGKILL
    env: Mapping[str, str] | None = field(default_factory=lambda: dict(BASE_ENV))
    """None for our own."""
    user: ServiceUser = field(default_factory=service_user)

    def as_json(self) -> str:
        return json.dumps(
            {
                "argv": list(self.argv),
                "cwd": str(self.cwd),
                "folders": [str(folder) for folder in self.folders],
                "quit_signal": int(self.quit_signal),
                "env": None if self.env is None else dict(self.env),
                "uid": self.user.uid,
                "gid": self.user.gid,
            }
        )


class ServerProcess:
    """A server under its guard: alive from the constructor until `wait` returns."""

    def __init__(self, spec: ServerSpec) -> None:
        with spec.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), spec.as_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for us; we end the server in order
            )
        self._log_path = spec.log_path
        self.pid = self._read_pid()

    def _read_pid(self) -> int:
        assert self._guard.stdout is not None
        with self._guard.stdout as answers:
            line = answers.readline()
        if not line:
            self.wait()
            raise ServerFailed(f"the server could not be started: {self.log()[-2000:]}")
        return int(line)

    def log(self) -> str:
        """What this run of the server has logged."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def is_running(self) -> bool:
        return self._guard.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running():
            signal_each([self.pid], number)

    def pause(self) -> None:
        """Freeze the server whole: it keeps its connections and answers nothing."""
        self.signal(signal.SIGSTOP)  # first, so that it starts no further worker
        signal_each(self._workers(), signal.SIGSTOP)

    def resume(self) -> None:
        signal_each(self._workers(), signal.SIGCONT)
        self.signal(signal.SIGCONT)

    def _workers(self) -> list[int]:
        return children_of(self.pid) if self.is_running() else []

    def kill(self) -> None:
        """SIGKILL the server and all its workers, as a power cut would."""
        assert self._guard.stdin is not None
        if self.is_running():
            with suppress(BrokenPipeError):
                self._guard.stdin.write(KILL_ORDER)
        self.wait()

    def wait(self, within_s: float = LONGEST_S) -> None:
        """Until the server and all its workers are gone."""
        try:
            self._guard.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"server {self.pid} did not stop in {within_s} s") from None
        assert self._guard.stdin is not None
        self._guard.stdin.close()


def wait_until(is_so: Callable[[], bool], *, what: str, within_s: float = LONGEST_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise ServerFailed(f"{what}: not within {within_s} s")
        time.sleep(POLL_S)


def launch(spec: ServerSpec, is_ready: Callable[[ServerProcess], bool]) -> ServerProcess:
    """Start a server and wait until it is ready; nothing is left of it otherwise."""
    process = ServerProcess(spec)
    try:
        wait_until(
            lambda: not process.is_running() or is_ready(process),
            what=f"{spec.argv[0]} ready",
        )
    except BaseException:
        process.kill()
        raise
    if not process.is_running():
        process.wait()
        raise _start_failure(spec, process.log())
    return process


def _start_failure(spec: ServerSpec, log: str) -> ServerFailed:
    kind = PortTaken if "Address already in use" in log else ServerFailed
    return kind(f"{spec.argv[0]} ended while starting: {log[-2000:]}")


def launch_on_free_port(launch_on: Callable[[int], ServerProcess]) -> tuple[int, ServerProcess]:
    for port in free_ports():
        with suppress(PortTaken):
            return port, launch_on(port)
    raise PortTaken(f"no free port found in {PORT_ATTEMPTS} attempts")


def remove_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
