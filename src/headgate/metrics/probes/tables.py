"""Names of tables as options and settings give them: `table` or `schema.table`."""

from __future__ import annotations

from headgate.errors import Fault, InvalidSettings


def split_table(text: str, *, place: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    if len(parts) > 2 or not all(parts) or "\0" in text:
        message = f"is {text!r}, must read like `schema.table` or `table`"
        raise InvalidSettings([Fault(place, message)])
    return parts
