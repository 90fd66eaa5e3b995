"""Settings of a fleet and of Patroni: the store that agents share, and this agent's place.

[fleet], [patroni]  ──read_fleet──►  FleetSettings  ──►  fleetparts.py hands values to objects

Read by config.py with the rest of the file; every fault is reported with its place.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.core.settings import Setting, flag, number, read_table, table, text
from headgate.errors import Fault
from headgate.paths import expanded

MAX_ENDPOINTS = 16
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,126}")
_PREFIX = re.compile(r"/[!-~]{0,126}")


def _path(value: object) -> Path:
    raw = text(4096)(value)
    if not raw:
        raise ValueError("is empty, must be a path")
    return expanded(raw)


def _name(value: object) -> str:
    raw = text(127)(value)
    if not _NAME.fullmatch(raw):
        raise ValueError(f"is {raw!r}, must be 1–127 of A–Z, a–z, 0–9, _ . : / and -")
    return raw


def _prefix(value: object) -> str:
    raw = text(127)(value)
    if not _PREFIX.fullmatch(raw):
        raise ValueError(f"is {raw!r}, must begin with / and hold no spaces, such as /headgate/")
    return raw if raw.endswith("/") else raw + "/"


def _endpoint(raw: object) -> str:
    url = text(512)(raw).rstrip("/")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and not (parts.username or parts.query)
    except ValueError:  # A port beyond 65535, a bracket that is not closed.
        usable = False
    if not usable or parts.scheme not in ("http", "https") or parts.path:
        raise ValueError("must read like https://etcd-1:2379, without path, user or password")
    return url


def _endpoints(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError('must be a list, such as ["https://etcd-1:2379"]')
    if not 1 <= len(value) <= MAX_ENDPOINTS:
        raise ValueError(f"has {len(value)} entries, must have 1 to {MAX_ENDPOINTS}")
    found = []
    for number_, one in enumerate(value, start=1):
        try:
            found.append(_endpoint(one))
        except ValueError as error:
            raise ValueError(f"entry {number_} {error}") from None
    return tuple(dict.fromkeys(found))


_ACCESS = (
    Setting("endpoints", "Addresses of the etcd members: every one that there is.", _endpoints),
    Setting("username", "User of etcd, where it asks for one.", text(127)),
    Setting("password_file", "File whose first line is that user's password.", _path),
    Setting("ca", "Authority (PEM) that signed the members' certificates.", _path),
    Setting(
        "cert",
        "Client certificate (PEM), where etcd asks for one. Its subject must have no common name: "
        "etcd's gateway refuses those that have one.",
        _path,
    ),
    Setting("key", "Private key (PEM) of `cert`.", _path),
    Setting(
        "allow_plaintext",
        "true speaks to members beyond loopback without TLS.",
        flag,
        default=False,
    ),
)

FLEET_SETTINGS = table(
    (
        *_ACCESS,
        Setting("prefix", "What the keys in etcd begin with.", _prefix, default="/headgate/"),
        Setting(
            "region",
            "Region that this agent stands in, for rules that reach it.",
            _name,
            default="",
        ),
        Setting("cluster", "Cluster that its databases belong to.", _name, default=""),
        Setting(
            "view",
            "true follows the whole fleet and shows it: `headgate fleet status`, /fleet.",
            flag,
            default=False,
        ),
        Setting(
            "register",
            "true tells the fleet where this agent is, so that others of its shards find it.",
            flag,
            default=True,
        ),
        Setting(
            "cache",
            "File that keeps what the fleet last said, for a start without it.",
            _path,
            shown_default="beside `state` of [agent], with .fleet at its end",
        ),
        Setting(
            "beat_interval_s",
            "Seconds between beats, by which silent watches are found: after three without one. "
            "The same for all agents.",
            number(0.1, 60),
            default=2.0,
        ),
        Setting(
            "timeout_s",
            "Seconds that a request to the store may take.",
            number(0.1, 10),
            default=2.0,
        ),
        Setting(
            "lease_s",
            "Seconds after which the fleet forgets an agent that is gone.",
            number(5, 3600),
            default=60.0,
        ),
    )
)

PATRONI_SETTINGS = table(
    (
        *_ACCESS,
        Setting("namespace", "Patroni's own `namespace`.", _prefix, default="/service/"),
    )
)


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    endpoints: tuple[str, ...]
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class FleetSettings:
    etcd: EtcdAccess
    prefix: str = "/headgate/"
    region: str = ""
    cluster: str = ""
    view: bool = False
    register: bool = True
    cache: Path | None = None
    beat_interval_s: float = 2.0
    timeout_s: float = 2.0
    lease_s: float = 60.0


@dataclass(frozen=True, slots=True)
class PatroniSettings:
    etcd: EtcdAccess | None = None
    """None: where the fleet's is."""
    namespace: str = "/service/"


def read_fleet(raw: object, faults: list[Fault]) -> FleetSettings | None:
    """None: there is no such section."""
    if raw is None:
        return None
    values, found = read_table(raw, FLEET_SETTINGS, place="fleet")
    found += [] if found else [*_missing(values), *_access_faults(values, "fleet")]
    faults.extend(found)
    etcd = None if found else _access(values)
    return None if etcd is None else FleetSettings(etcd, **_others(values))


def read_patroni(raw: object, faults: list[Fault]) -> PatroniSettings:
    values, found = read_table(raw, PATRONI_SETTINGS, place="patroni")
    found += [] if found else _access_faults(values, "patroni")
    faults.extend(found)
    if found:
        return PatroniSettings()
    return PatroniSettings(_access(values), values["namespace"])


def _missing(values: Mapping[str, Any]) -> Iterator[Fault]:
    if values["endpoints"] is None:
        yield Fault("fleet.endpoints", "is missing: say where the members of etcd are")


def _access(values: Mapping[str, Any]) -> EtcdAccess | None:
    if values["endpoints"] is None:
        return None
    return EtcdAccess(**{name: values[name] for name in EtcdAccess.__slots__})


def _others(values: Mapping[str, Any]) -> dict[str, Any]:
    access = {row.name for row in _ACCESS}
    return {name: value for name, value in values.items() if name not in access}


def _access_faults(values: Mapping[str, Any], place: str) -> list[Fault]:
    faults = []
    if (values["username"] is None) != (values["password_file"] is None):
        faults.append(Fault(f"{place}.username", "and password_file go together: give both"))
    if (values["cert"] is None) != (values["key"] is None):
        faults.append(Fault(f"{place}.cert", "and key go together: give both or neither"))
    exposed = [url for url in values["endpoints"] or () if _crosses_plainly(url)]
    if exposed and not values["allow_plaintext"]:
        message = (
            f"{exposed[0]} leaves loopback without TLS: use https://, or say "
            "allow_plaintext = true if something else protects the way"
        )
        faults.append(Fault(f"{place}.endpoints", message))
    schemes = {urlsplit(url).scheme for url in values["endpoints"] or ()}
    if len(schemes) > 1:
        faults.append(Fault(f"{place}.endpoints", "mix http and https: all members speak one"))
    return faults


def _crosses_plainly(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True
