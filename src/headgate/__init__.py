"""Headgate's SDK: check before each piece of work whether the database has room for it.

    import headgate

    with headgate.Client("etl:nightly", database="main") as gate:
        for chunk in gate.chunks(rows):
            write(chunk)

Names are loaded when first used: a job that imports this pays for nothing it does not call.
"""

# The name alone tells a type checker; importing `typing` would cost more than this module.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from headgate.client.answers import Answer, MetricAnswer
    from headgate.client.async_client import AsyncClient
    from headgate.client.runs import FileCursor
    from headgate.client.sync_client import Client
    from headgate.errors import (
        HeadgateError,
        InvalidName,
        InvalidRequest,
        InvalidSettings,
        ThrottlerUnavailable,
        WaitedTooLong,
    )

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "FileCursor",
    "HeadgateError",
    "InvalidName",
    "InvalidRequest",
    "InvalidSettings",
    "MetricAnswer",
    "ThrottlerUnavailable",
    "WaitedTooLong",
]

_HOMES = {
    "Answer": "headgate.client.answers",
    "AsyncClient": "headgate.client.async_client",
    "Client": "headgate.client.sync_client",
    "FileCursor": "headgate.client.runs",
    "MetricAnswer": "headgate.client.answers",
}

# Hidden from type checkers, which would else take every misspelt name for an export.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module 'headgate' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, "headgate.errors")), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
