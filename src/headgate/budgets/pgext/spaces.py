"""make takes a space for the end of a word: a path with spaces gets another name.

PG_CONFIG=/tmp/hg-…/pg_config ──calls──► the real one, and prints /tmp/hg-…/postgres instead
                                             of the folder that this links to
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SPACE = re.compile(r"\s")
_SPECIAL_TO_SED = re.compile(r"[\\.*^$\[\]|]")


@contextmanager
def pg_config_for_make(path: Path, prefix: Path) -> Iterator[Path]:
    """A pg_config that names no path with a space in it; OSError where none can be made.
    `prefix`: where that Postgres lies."""
    if not _SPACE.search(f"{path}{prefix}"):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hg-", dir=_plain_parent()) as made:
        link, wrapper = Path(made) / "postgres", Path(made) / "pg_config"
        link.symlink_to(prefix)
        named = _SPECIAL_TO_SED.sub(lambda found: "\\" + found[0], str(prefix))
        replaced = f"s|{named}|{link}|g"
        script = f'#!/bin/sh\n{shlex.quote(str(path))} "$@" | sed {shlex.quote(replaced)}\n'
        wrapper.write_text(script, encoding="utf-8")
        wrapper.chmod(0o700)
        yield wrapper


def _plain_parent() -> str:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 -- with a random name
        if not _SPACE.search(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    message = "make needs a temporary folder without a space in its path: set TMPDIR to one"
    raise OSError(errno.ENOENT, message)
