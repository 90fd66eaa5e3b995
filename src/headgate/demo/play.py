"""The playground: a shard of three real servers, an agent beside each, greedy jobs, a rogue.

`headgate demo` in a terminal shows it live, scene by scene, with keys to step through them and
to break things; `--headless --for 60s` plays all scenes once, and fails if what one of them
promises did not happen.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from headgate.demo import live, script, servers
from headgate.demo.stage import Stage, set_up
from headgate.demo.tourserver import TourServer, open_server

# --- the user's own environment ------------------------------------------------------------
# What the shell of a demo's user says about other servers and agents, and is none of its own.

# libpq and the drivers of MySQL read theirs, our agents and commands theirs; the rest is what a
# service manager says to a service, and the settings of trace exporters.
PREFIXES = ("PG", "MYSQL_", "MARIADB_", "HEADGATE_", "OTEL_", "LISTEN_", "WATCHDOG_", "NOTIFY_")


def forget_others() -> None:
    """PGSSLMODE or PGSERVICE would keep us from our servers, HEADGATE_LISTEN would be the address
    of all three agents. What we start inherits that they are gone."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:  # noqa: TID251
        del os.environ[name]  # noqa: TID251


# --- the demo ------------------------------------------------------------------------------


HEADLESS_S = 60.0
LONG_S = 3600.0


def main(
    *, seconds: float | None = None, headless: bool = False, ports: tuple[int, int] | None = None
) -> int:
    """Returns 0 if the demo did what it promises, and where it was ended by its user."""
    forget_others()
    if ports is not None:
        servers.use_ports(*ports)
    # What the jobs' SDK has to say is on the screen already, and a log would spoil that.
    logging.getLogger("headgate.client").addHandler(logging.NullHandler())
    total_s = seconds if seconds is not None else (HEADLESS_S if headless else LONG_S)
    run = live.play if not headless and live.can_show() else script.play
    before = {number: signal.signal(number, _interrupt) for number in _endings()}
    try:
        with closing_server() as guide, set_up(_say, guide.url) as stage:
            _tell_page(stage)
            return run(stage, total_s, guide)
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        return 0
    except servers.ServerFailed as error:
        _say(f"the demo's servers failed: {error}")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def closing_server() -> Iterator[TourServer]:
    guide = open_server()
    try:
        yield guide
    finally:
        guide.end()


def _tell_page(stage: Stage) -> None:
    """The token is in the fragment, which a browser sends to nobody and no log has."""
    _say(f"the page: {stage.sign_in_url(stage.tokens.operator)}")
    _say(f"    to look only: {stage.sign_in_url(stage.tokens.viewer)}")


def _endings() -> list[signal.Signals]:
    """Without SIGHUP under `nohup`: the user who starts it so wants it to go on."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    with suppress(OSError):  # The terminal may be gone; what is left then is to clean up.
        print(text, flush=True)
