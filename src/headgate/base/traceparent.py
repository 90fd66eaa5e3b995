"""W3C trace context: which trace a check belongs to.   traceparent: 00-<trace>-<span>-<flags>"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


class TraceParent(NamedTuple):
    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """None for what is none: the trace then begins here, as the standard has it."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
