"""Nothing of ours asks an HTTP proxy: what would read `http_proxy` by itself is not imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
READERS = ("urllib.request", "requests", "urllib3", "aiohttp", "httpx", "httpx2")
WORTH_A_LOOK = re.compile(r"import.*(urllib|requests|aiohttp|httpx)|from urllib")
DIRECT = re.compile(r"httpx2?\.\w*Client\([^)]*trust_env=False", re.DOTALL)


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def asks_proxies(source: str) -> bool:
    if not WORTH_A_LOOK.search(source):
        return False
    found = {r for name in imported(source) for r in READERS if f"{name}.".startswith(f"{r}.")}
    makes_clients = re.search(r"httpx2?\.\w*Client\(", source) is not None
    is_direct = found <= {"httpx", "httpx2"} and (not makes_clients or bool(DIRECT.search(source)))
    return bool(found) and not is_direct


def test_every_connection_is_direct() -> None:
    read = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    assert [path.name for path, source in read.items() if asks_proxies(source)] == []


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("import urllib.request", True),
        ("from urllib import request", True),
        ("import requests", True),
        ("from starlette.requests import Request", False),
        ("import httpx2\nhttpx2.AsyncClient(verify=x)", True),
        ("import httpx2\nhttpx2.AsyncClient(verify=x, trust_env=False)", False),
        ("import httpx2\nhttpx2.Timeout(1)", False),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, asks: bool) -> None:
    assert asks_proxies(source) is asks
