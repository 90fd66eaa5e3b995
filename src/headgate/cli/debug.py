"""`headgate debug bundle`: what a maintainer needs to find a fault, secrets removed."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.base.redaction import Scrubber
from headgate.cli.api import AgentUnreachable
from headgate.cli.debug_items import BundleItem, Content, NotThere
from headgate.cli.debug_scrub import Names, lines_without_literals, without_literals
from headgate.cli.options import AgentOptions, Since
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.cli.api import SocketTransport
    from headgate.cli.debug_items import Wishes
    from headgate.cli.debug_scrub import Names
    from headgate.errors import HeadgateError

AGENT_TIMEOUT_S = 8.0
SOMETHING_ELSE = "is there, and no plain file: name a new one, or give --stdout for a pipe"
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", show_default=False,
        help="Where to put it. Default: headgate-debug-TIME.tar.gz here.",
    ),
]  # fmt: skip
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        show_default=False,
        help="Write the files to a new folder instead of an archive.",
    ),
]
Stdout = Annotated[
    bool, typer.Option("--stdout", help="Write the archive to standard output, for a pipe.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", show_default=False,
        help="The agent's settings file. Default: the one that the agent names, if it is here.",
    ),
]  # fmt: skip
Proxy = Annotated[
    str | None,
    typer.Option(
        "--proxy", envvar="HEADGATE_PROXY_URL", metavar="URL", show_default=False,
        help="A proxy's control socket or address: include its status, too.",
    ),
]  # fmt: skip
Logs = Annotated[
    list[Path] | None,
    typer.Option(
        "--log", metavar="FILE", show_default=False, help="A log file to include; repeatable."
    ),
]
Unit = Annotated[
    str, typer.Option(metavar="NAME", help="The unit whose journal to include, without --log.")
]
LogLines = Annotated[
    int, typer.Option(min=1, max=100_000, help="How many lines of each log, from its end.")
]
HashNames = Annotated[
    bool,
    typer.Option(
        "--hash-names",
        help="Hashes in place of the names of clients, hosts, databases and people. The table of "
        "hashes is written beside the bundle, for you alone.",
    ),
]


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Where it goes."""

    output: Output = None
    folder: Folder = None
    stdout: Stdout = False

    def __post_init__(self) -> None:
        output, folder = self.output, self.folder
        if sum((output is not None, folder is not None, self.stdout)) > 1:
            raise typer.BadParameter("--output, --folder and --stdout exclude each other: give one")
        if folder is not None and folder.exists():
            raise typer.BadParameter(f"--folder {folder} is there already: name a new one")
        if output is not None and _is_something_else(output):
            raise typer.BadParameter(f"--output {output} {SOMETHING_ELSE}")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How much of the past."""

    log: Logs = None
    unit: Unit = "headgate"
    log_lines: LogLines = 2000
    since: Since = "6h"


def bundle(
    place: PlaceOptions,
    past: LogOptions,
    agent: AgentOptions,
    config: Config = None,
    proxy: Proxy = None,
    hash_names: HashNames = False,
) -> None:
    """Pack what a maintainer needs into one file, secrets removed.

    If the agent is down, it packs the settings file and the facts of this machine. It sends
    nothing, changes nothing and wakes no database. Read the bundle before you send it.
    """
    from headgate.cli.debug_items import Wishes
    from headgate.cli.debug_scrub import Names
    from headgate.cli.history import span_since

    since = span_since(past.since)  # First: it may be rejected.
    asked = _transport(agent.url, agent.token)
    status = _status(asked)
    settings = config or _settings_here(asked, status)
    beside = _proxy(proxy, agent.token)
    logs = (tuple(past.log or ()), past.unit, past.log_lines, since)
    wishes = Wishes(_api(asked), asked, beside, settings, *logs)
    names = Names() if hash_names else None
    made = _made(wishes, _databases(status), names, agent.token)
    where = _written(made, place, names)
    _told(made, where, as_json=agent.as_json, to_stdout=place.stdout)


def _transport(url: str | None, token: str | None) -> SocketTransport:
    from headgate.cli.api import SocketTransport, checked_token, default_url, find_target

    return SocketTransport(find_target(url or default_url()), checked_token(token), AGENT_TIMEOUT_S)


def _api(transport: SocketTransport) -> Any:
    from headgate.cli.api import Api

    return Api(transport, transport.target.url)


def _proxy(url: str | None, token: str | None) -> SocketTransport | None:
    from headgate.cli.proxy import SYSTEM_SOCKET

    if url is None and not SYSTEM_SOCKET.is_socket():
        return None
    return _transport(url or f"unix://{SYSTEM_SOCKET}", token)


def _status(agent: SocketTransport) -> Mapping[str, Any]:
    """The agent's status; empty while the agent is down."""
    from headgate.errors import HeadgateError

    try:
        document: Mapping[str, Any] = _api(agent).get("/v1/status").document
    except HeadgateError:
        return {}
    return document


def _settings_here(agent: SocketTransport, status: Mapping[str, Any]) -> Path | None:
    """Where the agent read its own, if that is this machine's; else the usual place."""
    from headgate.cli.debug_items import SYSTEM_SETTINGS
    from headgate.settings.readers import is_loopback

    if not agent.target.socket_path and not is_loopback(agent.target.host):
        return None
    said = status.get("settings")
    if isinstance(said, str) and said and Path(said).is_file():
        return Path(said)
    return SYSTEM_SETTINGS if SYSTEM_SETTINGS.is_file() else None


def _databases(status: Mapping[str, Any]) -> list[str]:
    rows = status.get("databases")
    rows = rows if isinstance(rows, list) else []
    return [str(row["database"]) for row in rows if isinstance(row, dict) and "database" in row]


def _made(wishes: Wishes, databases: list[str], names: Names | None, token: str | None) -> Bundle:
    from headgate.base.redaction import Scrubber
    from headgate.cli.debug_items import items
    from headgate.cli.debug_scrub import known_secrets

    gathered = gather(items(wishes, databases))
    written = _content(wishes.settings)
    safety = Safety(Scrubber(known_secrets(written, token)), names)
    if names is not None:
        import socket

        names.add(socket.gethostname())
        for _, outcome in gathered:
            names.learn(outcome.content)
    return pack(gathered, safety, _about(wishes))


def _content(path: Path | None) -> list[str]:
    try:
        return [] if path is None else [path.read_text(encoding="utf-8", errors="replace")]
    except OSError:
        return []


def _about(wishes: Wishes) -> dict[str, Any]:
    from headgate.version import VERSION

    return {
        "what": "headgate debug bundle",
        "made_by": VERSION,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "agent": wishes.api.url,
        "settings": str(wishes.settings or ""),
    }


def _written(made: Bundle, wanted: PlaceOptions, names: Names | None) -> str:
    now = datetime.now(UTC)
    name = f"headgate-debug-{now:%Y%m%dT%H%M%SZ}"
    if wanted.folder is not None:
        _unpacked(made, wanted.folder)
        place = wanted.folder
    else:
        packed = archive(made, name, now.timestamp())
        place = wanted.output or Path(name if wanted.stdout else f"{name}.tar.gz")
        if wanted.stdout:
            _piped(packed)
        else:
            _private(place, packed)
    if names is not None:
        _private(place.with_name(place.name + ".names.json"), names.legend().encode())
    return "standard output" if wanted.stdout else str(place)


def _unpacked(made: Bundle, folder: Path) -> None:
    import shutil

    begun = False
    try:
        folder.mkdir(mode=0o700, parents=True)
        begun = True
        unpacked(made, folder)
    except OSError as error:
        if begun:
            shutil.rmtree(folder, ignore_errors=True)
        raise _unwritten(folder, error) from None


def _piped(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _unwritten("standard output", error) from None


def _private(path: Path, content: bytes) -> None:
    """For its owner alone, and whole or not at all. A file that was there is replaced; anything
    else stays, for its place may be known to everybody, such as /dev/null."""
    import tempfile

    from headgate.errors import HeadgateError

    begun = ""
    try:
        if _is_something_else(path):
            raise HeadgateError(f"{path} {SOMETHING_ELSE}")
        descriptor, begun = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(begun).replace(path)
    except OSError as error:
        if begun:
            Path(begun).unlink(missing_ok=True)
        raise _unwritten(path, error) from None


def _is_something_else(path: Path) -> bool:
    return os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode)


def _unwritten(where: Path | str, error: OSError) -> HeadgateError:
    from headgate.errors import HeadgateError

    way_out = "give another place with --output, or --stdout for a pipe to another machine"
    return HeadgateError(f"{where} cannot be written: {error.strerror}; {way_out}")


def _told(made: Bundle, where: str, *, as_json: bool, to_stdout: bool) -> None:
    stream = sys.stderr if to_stdout else sys.stdout
    if as_json:
        print(made.files["MANIFEST.json"].decode(), file=stream)
        return
    from headgate.cli.output import console

    target = console(stream)
    target.print(_table(made))
    for line in _last_words(made, where):
        target.print(line)


def _table(made: Bundle) -> RenderableType:
    from rich.table import Table

    from headgate.cli.documents import plain

    table = Table(box=None, pad_edge=False)
    for column in ("file", "bytes", "state", "what"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    before = ""
    for entry in made.entries:
        size = f"{entry.bytes:,}" if entry.bytes else ""
        said = "as above" if entry.why and entry.why == before else entry.why or entry.about
        table.add_row(entry.path, size, entry.state, plain(said))
        before = entry.why
    return table


def _last_words(made: Bundle, where: str) -> list[str]:
    missing = sum(entry.state == "missing" for entry in made.entries)
    cut = sum(entry.state == "cut" for entry in made.entries)
    packed = len(made.entries) - missing
    told = [f"\n{packed} files in {where}; {missing} missing, {cut} cut: see MANIFEST.json"]
    looks: dict[str, list[str]] = {}
    for entry in made.entries:
        if entry.look and entry.state != "missing":
            looks.setdefault(entry.look, []).append(entry.path)
    if looks:
        told.append("Known secrets are removed. Before you send it, look for others in:")
        told += [f"  {', '.join(paths)}: {look}" for look, paths in looks.items()]
    return told


# --- the archive ---------------------------------------------------------------------------------

# Gather, scrub, pack.   items ──deadline each──► texts ──scrubbed──► MANIFEST.json, .tar.gz
#
# Whatever is missing, and why, is in the manifest; so is what was cut. Nothing that was not
# scrubbed gets here into bytes, and every file is looked through once more before it is packed.

MAX_ITEM_BYTES = 4 * 1024 * 1024
MAX_BUNDLE_BYTES = 64 * 1024 * 1024
ITEM_TIMEOUT_S = 10.0
BUNDLE_TIMEOUT_S = 60.0
CUT = "\n… cut here: it was larger\n"


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One row of the manifest."""

    path: str
    about: str
    state: str
    """`packed`, `cut` or `missing`."""
    bytes: int = 0
    whole_bytes: int = 0
    took_s: float = 0.0
    why: str = ""
    look: str = ""


@dataclass(slots=True)
class Bundle:
    entries: list[ManifestRow] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


@dataclass(slots=True)
class FetchOutcome:
    content: Content | None = None
    why: str = ""
    took_s: float = 0.0
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Safety:
    scrubber: Scrubber
    names: Names | None = None
    """None: names stay."""

    def text_of(self, item: BundleItem, content: Content) -> str:
        if isinstance(content, str):
            # Before as well: a secret with a quote in it would be cut in two.
            safe = self.scrubber(lines_without_literals(self.scrubber(content)))
            return self._named(item, safe)
        shaped = json.dumps(without_literals(content), indent=1, ensure_ascii=False)
        return self._named(item, self.scrubber(shaped) + "\n")

    def _named(self, item: BundleItem, text: str) -> str:
        if self.names is None:
            return text
        if item.hashes_names:
            return self.names(text)
        # Of code, which is full of common words, only the lines that name a task.
        lines = text.splitlines(keepends=True)
        return "".join(self.names(line) if line.startswith("task ") else line for line in lines)

    def words(self, text: str) -> str:
        scrubbed = self.scrubber(text)
        return scrubbed if self.names is None else self.names(scrubbed)


Gathered = list[tuple[BundleItem, FetchOutcome]]


def gather(items: Iterable[BundleItem], timeout_s: float = BUNDLE_TIMEOUT_S) -> Gathered:
    """Each within its deadline. A source that does not answer is not tried again: the rest
    of what it has is missing for the same reason."""
    ends = time.monotonic() + timeout_s
    silent: dict[str, str] = {}
    found = []
    for item in items:
        left_s = min(ITEM_TIMEOUT_S, ends - time.monotonic())
        if item.source in silent:
            outcome = FetchOutcome(why=silent[item.source])
        elif left_s <= 0:
            outcome = FetchOutcome(why=f"not tried: the {timeout_s:g} s for all of it were over")
        else:
            outcome = _within(item.fetch, left_s)
        if outcome.is_silent:
            silent[item.source] = outcome.why
        found.append((item, outcome))
    return found


def _within(fetch: Callable[[], Content], timeout_s: float) -> FetchOutcome:
    outcome, began = (
        FetchOutcome(why=f"not had in {timeout_s:.1f} s", is_silent=True),
        time.monotonic(),
    )

    def run() -> None:
        made = _fetched(fetch)
        outcome.content, outcome.why = made.content, made.why
        outcome.is_silent = made.is_silent

    # By a thread that may be left behind: a disk that hangs would hold the rest of it up.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    outcome.took_s = round(time.monotonic() - began, 3)
    return FetchOutcome(outcome.content, outcome.why, outcome.took_s, outcome.is_silent)


def _fetched(fetch: Callable[[], Content]) -> FetchOutcome:
    try:
        return FetchOutcome(fetch())
    except NotThere as error:
        return FetchOutcome(why=str(error))
    except AgentUnreachable as error:
        return FetchOutcome(why=str(error), is_silent=True)
    except HeadgateError as error:
        return FetchOutcome(why=str(error))
    # An answer in a shape that nobody thought of must not cost the other items.
    except Exception as error:
        return FetchOutcome(why=f"failed here: {type(error).__name__}")


def pack(gathered: Gathered, safety: Safety, about: dict[str, Any]) -> Bundle:
    bundle = Bundle()
    for item, outcome in gathered:
        bundle.entries.append(_add(bundle, item, outcome, safety))
    rows = [asdict(entry) for entry in bundle.entries]
    manifest = json.dumps({**about, "items": rows}, indent=1, ensure_ascii=False)
    bundle.files["MANIFEST.json"] = safety.words(manifest).encode()
    return bundle


def _add(bundle: Bundle, item: BundleItem, outcome: FetchOutcome, safety: Safety) -> ManifestRow:
    path = item.path if safety.names is None else safety.names(item.path)
    row = ManifestRow(path, item.about, "missing", took_s=outcome.took_s, look=item.look)
    if outcome.content is None:
        return _with(row, why=safety.words(outcome.why))
    whole = safety.text_of(item, outcome.content)
    if safety.scrubber.left_in(whole):
        return _with(row, why="left out: a secret was still to be seen in it")
    raw = whole.encode()
    room = min(MAX_ITEM_BYTES, MAX_BUNDLE_BYTES - bundle.size)
    if room <= len(CUT):
        return _with(row, why="left out: the bundle is full", whole_bytes=len(raw))
    kept = raw if len(raw) <= room else _cut(raw, room - len(CUT.encode()), item)
    bundle.files[path] = kept
    state = "packed" if len(raw) <= room else "cut"
    return _with(row, state=state, bytes=len(kept), whole_bytes=len(raw))


def _with(row: ManifestRow, **more: Any) -> ManifestRow:
    return ManifestRow(**{**asdict(row), **more})


def _cut(raw: bytes, room: int, item: BundleItem) -> bytes:
    mark = CUT.encode()
    text = raw[:room] if item.keeps == "head" else raw[-room:]
    text = text.decode(errors="ignore").encode()
    return text + mark if item.keeps == "head" else mark + text


def archive(bundle: Bundle, name: str, wall_s: float) -> bytes:
    """One .tar.gz, all of it below one folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for path, content in sorted(bundle.files.items()):
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mtime, info.mode = len(content), int(wall_s), 0o600
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def unpacked(bundle: Bundle, folder: Path) -> None:
    for path, content in bundle.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600)
        target.write_bytes(content)
