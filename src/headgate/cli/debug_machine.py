"""Facts of the machine that the command runs on: for a bundle, and when the agent is down."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate.version import VERSION

MAX_PACKAGES = 500
JOURNAL_TIMEOUT_S = 5.0
TAIL_BLOCK_BYTES = 256 * 1024


class NotThere(Exception):
    """An item that cannot be had, and why."""


def machine(settings: Path | None) -> dict[str, Any]:
    return {
        "headgate": VERSION,
        "python": sys.version,
        "executable": sys.executable,
        "system": platform.platform(),
        "kernel": platform.release(),
        "distribution": _distribution(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "memory": _memory(),
        "clocks": _clocks(),
        "disks": _disks(settings),
        "environment": _environment(),
    }


def packages() -> dict[str, str]:
    """By the names of what pip leaves."""
    stems = (found.stem for place in sys.path for found in Path(place).glob("*.dist-info"))
    pairs = ((name, version) for name, _, version in (stem.rpartition("-") for stem in stems))
    return dict(sorted(pairs, key=lambda pair: pair[0].lower())[:MAX_PACKAGES])


def processes() -> dict[str, Any]:
    """Agents and proxies that run here, by what the kernel tells of them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().split(b"\0")
            if any(b"headgate" in part for part in line[:4]):
                found.append(_process(folder))
        except OSError:
            continue  # It ended meanwhile, or is another's.
    return {"processes": found[:32]}


def _process(folder: Path) -> dict[str, Any]:
    status = dict(
        line.split(":\t", 1)
        for line in (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        if ":\t" in line
    )
    names = ("Name", "State", "VmRSS", "VmHWM", "Threads", "Uid", "voluntary_ctxt_switches")
    facts: dict[str, Any] = {name: status.get(name, "").strip() for name in names}
    facts["pid"] = int(folder.name)
    try:
        facts["files"] = len(list((folder / "fd").iterdir()))
    except OSError:
        facts["files"] = None
    return facts


def log_tail(path: Path, lines: int) -> str:
    """The last so many lines, read from its end."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            kept = b""
            while size > 0 and kept.count(b"\n") <= lines and len(kept) < lines * 4096:
                start = max(0, size - TAIL_BLOCK_BYTES)
                log.seek(start)
                kept = log.read(size - start) + kept
                size = start
    except OSError as error:
        raise NotThere(f"{path} cannot be read: {error.strerror}") from None
    return "\n".join(kept.decode(errors="replace").splitlines()[-lines:]) + "\n"


def journal(unit: str, lines: int) -> str:
    program = shutil.which("journalctl")
    if program is None:
        raise NotThere("there is no journalctl here: name the log with --log FILE")
    command = [program, "--unit", unit, "--lines", str(lines), "--no-pager", "--output", "cat"]
    try:
        ran = subprocess.run(  # noqa: S603 -- a program of the system's, by its full path
            command, capture_output=True, timeout=JOURNAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThere(f"journalctl did not answer: {type(error).__name__}") from None
    said = ran.stdout.decode(errors="replace")
    if ran.returncode or not said.strip() or said.startswith("-- No entries"):
        raise NotThere(f"the journal has nothing of {unit}: name the log with --log or --unit")
    return said


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _memory() -> dict[str, str]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    return {name: told[name].strip() for name in names if name in told}


def _clocks() -> dict[str, Any]:
    return {
        "utc": datetime.now(UTC).isoformat(),
        "mono_s": time.monotonic(),
        "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "zone": "/".join(time.tzname),
    }


def _disks(settings: Path | None) -> dict[str, Any]:
    places = {"/", "/tmp", "/var/lib"} | ({str(settings.parent)} if settings else set())  # noqa: S108
    found: dict[str, Any] = {}
    for place in sorted(places):
        try:
            usage = shutil.disk_usage(place)
        except OSError as error:
            found[place] = error.strerror
        else:
            found[place] = {"free_bytes": usage.free, "total_bytes": usage.total}
    return found


def _environment() -> Mapping[str, str]:
    """Which of ours are set: never to what."""
    ours = (name for name in os.environ if name.startswith(("HEADGATE_", "OTEL_", "PG")))  # noqa: TID251
    return dict.fromkeys(sorted(ours), "(set)")
