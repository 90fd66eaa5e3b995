"""The docs as a site and their pictures: each is shown, can be made again, and is found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
BY_HAND = {"idea.svg", "tiers.svg", "herd.svg"}
MAX_BYTES = 150_000


def pages() -> str:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return "\n".join(page.read_text() for page in found)


def test_every_picture_is_shown_somewhere_and_none_is_heavy() -> None:
    shown = set(re.findall(r"images/([\w.-]+)\)", pages()))
    assert {image.name for image in IMAGES.iterdir()} == shown
    assert [image.name for image in IMAGES.iterdir() if image.stat().st_size > MAX_BYTES] == []


def test_every_picture_of_the_program_can_be_made_again() -> None:
    script = (ROOT / "scripts" / "pictures.py").read_text()
    for image in {image.name for image in IMAGES.iterdir()} - BY_HAND:
        name = image.removeprefix("page-").removesuffix(".png")
        assert f'"{name}"' in script, f"{image} is made by nothing"


def test_the_site_contacts_nobody_outside_and_says_what_its_search_takes() -> None:
    """The generator's plug-in for a search without a server fetches a script from elsewhere."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert "offline" not in project.get("plugins", {})
    assert project["theme"]["font"] is False
    assert "to search it, too, scripts/docs --serve" in (ROOT / "scripts" / "docs").read_text()
