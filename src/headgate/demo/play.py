"""The playground: a shard of three real servers, an agent beside each, and two greedy jobs.

`headgate demo` in a terminal shows it live, with keys to break it; `--headless --seconds 40`
plays the scenes once, and fails if what they promise did not happen.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType

from headgate.demo import live, script, servers
from headgate.demo.stage import set_up

HEADLESS_S = 40.0
LONG_S = 3600.0


def main(*, seconds: float | None = None, headless: bool = False) -> int:
    """Returns 0 if the demo did what it promises, and where it was ended by its user."""
    total_s = seconds if seconds is not None else (HEADLESS_S if headless else LONG_S)
    run = live.play if not headless and live.can_show() else script.play
    before = {number: signal.signal(number, _interrupt) for number in _ENDINGS}
    try:
        with set_up(_say) as stage:
            return run(stage, total_s)
    except KeyboardInterrupt:
        _say("stopped; nothing is left behind")
        return 0
    except servers.ServerFailed as error:
        _say(f"the demo's servers failed: {error}")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    with suppress(OSError):  # The terminal may be gone; what is left then is to clean up.
        print(text, flush=True)
