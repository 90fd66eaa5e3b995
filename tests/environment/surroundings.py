"""Environments that machines really have, each of them in our way somehow."""

from __future__ import annotations

from collections.abc import Mapping

NOWHERE = "http://127.0.0.1:9"
ASCII = {"LC_ALL": "POSIX", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOCALES: Mapping[str, Mapping[str, str | None]] = {
    "C": {"LC_ALL": "C"},
    "ascii": ASCII,
    "missing": {"LC_ALL": None, "LANG": "de_DE.ISO-8859-1", "PYTHONUTF8": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "strict": {"PYTHONIOENCODING": "ascii:strict"},
}
PROXIES = {
    name: NOWHERE
    for lower in ("http_proxy", "https_proxy", "all_proxy")
    for name in (lower, lower.upper())
} | {"no_proxy": None, "NO_PROXY": None}
# Of other servers, which the caller's shell is about.
DATABASES = {
    "PGHOST": "192.0.2.1",
    "PGHOSTADDR": "192.0.2.1",
    "PGPORT": "1",
    "PGSERVICE": "none",
    "PGSSLMODE": "verify-full",
    "PGOPTIONS": "-c nonsense=1",
    "PGREQUIREAUTH": "scram-sha-256",
    "PGUSER": "nobody",
    "MYSQL_HOST": "192.0.2.1",
    "MYSQL_TCP_PORT": "1",
    "MYSQL_HOME": "/nonexistent",
}
# Of agents, services and traces that are not ours.
OTHERS = {
    "HEADGATE_LISTEN": "127.0.0.1:1",
    "HEADGATE_SOCKET": "/nonexistent/a.sock",
    "HEADGATE_URL": "http://127.0.0.1:1",
    "NOTIFY_SOCKET": "/nonexistent/notify",
    "WATCHDOG_USEC": "1000",
    "OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE,
}
POOR: Mapping[str, str | None] = {
    "HOME": None,
    "TZ": "Nowhere/Odd",
    "TERM": "dumb",
    "COLUMNS": "20",
    "LINES": "0",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "CI": "true",
    "PYTHONWARNINGS": "error",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": "/nonexistent/junk",
}
