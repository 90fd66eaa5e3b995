"""Hold a process to a share of a core: cpu_share.py PID SHARE, until told to end.

What a control group's cpu.max does, where there is none: it runs until its share of the last
moments is used up, and is stopped until it has earned more. A replica whose replaying process
is held like this is one that is too small for its primary, with a backlog that is real.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

TICK_S = 0.002
SAVED_S = 0.005
"""CPU time that an idle process may save up."""


def main(pid: int, share: float) -> None:
    signal.signal(signal.SIGTERM, _end)
    with suppress(PermissionError):
        os.nice(-10)  # Late here is a burst there.
    try:
        _hold(pid, share)
    except (ProcessLookupError, FileNotFoundError):
        pass  # It ended by itself.
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _hold(pid: int, share: float) -> None:
    schedstat = Path(f"/proc/{pid}/schedstat")
    earned_s, stopped = SAVED_S, False
    ran_s, waited_s = cpu_times(schedstat)
    before = time.monotonic()
    while True:
        time.sleep(TICK_S)
        now, (ran_now_s, waited_now_s) = time.monotonic(), cpu_times(schedstat)
        # What it could not use because others had the core is not lost: the share is held,
        # however busy the machine.
        most_s = earned_s + share * (now - before) if waited_now_s > waited_s else SAVED_S
        earned_s = min(most_s, earned_s + share * (now - before)) - (ran_now_s - ran_s)
        ran_s, waited_s, before = ran_now_s, waited_now_s, now
        if stopped is not (earned_s < 0):
            stopped = not stopped
            os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def cpu_times(schedstat: Path) -> tuple[float, float]:
    """Seconds on a core, and seconds ready and waiting for one."""
    ran_ns, waited_ns, _ = schedstat.read_text().split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
