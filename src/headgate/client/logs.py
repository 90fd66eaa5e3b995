"""The SDK's few log lines."""

from __future__ import annotations


def warn(message: str, *fields: object) -> None:
    # Imported here: most jobs never get to log a line.
    import logging

    logging.getLogger("headgate.client").warning(message, *fields)
