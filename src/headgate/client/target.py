"""Where the agent is: `http(s)://host:port` or `unix:///path/to/agent.sock`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from headgate.errors import Fault, InvalidSettings

if TYPE_CHECKING:
    from headgate.client.tls import Trust

DEFAULT_URL = "http://127.0.0.1:8087"
DEFAULT_PORTS = {"http": 80, "https": 443}
ENV_URL = "HEADGATE_URL"
MAX_URLS = 8


class Target(NamedTuple):
    url: str
    host: str = ""
    port: int = 0
    socket_path: str = ""
    """Set: a Unix socket, and host and port mean nothing."""
    trust: Trust | None = None
    """Set: spoken to over TLS, and believed with a certificate that this trusts."""
    database: str = ""
    """Set: the name that the agent there has for the database."""

    @property
    def host_header(self) -> str:
        if self.socket_path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def url_from_environment() -> str | None:
    """The SDK's only look at the environment: the host says where a job's agent is."""
    return os.environ.get(ENV_URL)  # noqa: TID251 -- a library has no config file to read it from


def urls_of(url: str | Sequence[str] | None) -> tuple[str, ...]:
    """The agents in order of preference: as given, else HEADGATE_URL (commas between), else
    the one on this host."""
    wanted = None if isinstance(url, str) and not url else url
    given = url_from_environment() or DEFAULT_URL if wanted is None else wanted
    named = given.split(",") if isinstance(given, str) else given
    urls = tuple(text.strip() for text in named if text.strip())
    if not urls or len(urls) > MAX_URLS:
        raise _rejected(f"it names {len(urls)} agents, may name 1 to {MAX_URLS}")
    if len(set(urls)) < len(urls):
        raise _rejected("it names an agent twice")
    return urls


def parse_targets(
    url: str | Sequence[str] | None, tls_ca: str | os.PathLike[str] | None = None
) -> tuple[Target, ...]:
    urls = urls_of(url)
    secure = [text for text in urls if text.lower().startswith("https:")]
    if tls_ca is not None and not secure:
        raise InvalidSettings([Fault("tls_ca", "needs an https:// url")])
    return tuple(parse_target(text, tls_ca if text in secure else None) for text in urls)


def parse_target(url: str, tls_ca: str | os.PathLike[str] | None = None) -> Target:
    if tls_ca is not None and not url.lower().startswith("https:"):
        raise InvalidSettings([Fault("tls_ca", "needs an https:// url")])
    return _parsed(url, lambda host: _trust(host, tls_ca))


def _parsed(url: str, trust_in: Callable[[str], Trust]) -> Target:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _rejected("it is not a URL") from None
    if parts.scheme == "unix":
        return _unix(url, parts)
    if parts.scheme not in DEFAULT_PORTS:
        raise _rejected(f"scheme {parts.scheme!r} is not spoken by an agent")
    if "@" in parts.netloc:
        raise _rejected("it carries a user or password; give a token instead")
    host = parts.hostname or ""
    if not _may_be_a_host(host):
        raise _rejected("it names no host, or not in ASCII")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _rejected("it carries a path; the SDK adds its own")
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    trust = trust_in(host) if parts.scheme == "https" else None
    return Target(url, host=host, port=port, trust=trust)


def sent_on(home: Target, address: object) -> Target | None:
    """The URL that an agent gave instead of `home`; None if it is not usable.

    Never from TLS to plain text: an attacker who could send us there could read the rest. Which
    authorities to trust stays as the caller set it.
    """
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        return None
    if home.trust is not None and address.startswith("http://"):
        return None

    def trusted_alike(host: str) -> Trust:
        return _trust(host, None) if home.trust is None else home.trust._replace(host=host)

    try:
        return _parsed(address, trusted_alike)
    except InvalidSettings:
        return None


def _trust(host: str, tls_ca: str | os.PathLike[str] | None) -> Trust:
    from headgate.client.tls import make_trust  # here: only https needs ssl

    return make_trust(host, tls_ca)


def _unix(url: str, parts: SplitResult) -> Target:
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise _rejected("a socket is named by its full path")
    return Target(url, socket_path=parts.path)


def _may_be_a_host(name: str) -> bool:
    """What a resolver would choke on rather than not find: empty and overlong labels."""
    labels = name.removesuffix(".").split(".")
    return name.isascii() and name.isprintable() and all(0 < len(label) < 64 for label in labels)


def _rejected(what: str) -> InvalidSettings:
    # Without the URL itself: it may hold a password that was never meant to be here.
    usage = f"write {DEFAULT_URL}, https://db1:8087 or unix:///run/headgate/agent.sock"
    return InvalidSettings([Fault(f"url (or {ENV_URL})", f"{what}; {usage}")])
