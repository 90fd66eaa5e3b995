"""Errors as RFC 9457 documents."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

CONTENT_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    faults: list[str] | None = None


def problem(
    status: int, detail: str, *, field: str | None = None, faults: list[str] | None = None
) -> bytes:
    title = HTTPStatus(status).phrase
    doc = Problem("about:blank", title, status, detail, field=field, faults=faults)
    return msgspec.json.encode(doc)
