"""Where the agent is: `http://host:port` or `unix:///path/to/agent.sock`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from headgate.errors import Fault, InvalidSettings

DEFAULT_URL = "http://127.0.0.1:8087"
ENV_URL = "HEADGATE_URL"


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    host: str = ""
    port: int = 0
    socket_path: str = ""
    """Set: a Unix socket, and host and port mean nothing."""

    @property
    def host_header(self) -> str:
        if self.socket_path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def url_from_environment() -> str | None:
    """The SDK's only look at the environment: a job is told where its agent is by its host."""
    return os.environ.get(ENV_URL)  # noqa: TID251 -- a library has no config file to read it from


def parse_target(url: str) -> Target:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("it is not a URL") from None
    if parts.scheme == "unix":
        return _unix(url, parts)
    if parts.scheme != "http":
        raise _refused(f"scheme {parts.scheme!r} is not spoken by an agent")
    if "@" in parts.netloc:
        raise _refused("it carries a user or password; give a token instead")
    host = parts.hostname or ""
    if not _may_be_a_host(host):
        raise _refused("it names no host, or not in ASCII")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refused("it carries a path; the SDK adds its own")
    return Target(url, host=host, port=80 if port is None else port)


def _unix(url: str, parts: SplitResult) -> Target:
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise _refused("a socket is named by its full path")
    return Target(url, socket_path=parts.path)


def _may_be_a_host(name: str) -> bool:
    """What a resolver would choke on rather than not find: empty and overlong labels."""
    labels = name.removesuffix(".").split(".")
    return name.isascii() and all(0 < len(label) < 64 for label in labels)


def _refused(what: str) -> InvalidSettings:
    # Without the URL itself: it may hold a password that was never meant to be here.
    usage = f"write {DEFAULT_URL} or unix:///run/headgate/agent.sock"
    return InvalidSettings([Fault(f"url (or {ENV_URL})", f"{what}; {usage}")])
