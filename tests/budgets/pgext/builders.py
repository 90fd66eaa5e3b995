"""Folders, policies and regions for the tests of what lies outside the server."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.budgets.native.layout import (
    PAGE_BYTES,
    REGION_FORMAT,
    REGION_MAGIC,
    HgBucket,
    HgCount,
    HgPattern,
    HgRegion,
    HgSeat,
    HgSizes,
)
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.directory import SERVER_FILE
from headgate.budgets.pgext.region import F_SEAL_SHRINK
from headgate.budgets.policy import Policy

F_ADD_SEALS, F_SEAL_GROW = 1033, 4
KEY_BYTES = 8
BLOCKS_ALL = {"name": "none", "mode": "enforce", "max_workers": 0}


def policy(*budgets: dict[str, Any]) -> Policy:
    return parse_policy({"budgets": list(budgets)})


def blocking(username: str, **more: Any) -> dict[str, Any]:
    """A budget that admits nothing of a user."""
    return {**BLOCKS_ALL, "penalty_s": 0, "rules": [{"match": {"username": username}}], **more}


def owner_only(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True)
    return folder


def region(**given: Any) -> HgRegion:
    """The head of a small region without anything in it; parts as native/region.c lays them out."""
    sizes = HgSizes(seats=4, budgets=16, buckets=16, patterns=4, policy_bytes=4096)
    parts = {
        "seats_at": sizes.seats * ctypes.sizeof(HgSeat),
        "counts_at": sizes.budgets * ctypes.sizeof(HgCount),
        "bucket_keys_at": sizes.buckets * KEY_BYTES,
        "bucket_locks_at": 4,
        "buckets_at": sizes.buckets * ctypes.sizeof(HgBucket),
        "patterns_at": sizes.patterns * ctypes.sizeof(HgPattern),
        "clients_at": 0,
        "area_1_at": sizes.policy_bytes,
        "area_2_at": sizes.policy_bytes,
    }
    at, places = PAGE_BYTES, dict[str, int]()
    for part, size in parts.items():
        places[part] = at
        at += -(-size // PAGE_BYTES) * PAGE_BYTES
    areas = (ctypes.c_uint64 * 2)(places.pop("area_1_at"), places.pop("area_2_at"))
    about = {"magic": REGION_MAGIC, "format": REGION_FORMAT, "enabled": 1, "cpus_milli": 2000}
    lengths = {"workers": 100, "length": at, "end_at": at, "areas_at": areas, "sizes": sizes}
    return HgRegion(**{**about, **lengths, **places, **given})


def memory_of(head: HgRegion) -> bytearray:
    memory = bytearray(region().length)
    put(memory, 0, head)
    return memory


def put(memory: bytearray, at: int, words: ctypes.Structure) -> None:
    memory[at : at + ctypes.sizeof(words)] = bytes(words)


@contextmanager
def region_file(
    directory: Path, memory: bytes | bytearray, *, seals: int = F_SEAL_SHRINK
) -> Iterator[int]:
    """A sealed memory file of this very process, and the server.json that leads there."""
    fd = os.memfd_create("pg_headgate", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, memory)
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
        write_server_file(directory, region_fd=fd, region_bytes=len(memory))
        yield fd
    finally:
        os.close(fd)


def write_server_file(directory: Path, **given: Any) -> None:
    said = {
        "pid": os.getpid(),
        "region_fd": -1,
        "region_bytes": 0,
        "format": 1,
        "extension": "0.1.0",
        "server_version_num": 150019,
        "max_connections": 100,
        "cpus_milli": 2000,
    }
    (directory / SERVER_FILE).write_text(json.dumps(said | given))
