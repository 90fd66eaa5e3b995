"""Events as log lines, with their fields."""

from __future__ import annotations

import logging as log
from collections.abc import Callable

from headgate.client import events
from headgate.client.answers import Answer

LEVELS: dict[type[events.Event], int] = {
    events.Asked: log.DEBUG,
    events.Rejected: log.DEBUG,
    events.Waited: log.DEBUG,
    events.WaitTimedOut: log.WARNING,
    events.FailedOpen: log.INFO,
    events.FailedClosed: log.ERROR,
    events.CircuitOpened: log.WARNING,
    events.CircuitHalfOpened: log.INFO,
    events.CircuitClosed: log.WARNING,
    events.Rerouted: log.INFO,
    events.WentUnthrottled: log.WARNING,
}


def logging(logger: log.Logger | str = "headgate.client.events") -> Callable[[events.Event], None]:
    """One line for each event, at a level that fits it; a rejected wait is INFO.

    The event itself is the record's `headgate`, for formatters that want its fields.
    """
    to = log.getLogger(logger) if isinstance(logger, str) else logger

    def hook(event: events.Event) -> None:
        level = level_of(event)
        if to.isEnabledFor(level):
            to.log(level, "%s %s", type(event).__name__, _told(event), extra={"headgate": event})

    return hook


def level_of(event: events.Event) -> int:
    held = isinstance(event, events.Waited) and event.rejections > 0
    return log.INFO if held else LEVELS[type(event)]


def _told(event: events.Event) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in event._asdict().items())


def _value(value: object) -> str:
    if isinstance(value, Answer):
        return f"{value.verdict} ({value.reason})" if value.reason else value.verdict
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
