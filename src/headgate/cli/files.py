"""`headgate files`: what a host needs beside the program, from the package itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headgate.cli.options import AsJson
from headgate.errors import HeadgateError


class HostFile(NamedTuple):
    path: str
    """Below deploy/."""
    about: str
    place: str
    """Where it is usually put."""


FILES = {
    "systemd": HostFile(
        "headgate.service", "unit of an agent", "/etc/systemd/system/headgate.service"
    ),
    "systemd-many": HostFile(
        "headgate@.service",
        "unit of several agents on one host",
        "/etc/systemd/system/headgate@.service",
    ),
    "systemd-proxy": HostFile(
        "headgate-proxy.service", "unit of a proxy", "/etc/systemd/system/headgate-proxy.service"
    ),
    "sysusers": HostFile(
        "headgate.sysusers", "the user that the units run as", "/usr/lib/sysusers.d/headgate.conf"
    ),
    "logrotate": HostFile(
        "headgate-proxy.logrotate", "rotation of a proxy's log", "/etc/logrotate.d/headgate-proxy"
    ),
    "alerts": HostFile(
        "prometheus/headgate.rules.yml", "alert rules for Prometheus", "beside prometheus.yml"
    ),
    "prometheus": HostFile(
        "prometheus/prometheus.yml", "an example of a scrape configuration", "into prometheus.yml"
    ),
    "grafana": HostFile(
        "grafana/headgate.json", "a dashboard for Grafana", "Dashboards, New, Import"
    ),
}
Name = Annotated[
    str, typer.Argument(metavar="[NAME]", help="A file of the list. Without it, print the list.")
]


def files(name: Name = "", as_json: AsJson = False) -> None:
    """Print a file for the host: systemd units, alert rules, a dashboard.

    The files fit this version. Redirect the output to the place that the list names.
    """
    from headgate.cli.output import show_blocks, show_json, show_toml
    from headgate.present.view import Said, Table, columns

    if name:
        if name not in FILES:
            raise typer.BadParameter(f"there is no file {name!r}; there are: {', '.join(FILES)}")
        show_toml(content_of(FILES[name]))
    elif as_json:
        show_json([{"name": key, **one._asdict()} for key, one in FILES.items()])
    else:
        rows = [(Said(key, "strong"), one.about, one.place) for key, one in FILES.items()]
        show_blocks([Table(columns("name", "what", "where"), rows)])


def content_of(file: HostFile) -> str:
    """From the package; in a checkout, from its deploy/."""
    package = Path(__file__).parents[1]
    for folder in (package / "deploy", package.parents[1] / "deploy"):
        if (folder / file.path).is_file():
            return (folder / file.path).read_text(encoding="utf-8")
    raise HeadgateError(f"{file.path} is not in this installation: install the package again")
