"""What a request says beside its body: flags, dry runs and revisions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request

from headgate.errors import InvalidRequest

_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')
_FLAGS = {"true": True, "false": False}
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


def only_known(request: Request, *known: str, repeated: str = "") -> Mapping[str, str]:
    """Its parameters, read strictly: a misspelt wish for a dry run must not become a change.
    `repeated`: the one that may be given several times."""
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in known:
            told = f"known: {', '.join(known)}" if known else "this route takes none"
            raise InvalidRequest(f"unknown parameter {name[:100]!r}; {told}", field=name[:100])
    single = [name for name, _ in given if name != repeated]
    if len(single) > len(set(single)):
        raise InvalidRequest("a parameter is given twice; say it once")
    return dict(given)


def flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in _FLAGS:
        raise InvalidRequest(f"{name} is {text[:100]!r}, must be true or false", field=name)
    return _FLAGS[text]
