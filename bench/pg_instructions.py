"""What the extension costs a statement: instructions of its backend, beside a server without it.

.venv/bin/python -m bench.pg_instructions [--only NAME]... [--blocks 5] [--keep FOLDER]

The same look-ups as bench.pg_overhead, counted by callgrind: other work on the machine changes no
count. For each variant and protocol two sessions send N and 3 N blocks of look-ups, and the
difference is of 2 N blocks. What the kernel does is not counted, and neither is that an instruction
may wait for memory: bench.pg_overhead measures time. Under callgrind a program is many times as
slow, so the clocks of a session are, too: else what is done every few milliseconds would be counted
with each statement. `--keep` leaves callgrind's files there.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures import pgkits
from tests.fixtures.pgkits import ExtendedServer

from bench import pg_kit
from bench.pg_kit import Workbench, socket_of
from bench.pg_overhead import (
    APPLICATION,
    FEW,
    LOOK_UP,
    MANY,
    PLAIN,
    PLAIN_AGAIN,
    PROTOCOLS,
    UNCONCERNED,
    USER,
    YARDSTICK,
    Variant,
    block,
    start,
    variants,
)
from bench.pg_wire import Wire
from bench.report import Goal, Report, chosen_of, options, say

SLOW_CLOCKS = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TIMES 200

static int64_t began_ns[16];
static int is_session;

/* A process that was forked since the file is there. */
static void forked(void)
{
    is_session = access(SESSIONS, F_OK) == 0;
}

__attribute__((constructor)) static void at_start(void)
{
    pthread_atfork(NULL, NULL, forked);
}

static int64_t slow_ns(clockid_t clock)
{
    struct timespec t;
    int64_t ns;

    syscall(SYS_clock_gettime, clock, &t);
    ns = (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
    if (!is_session)
        return ns;
    if (began_ns[clock & 15] == 0)
        began_ns[clock & 15] = ns;
    return began_ns[clock & 15] + (ns - began_ns[clock & 15]) / TIMES;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int64_t ns = slow_ns(clock);

    *t = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}

int gettimeofday(struct timeval *t, void *zone)
{
    int64_t us = slow_ns(CLOCK_REALTIME) / 1000;

    (void) zone;
    *t = (struct timeval){us / 1000000, us % 1000000};
    return 0;
}
"""
UNDER = """#!/bin/sh
export LD_PRELOAD={folder}/slow_clocks.so
exec valgrind -q --tool=callgrind --callgrind-out-file={folder}/callgrind.%p "$0.counted" "$@"
"""


@contextmanager
def counted(server: ExtendedServer, folder: Path) -> Iterator[None]:
    """The server, started again under callgrind."""
    program = server.kit.bin_dir / "postgres"
    sessions = folder / "sessions"
    (folder / "slow_clocks.c").write_text(SLOW_CLOCKS)
    flags = ["-O2", "-shared", "-fPIC", f'-DSESSIONS="{sessions}"', "-o", "slow_clocks.so"]
    subprocess.run(["cc", *flags, "slow_clocks.c"], cwd=folder, check=True)
    server.stop()
    program.rename(program.with_name("postgres.counted"))
    program.write_text(UNDER.format(folder=folder))
    program.chmod(0o755)
    server.start()
    with pg_kit.session(server) as opened:
        # Else the first session of a server reads the pages in, and the second one does not.
        opened.execute("SET enable_seqscan = off")
        opened.execute(pg_kit.WARM.encode())
    sessions.touch()
    try:
        yield
    finally:
        server.stop("immediate")


def session(server: ExtendedServer, protocol: str, blocks: int) -> int:
    """A session of that many blocks; its process."""
    wire = Wire(socket_of(server), user=USER, database="postgres", application_name=APPLICATION)
    wire.prepare("look_up", LOOK_UP)
    for number in range(blocks):
        for message in block(protocol, random.Random(number)):
            wire.ask(message)
    wire.close()
    return wire.pid


def total(folder: Path, pid: int) -> int:
    file = folder / f"callgrind.{pid}"
    pg_kit.wait_until(lambda: file.exists() and "\ntotals: " in file.read_text(), "the counts")
    found = re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def each(server: ExtendedServer, folder: Path, protocol: str, blocks: int) -> float:
    few, many = (session(server, protocol, times * blocks) for times in (1, 3))
    statements = 2 * blocks * len(block(protocol, random.Random(0)))
    for pid, name in ((few, "few"), (many, "many")):
        total(folder, pid)
        shutil.copy(folder / f"callgrind.{pid}", folder / f"{protocol}-{name}")
    return (total(folder, many) - total(folder, few)) / statements


def measured(bench: Workbench, variant: Variant, blocks: int, kept: Path | None) -> list[float]:
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    folder.chmod(0o777)
    used = pgkits.extended_kit if variant.preload == "pg_headgate" else pgkits.kit
    copy = pgkits.Kit(bench.chosen.major, folder / "kit")
    shutil.copytree(used(bench.chosen.major).prefix, copy.prefix, symlinks=True)
    server = start(bench, variant, copy)
    with counted(server, folder):
        found = [each(server, folder, protocol, blocks) for protocol in PROTOCOLS]
    if kept is not None:
        for protocol in PROTOCOLS:
            for file in folder.glob(f"{protocol}-*"):
                shutil.copy(file, kept / f"{re.sub('[^a-z0-9]+', '_', variant.name)}.{file.name}")
    say(f"{variant.name}: {', '.join(f'{count:,.0f}' for count in found)}")
    return found


def rows(found: dict[str, list[float]]) -> list[Sequence[str]]:
    plain = found[PLAIN]
    return [
        [name]
        + [
            cell
            for mine, theirs in zip(counts, plain, strict=True)
            for cell in (f"{mine:,.0f}", f"{mine - theirs:+,.0f}", f"{mine / theirs:.3f}")
        ]
        for name, counts in found.items()
    ]


def goals(found: dict[str, list[float]]) -> list[Goal]:
    made = []
    for at, protocol in enumerate(PROTOCOLS):
        ratio = {name: counts[at] / found[PLAIN][at] for name, counts in found.items()}
        bounds = {FEW: ratio[YARDSTICK], MANY: ratio[YARDSTICK], UNCONCERNED: 1.01}
        made += [
            Goal(f"{protocol}: {name}", ratio[name], most)
            for name, most in bounds.items()
            if name in ratio
        ]
    return made


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", help="a part of a variant's name")
    parser.add_argument("--blocks", type=int, default=5, help="of 200 look-ups")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    chosen = chosen_of(given)
    wanted = [
        variant
        for variant in variants()
        if variant.name in (PLAIN, YARDSTICK)
        or (
            variant.name != PLAIN_AGAIN and any(part in variant.name for part in given.only or [""])
        )
    ]
    with pg_kit.workbench(chosen) as bench:
        found = {
            variant.name: measured(bench, variant, 1 if chosen.quick else given.blocks, given.keep)
            for variant in wanted
        }
    report = Report("pg_instructions", chosen)
    head = ["instructions of the backend, each"]
    for protocol in PROTOCOLS:
        head += [protocol, "beyond plain", "× plain"]
    report.show("Instructions per look-up", head, rows(found))
    report.goals = goals(found)
    report.end()


if __name__ == "__main__":
    main()
