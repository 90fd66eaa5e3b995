"""[tracing]: where spans go, how many of them, and under which name.

What opens the collector's door is in a file of its own, never here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from headgate.base.declared import Key, seconds, share, text, whole
from headgate.errors import Fault, InvalidSettings
from headgate.settings.readers import file_path, is_exposed, pair_faults, split_url

TRACES_PATH = "/v1/traces"
MAX_HEADERS_BYTES = 16 * 1024
MAX_HEADERS = 32
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+): *([\x21-\x7e][\x20-\x7e]*)")
_OURS = frozenset({"host", "content-length", "content-type", "content-encoding", "connection"})


def _name(value: object) -> str:
    name = text(127)(value)
    if not name.strip():
        raise ValueError("is empty: collectors tell services apart by it")
    return name


def _endpoint(value: object) -> str:
    url = text(512)(value).rstrip("/")
    parts = split_url(url)
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or re.search(r"[^!-~]", url)
    ):
        # Not repeated: what does not belong here may be a key.
        raise ValueError("must read like https://collector:4318, without user, password, ? or #")
    return url if parts.path else url + TRACES_PATH


@dataclass(frozen=True, slots=True)
class TracingSettings:
    endpoint: Annotated[
        str,
        Key(
            "Collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; without a path "
            f"{TRACES_PATH} is meant. Without an endpoint nothing is traced.",
            _endpoint,
        ),
    ] = ""
    service_name: Annotated[str, Key("Name of the agents at the collector.", _name)] = (
        "headgate-agent"
    )
    ratio: Annotated[
        float,
        Key(
            "Share of requests to trace that bring no trace of their own. One that does is traced "
            "if its caller traces it.",
            share(0, 1),
        ),
    ] = 1.0
    background_ratio: Annotated[
        float, Key("Share of the agent's own probes, pulls and commits to trace.", share(0, 1))
    ] = 0.01
    headers_file: Annotated[
        Path | None,
        Key(
            "File of lines `Name: value`, sent to the collector: keys belong there, not here.",
            file_path,
        ),
    ] = None
    ca: Annotated[
        Path | None, Key("Authority (PEM) that signed the collector's certificate.", file_path)
    ] = None
    cert: Annotated[
        Path | None, Key("Client certificate (PEM), if the collector asks for one.", file_path)
    ] = None
    key: Annotated[Path | None, Key("Private key (PEM) of `cert`.", file_path)] = None
    timeout_s: Annotated[
        float, Key("How long the collector may take for one batch.", seconds(0.1, 60))
    ] = 5.0
    max_waiting: Annotated[
        int,
        Key("Spans that wait to be sent; more are dropped and counted.", whole(64, 65536)),
    ] = 4096
    allow_plaintext: Annotated[bool, Key("true sends spans beyond loopback without TLS.")] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.cert, self.key, "cert", "key")
        if not self.endpoint:
            if self.headers_file is not None:
                yield "endpoint", "is missing: the headers have nowhere to go"
            return
        parts = urlsplit(self.endpoint)
        for name, given in (("ca", self.ca), ("cert", self.cert)):
            if given is not None and parts.scheme == "http":
                yield name, "is for an https:// endpoint, and this is another"
        if is_exposed(self.endpoint) and not self.allow_plaintext:
            yield (
                "endpoint",
                f"leaves loopback without TLS ({parts.netloc}): use https://, or say "
                "allow_plaintext = true if something else protects the connection",
            )

    def headers(self) -> dict[str, str]:
        """As `headers_file` says now, or InvalidSettings."""
        return {} if self.headers_file is None else _headers(self.headers_file)


def _headers(path: Path) -> dict[str, str]:
    """Lines with faults are named by number: what they say may be a key."""
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
