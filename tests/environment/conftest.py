"""What the tests of environments share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A Unix socket's whole path has room for 107 bytes; pytest's may be longer."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
