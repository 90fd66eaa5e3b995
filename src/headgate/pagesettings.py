"""Settings of the page.   [page] ──read_page──► PageSettings ──► main.py hands values to objects

Read by config.py with the rest of the file; every fault is reported with its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from headgate.core.settings import Setting, flag, number, read_table, table, text
from headgate.errors import Fault


def _loopback_url(value: object) -> str:
    url = text(128)(value).rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname == "127.0.0.1" and bool(parts.port)
    except ValueError:  # A port beyond 65535.
        usable = False
    if not usable or url != f"http://127.0.0.1:{parts.port}":
        raise ValueError(f"is {url!r}, must read like http://127.0.0.1:9000")
    return url


PAGE_SETTINGS = table(
    (
        Setting("enabled", "Serve the page for people, at `/`.", flag, default=True),
        Setting(
            "session_s",
            "How long somebody who signed in stays so, s. A restart of the agent ends it, too.",
            number(60, 7 * 86_400),
            default=12 * 3600.0,
        ),
        Setting(
            "tour",
            "A guide on this machine that the page shows a strip of; `headgate demo` sets it.",
            _loopback_url,
            default=None,
        ),
    )
)


@dataclass(frozen=True, slots=True)
class PageSettings:
    enabled: bool = True
    session_s: float = 12 * 3600.0
    tour: str | None = None


def read_page(raw: object, faults: list[Fault]) -> PageSettings:
    values, found = read_table(raw, PAGE_SETTINGS, place="page")
    faults.extend(found)
    return PageSettings() if found else PageSettings(**values)
