"""What every change over HTTP says beside its body: dry runs and revisions."""

from __future__ import annotations

import re

from starlette.requests import Request

from headgate.errors import InvalidRequest

_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')
_DRY_RUN = frozenset({("dry_run", "true"), ("dry_run", "false")})


def is_dry_run(request: Request, *others: str) -> bool:
    """Read strictly: a misspelt wish for a dry run must not become a change. `others`:
    parameters that this change takes besides."""
    given = [one for one in request.query_params.multi_items() if one[0] not in others]
    if any(item not in _DRY_RUN for item in given) or len(given) > 1:
        more = f", and {', '.join(others)}, and" if others else ", and"
        message = f"a change takes the parameter dry_run=true or dry_run=false{more} no other"
        raise InvalidRequest(message, field="dry_run")
    return ("dry_run", "true") in given


def expected_revision(request: Request) -> int | None:
    raw = request.headers.get("if-match")
    if raw is None or raw.strip() == "*":
        return None
    match = _ETAG.fullmatch(raw.strip())
    if match is None:
        raise InvalidRequest(f"If-Match is {raw!r}, must be an ETag this server gave", status=412)
    return int(match[1])


def etag(revision: int) -> dict[str, str]:
    return {"ETag": f'"{revision}"'}
