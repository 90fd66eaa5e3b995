"""What the page is made of: others' files unchanged, and nothing from anywhere else."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

import pytest

PAGE = Path(str(resources.files("headgate.page")))
VENDOR = PAGE / "static" / "vendor"
SHA256 = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "idiomorph-ext.min.js": "5811b9a7eda14878b7dab4378bf60432e1bb6f11fcfb970cc26540642650181e",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
LICENCES = {
    "htmx.min.js": ("htmx.LICENSE", "Zero-Clause BSD"),
    "idiomorph-ext.min.js": ("idiomorph.LICENSE", "Zero-Clause BSD"),
    "uPlot.iife.min.js": ("uPlot.LICENSE", "MIT"),
    "uPlot.min.css": ("uPlot.LICENSE", "MIT"),
}
OWN = sorted(
    path
    for folder in ("templates", "static")
    for path in (PAGE / folder).iterdir()
    if path.suffix in (".html", ".js", ".css", ".svg")
)
_FETCHED = re.compile(
    r"""(?:src|href|action|srcset|poster|data|formaction|hx-[a-z-]+)\s*=\s*["']?\s*(?:https?:)?//"""
    r"""|@import|(?-i:\burl\()\s*["']?(?!data:|\#)"""
    r"""|(?:fetch|import|EventSource|WebSocket|Worker|sendBeacon)\(\s*["'`](?:https?:|wss?:)?//""",
    re.IGNORECASE,
)
_INLINE = re.compile(
    r"""<script(?![^>]*\ssrc=)|\sstyle\s*=|<style|\son[a-z]+\s*=\s*["']|hx-on|js:|javascript:"""
    r"""|hx-trigger="[^"]*\[""",
    re.IGNORECASE,
)


@pytest.mark.parametrize("name", sorted(SHA256))
def test_a_vendored_file_is_as_its_makers_published_it(name: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == SHA256[name]


def test_every_vendored_file_is_known_and_has_its_licence_beside_it() -> None:
    files = {path.name for path in VENDOR.iterdir()} - {"README.md"}
    licences = {name for name, _ in LICENCES.values()}
    assert files == set(SHA256) | licences
    for name, words in LICENCES.values():
        assert words.lower() in (VENDOR / name).read_text().lower()
    told = (VENDOR / "README.md").read_text()
    assert all(name in told for name in SHA256)


def found_by(pattern: re.Pattern[str], suffix: str = "") -> dict[str, str]:
    """By file: what of it matches."""
    texts = {path.name: path.read_text() for path in OWN if path.name.endswith(suffix)}
    hits = {name: pattern.search(text) for name, text in texts.items()}
    return {name: hit[0] for name, hit in hits.items() if hit is not None}


def test_nothing_is_fetched_from_elsewhere() -> None:
    """A page on a host without a way out works as well, and tells nobody who looks at it."""
    assert OWN and found_by(_FETCHED) == {}


def test_no_template_has_what_the_csp_forbids() -> None:
    assert found_by(_INLINE, ".html") == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js">',
        "<img src='//x.example/i.png'>",
        "background: url(https://x.example/i.png)",
        'fetch("https://x.example/")',
    ],
)
def test_what_is_fetched_from_elsewhere_would_be_found(text: str) -> None:
    assert _FETCHED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "<script>1</script>",
        '<p style="color:red">',
        '<a onclick="x()">',
        '<a hx-trigger="click[ctrlKey]">',
    ],
)
def test_what_the_csp_forbids_would_be_found(text: str) -> None:
    assert _INLINE.search(text)
