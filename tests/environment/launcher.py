"""Becomes a command, with what a strange parent leaves to it.   launcher.py JSON COMMAND…

A program of its own and not a preexec_fn: between fork and exec a process with threads can hang.
Standard library only: it starts with -I -S.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    left = json.loads(sys.argv[1])
    # Python's own: a command finds them as the machine has them, by default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for name in left["ignored"]:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.Signals[name] for name in left["blocked"]})
    if left["umask"] is not None:
        os.umask(left["umask"])
    for fd in left["closed"]:
        os.close(fd)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
