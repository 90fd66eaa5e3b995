"""The folder beside a server's data that gives it its policy, without a connection to it.

    FilePolicySink ──policy.hgp, health.hgs──► pg_headgate/ ◄──server.json── the server

Write access there is control over the server's traffic, so it belongs to the server's own user
alone. A file is written beside its place, flushed, and renamed: a reader sees the old or the new.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.budgets.compiled import FORMAT, MAGIC, OFF
from headgate.errors import PolicyRejected

FOLDER = "pg_headgate"
POLICY_FILE = "policy.hgp"
HEALTH_FILE = "health.hgs"
SERVER_FILE = "server.json"
OFF_FILE = "switched-off"
"""Left by disable --purge: a policy that is published later is switched off as well."""
STAGED = ".new"
SERVER_FORMAT = 1
MAX_SERVER_FILE_BYTES = 64 * 1024
LOCK_WAIT_S = 5.0
LOCK_POLL_S = 0.01
STAYS = "the last good policy stays in force"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoServer(PolicyRejected):
    """No server with the extension has been started on these files; says what to do."""


@dataclass(frozen=True, slots=True)
class ServerFile:
    """What a server with the extension says of itself when it starts."""

    pid: int
    region_fd: int
    region_bytes: int
    extension: str
    server_version_num: int
    max_connections: int
    cpus_milli: int

    @property
    def major(self) -> int:
        return self.server_version_num // 10_000


def directory_of(data_directory: Path) -> Path:
    return data_directory / FOLDER


def read_server_file(directory: Path) -> ServerFile:
    """Or NoServer, which tells a server without the extension from a file that is no such file."""
    path = directory / SERVER_FILE
    try:
        with path.open("rb") as file:
            body = file.read(MAX_SERVER_FILE_BYTES)
    except FileNotFoundError:
        raise NoServer(
            f"there is no {path}: the server is not running, or was started without the "
            "extension. Install it (headgate pg install), have shared_preload_libraries = "
            "'pg_headgate' in postgresql.conf, and restart the server once"
        ) from None
    except OSError as error:
        raise NoServer(f"{path} cannot be read: {error.strerror}{_whose(directory)}") from None
    return _server_file(path, body)


def _server_file(path: Path, body: bytes) -> ServerFile:
    try:
        said = json.loads(body)
        if said["format"] != SERVER_FORMAT:
            raise NoServer(
                f"{path} is of format {said['format']}, and this headgate reads {SERVER_FORMAT}: "
                "install the extension and headgate of the same version"
            )
        return ServerFile(
            extension=str(said["extension"]),
            **{name: int(said[name]) for name in ServerFile.__slots__ if name != "extension"},
        )
    except (ValueError, KeyError, TypeError):
        raise NoServer(f"{path} is not what a server writes: {body[:80]!r}") from None


def make_directory(directory: Path) -> None:
    """Owner-only, with the owner of the data directory; left alone where it exists already."""
    owner = _stat(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise PolicyRejected(
            f"{directory} cannot be made: {error.strerror}{_whose(directory.parent)}"
        ) from None
    if os.geteuid() == 0:
        os.chown(directory, owner.st_uid, owner.st_gid, follow_symlinks=False)


class Folder:
    """The folder, open and found in order; what is done through it cannot land elsewhere."""

    def __init__(self, path: Path, fd: int, owner: os.stat_result) -> None:
        self.path = path
        self._fd = fd
        self._owner = owner

    def read(self, name: str, at_most_bytes: int) -> bytes | None:
        """None if there is no such file."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _rejected(self.path / name, "cannot be read", error) from None
        with os.fdopen(fd, "rb") as file:
            return file.read(at_most_bytes)

    def replace(self, name: str, body: bytes) -> None:
        """The whole file at once; on any fault what was there is untouched."""
        self._sweep(name)
        staged = f"{name}.{os.getpid()}{STAGED}"
        try:
            self._write(staged, body)
            os.rename(staged, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(staged, dir_fd=self._fd)
            raise _rejected(self.path / name, "cannot be written", error) from None

    def _write(self, name: str, body: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=self._fd), "wb") as file:
            if os.geteuid() == 0:
                os.fchown(file.fileno(), self._owner.st_uid, self._owner.st_gid)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())

    def _sweep(self, name: str) -> None:
        """What publishers left that were killed in the middle. Nobody else writes: we hold the
        lock."""
        for entry in os.listdir(self._fd):  # noqa: PTH208 -- of the folder that is open
            if entry.startswith(f"{name}.") and entry.endswith(STAGED):
                with suppress(OSError):
                    os.unlink(entry, dir_fd=self._fd)

    def has(self, name: str) -> bool:
        return self.read(name, 0) is not None

    def remove(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _rejected(self.path / name, "cannot be removed", error) from None
        return True


@contextmanager
def opened(directory: Path) -> Iterator[Folder]:
    """The folder for one publisher at a time, or PolicyRejected with what is wrong with it."""
    fd = _open(directory)
    try:
        owner = _in_order(directory, os.fstat(fd))
        _lock(directory, fd)
        yield Folder(directory, fd, owner)
    finally:
        os.close(fd)


def _open(directory: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(directory, flags)
    except FileNotFoundError:
        raise NoServer(
            f"there is no folder {directory}: the extension makes it when the server starts, and "
            "headgate pg enable does"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise PolicyRejected(f"{directory} is no folder, or a link to one: {STAYS}") from None
        raise _rejected(directory, "cannot be opened", error) from None


def _in_order(directory: Path, found: os.stat_result) -> os.stat_result:
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise PolicyRejected(
            f"{directory} is open to others than its owner (mode {mode:04o}), who could set the "
            f"server's policy: chmod 0700 {directory}; {STAYS}"
        )
    me = os.geteuid()
    if me not in (0, found.st_uid):
        raise PolicyRejected(
            f"{directory} belongs to user {found.st_uid}, and this is user {me}: run it as the "
            f"server's own user (sudo -u postgres …) or as root; {STAYS}"
        )
    return found


def _lock(directory: Path, fd: int) -> None:
    """Versions must rise, so one reads the present one and writes the next at a time."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                message = f"{directory}: another publisher has held it for {LOCK_WAIT_S} s"
                raise PolicyRejected(f"{message}; {STAYS}") from None
            time.sleep(LOCK_POLL_S)
        except OSError as error:
            raise _rejected(directory, "cannot be locked", error) from None
        else:
            return


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise PolicyRejected(f"{path} cannot be looked at: {error.strerror}") from None


def _rejected(path: Path, what: str, error: OSError) -> PolicyRejected:
    advice = ""
    if error.errno in _NO_ROOM:
        advice = f" (make room on the file system of {path.parent})"
    elif error.errno == errno.EACCES:
        advice = _whose(path.parent)
    elif error.errno == errno.EROFS:
        advice = " (the file system is mounted read-only: in a container, mount it read-write)"
    return PolicyRejected(f"{path} {what}: {error.strerror}{advice}; {STAYS}")


def _whose(directory: Path) -> str:
    """The user to run as, after a "permission denied"."""
    with suppress(OSError):
        uid = directory.stat().st_uid
        return f" (it belongs to user {uid}, and this is user {os.geteuid()}: be that one, or root)"
    return f" (this is user {os.geteuid()}: be the server's own user, or root)"


# --- policy file ---------------------------------------------------------------------------------

# The two files that a server reads its policy from, as bytes.
#
# A compiled policy (budgets/compiled.py) is made once; its version and whether it is switched off
# are stamped on when it is published, since only then the version is known.

MAX_VERSION = 2**63 - 1
MAX_POLICY_BYTES = 1 << 30

# Of hg_policy in native/headgate.h: magic, format, crc, length, version, flags.
_HEAD = struct.Struct("<8sIIQQI")
_CRC_AT, _VERSION_AT, _FLAGS_AT = 12, 24, 32
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")

# health.hgs: magic, format, crc, health, 0, until_ms, written_ms.
_HEALTH = struct.Struct("<8sIIIIqq")
_HEALTH_MAGIC = b"HGHEALTH"
_HEALTHY, _UNHEALTHY = 1, 2


@dataclass(frozen=True, slots=True)
class PolicyHead:
    version: int
    checksum: int
    off: bool
    content: int
    """Checksum of what it says, whatever its version, switched off or on."""


def head_of(whole: bytes) -> PolicyHead | None:
    """None where these are not the bytes of a whole policy, as they were written."""
    if len(whole) < _HEAD.size:
        return None
    magic, format_, crc, length, version, flags = _HEAD.unpack_from(whole)
    if (magic, format_, length) != (MAGIC, FORMAT, len(whole)) or version > MAX_VERSION:
        return None
    if crc != _crc(whole):
        return None
    return PolicyHead(version, crc, bool(flags & OFF), _crc(stamped(whole, 0, off=False)))


def stamped(whole: bytes, version: int, *, off: bool) -> bytes:
    """The same policy under another version, switched off or on."""
    body = bytearray(whole)
    flags = _WORD.unpack_from(body, _FLAGS_AT)[0] & ~OFF
    _WORD.pack_into(body, _FLAGS_AT, flags | (OFF if off else 0))
    _LONG.pack_into(body, _VERSION_AT, version)
    _WORD.pack_into(body, _CRC_AT, _crc(body))
    return bytes(body)


def _crc(whole: bytes | bytearray) -> int:
    """Of all of it, with the checksum's own four bytes zero."""
    seen = memoryview(whole)
    return zlib.crc32(seen[_CRC_AT + 4 :], zlib.crc32(bytes(4), zlib.crc32(seen[:_CRC_AT])))


def health_of(whole: bytes) -> tuple[bool, int] | None:
    """Healthy, and until when (Unix ms) that is believed; None: no whole health file."""
    if len(whole) != _HEALTH.size:
        return None
    magic, format_, crc, word, _, until_ms, _ = _HEALTH.unpack(whole)
    if (magic, format_) != (_HEALTH_MAGIC, 1) or word not in (_HEALTHY, _UNHEALTHY):
        return None
    blank = whole[:_CRC_AT] + bytes(4) + whole[_CRC_AT + 4 :]
    return (word == _HEALTHY, until_ms) if zlib.crc32(blank) == crc else None


def health_bytes(*, healthy: bool, until_ms: int, written_ms: int) -> bytes:
    word = _HEALTHY if healthy else _UNHEALTHY
    body = bytearray(_HEALTH.pack(_HEALTH_MAGIC, 1, 0, word, 0, until_ms, written_ms))
    _WORD.pack_into(body, _CRC_AT, zlib.crc32(body))
    return bytes(body)
