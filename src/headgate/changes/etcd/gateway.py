"""Requests to etcd's gateway: their form, which member gets one, how we log in, how long it takes.

    request ──► the member that answered last ──no answer──► the next one …

A request that may be repeated goes to another member at once. A change is sent once: if it was sent
and not answered, its outcome is unknown, and the caller has to look.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import structlog

from headgate.base.keyvalue import Compare, Entry, KeyEvent, Put
from headgate.changes.etcd import faults
from headgate.changes.etcd.faults import ErrorAnswer, EtcdSilent, NoToken
from headgate.errors import (
    Fault,
    InvalidSettings,
    StoreRejected,
    StoreUnavailable,
)

log = structlog.get_logger()

MAX_STRANGERS = 100
"""Keys that no agent can have written, and that were logged."""

# --- requests and answers, as values. In JSON: bytes are base64, numbers of 64 bits are text ------

Op = dict[str, Any]
"""One operation of a transaction."""


class Header(msgspec.Struct, frozen=True):
    cluster_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    """1: it did not exist before."""


class RangeAnswer(msgspec.Struct, frozen=True):
    kvs: tuple[KeyValue, ...] = ()
    count: int = 0
    """Of all in the range, including what the request left out."""
    more: bool = False


class OpAnswer(msgspec.Struct, frozen=True):
    response_range: RangeAnswer = RangeAnswer()


class TxnAnswer(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False
    responses: tuple[OpAnswer, ...] = ()

    @property
    def ranges(self) -> list[RangeAnswer]:
        return [answer.response_range for answer in self.responses]


class LeaseAnswer(msgspec.Struct, frozen=True):
    ID: int = 0
    TTL: int = 0
    """Seconds; 0: there is none."""


class KeepAliveAnswer(msgspec.Struct, frozen=True):
    result: LeaseAnswer


class TokenAnswer(msgspec.Struct, frozen=True):
    token: str


class EventAnswer(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"

    @property
    def is_gone(self) -> bool:
        return self.type == "DELETE"


class WatchAnswer(msgspec.Struct, frozen=True):
    header: Header
    watch_id: int = 0
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False
    """More of the same follows."""
    events: tuple[EventAnswer, ...] = ()


class StreamLine(msgspec.Struct, frozen=True):
    result: WatchAnswer | None = None
    error: ErrorAnswer | None = None


# Not strict: numbers come as text.
read_txn = msgspec.json.Decoder(TxnAnswer, strict=False).decode
read_lease = msgspec.json.Decoder(LeaseAnswer, strict=False).decode
read_keep_alive = msgspec.json.Decoder(KeepAliveAnswer, strict=False).decode
read_token = msgspec.json.Decoder(TokenAnswer, strict=False).decode
read_line = msgspec.json.Decoder(StreamLine, strict=False).decode
written = msgspec.json.encode


class Keys:
    """Our keys, below a prefix of the store's: added in front and removed again.

    A key that is not text was written by another program, and is skipped: no page, no copy on disk
    and no other agent could hold it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._skipped_bytes = len(prefix.encode())
        self._strangers: set[bytes] = set()

    def outer(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    def inner(self, key: bytes) -> str | None:
        """None: it is no text."""
        try:
            return key[self._skipped_bytes :].decode()
        except UnicodeDecodeError:
            if key not in self._strangers and len(self._strangers) < MAX_STRANGERS:
                self._strangers.add(key)
                remedy = "not UTF-8: delete it with etcdctl"
                log.warning("fleet.key_unreadable", key=repr(key[:200]), remedy=remedy)
            return None

    def span(self, prefix: str) -> Op:
        """All keys that begin so."""
        first = self.outer(prefix)
        return {"key": first or b"\0", "range_end": _behind(first)}

    def entries(self, kvs: Iterable[KeyValue]) -> list[Entry]:
        named = ((self.inner(kv.key), kv) for kv in kvs)
        return [Entry(key, kv.value, kv.mod_revision) for key, kv in named if key is not None]

    def events(self, answers: Iterable[EventAnswer]) -> list[KeyEvent]:
        named = ((self.inner(answer.kv.key), answer) for answer in answers)
        return [
            KeyEvent(key, None if one.is_gone else one.kv.value, one.kv.mod_revision)
            for key, one in named
            if key is not None
        ]

    def compare(self, compare: Compare) -> Op:
        return {
            "key": self.outer(compare.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(compare.revision),
        }

    def put(self, put: Put) -> Op:
        key = self.outer(put.key)
        if put.value is None:
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": put.value, "lease": str(put.lease)}}


def _behind(first: bytes) -> bytes:
    """The first key after all with this prefix; 0 means the end of all keys."""
    cut = first.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else b"\0"


def range_op(span: Op, **options: Any) -> Op:
    return {"request_range": span | options}


def txn(success: Sequence[Op], *, compares: Sequence[Op] = (), failure: Sequence[Op] = ()) -> bytes:
    return written({"compare": compares, "success": success, "failure": failure})


def watches(spans: Sequence[Op], *, start_revision: int) -> bytes:
    """Several in one stream: one message each, one behind the other."""
    asked = {"start_revision": str(start_revision), "fragment": True, "progress_notify": True}
    return b"".join(written({"create_request": span | asked}) for span in spans)


# --- the way there -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Files:
    """Where everything was read from: certificates and passwords are renewed while we run."""

    password: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None trusts what the host trusts, and shows no certificate."""
    files: Files = Files()

    def renewed(self) -> EtcdAccess:
        """After a rejection: as the files are now. A file that cannot be read stays as it was."""
        try:
            if self.tls is not None:
                _fill(self.tls, self.files)
            fresh = self.password if self.files.password is None else _password(self.files.password)
        except InvalidSettings:
            return self
        return replace(self, password=fresh)


def load_access(
    *,
    username: str = "",
    password_file: Path | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> EtcdAccess:
    """From the files that [fleet] names, or InvalidSettings."""
    if bool(username) != (password_file is not None):
        missing, given = (
            ("password_file", "username") if username else ("username", "password_file")
        )
        raise _fault(missing, f"is required with {given}: give both, or neither")
    files = Files(password_file, ca, cert, key)
    password = _password(password_file) if password_file else ""
    return EtcdAccess(username, password, _context(files), files)


def _password(path: Path) -> str:
    try:
        password = path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise _fault("password_file", f"no password can be read from {path}") from None
    if not password:
        raise _fault("password_file", f"the first line of {path} is empty")
    return password


def _context(files: Files) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except OSError as error:
        raise _fault("ca", f"{files.ca} cannot be used: {error}") from None
    _fill(context, Files(cert=files.cert, key=files.key))
    return context


def _fill(context: ssl.SSLContext, files: Files) -> None:
    """Connections that are made from now on use these; what was believed still is."""
    try:
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except OSError as error:
        raise _fault("ca", f"{files.ca} cannot be used: {error}") from None
    try:
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key)
    except OSError as error:
        pair = f"{files.cert} and key {files.key}"
        raise _fault("cert", f"{pair} cannot be used: {error}") from None


def _fault(setting: str, message: str) -> InvalidSettings:
    return InvalidSettings([Fault(f"fleet.{setting}", message)])


MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_REJECTION_BYTES = 64 * 1024
MAX_CONNECTIONS = 16
# Each watch has its own connection, as long as it is open: one for each cluster that is followed.
MAX_STREAMS = 1024
# Makes a member report at once that it has lost the others, instead of after 7 s; and ends a watch
# that gets no more events.
_WITH_LEADER = {"Grpc-Metadata-hasleader": "true"}
# On a connection that is kept, a Go server throws away what it has not read of a question when it
# begins to answer: all but the first watches of a stream would be lost.
_NOT_KEPT = {"Connection": "close"}
_HEADERS = {
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "headgate",
}
DEFAULT_PORT = 2379
_ENDPOINT = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:(?P<port>[0-9]{1,5}))?/?"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """For people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """`https://10.0.0.1:2379`; ValueError says what it should have been."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ValueError(f"is {text!r}, must be like https://HOST:2379, without user or path")
    scheme, host, port = match["scheme"], match["host"], int(match["port"] or DEFAULT_PORT)
    return Endpoint(f"{scheme}://{host}:{port}", host.strip("[]"), port)


class Gateway:
    def __init__(
        self,
        endpoints: Sequence[str],
        access: EtcdAccess,
        *,
        timeout_s: float,
        roll: Callable[[], float],
    ) -> None:
        if not endpoints:
            raise ValueError("a store needs at least one endpoint")
        self.endpoints = tuple(map(parse_endpoint, endpoints))
        self.timeout_s = timeout_s
        # Thousands of agents with the same settings: they spread over the members.
        self._at = int(roll() * len(endpoints)) % len(endpoints)
        self._access = access
        self._token: str | None = None
        self._login = asyncio.Lock()
        trust = _trust(self.endpoints, access)
        self._client = _client(trust, MAX_CONNECTIONS)
        self._streams = _client(trust, MAX_STREAMS)

    async def close(self) -> None:
        await self._client.aclose()
        await self._streams.aclose()

    @property
    def current(self) -> Endpoint:
        return self.endpoints[self._at]

    def turn_away(self, endpoint: Endpoint) -> None:
        """From now on the next one is contacted first, if it still was this one's turn."""
        if self.current is endpoint:
            self._at = (self._at + 1) % len(self.endpoints)

    # --- one question ----------------------------------------------------------------------

    async def ask(
        self, path: str, body: bytes, *, once: bool = False, any_member: bool = False
    ) -> bytes:
        """The answer's body. `once`: it is a change, and not to be sent again. `any_member`: also
        one that has lost the others."""
        headers = {} if any_member else _WITH_LEADER
        return await self._ask_each(path, body, headers, once)

    async def _ask_each(
        self, path: str, body: bytes, headers: Mapping[str, str], once: bool
    ) -> bytes:
        self._must_be_open()
        until_s = _now_s() + self.timeout_s
        troubles: list[tuple[str, EtcdSilent]] = []
        for left in range(len(self.endpoints), 0, -1):
            endpoint, remaining_s = self.current, until_s - _now_s()
            if remaining_s <= 0:
                break
            patience = _Patience(remaining_s, is_last=left == 1, once=once)
            try:
                return await self._ask_one(endpoint, path, body, headers, patience)
            except EtcdSilent as trouble:
                self.turn_away(endpoint)
                if once and trouble.sent:
                    raise faults.unknown(endpoint.authority, trouble) from None
                troubles.append((endpoint.authority, trouble))
        raise faults.given_up(troubles)

    async def _ask_one(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        patience: _Patience,
    ) -> bytes:
        try:
            async with asyncio.timeout(patience.total_s):
                try:
                    return await self._post(endpoint, path, body, headers, patience)
                except NoToken:
                    self._token = None
                    return await self._post(endpoint, path, body, headers, patience)
        except TimeoutError:
            raise EtcdSilent(f"no answer in {patience.total_s:.1f} s") from None
        except NoToken as error:
            raise self._not_let_in(endpoint, str(error)) from None

    async def _post(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        patience: _Patience,
    ) -> bytes:
        known = await self._identity(endpoint, patience)
        return await self._exchange(endpoint, path, body, {**headers, **known}, patience)

    async def _exchange(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        patience: _Patience,
    ) -> bytes:
        async with self._responding(endpoint, path, body, headers, patience.phases()) as response:
            return await self._read(response, MAX_ANSWER_BYTES)

    @asynccontextmanager
    async def _responding(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout: httpx2.Timeout,
        *,
        goes_on: bool = False,
    ) -> AsyncIterator[httpx2.Response]:
        """A response of status 200; all that can go wrong otherwise as one of ours."""
        began_s, is_answered = _now_s(), False
        client = self._streams if goes_on else self._client
        try:
            async with client.stream(
                "POST", endpoint.url + path, content=body, headers=dict(headers), timeout=timeout
            ) as response:
                is_answered = True
                if response.status_code != 200:
                    told = await self._read(response, MAX_REJECTION_BYTES)
                    raise faults.of_answer(endpoint.authority, response.status_code, told)
                yield response
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            over_http = not is_answered and endpoint.url.startswith("http://")
            trouble = faults.of_transport(error, _now_s() - began_s, over_http=over_http)
            if not is_answered and trouble.sent:
                trouble = await self._diagnosed(endpoint, trouble)
            if trouble.rejected:
                self._access = self._access.renewed()
            raise trouble from None

    async def _diagnosed(self, endpoint: Endpoint, trouble: EtcdSilent) -> EtcdSilent:
        if self._access.tls is None or not endpoint.url.startswith("https"):
            return trouble
        found = await why_hung_up(endpoint.host, endpoint.port, self._access.tls)
        return trouble if found is None else faults.of_tls(found, sent=trouble.sent)

    async def _read(self, response: httpx2.Response, max_bytes: int) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise EtcdSilent(f"answered more than {max_bytes // 1024} kB")
        return bytes(body)

    def _must_be_open(self) -> None:
        if self._client.is_closed:
            raise StoreUnavailable("etcd: this client has been closed")

    # --- one stream ------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator[tuple[Endpoint, Chunks]]:
        """A streamed answer, from the member whose turn it is. Only its beginning has a
        deadline. A caller that leaves has a reason: the next member is used after that."""
        self._must_be_open()
        endpoint = self.current
        try:
            async with AsyncExitStack() as ends:
                yield endpoint, await self._begun(endpoint, path, body, ends)
        except NoToken as error:
            if self._token is None:
                raise self._not_let_in(endpoint, str(error)) from None
            self._token = None
            raise StoreUnavailable(f"etcd {endpoint.authority}: {error}: log in again") from None
        except EtcdSilent as trouble:
            raise faults.given_up([(endpoint.authority, trouble)]) from None
        finally:
            self.turn_away(endpoint)

    async def _begun(
        self, endpoint: Endpoint, path: str, body: bytes, ends: AsyncExitStack
    ) -> Chunks:
        patience = _Patience(self.timeout_s, is_last=True, once=False)
        try:
            async with asyncio.timeout(self.timeout_s):
                identity = await self._identity(endpoint, patience)
                headers = _WITH_LEADER | _NOT_KEPT | identity
                timeout = httpx2.Timeout(self.timeout_s, read=None)
                response = await ends.enter_async_context(
                    self._responding(endpoint, path, body, headers, timeout, goes_on=True)
                )
        except TimeoutError:
            raise EtcdSilent(f"no answer in {self.timeout_s:.1f} s") from None
        return response.aiter_raw()

    # --- who we are ------------------------------------------------------------------------

    async def _identity(self, endpoint: Endpoint, patience: _Patience) -> dict[str, str]:
        if not self._access.username:
            return {}
        async with self._login:
            if self._token is None:
                self._token = await self._log_in(endpoint, patience)
            return {"Authorization": self._token} if self._token else {}

    async def _log_in(self, endpoint: Endpoint, patience: _Patience) -> str:
        """A token; empty if etcd has no authentication."""
        try:
            return await self._authenticate(endpoint, patience)
        except _WrongPassword as first:
            renewed = self._access.renewed()
            if renewed.password == self._access.password:
                raise self._not_let_in(endpoint, str(first)) from None
            self._access = renewed
        try:
            return await self._authenticate(endpoint, patience)
        except _WrongPassword as error:
            raise self._not_let_in(endpoint, str(error)) from None

    async def _authenticate(self, endpoint: Endpoint, patience: _Patience) -> str:
        body = written({"name": self._access.username, "password": self._access.password})
        try:
            answer = await self._exchange(endpoint, "/v3/auth/authenticate", body, {}, patience)
        except EtcdSilent as trouble:
            if "authentication is not enabled" in str(trouble):
                return ""
            # The request itself has not been sent yet.
            raise EtcdSilent(str(trouble), sent=False, rejected=trouble.rejected) from None
        except StoreRejected as error:
            if "authentication failed" in str(error):
                raise _WrongPassword("authentication failed") from None
            raise
        try:
            return read_token(answer).token
        except msgspec.DecodeError:
            raise EtcdSilent("did not answer with a token", sent=False) from None

    def _not_let_in(self, endpoint: Endpoint, words: str) -> StoreRejected:
        who = f"the user {self._access.username!r}" if self._access.username else "anybody unnamed"
        return StoreRejected(
            f"etcd {endpoint.authority} rejects the login of {who} ({words}): "
            "check username and password_file of [fleet]"
        )


Chunks = AsyncIterator[bytes]


def _client(trust: ssl.SSLContext, max_connections: int) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=max_connections, keepalive_expiry=30.0)
    return httpx2.AsyncClient(verify=trust, headers=_HEADERS, trust_env=False, limits=limits)


def _trust(endpoints: Sequence[Endpoint], access: EtcdAccess) -> ssl.SSLContext:
    if any(endpoint.url.startswith("https") for endpoint in endpoints):
        return access.tls or ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and takes no time to make


class _WrongPassword(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long one member may take: half of what is left, as long as there is another one.

    A change goes to no other member once it was sent, so only the connection has to be quick.
    """

    remaining_s: float
    is_last: bool
    once: bool

    @property
    def total_s(self) -> float:
        return self.remaining_s if self.is_last or self.once else self.remaining_s / 2

    def phases(self) -> httpx2.Timeout:
        # Sooner than all of it: what was never connected was never sent.
        connect_s = self.remaining_s * (0.75 if self.is_last else 0.5)
        return httpx2.Timeout(self.total_s, connect=connect_s, pool=connect_s)


def _now_s() -> float:
    """For deadlines only."""
    return asyncio.get_running_loop().time()


WITHIN_S = 0.3


async def why_hung_up(host: str, port: int, tls: ssl.SSLContext) -> ssl.SSLError | None:
    """Why a member did so before it answered; None: it takes our certificate, or nobody is there to
    tell. With TLS 1.3 a member rejects a client's certificate after we believe to be connected: the
    question then breaks a pipe, and the reason lies unread behind it. A client that sends
    nothing reads it."""
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                # A member that lets us in waits for a question, and so do we: to no avail.
                await reader.read(1)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return error
    except (OSError, TimeoutError):
        return None
    return None
