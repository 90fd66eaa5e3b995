"""[fleet] and [patroni]: the store that agents share, and this agent's place in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from headgate.base.declared import Flat, Key, seconds, text
from headgate.settings.readers import file_path, is_exposed, pair_faults, place_name, split_url

MAX_ENDPOINTS = 16
_PREFIX = re.compile(r"/[!-~]{0,126}")


def _prefix(value: object) -> str:
    raw = text(127)(value)
    if not _PREFIX.fullmatch(raw):
        raise ValueError(f"is {raw!r}, must begin with / and hold no spaces, such as /headgate/")
    return raw if raw.endswith("/") else raw + "/"


def _endpoint(raw: object) -> str:
    url = text(512)(raw).rstrip("/")
    parts = split_url(url)
    if parts is None or parts.username or parts.query or parts.path:
        usable = False
    else:
        usable = parts.scheme in ("http", "https")
    if not usable:
        raise ValueError("must read like https://etcd-1:2379, without path, user or password")
    return url


def _endpoints(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError('must be a list, such as ["https://etcd-1:2379"]')
    if not 1 <= len(value) <= MAX_ENDPOINTS:
        raise ValueError(f"has {len(value)} entries, must have 1 to {MAX_ENDPOINTS}")
    found = []
    for number, one in enumerate(value, start=1):
        try:
            found.append(_endpoint(one))
        except ValueError as error:
            raise ValueError(f"entry {number} {error}") from None
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    endpoints: Annotated[
        tuple[str, ...],
        Key("Addresses of the etcd members: every one that there is.", _endpoints),
    ] = ()
    username: Annotated[str | None, Key("etcd user, if etcd has authentication.", text(127))] = None
    password_file: Annotated[
        Path | None, Key("File whose first line is that user's password.", file_path)
    ] = None
    ca: Annotated[
        Path | None, Key("Authority (PEM) that signed the members' certificates.", file_path)
    ] = None
    cert: Annotated[
        Path | None,
        Key(
            "Client certificate (PEM), if etcd asks for one. Its subject must have no common name: "
            "etcd's gateway rejects those that have one.",
            file_path,
        ),
    ] = None
    key: Annotated[Path | None, Key("Private key (PEM) of `cert`.", file_path)] = None
    allow_plaintext: Annotated[
        bool, Key("true connects to members beyond loopback without TLS.")
    ] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        if (self.username is None) != (self.password_file is None):
            yield "username", "and password_file go together: give both"
        yield from pair_faults(self.cert, self.key, "cert", "key")
        exposed = [url for url in self.endpoints if is_exposed(url)]
        if exposed and not self.allow_plaintext:
            yield (
                "endpoints",
                f"{exposed[0]} leaves loopback without TLS: use https://, or say "
                "allow_plaintext = true if something else protects the connection",
            )
        if len({urlsplit(url).scheme for url in self.endpoints}) > 1:
            yield "endpoints", "mix http and https: all members speak one"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    etcd: Annotated[EtcdSettings, Flat()]
    prefix: Annotated[str, Key("What the keys in etcd begin with.", _prefix)] = "/headgate/"
    region: Annotated[str, Key("Region of this agent, for rules that reach it.", place_name)] = ""
    cluster: Annotated[str, Key("Cluster that its databases belong to.", place_name)] = ""
    view: Annotated[
        bool, Key("true follows the whole fleet and shows it: `headgate fleet status`, /fleet.")
    ] = False
    register: Annotated[
        bool,
        Key("true registers this agent in the fleet, so that others of its shards find it."),
    ] = True
    cache: Annotated[
        Path | None,
        Key(
            "File that keeps what the fleet last said, for a start without it.",
            file_path,
            "beside `state` of [agent], with .fleet at its end",
        ),
    ] = None
    beat_interval_s: Annotated[
        float,
        Key(
            "Time between beats, by which silent watches are found: after three without one. "
            "The same for all agents.",
            seconds(0.1, 60),
        ),
    ] = 2.0
    timeout_s: Annotated[
        float, Key("How long a request to the store may take.", seconds(0.1, 10))
    ] = 2.0
    lease_s: Annotated[
        float, Key("Time after which the fleet forgets an agent that is gone.", seconds(5, 3600))
    ] = 60.0

    def faults(self) -> Iterator[tuple[str, str]]:
        if not self.etcd.endpoints:
            yield "endpoints", "is missing: say where the members of etcd are"


@dataclass(frozen=True, slots=True)
class PatroniSettings:
    etcd: Annotated[EtcdSettings, Flat()] = EtcdSettings()
    """Without endpoints: where the fleet's is."""
    namespace: Annotated[str, Key("Patroni's own `namespace`.", _prefix)] = "/service/"
