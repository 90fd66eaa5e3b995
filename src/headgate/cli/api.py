"""One request, one document.   command ──► Api ──► agent (TCP, TLS or Unix socket)

Every request has a deadline over all its reads and writes, and opens its own connection:
a person asks seldom, and an idle connection would only hide that the agent was replaced.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from headgate.cli.exits import AgentUnreachable
from headgate.client.http1 import BadResponse, Response, ResponseReader, encode_request
from headgate.client.target import DEFAULT_URL, Target, parse_target
from headgate.errors import Fault, HeadgateError, InvalidRequest, InvalidSettings

DEFAULT_TIMEOUT_S = 5.0
# A day of history of many clients is larger than any answer to a check.
MAX_BODY_BYTES = 64 * 1024 * 1024
READ_BYTES = 256 * 1024
SYSTEM_SOCKET = Path("/run/headgate/agent.sock")


class Transport(Protocol):
    def request(
        self, method: str, path: str, body: bytes = b"", *, if_match: str | None = None
    ) -> Response:
        """The response, whatever its status; AgentUnreachable if there is none."""
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

    def ask(self, path: str, **query: str | None) -> Answered:
        """A check: every answer with a verdict is one, whatever its status."""
        response = self._transport.request("GET", with_query(path, query))
        return self._answered(response, accept="verdict")

    def change(
        self,
        method: str,
        path: str,
        settings: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        dry_run: bool = False,
    ) -> Answered:
        body = b"" if settings is None else json.dumps(settings).encode()
        path = with_query(path, {"dry_run": "true" if dry_run else None})
        return self._answered(self._transport.request(method, path, body, if_match=etag))

    def _answered(self, response: Response, *, accept: str | None = None) -> Answered:
        document = _object(response.body)
        if document is None:
            raise HeadgateError(
                f"{self.url} answered with status {response.status} and no JSON document: "
                "is a Headgate agent there?"
            )
        if response.status >= 400 and not (accept and accept in document):
            raise InvalidRequest(self._problem(response, document), status=response.status)
        return Answered(response.status, document, response.body, response.headers.get("etag"))

    def _problem(self, response: Response, document: Mapping[str, Any]) -> str:
        told = document.get("detail") or document.get("title") or "it gave no reason"
        faults = document.get("faults") or []
        return "\n".join(
            [f"the agent answers {response.status}: {told}", *(f"  {fault}" for fault in faults)]
        )


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def with_query(path: str, query: Mapping[str, str | None]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def metric_path(database: str, metric: str) -> str:
    return f"/v1/databases/{quote(database, safe='')}/metrics/{quote(metric, safe='')}"


# --- where the agent is --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    target: Target
    tls: bool = False


def connect(url: str | None, token: str | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Api:
    endpoint = parse_endpoint(url or default_url())
    return Api(SocketTransport(endpoint, checked_token(token), timeout_s), endpoint.target.url)


def default_url() -> str:
    """The Unix socket of an agent on this host, if there is one, else its usual port."""
    for candidate in _usual_sockets():
        if candidate.is_socket():
            return f"unix://{candidate}"
    return DEFAULT_URL


def _usual_sockets() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")  # noqa: TID251 -- where a user's sockets are
    if runtime:
        yield Path(runtime) / "headgate.sock"
    yield SYSTEM_SOCKET


def parse_endpoint(url: str) -> Endpoint:
    """As the SDK reads it, and https:// and a bare path to a socket as well."""
    if url.startswith("/"):
        return Endpoint(parse_target(f"unix://{url}"))
    if not url.startswith("https://"):
        return Endpoint(parse_target(url))
    plain = parse_target("http" + url.removeprefix("https"))
    return Endpoint(Target(url, host=plain.host, port=urlsplit(url).port or 443), tls=True)


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
    endpoint: Endpoint
    token: str | None
    timeout_s: float

    def request(
        self, method: str, path: str, body: bytes = b"", *, if_match: str | None = None
    ) -> Response:
        target = self.endpoint.target
        host = target.host_header
        message = encode_request(method, path, host=host, token=self.token, body=body)
        if if_match is not None:
            message = _with_header(message, "If-Match", if_match)
        ends_s = time.monotonic() + self.timeout_s
        try:
            with self._connected(ends_s) as connection:
                return _converse(connection, message, ends_s)
        except TimeoutError:
            raise self._unreachable(f"no answer in {self.timeout_s:g} s") from None
        except OSError as fault:
            raise self._unreachable((fault.strerror or str(fault)).lower()) from None
        except BadResponse as fault:
            raise self._unreachable(str(fault)) from None

    def _connected(self, ends_s: float) -> socket.socket:
        target, left_s = self.endpoint.target, _left_s(ends_s)
        if not target.socket_path:
            connection = socket.create_connection((target.host, target.port), left_s)
            return _secured(connection, target.host) if self.endpoint.tls else connection
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(left_s)
            connection.connect(target.socket_path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _unreachable(self, detail: str) -> AgentUnreachable:
        return AgentUnreachable(
            f"no agent answers at {self.endpoint.target.url}: {detail}; start "
            "`headgate agent`, or point --url or HEADGATE_URL at one"
        )


def _secured(connection: socket.socket, host: str) -> socket.socket:
    import ssl

    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _converse(connection: socket.socket, message: bytes, ends_s: float) -> Response:
    reader = ResponseReader(max_body_bytes=MAX_BODY_BYTES)
    connection.settimeout(_left_s(ends_s))
    connection.sendall(message)
    while True:
        connection.settimeout(_left_s(ends_s))
        data = connection.recv(READ_BYTES)
        response = reader.feed(data) if data else reader.end()
        if response is not None:
            return response


def _with_header(message: bytes, name: str, value: str) -> bytes:
    request_line, rest = message.split(b"\r\n", 1)
    return b"\r\n".join([request_line, f"{name}: {value}".encode("ascii"), rest])


def _left_s(ends_s: float) -> float:
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
