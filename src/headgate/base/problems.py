"""Errors as RFC 9457 documents."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from headgate.check.answers import STATUS
from headgate.check.model import Verdict

CONTENT_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    faults: list[str] | None = None
    verdict: str | None = None
    """INTERNAL_ERROR with status 500: the agent has a bug. Else missing."""


def problem(
    status: int, detail: str, *, field: str | None = None, faults: list[str] | None = None
) -> bytes:
    title = HTTPStatus(status).phrase
    verdict = Verdict.INTERNAL_ERROR.value if status == STATUS[Verdict.INTERNAL_ERROR] else None
    doc = Problem("about:blank", title, status, detail, field, faults, verdict)
    return msgspec.json.encode(doc)
