"""Gather, scrub, pack.   items ──deadline each──► texts ──scrubbed──► MANIFEST.json, .tar.gz

Whatever is missing, and why, is in the manifest; so is what was cut. Nothing that was not scrubbed
gets here into bytes, and every file is looked through once more before it is packed.
"""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headgate.base.redaction import Scrubber
from headgate.cli.debug_items import BundleItem, Content, NotThere
from headgate.cli.debug_scrub import Names, lines_without_literals, without_literals
from headgate.cli.exits import AgentUnreachable
from headgate.errors import HeadgateError

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
