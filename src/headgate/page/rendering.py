"""Templates and what they know.   documents ──► jinja2 ──► HTML

Everything is escaped; a name that is not there is an error and not an empty cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from headgate.base.units import amount_text
from headgate.present.view import DASH
from headgate.present.words import age, told_quantity, told_share

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, context: Mapping[str, Any]) -> str:
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    # Not every agent is looked at: the others do without.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": age,
        "quantity": told_quantity,
        "amount": amount,
        "share": told_share,
        "clock": clock,
        "minute": minute,
        "web": web_address,
        "count": "{:,}".format,
        "pieces": lambda text: str(text).split("`"),
        "segment": lambda text: quote(str(text), safe=":"),
    }
    environment.globals["static"] = static_url
    return environment


# --- words and figures --------------------------------------------------------------------------


def amount(value: float, unit: str) -> str:
    """As a threshold of that unit is typed: `50ms`, `80`."""
    text = amount_text(value, unit)
    return text if isinstance(text, str) else f"{text:.15g}"


def clock(iso: str | None) -> str:
    """`14:03:07`, UTC."""
    return _at(iso, "%H:%M:%S")


def minute(iso: str | None) -> str:
    return _at(iso, "%H:%M")


def _at(iso: str | None, form: str) -> str:
    if iso is None:
        return DASH
    return datetime.fromisoformat(iso).astimezone(UTC).strftime(form)


def web_address(url: str) -> str:
    """As it is where a browser may follow it, else empty: it may come from elsewhere."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname else ""


# --- files --------------------------------------------------------------------------------------


@cache
def _template(name: str) -> str | None:
    try:
        return str((_folder("templates") / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """What a file of static/ holds, and the mark of that; KeyError for one that is not there."""
    if name not in _static_names():
        raise KeyError(name)
    content = _folder("static").joinpath(*name.split("/")).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


@cache
def _static_names() -> frozenset[str]:
    """A closed list: no path of a request reaches the file system."""
    folder = _folder("static")
    own = {entry.name for entry in folder.iterdir() if entry.is_file()}
    vendored = (folder / "vendor").iterdir()
    return frozenset(own | {f"vendor/{entry.name}" for entry in vendored if entry.is_file()})


def static_url(name: str) -> str:
    """With the mark of its content, so that it may be kept for as long as one likes."""
    return f"/static/{name}?v={static_file(name)[1]}"


def _folder(name: str) -> Any:
    return resources.files("headgate.page") / name
