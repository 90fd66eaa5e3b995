"""Who may do what: a bearer token's role, a client certificate, or the Unix socket's permissions.

looking    everybody who gets here
changing   operators, and who may open the Unix socket
pulling    the agents of a shard (peers), operators, and who may open the Unix socket
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import structlog

from headgate.errors import InvalidRequest

# --- who is at the other end of a connection, as far as the socket tells -------------------

LOCAL = "unix"
"""In place of the address of a client on the Unix socket."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A user of the page, whose session and CSRF token have been verified."""

    name: str
    """Empty: nobody."""
    may_change: bool


@dataclass(frozen=True, slots=True)
class Peer:
    address: str
    unix_uid: int | None
    certified: str | None = None
    """The name in a client certificate that the listener has verified."""
    signed_in: SignedIn | None = None
    """Set by the page alone, for the requests that it makes itself."""


def peer_of(transport: asyncio.Transport) -> Peer:
    peername = transport.get_extra_info("peername")
    if isinstance(peername, tuple):
        return Peer(str(peername[0]), None, _certified(transport))
    return Peer(LOCAL, _unix_uid(transport))


def _certified(transport: asyncio.Transport) -> str | None:
    ssl_object = transport.get_extra_info("ssl_object")
    if ssl_object is None:
        return None
    # Empty if there is none, and if the listener has no CA to verify it with.
    certificate = ssl_object.getpeercert()
    return _name_in(certificate) if certificate else None


def _name_in(certificate: Mapping[str, Any]) -> str:
    """The common name, else the first other one; a verified certificate always gives one."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    for kind, name in [*subject, *certificate.get("subjectAltName", ())]:
        if kind in ("commonName", "DNS", "URI", "IP Address"):
            return str(name)
    return f"certificate {certificate.get('serialNumber', 'without a name')}"


def _unix_uid(transport: asyncio.Transport) -> int | None:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return cast(int, struct.unpack("3i", raw)[1])


# --- what they may do ----------------------------------------------------------------------


TokenRole = Literal["viewer", "operator", "peer"]

_HOW_CHANGES_ARE_MADE = (
    "changes over TCP need a token, and none is configured: use the Unix socket, "
    "or add one with `headgate token`"
)
_HOW_PEERS_SHOW_THEMSELVES = (
    "agents must authenticate to each other: set token_file, or cert and key, in [peers] of the "
    'calling agent, and here [[tokens]] with the role "peer", or tls_client_ca of [agent]'
)


ON_BEHALF_OF = "headgate-on-behalf-of"
"""Header: the person who wanted a change, as the one who makes it says."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


def user_of(uid: int, users: Path = Path("/etc/passwd")) -> str:
    """`uid:0 (root)`. By the local file alone: a directory could keep the agent waiting."""
    with suppress(OSError, UnicodeDecodeError):
        for row in users.read_text(encoding="utf-8").splitlines():
            fields = row.split(":")
            if len(fields) > 2 and fields[2] == str(uid):
                return f"uid:{uid} ({fields[0]})"
    return f"uid:{uid}"


@dataclass(frozen=True, slots=True)
class Credential:
    name: str
    role: TokenRole
    sha256: str


class Gatekeeper:
    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._credentials = tuple(credentials)

    def who_changes(self, peer: Peer, headers: Mapping[str, str]) -> str:
        """The name for the audit, or InvalidRequest (401, 403) with what to do."""
        who = self._who_changes(peer, headers.get("authorization"))
        claimed = headers.get(ON_BEHALF_OF, "")
        return f"{who} on behalf of {claimed} (claimed)" if _USER.fullmatch(claimed) else who

    def _who_changes(self, peer: Peer, authorization: str | None) -> str:
        if peer.signed_in is not None:
            return _who_is_signed_in(peer.signed_in)
        if authorization is None and peer.unix_uid is not None:
            return user_of(peer.unix_uid)
        if not self._credentials:
            raise InvalidRequest(_HOW_CHANGES_ARE_MADE, status=401)
        credential = self._find(authorization)
        if credential.role != "operator":
            raise InvalidRequest(
                f"{credential.name} is a {credential.role}; changing needs a token with the role "
                "operator",
                status=403,
            )
        return credential.name

    def who_pulls(self, peer: Peer, authorization: str | None) -> str:
        """The name of another agent, or InvalidRequest (401, 403) with what to configure.

        Loopback is not enough: a caller that reads or wakes a shard must be known.
        """
        if peer.certified is not None:
            return peer.certified
        if authorization is None and peer.unix_uid is not None:
            return f"uid:{peer.unix_uid}"
        if authorization is None or not self._credentials:
            raise InvalidRequest(_HOW_PEERS_SHOW_THEMSELVES, status=401)
        credential = self._find(authorization)
        if credential.role == "viewer":
            raise InvalidRequest(
                f"{credential.name} is a viewer; pulling needs a token with the role peer",
                status=403,
            )
        return credential.name

    @property
    def has_operators(self) -> bool:
        """Whether anybody can sign in who may change something."""
        return any(credential.role == "operator" for credential in self._credentials)

    def knows(self, credential: Credential) -> bool:
        """Whether it is still among those of the settings."""
        return credential in self._credentials

    def holder(self, authorization: str) -> Credential:
        """Whose header it is, or InvalidRequest (401)."""
        return self._find(authorization)

    def has_token(self, authorization: str) -> bool:
        try:
            self._find(authorization)
        except InvalidRequest:
            return False
        return True

    def find(self, token: str) -> Credential:
        """Whose it is, or InvalidRequest (401)."""
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        found = None
        for credential in self._credentials:  # All of them, so that time tells nothing.
            if hmac.compare_digest(credential.sha256, digest):
                found = credential
        if found is None:
            raise InvalidRequest("this agent does not know the token", status=401)
        return found

    def _find(self, authorization: str | None) -> Credential:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise InvalidRequest("send a token: Authorization: Bearer …", status=401)
        return self.find(token)


def _who_is_signed_in(signed_in: SignedIn) -> str:
    if not signed_in.name:
        raise InvalidRequest(
            "you are not signed in any more (the agent has restarted, or the session has "
            "expired): sign in with an operator's token; nothing was changed",
            status=401,
        )
    if not signed_in.may_change:
        raise InvalidRequest(
            f"{signed_in.name} may look, not change: sign in with an operator's token",
            status=403,
        )
    return signed_in.name


log = structlog.get_logger()


# --- the host names that the agent accepts over plain HTTP ---------------------------------
# A web site can point its own name at the agent's address (DNS rebinding): the user's browser
# then sends requests to the agent, and the site reads the answers. The Host header, which the
# browser sets, shows it. An IP address cannot be redirected, so addresses are always accepted. A
# site has no token; over TLS the certificate proves the name; on the Unix socket there is no
# browser: none of these get here.


MAX_REMEMBERED = 256
MAX_LOGGED = 20
LOCALHOST = "localhost"


def is_known_name(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this agent; `names` in lower case."""
    name = bare_name(host)
    return (
        host.startswith("[")
        or _is_address(name)
        or name in names
        or name == LOCALHOST
        or name.endswith(f".{LOCALHOST}")
    )


def bare_name(host: str) -> str:
    """Without a port, and without what comes before an @."""
    return host.rpartition("@")[2].partition(":")[0].lower()


class KnownHosts:
    """What a listener checks for each request over plain TCP."""

    def __init__(
        self, names: Iterable[str], *, has_token: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`has_token`: whether an Authorization header holds a token of ours."""
        self._names = frozenset(names)
        self._has_token = has_token
        self._known: set[bytes] = set()
        """As sent: clients repeat the same ones."""
        self._logged: set[str] = set()

    def fault(self, host: bytes, authorization: bytes | None) -> str | None:
        """None: known, or it does not matter. Else what to do about it."""
        if host in self._known:
            return None
        text = host.decode("latin-1").strip()
        if not text or is_known_name(text, self._names):
            if len(self._known) < MAX_REMEMBERED:
                self._known.add(host)
            return None
        if authorization is not None and self._has_token(authorization.decode("latin-1")):
            return None
        name = bare_name(text)[:100]
        self._log(name)
        return (
            f"this agent does not accept the host name {name!r}: add it to `hosts` of [agent] in "
            "the agent's settings, or use the agent's address"
        )

    def _log(self, name: str) -> None:
        """Once for each name, and of a few: anybody can make them up."""
        if name not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(name)
            log.warning(
                "http.unknown_host",
                host=name,
                detail="rejected: if clients use this name, add it to hosts of [agent]",
            )


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
