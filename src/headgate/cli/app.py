"""The command line, put together: groups and commands are listed from table.py, and a command is
loaded when it is called.

`headgate --help` and a shell that completes want names and lines: they load no command. One
that is called, asked for its own help, or completed is loaded, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headgate.cli.options import expanded, settings_help
from headgate.cli.table import ABOUT, COMMANDS, GROUPS, CommandRow, Group

# Plain help: it reads well on any terminal, and comes twice as fast as the one in boxes.
PLAIN = None


class ListedCommand(TyperCommand):
    """A row of the table. A context is made to read arguments: then it is the command's own."""

    def __init__(self, name: str, row: CommandRow) -> None:
        super().__init__(name, help=row.about, rich_markup_mode=PLAIN)
        self._row = row

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        command = self.load()
        options = {option for param in command.params for option in param.opts}
        if "--as" in args and "app" in options and "--as" not in options:
            message = f"{info_name} takes a client without --as: headgate {info_name} etl:nightly"
            raise typer.BadParameter(message, ctx=parent)
        return command.make_context(info_name, args, parent=parent, **extra)

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole line, wrapped where it is printed: cut short, it does not help."""
        return self._row.about

    def load(self) -> Any:
        """The command itself, as typer makes it of its function."""
        assert self.name is not None
        alone = typer.Typer(
            add_completion=False, rich_markup_mode=PLAIN, pretty_exceptions_enable=False
        )
        settings = {"allow_interspersed_args": False} if self._row.takes_the_rest else None
        cls = _at(self._row.cls) if self._row.cls else None
        listed = settings_help(self._row.settings) if self._row.settings else None
        take = alone.command(self.name, cls=cls, context_settings=settings, epilog=listed)
        take(expanded(_at(self._row.home)))
        return typer.main.get_command(alone)


class ListedGroup(TyperGroup):
    """Its rows; without arguments, their list."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__(
            name=name,
            commands=_listed(group.commands),
            help=group.about,
            no_args_is_help=True,
            rich_markup_mode=PLAIN,
        )
        self._about = group.about

    def get_short_help_str(self, limit: int = 0) -> str:
        return self._about

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        _fail_with_home(ctx, self.commands, args)
        return super().resolve_command(ctx, args)


class DefaultGroup(ListedGroup):
    """`headgate shard main` is `headgate shard show main`."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__(name, group)
        self._default = group.default
        self._alone = group.alone

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [self._default, *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """An option before the database is the command's, but for the group's own help."""
        own = args[0].startswith("-") and args[0] not in ctx.help_option_names if args else False
        if own or (self._alone and not args):
            args = [self._default, *args]
        return super().parse_args(ctx, args)


class Root(TyperGroup):
    """The whole table: typer makes this of its app, and adds the options for completion."""

    def __init__(self, **attrs: Any) -> None:
        groups = {name: _group(name, group) for name, group in GROUPS.items()}
        super().__init__(**{**attrs, "commands": {**_listed(COMMANDS), **groups}})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        _fail_with_home(ctx, self.commands, args)
        return super().resolve_command(ctx, args)


def _fail_with_home(ctx: Any, commands: Mapping[str, Any], args: list[str]) -> None:
    """`rule favor` is `favor`, and `hold` is `rule hold`: say so, where a name is elsewhere."""
    if not args or args[0] in commands:
        return
    name = args[0]
    homes = [f"headgate {name}"] if name in COMMANDS else []
    homes += [f"headgate {group} {name}" for group in GROUPS if name in GROUPS[group].commands]
    if homes:
        ctx.fail(f"No such command '{name}'. Did you mean {' or '.join(map(repr, homes))}?")


def _listed(rows: Mapping[str, CommandRow]) -> dict[str, Any]:
    return {name: ListedCommand(name, row) for name, row in rows.items()}


def _group(name: str, group: Group) -> ListedGroup:
    return (DefaultGroup if group.default else ListedGroup)(name, group)


def _at(home: str) -> Any:
    module, _, attribute = home.partition(":")
    return getattr(import_module(f"headgate.cli.{module}"), attribute)


# --- the program itself ------------------------------------------------------------------------

app = typer.Typer(
    name="headgate",
    cls=Root,
    help=ABOUT,
    no_args_is_help=True,
    rich_markup_mode=PLAIN,
    # A traceback with local variables would show tokens.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headgate.version import VERSION

        typer.echo(f"headgate {VERSION}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
]


@app.callback()
def _any_command(version: Version = False) -> None:
    """Typer makes a group of an app that has this; what the group holds is Root's."""
