"""Whether this process can still open files, and one file in reserve for when it cannot.

Each connection is a file. A process at its file limit accepts no connection, not even on the Unix
socket, reads no /proc and starts no command, and the system reports nothing. So the agent tries to
open a file once a second, and reports the result.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

import structlog

log = structlog.get_logger()

FILES_KEPT = 48
"""Files that are no connections: the store, the log, probes, commands, libraries."""
LEAST_CONNECTIONS = 8
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_SPARE = "/dev/null"


def most_connections(wanted: int, turned_away: int, probes: int) -> int:
    """How many connections fit into this process's file limit, next to `probes` and the
    connections that only get a "try again" answer."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(LEAST_CONNECTIONS, soft - FILES_KEPT - turned_away - probes))


class FileRoom:
    def __init__(self) -> None:
        self._reserve: int | None = None
        self.is_short = False

    @property
    def fault(self) -> str | None:
        if not self.is_short:
            return None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"the agent has reached its limit of {soft} open files and accepts no more "
            "connections. Find the clients with `ss -tnp`, or raise LimitNOFILE in its systemd unit"
        )

    def look(self) -> bool:
        """False: no file can be opened. The reserve file is closed then, so that the next
        operator can connect."""
        try:
            found = os.open(_SPARE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
            self._give_up()
        else:
            self._keep(found)
        return not self.is_short

    def _keep(self, found: int) -> None:
        if self._reserve is not None:
            os.close(found)
            if self.is_short:
                log.info("agent.has_files_again")
            self.is_short = False
        else:
            self._reserve = found  # Whether there is room for others, the next look tells.

    def _give_up(self) -> None:
        if not self.is_short:
            self.is_short = True
            log.error("agent.out_of_files", detail=self.fault)
        self.close()

    def close(self) -> None:
        if self._reserve is not None:
            with suppress(OSError):
                os.close(self._reserve)
            self._reserve = None
