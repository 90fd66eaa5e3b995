"""A number behind a URL: plain text, a place in a JSON document, or a Prometheus series.

http.client in a thread: the standard library has no asynchronous client, and a home-made
one would be the wrong place to save. A cancelled read closes the socket under the thread.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from base64 import b64encode
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Series

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.model import Http
from headgate.metrics.probes.numbers import kind_of, number_in_text, number_of, one_line
from headgate.metrics.probes.threads import OneThread
from headgate.metrics.samples import Cause

MAX_BODY_BYTES = 1024 * 1024


class HttpProbe:
    def __init__(
        self, name: str, source: Http, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._url = urlsplit(source.url)
        # Neither a password nor a token in the query appears in a message.
        host = self._url.netloc.rpartition("@")[2]
        self.label = f"{self._url.scheme}://{host}{self._url.path}"
        self._pointer = parse_pointer(source.pointer, place=f"metrics.{name}.pointer")
        self._series = parse_series(source.series, place=f"metrics.{name}.series")
        self._timeout_s = timeout_s
        self._tls = tls
        self._thread: OneThread[str] = OneThread(self.label)

    async def read(self) -> float:
        request = ProbeRequest(self._url, self._timeout_s, self._tls)
        try:
            body = await self._thread.run(request.fetch, request.abort)
            return self._number(body)
        except ProbeFailed as failure:
            raise ProbeFailed(failure.cause, f"{self.label} {failure.detail}") from None
        except TimeoutError:
            message = f"{self.label} did not answer in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
        except OSError as error:
            message = f"{self.label} cannot be read: {one_line(error)}"
            raise ProbeFailed(Cause.FAILED, message) from None
        except http.client.HTTPException as error:
            # Its words would quote what came instead.
            message = f"{self.label} did not answer with HTTP ({type(error).__name__})"
            raise ProbeFailed(Cause.FAILED, message) from None

    async def close(self) -> None:
        """A request ends with its read."""

    def _number(self, body: str) -> float:
        if self._series is not None:
            return series_value(body, self._series)
        if self._pointer is not None:
            return number_of(at_pointer(body, self._pointer))
        return number_in_text(body)


class ProbeRequest:
    """One GET. `fetch` runs in a thread, `abort` is called from outside it."""

    def __init__(self, url: SplitResult, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        host = url.hostname or ""
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {"User-Agent": "headgate", **_authorization(url)}
        self._socket: socket.socket | None = None
        self._connection = (
            http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=tls)
            if url.scheme == "https"
            else http.client.HTTPConnection(host, url.port, timeout=timeout_s)
        )

    def fetch(self) -> str:
        with closing(self._connection):
            self._connection.connect()
            # Kept: http.client lets go of it once it knows that the answer ends with it.
            self._socket = self._connection.sock
            self._connection.request("GET", self._path, headers=self._headers)
            with self._connection.getresponse() as response:
                body = _body(response)
        return body.decode(errors="replace")

    def abort(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # The plain socket's own: an SSL socket's would wait for the peer's goodbye.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _body(response: http.client.HTTPResponse) -> bytes:
    if response.status != 200:
        hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
        message = f"answered {_status(response.status)}{hint}"
        raise ProbeFailed(Cause.FAILED, message)
    body = response.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise ProbeFailed(Cause.INVALID, f"answered more than {MAX_BODY_BYTES} bytes")
    return body


def _status(code: int) -> str:
    """In our own words, not in the server's."""
    with suppress(ValueError):
        return f"{code} {HTTPStatus(code).phrase}"
    return str(code)


def _authorization(url: SplitResult) -> dict[str, str]:
    if url.username is None:
        return {}
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


# --- JSON (RFC 6901) -----------------------------------------------------------------------


def parse_pointer(text: str | None, *, place: str) -> tuple[str, ...] | None:
    if text is None or text == "":
        return None if text is None else ()
    if not text.startswith("/"):
        message = f"is {text!r}, must begin with / (a JSON pointer, such as /data/lag)"
        raise InvalidSettings([Fault(place, message)])
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def at_pointer(body: str, pointer: tuple[str, ...]) -> object:
    try:
        found: Any = json.loads(body)
    except ValueError as error:
        at = f" (at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        message = f"answered {kind_of(body)} and no JSON{at}"
        raise ProbeFailed(Cause.INVALID, message) from None
    except RecursionError:
        raise ProbeFailed(Cause.INVALID, "answered JSON that is nested too deep") from None
    for depth, part in enumerate(pointer, start=1):
        try:
            found = found[_index(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            missing = "/" + "/".join(pointer[:depth])
            raise ProbeFailed(Cause.INVALID, f"answered JSON without {missing}") from None
    return found


def _index(part: str) -> int:
    if not part.isascii() or not part.isdigit() or (len(part) > 1 and part[0] == "0"):
        raise ValueError(part)
    return int(part)


# --- Prometheus ----------------------------------------------------------------------------


def parse_series(text: str | None, *, place: str) -> Series | None:
    if text is None:
        return None
    with suppress(ValueError):
        found = list(_samples(f"{text} 0\n"))
        if len(found) == 1:
            return found[0]
    message = f'is {text!r}, must read like name or name{{label="value"}}'
    raise InvalidSettings([Fault(place, message)])


def series_value(body: str, wanted: Series) -> float:
    """The value of the one series of that name which has all the wanted labels."""
    try:
        values = [s.value for s in _samples(body) if _matches(s, wanted)]
    except ValueError:
        message = f"answered {kind_of(body)} and no Prometheus text"
        raise ProbeFailed(Cause.INVALID, message) from None
    if len(values) != 1:
        hint = "; name more labels" if values else ""
        message = f"has {len(values)} series {wanted.name}{wanted.labels or ''}, not one{hint}"
        raise ProbeFailed(Cause.INVALID, message)
    return number_of(values[0])


def _samples(body: str) -> list[Series]:
    families = text_string_to_metric_families(body)
    return [sample for family in families for sample in family.samples]


def _matches(series: Series, wanted: Series) -> bool:
    return series.name == wanted.name and wanted.labels.items() <= series.labels.items()
