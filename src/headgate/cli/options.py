"""Options that several commands share, and flags that follow from declared settings.

class ChangeOptions: …                      a dataclass of options is one parameter of a command
rows of RULE_SETTINGS ──flags──►     --ratio, --reason, --ticket …: one for each setting
`threshold=50ms mode=enforce` ──read_words──► {"threshold": "50ms", "mode": "enforce"}
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_type_hints

import typer

from headgate.cli import completing

if TYPE_CHECKING:
    from headgate.base.declared import Setting
    from headgate.cli.api import Answered, Api

UNSET = "unset"
EVERY_DATABASE = "all"
LOOK_BACK_TIMEOUT_S = 15.0
FLEET_TIMEOUT_S = 20.0
"""The fleet's store may be slow, or one of its members gone: the agent tries several times."""


# --- times -----------------------------------------------------------------------------------


class Duration(float):
    """In seconds; shown as it was written."""

    text: str

    def __new__(cls, text: str) -> Duration:
        from headgate.base.units import parse_seconds

        made = super().__new__(cls, parse_seconds(text))
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def duration(
    *names: str, about: str, low: float = 0.0, high: float = 1e9, default: bool = True
) -> Any:
    """An option that takes `90s`, `30m`, `1h30m`. A bare number is rejected: 30 is what?"""

    def read(text: str) -> Duration:
        from headgate.base.declared import seconds

        try:
            seconds(low, high)(str(text))
            return Duration(str(text))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(*names, metavar="TIME", parser=read, show_default=default, help=about)


def lasting(text: str) -> str:
    """The text that the agent is sent: `90s`, `30m`, `1h30m`."""
    from headgate.base.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if seconds != int(seconds):
        raise typer.BadParameter(f"is {text!r}, must be whole seconds")
    return text if text[:-1].isdecimal() else f"{int(seconds)}s"


def lasting_or_never(text: str) -> str:
    return text if text == "never" else lasting(text)


def lasts_option(more: str, parser: Callable[[str], Any] = lasting, *, shown: bool = False) -> Any:
    """`--for` of every command; `more`: its times, and what follows. `shown`: with its default."""
    about = f"How long it lasts: {more}"
    return typer.Option("--for", metavar="TIME", parser=parser, show_default=shown, help=about)


# --- single options --------------------------------------------------------------------------


Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_URL",
        show_default=False,
        metavar="URL",
        help="The agent: http://host:port, https://host:port or unix:///path. Default: the "
        "Unix socket of an agent on this host, else http://127.0.0.1:8087.",
    ),
]
Token: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_TOKEN",
        show_default=False,
        metavar="TOKEN",
        help="Token of an operator; changes over TCP need one. Other users of this host can see "
        "arguments, so prefer the environment.",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the document as JSON, for programs.")
]
App: TypeAlias = Annotated[
    str,
    typer.Option(
        "--as",
        envvar="HEADGATE_APP",
        metavar="NAME",
        autocompletion=completing.clients,
        help="The client's name: levels joined by colons, such as etl:nightly.",
    ),
]


def _database(more: str = "") -> Any:
    """`--database` of every command; `more`: what else it takes there."""
    return typer.Option(
        "--database",
        envvar="HEADGATE_DATABASE",
        metavar="NAME",
        autocompletion=completing.databases,
        help=f"The database.{more}",
    )


Database: TypeAlias = Annotated[str, _database()]
Databases: TypeAlias = Annotated[str, _database(" Of several (D1,D2) all must admit.")]
DatabaseOrAll: TypeAlias = Annotated[str, _database(f" `{EVERY_DATABASE}` for every one.")]
Metrics: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_METRICS",
        metavar="M1,M2",
        show_default=False,
        autocompletion=completing.metrics,
        help="Metrics to check, instead of the database's default set.",
    ),
]
Scope: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_SCOPE",
        metavar="host|shard",
        show_default=False,
        help="Metrics of the agent's own server, or of its whole shard. Default: each metric's "
        "own.",
    ),
]
DatabaseArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="DATABASE", autocompletion=completing.databases)
]
AnyDatabase: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="DATABASE",
        show_default=False,
        autocompletion=completing.databases,
        help="Default: all.",
    ),
]
AnyClient: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        show_default=False,
        autocompletion=completing.clients,
        help="A client, or a level of its name. Default: all.",
    ),
]
MetricArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="METRIC", autocompletion=completing.metrics)
]
MemberArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MEMBER", autocompletion=completing.members)
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Validate and show what would change; change nothing.")
]
Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 for advice, too: for CI.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


Since: TypeAlias = Annotated[
    str,
    typer.Option(metavar="TIME", help="From when: 30m, 7d, today, yesterday, 07:00, 2026-03-01."),
]
At: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default=False,
        help="That minute in the past instead of now: 07:10, 90m, 2026-03-01T07:10.",
    ),
]
Interval: TypeAlias = Annotated[
    Duration, duration("--interval", about="Time between two updates.", low=0.1, high=600)
]
INTERVAL = Duration("1s")
Cpu: TypeAlias = Annotated[
    Duration | None,
    duration("--cpu", about="CPU that the work takes on the server: 250ms, 2s.", default=False),
]


def _level(name: str, about: str) -> Any:
    return typer.Option(name, metavar="PATTERN", show_default=False, help=about)


FleetWide: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fleet",
        help="For the whole fleet. Without a reach: for this agent, or the shard that it leads.",
    ),
]
InRegion: TypeAlias = Annotated[
    str | None, _level("--region", "For agents of these regions; * matches any characters.")
]
InCluster: TypeAlias = Annotated[str | None, _level("--cluster", "For agents of these clusters.")]
InShard: TypeAlias = Annotated[
    str | None, _level("--shard", "For agents of these shards: 'commerce/*'.")
]
OnHost: TypeAlias = Annotated[
    str | None, _level("--host", "For these agents, by their names: 'db-1*'.")
]


# --- groups of options -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The agent, and how its answer is printed."""

    url: Url = None
    token: Token = field(default=None, repr=False)
    as_json: AsJson = False

    def connect(self, *, timeout_s: float | None = None) -> Api:
        from headgate.cli.api import connect

        patience = {} if timeout_s is None else {"timeout_s": timeout_s}
        return connect(self.url, self.token, **patience)

    def show(self, answered: Answered, view: str, /, **how: Any) -> None:
        """By a presenter: `rules.rules_view`; or as JSON."""
        from headgate.cli.output import show_view

        show_view(answered, self.as_json, view, **how)


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How a change is made."""

    dry_run: DryRun = False
    yes: Yes = False


@dataclass(frozen=True, slots=True)
class ReachOptions:
    """How far a change reaches."""

    fleet: FleetWide = False
    region: InRegion = None
    cluster: InCluster = None
    shard: InShard = None
    host: OnHost = None

    @property
    def said(self) -> str | None:
        """As the agent takes it; None: nothing was said, and the agent knows what is meant."""
        levels = ("region", "cluster", "shard", "host")
        given = [f"{one}:{found}" for one in levels if (found := getattr(self, one)) is not None]
        given += ["fleet"] if self.fleet else []
        if len(given) > 1:
            options = ", ".join(f"--{one.partition(':')[0]}" for one in given)
            raise typer.BadParameter(f"{options}: give one of them; two reaches are two changes")
        return checked(given[0]) if given else None


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """With an option for each field of a parameter that is a dataclass: typer reads options from
    the parameters of a function, and a command with twenty is not to be written so."""
    hints = get_type_hints(command, include_extras=True)
    found: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints.get(name)
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            of_fields = get_type_hints(kind, include_extras=True)
            for one in fields(kind):
                default = inspect.Parameter.empty if one.default is MISSING else one.default
                found.append(
                    inspect.Parameter(
                        one.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=default,
                        annotation=of_fields[one.name],
                    )
                )
        else:
            found.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
    if not groups:
        return command

    def called(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        return command(**given)

    called.__doc__, called.__name__ = command.__doc__, getattr(command, "__name__", "command")
    called.__annotations__ = {one.name: one.annotation for one in found}
    vars(called)["__signature__"] = inspect.Signature(found)
    return called


# --- flags of declared settings --------------------------------------------------------------

_COMPLETED = {
    "target": completing.clients,
    "over": completing.clients,
    "metrics": completing.metrics,
    "thresholds": completing.thresholds,
}
_METAVARS = {"for": "TIME", "reason": "TEXT"}


def flags(
    rows: Iterable[Setting], *, needed: Collection[str] = (), arguments: Collection[str] = ()
) -> type:
    """A group with an option for each setting, by its name; `arguments` have none."""
    made: list[tuple[str, Any, Any]] = []
    for row in rows:
        is_needed = row.name in needed or row.name in arguments
        shape = str(row.schema.get("type"))
        kind: Any = {"boolean": bool, "array": list[str], "object": list[str]}.get(shape, str)
        about = row.about.replace("`", "")
        if row.default_text and not is_needed:
            about = f"{about} Default: {row.default_text.replace('`', '')}."
        how: dict[str, Any] = {"help": about, "show_default": False}
        if row.name in _COMPLETED:
            how["autocompletion"] = _COMPLETED[row.name]
        if row.name in arguments:
            note = typer.Argument(metavar=_metavar(row), **how)
        else:
            note = typer.Option(
                f"--{row.name.replace('_', '-')}",
                metavar=None if kind is bool else _metavar(row),
                **how,
            )
        if not is_needed and kind is not bool:
            kind |= None
        default = field(default=False if kind is bool else None)
        made.append((_identifier(row), Annotated[kind, note], field() if is_needed else default))
    return make_dataclass("Flags", made, frozen=True, kw_only=True)


def query_flags(query: Any) -> type:
    """A group with an option for each field of a route's query."""
    made: list[tuple[str, Any, Any]] = []
    hints = get_type_hints(query, include_extras=True)
    for name, default in zip(query.__struct_fields__, query.__struct_defaults__, strict=True):
        kind, *notes = get_args(hints[name])
        told = [note.description for note in notes if note.description][-1].removeprefix("`true`: ")
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            metavar="PATTERN" if kind is str else None,
            min=next((note.ge for note in notes if note.ge is not None), None),
            max=next((note.le for note in notes if note.le is not None), None),
            show_default=kind is int,
            help=f"{told[:1].upper()}{told[1:]}",
        )
        made.append((name, Annotated[kind | None, option], field(default=default or None)))
    return make_dataclass("Query", made, frozen=True, kw_only=True)


def query_of(given: Any) -> dict[str, str | None]:
    """Of such a group, as the route reads it; None: it was not said."""
    return {
        one.name: str(value).lower() if isinstance(value, bool) else str(value)
        for one in fields(given)
        if (value := getattr(given, one.name))
    }


def _metavar(row: Setting) -> str:
    schema = row.schema
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    several = {"array": "A,B…", "object": "NAME=VALUE…"}
    return several.get(str(schema.get("type"))) or _METAVARS.get(row.name, row.name.upper())


def _identifier(row: Setting) -> str:
    return f"{row.name}_"


def said_by(given: Any, rows: Iterable[Setting]) -> dict[str, Any]:
    """Of a group of flags: only what was said. The agent knows the defaults."""
    said: dict[str, Any] = {}
    for row in rows:
        value = getattr(given, _identifier(row))
        if isinstance(value, list):
            items = [part for item in value for part in item.split(",") if part]
            if items:
                is_table = row.schema.get("type") == "object"
                said[row.name] = _entries(row, items) if is_table else _as_read(row, items)
        elif value is True:
            said[row.name] = True
        elif isinstance(value, str):
            said[row.name] = _value(row, value)
    return said


def _entries(row: Setting, items: Sequence[str]) -> dict[str, Any]:
    """`lag=2s pool_usage=0.5`."""
    found: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{item!r} must read NAME=VALUE, such as lag=2s")
        found[name] = _value(row, value, name)
    return found


def _as_read(row: Setting, value: Any) -> Any:
    try:
        row.read(value)
    except ValueError as error:
        raise typer.BadParameter(f"{row.name} {error}") from None
    return value


# --- settings as words -----------------------------------------------------------------------


def read_words(words: Sequence[str], table: Mapping[str, Setting], example: str) -> dict[str, Any]:
    """`rate=30 mode=enforce capacity=unset`, None for unset; of a table `labels.region=eu`."""
    from headgate.base.declared import unknown

    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        key, dot, entry = name.partition(".")
        if not equals:
            raise typer.BadParameter(f"{word!r} must read SETTING=VALUE, such as {example}")
        if key not in table:
            raise typer.BadParameter(unknown(key, table))
        if dot:
            entries = found.setdefault(key, {})
            if not isinstance(entries, dict) or entry in entries:
                raise typer.BadParameter(f"{name} is given twice; say it once")
            entries[entry] = _value(table[key], value, entry, or_else=f", or {UNSET}")
        elif key in found:
            raise typer.BadParameter(f"{key} is given twice; say it once")
        else:
            unset = value == UNSET
            found[key] = None if unset else _value(table[key], value, or_else=f", or {UNSET}")
    return found


def _value(row: Setting, value: str, entry: str = "", *, or_else: str = "") -> Any:
    """As the table reads it: a number or a flag if that is what it wants, else the text."""
    fault = None
    for candidate in _candidates(row, value):
        try:
            row.read({entry: candidate} if entry else candidate)
        except ValueError as error:
            fault = fault or error
        else:
            return candidate
    raise typer.BadParameter(f"{row.name} {fault}{or_else}")


def _candidates(row: Setting, value: str) -> Iterator[Any]:
    import json
    import shlex

    if row.schema.get("type") != "string":
        with suppress(ValueError):
            said = json.loads(value)
            if not isinstance(said, str | None):
                yield said
    yield value
    with suppress(ValueError):  # A list: a command and its arguments.
        yield shlex.split(value)


def completed_by(home: str, but: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """The names of a table (module:attribute) for a shell that completes."""

    def complete(incomplete: str) -> list[str]:
        known = (name for name in table_at(home) if name not in but)
        return [f"{name}=" for name in known if name.startswith(incomplete)]

    return complete


def table_at(home: str) -> Mapping[str, Setting]:
    from importlib import import_module

    module, _, attribute = home.partition(":")
    table: Mapping[str, Setting] = getattr(import_module(module), attribute)
    return table


def settings_help(home: str) -> str:
    """For `--help`: every setting, its default and what it means."""
    from textwrap import fill

    lines = []
    for row in table_at(home).values():
        default = f"  [default: {row.default_text}]" if row.default_text else ""
        about = f"{row.name:<17} {row.about}{default}".replace("`", "")
        lines.append(fill(about, 76, initial_indent="  ", subsequent_indent=" " * 20))
    return "\n".join(["\b", "Settings:", *lines])


# --- how far, and confirmation ---------------------------------------------------------------


def checked(reach: str) -> str:
    from headgate.changes.reach import parse_reach

    try:
        return str(parse_reach(reach))
    except ValueError as error:
        level = reach.partition(":")[0]
        raise typer.BadParameter(f"--{level} {error}") from None


def preview_line(document: Mapping[str, Any]) -> str:
    """Of a dry run's answer: `reaches 37 shards, 111 hosts; commerce/-80, …`."""
    from headgate.cli.documents import plain

    reached = document.get("reached")
    told = reached.get("says") if isinstance(reached, Mapping) else None
    return plain(told) if isinstance(told, str) else "the agent did not say how far it reaches"


def reached_line(document: Mapping[str, Any]) -> str:
    """Of the answer to a change for the fleet; empty for the agent's own. Shown after every such
    change: a script has seen no preview, and a mistyped name reaches nothing."""
    from headgate.cli.documents import plain

    reached = document.get("reached")
    if not isinstance(reached, Mapping):
        return ""
    nobody = reached.get("hosts") == 0 and reached.get("shards") == 0
    told = f"{plain(str(reached.get('reach')))}: {preview_line(document)}"
    return f"NOBODY  {told}" if nobody else told


def copies_line(document: Mapping[str, Any]) -> str:
    """Of the answer to a change for a shard: which of its agents have it; else empty."""
    from headgate.cli.documents import plain

    copies = document.get("copies")
    told = copies.get("says") if isinstance(copies, Mapping) else None
    return plain(told) if isinstance(told, str) else ""


def confirm(question: str, *, default: bool = False) -> None:
    """Or end. Without a terminal nobody could answer: the error says what to add."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this is no terminal: add --yes to confirm")
    typer.confirm(question, default, abort=True, err=True)
