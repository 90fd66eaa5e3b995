"""Django.   settings.HEADGATE · Throttle (execute_wrapper) · TagRequests · ThrottledCommand

    HEADGATE = {"app": "shop", "database": "main", "max_wait_s": 600}    # as of headgate.Client

Outside of `atomic`, a `Throttle` checks before each statement; within it, before the first one of
the outermost block: the transaction begins with that, and holds nothing yet. If a transaction is
open that `atomic` did not begin (autocommit off, BEGIN by hand), the driver says so.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import connections, transaction

from headgate import Client
from headgate.integrations.sqlcommenter import NO_TAGS, Tags, as_tags
from headgate.integrations.transactions import ends, in_transaction

Item = TypeVar("Item")
Execute = Callable[[str, Any, bool, Mapping[str, Any]], Any]
MAX_VIEWS = 4096


def make_client(app: str | None = None, **overriding: Any) -> Client:
    """From settings.HEADGATE; `app` names the levels before those of the settings."""
    given = getattr(settings, "HEADGATE", None)
    if not isinstance(given, Mapping) or "app" not in given:
        raise ImproperlyConfigured('HEADGATE must be a dict such as {"app": …, "database": …}')
    known = {**given, **overriding}
    general = known.pop("app")
    return Client(f"{app}:{general}" if app else general, **known)


class Throttle:
    """For `connection.execute_wrapper`. Without a gate it only writes tags."""

    def __init__(self, gate: Client | None, tags: Mapping[str, str] | None = None) -> None:
        self._gate = gate
        self._tags = as_tags(tags)

    def __call__(
        self, execute: Execute, statement: str, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        if self._gate is not None and not ends(statement):
            self._admit(self._gate, context["connection"])
        written = self._tags_now().on(statement, doubled=params is not None)
        return execute(written, params, many, context)

    def _admit(self, gate: Client, connection: Any) -> None:
        if _is_open(connection):
            return
        gate.wait()
        if _is_atomics(connection):
            # Django empties this list when the outermost block ends, however it does. Savepoints
            # take out only what was put in within them, and the first is itself a statement.
            transaction.on_commit(_asked, using=connection.alias)

    def _tags_now(self) -> Tags:
        return self._tags


def _is_open(connection: Any) -> bool:
    """Whether a transaction is open: its check is done, or the server knows of it."""
    asked = any(hook[1] is _asked for hook in connection.run_on_commit)
    if asked and _is_atomics(connection):
        return True
    return bool(in_transaction(connection.connection))  # which is None until it is connected


def _is_atomics(connection: Any) -> bool:
    """With autocommit off, `atomic` makes only savepoints in whatever transaction there is."""
    return bool(connection.in_atomic_block and connection.commit_on_exit)


def _asked() -> None:
    """Marks a transaction whose check is done."""


@contextmanager
def throttled(
    gate: Client, tags: Mapping[str, str] | None = None, using: Iterable[str] | None = None
) -> Iterator[None]:
    """All connections of this thread, or those named, check within this block."""
    with ExitStack() as stack:
        for alias in using if using is not None else connections:
            stack.enter_context(connections[alias].execute_wrapper(Throttle(gate, tags)))
        yield


# --- requests --------------------------------------------------------------------------------


class TagRequests:
    """Middleware: statements say which view they come from. It never checks: a user waits.

    One text for each view and statement, so that caches by text stay small; no path, user or
    trace id is written.
    """

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        with ExitStack() as stack:
            for alias in connections:
                wrapper = connections[alias].execute_wrapper(_OfRequest(request))
                stack.enter_context(wrapper)
            return self._get_response(request)


class _OfRequest(Throttle):
    def __init__(self, request: Any) -> None:
        super().__init__(None)
        self._request = request

    def _tags_now(self) -> Tags:
        """The view is known once the URL is resolved; middleware may need the tags before."""
        match = self._request.resolver_match
        return _tags_of_view(match.view_name or "" if match else "")


@lru_cache(maxsize=MAX_VIEWS)
def _tags_of_view(view: str) -> Tags:
    given = getattr(settings, "HEADGATE", {})
    return Tags(app=given.get("app", ""), controller=view, framework="django") if given else NO_TAGS


# --- management commands ---------------------------------------------------------------------


class ThrottledCommand(BaseCommand):  # type: ignore[misc] # Django has no types
    """A management command that checks, as `<command>:<app of the settings>`.

    Every transaction checks, and `self.chunks(rows, 500)` hands out lists. Use one of the two for a
    piece of work: with `throttle_statements = False` only the chunks check.
    """

    throttle_statements = True
    gate: Client

    def create_parser(self, prog_name: str, subcommand: str, **more: Any) -> Any:
        parser: ArgumentParser = super().create_parser(prog_name, subcommand, **more)
        group = parser.add_argument_group("headgate")
        group.add_argument("--as", dest="headgate_app", help="Name of this run, before the others.")
        group.add_argument("--max-wait", type=float, help="Give up after so many seconds (s).")
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        levels = [options.pop("headgate_app", None), type(self).__module__.rpartition(".")[2]]
        app = ":".join(filter(None, levels))
        limit_s = options.pop("max_wait", None)
        limits = {} if limit_s is None else {"max_wait_s": limit_s}
        with make_client(app, **limits) as self.gate:
            gate = self.gate if self.throttle_statements else None
            with ExitStack() as stack:
                for alias in connections:
                    wrapper = Throttle(gate, Tags(app=self.gate.app))
                    stack.enter_context(connections[alias].execute_wrapper(wrapper))
                return super().execute(*args, **options)

    def chunks(self, items: Iterable[Item], size: int = 100) -> Iterator[list[Item]]:
        return iter(self.gate.chunks(items, size))
