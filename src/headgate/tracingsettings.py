"""Settings of traces: where spans go, how many of them, and as whom.

[tracing]  ──read_tracing──►  TracingSettings  ──►  wiring.py opens a tracer; without it, none

Read by config.py with the rest of the file. What opens the collector's door stands in a file of
its own, never here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.core.settings import Setting, flag, number, read_table, table, text, whole
from headgate.errors import Fault, InvalidSettings
from headgate.paths import expanded

TRACES_PATH = "/v1/traces"
MAX_HEADERS_BYTES = 16 * 1024
MAX_HEADERS = 32
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+): *([\x21-\x7e][\x20-\x7e]*)")
_OURS = frozenset({"host", "content-length", "content-type", "content-encoding", "connection"})


def _path(value: object) -> Path:
    raw = text(4096)(value)
    if not raw:
        raise ValueError("is empty, must be a path")
    return expanded(raw)


def _name(value: object) -> str:
    name = text(127)(value)
    if not name.strip():
        raise ValueError("is empty: collectors tell services apart by it")
    return name


def _endpoint(value: object) -> str:
    url = text(512)(value).rstrip("/")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port beyond 65535, a bracket that is not closed.
        usable = False
    secret = usable and ("@" in parts.netloc or parts.query or parts.fragment)
    if not usable or secret or parts.scheme not in ("http", "https") or re.search(r"[^!-~]", url):
        # Not repeated: what does not belong here may be a key.
        raise ValueError("must read like https://collector:4318, without user, password, ? or #")
    return url if parts.path else url + TRACES_PATH


TRACING_SETTINGS = table(
    (
        Setting(
            "endpoint",
            "Collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; without a path "
            f"{TRACES_PATH} is meant. Without an endpoint nothing is traced.",
            _endpoint,
        ),
        Setting(
            "service_name",
            "What the agents are called there.",
            _name,
            default="headgate-agent",
        ),
        Setting(
            "ratio",
            "Share of the requests to trace that bring no trace of their own. One that does is "
            "traced if its caller traces it.",
            number(0, 1),
            default=1.0,
        ),
        Setting(
            "background_ratio",
            "Share of the probes, pulls and commits to trace that nobody has asked for.",
            number(0, 1),
            default=0.01,
        ),
        Setting(
            "headers_file",
            "File of lines `Name: value`, sent along to the collector: keys stand there, not here.",
            _path,
        ),
        Setting("ca", "Authority (PEM) that signed the collector's certificate.", _path),
        Setting("cert", "Client certificate (PEM), where the collector asks for one.", _path),
        Setting("key", "Private key (PEM) of `cert`.", _path),
        Setting(
            "timeout_s",
            "Seconds that the collector may take for one batch.",
            number(0.1, 60),
            default=5.0,
        ),
        Setting(
            "max_waiting",
            "Spans that wait to be sent; further ones are dropped and counted.",
            whole(64, 65536),
            default=4096,
        ),
        Setting(
            "allow_plaintext",
            "true sends spans beyond loopback without TLS.",
            flag,
            default=False,
        ),
    )
)


@dataclass(frozen=True, slots=True)
class TracingSettings:
    endpoint: str
    service_name: str = "headgate-agent"
    ratio: float = 1.0
    background_ratio: float = 0.01
    headers_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    timeout_s: float = 5.0
    max_waiting: int = 4096
    allow_plaintext: bool = False

    def headers(self) -> dict[str, str]:
        """As `headers_file` says now, or InvalidSettings."""
        return {} if self.headers_file is None else _headers(self.headers_file)


def _headers(path: Path) -> dict[str, str]:
    """Lines that are refused are named by number: what they say may be a key."""
    place = "tracing.headers_file"
    try:
        raw = path.read_bytes()[: MAX_HEADERS_BYTES + 1]
        lines = raw.decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InvalidSettings([Fault(place, f"no headers can be read from {path}")]) from None
    if len(raw) > MAX_HEADERS_BYTES or len(lines) > MAX_HEADERS:
        message = f"{path} has more than {MAX_HEADERS} lines or {MAX_HEADERS_BYTES} bytes"
        raise InvalidSettings([Fault(place, message)])
    found = {}
    for at, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _HEADER.fullmatch(line.strip())
        if match is None or match[1].lower() in _OURS:
            message = f"line {at} of {path} is no header of yours: write `Name: value`"
            raise InvalidSettings([Fault(place, message)])
        found[match[1]] = match[2]
    return found


def read_tracing(raw: object, faults: list[Fault]) -> TracingSettings | None:
    """None: nothing is traced."""
    if raw is None:
        return None
    values, found = read_table(raw, TRACING_SETTINGS, place="tracing")
    found += [] if found else list(_faults(values))
    faults.extend(found)
    return None if found or values["endpoint"] is None else TracingSettings(**values)


def _faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    endpoint = values["endpoint"]
    if (values["cert"] is None) != (values["key"] is None):
        yield Fault("tracing.cert", "and key go together: give both or neither")
    if endpoint is None:
        if values["headers_file"] is not None:
            yield Fault("tracing.endpoint", "is missing: the headers have nowhere to go")
        return
    parts = urlsplit(endpoint)
    for name in ("ca", "cert"):
        if values[name] is not None and parts.scheme == "http":
            yield Fault(f"tracing.{name}", "is for an https:// endpoint, and this is another")
    if parts.scheme == "http" and not values["allow_plaintext"] and not _is_near(parts.hostname):
        message = (
            f"leaves loopback without TLS ({parts.netloc}): use https://, or say "
            "allow_plaintext = true if something else protects the way"
        )
        yield Fault("tracing.endpoint", message)


def _is_near(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
