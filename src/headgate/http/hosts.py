"""Which host names the agent accepts over plain HTTP.

A web site can point its own name at the agent's address (DNS rebinding): the user's browser then
sends requests to the agent, and the site reads the answers. The Host header, which the browser
sets, shows it. An IP address cannot be redirected, so addresses are always accepted. A site has no
token; over TLS the certificate proves the name; on the Unix socket there is no browser: none of
these get here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable

import structlog

log = structlog.get_logger()

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
