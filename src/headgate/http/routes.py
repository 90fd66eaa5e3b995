"""Routes, one row each: what is served, described in OpenAPI and listed in the reference.

request ──role──► query ──► body ──► Call ──► handler

A row names the struct of its query and of its body. They are read here, before the handler runs:
a handler gets values, and the same structs are the description. Checks are in the table and are
answered before anything comes here (check/routes).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from headgate.base.units import BARE
from headgate.changes.api import MAX_N
from headgate.changes.reach import NAME
from headgate.check.questions import APP_SCHEMA, DATABASE_SCHEMA, about
from headgate.errors import InvalidRequest
from headgate.http.auth import Gatekeeper
from headgate.http.documents import expect_json, strict_object

Q = TypeVar("Q")
B = TypeVar("B")
MAX_SHOWN = 100


class Caller(Enum):
    """Who may call a route; the text is for the reference."""

    ANYONE = "every client that reaches the agent"
    OPERATOR = "a token with the role `operator`, or the Unix socket"
    PEER = "a token with the role `peer`, a client certificate, or the Unix socket"


class SettingsBody(msgspec.Struct, frozen=True):
    """A body of settings: an object whose table says everything that is wrong with it at once."""

    schema: Callable[[], dict[str, Any]]


class Unread(msgspec.Struct, frozen=True):
    """A body that its handler reads: agents of other versions send more than is described."""

    document: type


class Verdicts(msgspec.Struct, frozen=True):
    """A check's answer: one document, whose verdict decides the status."""

    documents: tuple[type, ...]


class Text(msgspec.Struct, frozen=True):
    """An answer that is not JSON."""

    media_type: str


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    method: str
    path: str
    handler: str
    """Whose handlers, and which of them: `ruling.add_rule`; empty if the listener answers."""
    summary: str
    answer: Any = None
    """A struct, several structs of which it is one, Verdicts, Text or a schema; None: not
    described, for freno's own readers."""
    _: KW_ONLY
    role: Caller = Caller.ANYONE
    query: type[msgspec.Struct] | None = None
    """None: parameters are ignored."""
    body: type[msgspec.Struct] | SettingsBody | Unread | None = None
    created: bool = False
    """Answers 201 if something is new."""
    rejects: str = ""
    """What no schema can say, as the text of the 422: it depends on other values, or on state."""
    stores: bool = False
    """Besides what operators change: what a program reports, and is kept."""
    errors: Sequence[int] = ()
    """Besides those that follow from the rest of the row."""
    example: Mapping[str, str] = field(default_factory=dict)
    """Parameters."""
    sends: Mapping[str, Any] | None = None
    """An example of the body."""
    about: str = ""

    @property
    def statuses(self) -> list[int]:
        """Of problems, which are answered as RFC 9457 has them."""
        found = {400, *self.errors}
        found |= {422} if self.rejects else set()
        found |= {404} if "{" in self.path else set()
        found |= {413, 415} if self.body is not None else set()
        if self.role is not Caller.ANYONE:
            found |= {401, 403}
            found |= {404, 409, 412, 503} if self.role is Caller.OPERATOR else {404, 409, 503}
        return sorted(found)

    @property
    def is_finished(self) -> bool:
        """Also if its client disconnects half-way: nothing is left stored but not in force."""
        return self.stores or (self.role is Caller.OPERATOR and self.method != "GET")

    @property
    def places(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def target(self) -> str:
        """An example of what is requested."""
        path = self.path
        for name in self.places:
            path = path.replace(f"{{{name}}}", PLACES[name]["examples"][0])
        query = urlencode(self.example, safe=":/*,@")
        return f"{path}?{query}" if query else path


_THRESHOLD = {"exclusiveMinimum": 0, "exclusiveMaximum": 1e12}
PLACES: Mapping[str, dict[str, Any]] = {
    "app": {"type": "string", **APP_SCHEMA, "minLength": 1, "examples": ["etl:nightly"]},
    "database": {"type": "string", **DATABASE_SCHEMA, "examples": ["main"]},
    "member": {"type": "string", **DATABASE_SCHEMA, "examples": ["db-b"]},
    "metric": {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$", "examples": ["lag"]},
    "minutes": {"type": "string", "examples": ["10"]},
    "n": {"type": "integer", "minimum": 0, "maximum": MAX_N, "examples": ["12"]},
    "name": {"type": "string", "examples": ["exports"]},
    "revision": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "examples": ["12"]},
    "rule": {"type": "string", "examples": ["r-1a2b3c"]},
    "threshold": {"type": "number", **_THRESHOLD, "examples": ["2.5"]},
    "type": {"type": "string", "examples": ["mysql"]},
}
"""The parameters of a path."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """A request as its route's row reads it."""

    request: Request
    who: str
    """For the audit; empty if no token is needed."""
    query: Q
    body: B

    def place(self, name: str) -> str:
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        text = self.place(name)
        if not _NUMBER.fullmatch(text) or int(text) > PLACES[name]["maximum"]:
            message = f"{name} is {text[:MAX_SHOWN]!r}, must be a revision, for example 12"
            raise InvalidRequest(message, field=name)
        return int(text)

    @property
    def expected_revision(self) -> int | None:
        """What a change is built on, by If-Match."""
        raw = self.request.headers.get("if-match")
        if raw is None or raw.strip() == "*":
            return None
        match = _ETAG.fullmatch(raw.strip())
        if match is None:
            message = f"If-Match is {raw!r}, must be an ETag from this server"
            raise InvalidRequest(message, status=412)
        return int(match[1])

    @property
    def change(self) -> dict[str, Any]:
        """Who, on what it was built, and whether only to try: as books take it."""
        dry_run = self.query.dry_run  # type: ignore[attr-defined]
        return {"who": self.who, "expect": self.expected_revision, "dry_run": dry_run}


_NUMBER = re.compile(r"[0-9]{1,19}")
_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')
Plain = Call[None, None]
"""For a route that takes neither parameters nor a body."""


def of(handlers: str, routes: Sequence[Route]) -> Iterator[Route]:
    """A room's rows, with the name that http/control has for its handlers."""
    return (replace(route, handler=f"{handlers}.{route.handler}") for route in routes)


async def read_call(route: Route, request: Request, gatekeeper: Gatekeeper) -> Call[Any, Any]:
    who = ""
    if route.role is Caller.OPERATOR:
        who = gatekeeper.who_changes(request.state.peer, request.headers)
    elif route.role is Caller.PEER:
        authorization = request.headers.get("authorization")
        who = gatekeeper.who_pulls(request.state.peer, authorization)
    try:
        query = None if route.query is None else read_query(route.query, request)
        return Call(request, who, query, await _read_body(route, request))
    except InvalidRequest as error:
        if route.role is not Caller.OPERATOR or route.method == "GET":
            raise
        message = f"{error}; nothing was changed"
        raise InvalidRequest(message, status=error.status, field=error.field) from None


# --- parameters ----------------------------------------------------------------------------


class NoQuery(msgspec.Struct, frozen=True):
    """Takes no parameters: a misspelt wish for a dry run must not become a change."""


WIDE = f"(region|cluster|shard|host):{NAME}"
REACH_PATTERN = f"^(fleet|host|{WIDE})$"
ReachText = Annotated[
    str,
    msgspec.Meta(
        pattern=REACH_PATTERN,
        description="Where it applies: `fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*`, "
        "`host:db-1`. Default: this agent alone.",
        examples=["fleet", "shard:commerce/*"],
    ),
]
Thousand = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class DryRun(msgspec.Struct, frozen=True):
    dry_run: Annotated[bool, about("`true` validates and shows, and changes nothing.")] = False


class Reaching(DryRun, frozen=True):
    reach: ReachText | None = None


@cache
def parameters(kind: type[msgspec.Struct]) -> Mapping[str, dict[str, Any]]:
    """Schemas by name; `required` is part of each."""
    _, components = msgspec.json.schema_components([kind], ref_template="{name}")
    whole = components[kind.__name__]
    found = {}
    for name, schema in whole["properties"].items():
        default = schema.pop("default", None)
        (inner,) = [one for one in schema.pop("anyOf", [{}]) if one.get("type") != "null"]
        told = {**inner, **schema}
        told |= components.get(told.pop("$ref", ""), {})
        told.pop("title", None)
        given = {} if default in (None, "", []) else {"default": default}
        found[name] = {**told, **given, "required": name in whole.get("required", ())}
    return found


def read_query(kind: type[Q], request: Request) -> Q:
    """Read strictly: what is misspelt must not be passed over."""
    known, given = parameters(kind), dict[str, Any]()  # type: ignore[arg-type]
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise _unknown(name, known)
        if known[name].get("type") == "array":
            given.setdefault(name, []).append(text)
        elif name in given:
            raise InvalidRequest(f"parameter {name!r} is given twice; give it once", field=name)
        else:
            given[name] = _FLAGS.get(text) if known[name].get("type") == "boolean" else text
            if given[name] is None or (text == "null" and known[name].get("type") != "string"):
                raise _misread(name, text, known[name])
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        name = (_AT.search(str(error)) or _MISSING.search(str(error)) or [""])[1]
        raise _misread(name, given.get(name), known[name]) from None


_FLAGS = {"true": True, "false": False}
_AT = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`")


def _unknown(name: str, known: Mapping[str, Any]) -> InvalidRequest:
    near = difflib.get_close_matches(name, known, n=1)
    told = f"did you mean {near[0]}? " if near else ""
    told += f"known: {', '.join(known)}" if known else "this route takes none"
    return InvalidRequest(f"unknown parameter {name[:MAX_SHOWN]!r}; {told}", field=name[:MAX_SHOWN])


def _misread(name: str, text: Any, schema: Mapping[str, Any]) -> InvalidRequest:
    if text is None:
        told = schema.get("description", "").rstrip(".")
        return InvalidRequest(f"{name} is missing: {told or wanted(schema)}", field=name)
    if isinstance(text, list):
        return InvalidRequest(f"{len(text)} of {name} are given, {wanted(schema)}", field=name)
    if told := unitless(text, schema):
        return InvalidRequest(f"{name} {told}", field=name)
    return InvalidRequest(f"{name} is {text[:MAX_SHOWN]!r}, {wanted(schema)}", field=name)


def unitless(value: object, schema: Mapping[str, Any]) -> str:
    """Of a number where a time belongs: what it could mean; empty for anything else."""
    text, pattern = str(value), schema.get("pattern", "$^")
    # A name may well be a number, or end in m.
    is_time = re.search(pattern, f"{text}m") and not re.search(pattern, text)
    if not BARE.fullmatch(text) or not is_time:
        return ""
    return f"is {text}, which has no unit: {text}s or {text}m?"


def wanted(schema: Mapping[str, Any]) -> str:
    """What a value has to be, in words."""
    if schema.get("type") == "boolean":
        return "must be true or false"
    if "enum" in schema or "const" in schema:
        return f"must be {' or '.join(schema.get('enum') or [schema['const']])}"
    if schema.get("type") == "array":
        return f"must be {schema.get('minItems', 0)} to {schema['maxItems']}"
    if "minimum" in schema and "maximum" in schema:
        return f"must be from {schema['minimum']} to {schema['maximum']:.10g}"
    if "exclusiveMinimum" in schema:
        most = f", at most {schema['maximum']:g}" if "maximum" in schema else ""
        return f"must be a number above {schema['exclusiveMinimum']:g}{most}"
    if "minimum" in schema:
        return f"must be a number, {schema['minimum']} or more"
    if "examples" in schema:
        *first, last = schema["examples"]
        return f"must read like {', '.join(first)} or {last}" if first else f"must be {last}"
    return f"must have at most {schema['maxLength']} characters"


# --- bodies --------------------------------------------------------------------------------


async def _read_body(route: Route, request: Request) -> Any:
    if route.body is None:
        return None
    if isinstance(route.body, Unread):
        return expect_json(request)
    raw = await strict_object(request, is_struct=not isinstance(route.body, SettingsBody))
    if isinstance(route.body, SettingsBody):
        return raw
    try:
        return msgspec.convert(raw, route.body)
    except msgspec.ValidationError as error:
        like = json.dumps(route.sends, ensure_ascii=False)
        place = _AT.search(str(error)) or _MISSING.search(str(error))
        name = place[1] if place else ""
        _, components = msgspec.json.schema_components([route.body], ref_template="{name}")
        schema = components[route.body.__name__]["properties"].get(name, {})
        told = unitless(raw.get(name), schema)
        message = f"{name} {told}" if told else f"the body is not valid: {error}"
        raise InvalidRequest(f"{message}; an example: {like}", field=name or None) from None
