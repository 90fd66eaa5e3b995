"""One request, one document.   command ──► Api ──► agent (TCP, TLS or Unix socket)

Every request has a deadline over all its reads and writes, and opens its own connection:
a person runs few commands, and an idle connection would only hide that the agent was replaced.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

from headgate.cli.documents import read
from headgate.cli.options import confirm, preview_line
from headgate.client.drivers.pool import no_answer
from headgate.client.drivers.sync import Deadline, converse
from headgate.client.drivers.sync import connect as open_connection
from headgate.client.http1 import BadResponse, Response, ResponseReader, encode_request
from headgate.client.routes import same_place
from headgate.client.target import DEFAULT_URL, Target, parse_target, sent_on
from headgate.errors import Fault, HeadgateError, InvalidRequest, InvalidSettings

T = TypeVar("T")
DEFAULT_TIMEOUT_S = 5.0
# A day of history of many clients is larger than any answer to a check.
MAX_BODY_BYTES = 64 * 1024 * 1024
SYSTEM_SOCKET = Path("/run/headgate/agent.sock")


NO_HEADERS = NO_QUERY = MappingProxyType[str, str]({})


class AgentUnreachable(HeadgateError):
    """No agent answered: nothing is known, and nothing was changed that we know of."""


class AgentSilent(AgentUnreachable):
    """It took the request and gave no answer in time: the change may be made, or
    still be."""


class RequestRejected(InvalidRequest):
    """The agent's no, and what it finds wrong with each setting: `place: message`."""

    def __init__(self, message: str, *, status: int, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message, status=status)
        self.faults = faults


class Transport(Protocol):
    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Response:
        """The response, whatever its status; AgentUnreachable if there is none."""
        ...

    def at(self, address: object) -> Transport | None:
        """To the agent at `address`, where it is another one that may answer."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """A JSON document, and the bytes it came as."""

    status: int
    document: Mapping[str, Any]
    body: bytes
    etag: str | None = None


class Api:
    """The agent's routes, as documents."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self.url = url

    def get(self, path: str, **query: str | None) -> Answered:
        return self._answered(self._transport.request("GET", with_query(path, query)))

    def read(self, kind: type[T], path: str, **query: str | None) -> T:
        """As its struct, without dicts in between: for what is looked at every second."""
        from msgspec import DecodeError, json

        response = self._transport.request("GET", with_query(path, query))
        if response.status < 300:
            with suppress(DecodeError, UnicodeDecodeError):  # Which field is wrong, `read` says.
                return json.decode(response.body, type=kind)
        return read(kind, self._answered(response).document)

    def ask(self, path: str, **query: str | None) -> Answered:
        """A check: every answer with a verdict is one, whatever its status."""
        response = self._transport.request("GET", with_query(path, query))
        return self._answered(response, accept="admitted")

    def onward(self, address: object) -> Api | None:
        """The agent that this one points to, with the same token and trust; None: nowhere."""
        transport = self._transport.at(address)
        return None if transport is None else Api(transport, str(address))

    def change(
        self,
        method: str,
        path: str,
        settings: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        dry_run: bool = False,
        query: Mapping[str, str] = NO_QUERY,
        new: bool = False,
        ask: str | None = None,
    ) -> Answered:
        """`etag`: only if it still is what was seen; `new`: only if there is none yet. `ask`:
        its reach, where a person has to agree. It is tried first, and what it reaches is shown on
        standard error, so that --json stays a document. What stays in the agent's own log needs
        no agreement: it reaches no further than the agent's own shard."""
        if ask is not None and not dry_run:
            how: Any = {"etag": etag, "query": query, "new": new}
            tried = self.change(method, path, settings, dry_run=True, **how).document
            if tried.get("reached") is not None:
                print(f"{ask}: {preview_line(tried)}", file=sys.stderr)
                confirm(f"Change it for {ask}?")
        headers = {} if etag is None else {"If-Match": etag}
        headers |= _on_behalf_of()
        headers |= {"If-None-Match": "*"} if new else {}
        body = b"" if settings is None else json.dumps(settings).encode()
        path = with_query(path, {**query, "dry_run": "true" if dry_run else None})
        return self._answered(self._transport.request(method, path, body, headers))

    def _answered(self, response: Response, *, accept: str | None = None) -> Answered:
        if response.status < 300 and not response.body:
            return Answered(response.status, {}, b"{}")  # Done, and nothing to add.
        document = _object(response.body)
        if document is None:
            raise HeadgateError(
                f"{self.url} answered with status {response.status} and no JSON document: "
                "is a Headgate agent there?"
            )
        if response.status >= 400 and not (accept and accept in document):
            told = self._problem(response, document)
            raise RequestRejected(told, status=response.status, faults=_faults(document))
        return Answered(response.status, document, response.body, response.headers.get("etag"))

    def _problem(self, response: Response, document: Mapping[str, Any]) -> str:
        told = document.get("detail") or document.get("title") or "it gave no reason"
        faults = _faults(document)
        return "\n".join(
            [f"the agent answers {response.status}: {told}", *(f"  {fault}" for fault in faults)]
        )


def _faults(document: Mapping[str, Any]) -> tuple[str, ...]:
    faults = document.get("faults")
    return tuple(str(fault) for fault in faults) if isinstance(faults, list) else ()


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def with_query(path: str, query: Mapping[str, str | None]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def database_path(database: str, *below: str) -> str:
    """`/v1/databases/main/shard/skips/db-b` and the like."""
    return "/".join(("/v1/databases", *(quote(part, safe="") for part in (database, *below))))


def metric_path(database: str, metric: str) -> str:
    return database_path(database, "metrics", metric)


# --- where the agent is --------------------------------------------------------------------


def connect(url: str | None, token: str | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Api:
    target = find_target(url or default_url())
    return Api(SocketTransport(target, checked_token(token), timeout_s), target.url)


def default_url() -> str:
    """The Unix socket of an agent on this host, if there is one, else its usual port."""
    for candidate in _usual_sockets():
        if candidate.is_socket():
            return f"unix://{candidate}"
    return DEFAULT_URL


def _on_behalf_of() -> dict[str, str]:
    user = os.environ.get("SUDO_USER")  # noqa: TID251 -- sudo's word, and marked as claimed
    return {"Headgate-On-Behalf-Of": user} if user else {}


def _usual_sockets() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")  # noqa: TID251 -- where a user's sockets are
    if runtime:
        yield Path(runtime) / "headgate.sock"
    yield SYSTEM_SOCKET


def find_target(url: str) -> Target:
    """As the SDK reads it, and a bare path to a socket as well. Of several agents the first: a
    person looks at one of them."""
    first = url.partition(",")[0].strip()
    return parse_target(f"unix://{first}" if first.startswith("/") else first)


def checked_token(token: str | None) -> str | None:
    token = token.strip() if token else None
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        message = "must be printable ASCII without spaces (it is not shown here)"
        raise InvalidSettings([Fault("token (or HEADGATE_TOKEN)", message)])
    return token


# --- the wire ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SocketTransport:
    target: Target
    token: str | None
    timeout_s: float

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Response:
        host = self.target.host_header
        message = encode_request(
            method, path, host=host, token=self.token, body=body, headers=headers
        )
        reader, deadline = ResponseReader(max_body_bytes=MAX_BODY_BYTES), Deadline(self.timeout_s)
        try:
            with closing(open_connection(self.target, deadline)) as connection:
                try:
                    return converse(connection, message, reader, deadline)
                except TimeoutError:
                    raise self._silent(may_change=method != "GET") from None
        except (OSError, BadResponse) as fault:
            raise self._unreachable(no_answer(fault, self.timeout_s).detail) from None

    def at(self, address: object) -> SocketTransport | None:
        target = sent_on(self.target, address)
        if target is None or same_place(target, self.target):
            return None
        return replace(self, target=target)

    def _silent(self, *, may_change: bool) -> AgentSilent:
        """An agent is there: a reader must not start a second one."""
        told = f"{self.target.url} took the question, and gave no answer in {self.timeout_s:g} s"
        more = "; the change may be made, or still be: look before you repeat it"
        return AgentSilent(f"{told}: it is busy, or hangs{more if may_change else ''}")

    def _unreachable(self, detail: str) -> AgentUnreachable:
        return AgentUnreachable(
            f"no agent answers at {self.target.url}: {detail}; start "
            "`headgate agent`, or point --url or HEADGATE_URL at one"
        )
