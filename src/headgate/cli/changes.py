"""Commands on what operators changed: list, export, diff, apply, history, rollback, restore.

    headgate changes …            what was set at this agent (its own log)
    headgate changes … --fleet    what is set for its fleet, at any agent

A change that was shown before it is made is built on what was shown (If-Match).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import typer

from headgate.base.places import with_lines
from headgate.changes.model import Sort
from headgate.cli import completing
from headgate.cli.options import FLEET_TIMEOUT_S, AgentOptions, ChangeOptions
from headgate.errors import Fault, InvalidSettings

if TYPE_CHECKING:
    from headgate.changes.api import ChangeMadeDoc
    from headgate.cli.api import Answered, Api

CHANGES = "/v1/changes"
S_PER_CHANGE = 0.02
"""A hundred are one revision, and a store under load takes seconds for that."""
MANY_TIMEOUT_S = 240.0
"""Where the number of changes is not known: as many as a fleet may have."""

OfFleet: TypeAlias = Annotated[
    bool, typer.Option("--fleet", help="The fleet's log. Without it: this agent's own.")
]
ChangesFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML, or JSON if its name ends so.")
]
PolicyOf: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--policy-of",
        metavar="DATABASE",
        show_default=False,
        autocompletion=completing.databases,
        help="FILE is a policy file, and its budgets are this database's.",
    ),
]
Prune: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Remove what the file does not name. With --policy-of: that database's budgets, also "
        "those of its settings file.",
    ),
]


# --- looking ---------------------------------------------------------------------------------


def list_changes(
    fleet: OfFleet = False,
    ended: Annotated[
        bool, typer.Option("--all", help="Also what ended or was removed within the last day.")
    ] = False,
    *,
    agent: AgentOptions,
) -> None:
    """List what operators changed: rules, budgets, metrics, skipped replicas, peers."""
    api = agent.connect(timeout_s=FLEET_TIMEOUT_S)
    answered = api.get(CHANGES, log=_log(fleet), all="true" if ended else None)
    agent.show(answered, "changes.changes_view")


def history(
    n: Annotated[
        int | None,
        typer.Argument(min=1, metavar="N", show_default=False, help="What this one did."),
    ] = None,
    fleet: OfFleet = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many, newest first.")] = 20,
    *,
    agent: AgentOptions,
) -> None:
    """List revisions: time, author and what changed; or what one of them did."""
    api = agent.connect(timeout_s=FLEET_TIMEOUT_S)
    if n is not None:
        one = api.get(f"{CHANGES}/history/{n}", log=_log(fleet))
        agent.show(one, "changes.revision_view")
        return
    answered = api.get(f"{CHANGES}/history", log=_log(fleet), limit=str(limit))
    agent.show(answered, "changes.history_view")


# --- files -----------------------------------------------------------------------------------


def export(fleet: OfFleet = False, *, agent: AgentOptions) -> None:
    """Print what operators changed as a file: TOML, or with --json as JSON.

    `headgate changes apply` takes it; applied unchanged, it changes nothing. Secrets of metrics
    read `…` in it.
    """
    import sys

    from headgate.changes.api import ChangeExportDoc
    from headgate.changes.file_format import to_toml
    from headgate.cli.documents import plain, read
    from headgate.cli.output import show_json, show_toml
    from headgate.present.changes import export_head

    answered = agent.connect(timeout_s=FLEET_TIMEOUT_S).get(f"{CHANGES}/export", log=_log(fleet))
    found = read(ChangeExportDoc, answered.document)
    first, *left_out = map(plain, export_head(found))
    if agent.as_json:
        show_json(found.document)
        for line in left_out:  # JSON has no comments.
            print(line, file=sys.stderr)
        return
    show_toml(to_toml(found.document, [first, *left_out]))


def diff(
    path: ChangesFile,
    fleet: OfFleet = False,
    policy_of: PolicyOf = None,
    prune: Prune = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Compare two policy files, without an agent: what FILE changes in this one.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if anything would change: for CI.")
    ] = False,
    *,
    agent: AgentOptions,
) -> None:
    """Show what a file would change, and change nothing.

    For budgets, it also shows what they would have done to the statements of the last hour.
    """
    if against is not None:
        _compare(against, path, strict=strict, as_json=agent.as_json)
        return
    file = load(path, fleet=fleet, database=policy_of)
    api = _api_for(file, agent)
    file = file.alone(api) if prune else file
    tried = _applied(api, file, prune=prune, dry_run=True)
    agent.show(tried, "changes.tried_view")
    _show_last_hour(file, agent)
    if strict and _read(tried).changed:
        raise typer.Exit(1)


def apply(
    path: ChangesFile,
    fleet: OfFleet = False,
    policy_of: PolicyOf = None,
    prune: Prune = False,
    *,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Make the changes of a file.

    Changes that the file does not name stay; --prune removes them.
    """
    file = load(path, fleet=fleet, database=policy_of)
    api = _api_for(file, agent)
    file = file.alone(api) if prune else file

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        return _applied(api, file, prune=prune, dry_run=dry_run, etag=etag)

    _make(post, "APPLIED", fleet, change, agent)
    if change.dry_run:
        _show_last_hour(file, agent)


def rollback(
    n: Annotated[int, typer.Argument(min=0, metavar="N", help="The revision to go back to.")],
    only: Annotated[
        list[Sort] | None,
        typer.Option("--only", show_default=False, help="Roll back only these; repeatable."),
    ] = None,
    fleet: OfFleet = False,
    *,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Set everything as it was after a revision, as a new revision.

    What has ended since then does not come back. `--only members` means skipped replicas, peers
    and handovers.
    """
    api = agent.connect(timeout_s=MANY_TIMEOUT_S)
    body: dict[str, object] = {"n": n}
    body |= {"only": [sort.value for sort in only]} if only else {}

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        path, query = f"{CHANGES}/rollback", _query(fleet)
        return api.change("POST", path, body, dry_run=dry_run, etag=etag, query=query)

    _make(post, "ROLLED BACK", fleet, change, agent)


def restore(
    fleet: OfFleet = False,
    *,
    change: ChangeOptions,
    agent: AgentOptions,
) -> None:
    """Write changes back to etcd that it has lost and this agent still has (--fleet).

    For an etcd that is empty, or was restored from an old copy. An agent has the changes that
    reach it: run the command at one agent of each shard that had changes of its own.
    """
    if not fleet:
        raise typer.BadParameter("restore is for the fleet's log: add --fleet")
    api = agent.connect(timeout_s=MANY_TIMEOUT_S)

    def post(*, dry_run: bool, etag: str | None) -> Answered:
        return api.change("POST", f"{CHANGES}/restore", dry_run=dry_run, query=_query(fleet))

    _make(post, "RESTORED", fleet, change, agent)


# --- a file of changes -------------------------------------------------------------------------

MAX_FILE_BYTES = 16 * 1024 * 1024
"""As much as an agent may be set to take (`max_body_bytes`)."""


TOO_LARGE = 413
_LARGER = "set a larger max_body_bytes in [agent] of that agent's settings, and restart it"


@dataclass(frozen=True, slots=True)
class File:
    path: Path
    text: str
    document: Mapping[str, Any]
    fleet: bool = False
    """For the fleet's log."""
    database: str | None = None
    """The file is a policy, of that one."""

    def alone(self, api: Api) -> File:
        """A policy file that removes that database's other budgets; any other file as it is."""
        if self.database is None:
            return self
        from headgate.budgets.api import PolicyDoc
        from headgate.cli.budget import policy_path
        from headgate.cli.documents import read

        budgets = self.document["budgets"]
        named, removed = {one["name"] for one in budgets}, {"removed": True}
        found = read(PolicyDoc, api.get(policy_path(self.database)).document).budgets
        others = [one.name for one in found if one.name not in named]
        gone = [{"database": self.database, "name": name, **removed} for name in others]
        return replace(self, document={**self.document, "budgets": [*budgets, *gone]})

    @property
    def entries(self) -> int:
        from headgate.changes.file_format import SECTIONS

        listed = (self.document.get(section) for section in SECTIONS)
        return sum(len(some) for some in listed if isinstance(some, list))

    @property
    def is_json(self) -> bool:
        return self.path.suffix == ".json"

    @contextmanager
    def validated(self) -> Iterator[None]:
        """Faults that an agent finds get the file's name and lines."""
        from headgate.cli.api import RequestRejected

        try:
            yield
        except RequestRejected as error:
            if error.status == TOO_LARGE:
                raise RequestRejected(f"{error}; {_LARGER}", status=error.status) from None
            if not error.faults:
                raise
            parted = (told.partition(": ") for told in error.faults)
            faults = [Fault(a, b) if colon else Fault("", a) for a, colon, b in parted]
            raise InvalidSettings(self.located(faults), str(self.path)) from None

    def located(self, faults: Sequence[Fault]) -> list[Fault]:
        return list(faults) if self.is_json else with_lines(faults, self.text)


def load(path: Path, *, fleet: bool, database: str | None = None) -> File:
    """InvalidSettings for what is no document; the agent validates what it says. `database`: the
    file is a policy, of that one."""
    from headgate.changes.file_format import read_document

    try:
        text = _text(path)
        document = read_document(text, is_json=path.suffix == ".json")
        if database is not None:
            document = _of_policy(path, database)
        return File(path, text, document, fleet, database)
    except InvalidSettings as error:
        raise InvalidSettings(error.faults, str(path)) from None


def _of_policy(path: Path, database: str) -> dict[str, Any]:
    """A policy file as changes: each budget whole."""
    from headgate.budgets.parse import written
    from headgate.settings.document import load_policy

    policy = written(load_policy(path))
    budgets = [{"database": database, "whole": True, **one} for one in policy["budgets"]]
    general = policy.get("policy")
    return {
        "budgets": budgets,
        **({"policies": [{"database": database, **general}]} if general else {}),
    }


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")]) from None
    if len(content) > MAX_FILE_BYTES:
        message = f"has {len(content):,} bytes, at most {MAX_FILE_BYTES:,} are taken"
        raise InvalidSettings([Fault("", message)])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSettings([Fault("", "is not UTF-8 here", line)]) from None


# --- steps -----------------------------------------------------------------------------------


def _api_for(file: File, agent: AgentOptions) -> Api:
    return agent.connect(timeout_s=FLEET_TIMEOUT_S + file.entries * S_PER_CHANGE)


def _log(fleet: bool) -> str | None:
    return "fleet" if fleet else None


def _query(fleet: bool) -> dict[str, str]:
    return {"log": "fleet"} if fleet else {}


def _applied(
    api: Api,
    file: File,
    *,
    prune: bool,
    dry_run: bool,
    etag: str | None = None,
) -> Answered:
    # Of a policy file, the budgets that go are in it; rules and the rest are none of its business.
    query = _query(file.fleet) | ({"prune": "true"} if prune and file.database is None else {})
    with file.validated():
        return api.change(
            "POST", f"{CHANGES}/apply", file.document, etag=etag, dry_run=dry_run, query=query
        )


def _compare(before: Path, after: Path, *, strict: bool, as_json: bool) -> None:
    import msgspec

    from headgate.budgets.difference import differences
    from headgate.cli.documents import plain
    from headgate.cli.output import show_json
    from headgate.settings.document import load_policy

    found = differences(load_policy(before), load_policy(after))
    if as_json:
        show_json({"difference": msgspec.to_builtins(found)})
    else:
        print("\n".join(plain(one.line) for one in found) or "no difference")
    if strict and found:
        raise typer.Exit(1)


def _show_last_hour(file: File, agent: AgentOptions) -> None:
    from headgate.cli.budget import TIMEOUT_S, last_hour
    from headgate.cli.documents import plain

    if not agent.as_json:
        api = agent.connect(timeout_s=TIMEOUT_S)
        for told in last_hour(api, file.document, _log(file.fleet)):
            print(plain(told))


class PostChange(Protocol):
    """Makes one change, or tries it; `etag`: only if the log still is as it was then."""

    def __call__(self, *, dry_run: bool, etag: str | None) -> Answered: ...


def _make(
    post: PostChange, done: str, fleet: bool, change: ChangeOptions, agent: AgentOptions
) -> None:
    """Tried and shown, then asked for, and then made of just that; with --yes at once."""
    from headgate.cli.api import AgentSilent

    etag = None
    if not change.dry_run and not change.yes:
        tried = post(dry_run=True, etag=None)
        if not _read(tried).changed:
            agent.show(tried, "changes.made_view", done=done)
            return
        _show_and_ask(tried, done, fleet)
        etag = tried.etag
    try:
        made = post(dry_run=change.dry_run, etag=etag)
    except AgentSilent as error:
        flag = " --fleet" if fleet else ""
        message = f"{error}: `headgate changes history{flag}` shows what was applied"
        raise AgentSilent(message) from None
    agent.show(made, "changes.made_view", done=done)


def _show_and_ask(tried: Answered, done: str, fleet: bool) -> None:
    """On standard error, so that --json stays a document."""
    from headgate.cli.options import confirm
    from headgate.cli.output import canvas_of, console
    from headgate.cli.render import drawn
    from headgate.present.changes import made_view

    target = console(sys.stderr)
    target.print(drawn(made_view(_read(tried), done), canvas_of(target)))
    confirm("Change it for the fleet?" if fleet else "Change it at this agent?")


def _read(answered: Answered) -> ChangeMadeDoc:
    from headgate.changes.api import ChangeMadeDoc
    from headgate.cli.documents import read

    return read(ChangeMadeDoc, answered.document)
