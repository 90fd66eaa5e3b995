"""What `headgate pg` shows, from its documents. Pure, as pages.py is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.render import age_text, plain, plain_table
from headgate.wire.reasons import duration

Document = Mapping[str, Any]
MAX_LAGGING = 8


def install_page(done: Document) -> RenderableType:
    lines = [
        Text(f"installed for {plain(done['postgres'])}", style="bold green"),
        Text(f"  {plain(done['library'])}"),
        Text(f"  {plain(done['control'])}"),
        Text(),
        Text("in postgresql.conf:"),
        *(Text(f"  {plain(line)}") for line in done["settings"]),
        Text(),
        Text(
            "Restart the server once; then: headgate pg enable --data-directory PGDATA "
            "--policy FILE, or give an agent [databases.NAME.traffic] and use headgate budget"
        ),
    ]
    return Group(*lines)


def published_page(done: Document) -> RenderableType:
    achieved = "published, still off" if done["off"] else "in force"
    remedy = [Text("to switch it on: headgate pg enable")] if done["off"] else []
    return Group(*_advice(done), _outcome(done, achieved), *remedy)


def disabled_page(done: Document) -> RenderableType:
    removed = [Text(f"removed {plain(name)}") for name in done.get("removed", ())]
    return Group(_outcome(done, "switched off"), *removed)


def _outcome(done: Document, achieved: str) -> Text:
    what = f"version {done['version']} (checksum {plain(done['checksum'])})"
    if done["state"] == "in force":
        line = Text().append(achieved.upper(), style="bold green")
        return line.append(f"  {what}, after {duration(done['took_ms'] / 1000)}")
    line = Text().append("PUBLISHED", style="bold yellow")
    return line.append(f"  {what}: {plain(done['detail'])}")


def _advice(done: Document) -> Iterator[Text]:
    for one in done["advice"]:
        line = Text().append("advice ", style="yellow")
        yield line.append(f"{plain(one['place'])}: {plain(one['message'])} [{plain(one['code'])}]")


def status_page(found: Document) -> RenderableType:
    parts: list[RenderableType] = [*_server_lines(found), *_policy_lines(found)]
    parts += _backend_lines(found)
    if found["budgets"]:
        parts += [Text(), _budget_table(found["budgets"])]
    parts += [Text(f"problem: {plain(line)}", style="bold red") for line in found["problems"]]
    if note := found.get("from_outside"):
        parts.append(Text(f"over SQL, since {plain(note)}", style="dim"))
    return Group(*parts)


def _server_lines(found: Document) -> Iterator[Text]:
    server = found["server"]
    version = f"{server['version_num'] // 10_000}.{server['version_num'] % 10_000}"
    line = Text("Postgres ", style="bold").append(version)
    line.append(f", process {server['pid']}" if server["pid"] else "")
    line.append(f", pg_headgate {plain(server['extension'])}")
    yield line.append(f", {server['cpus']:g} CPUs, {server['max_connections']} connections")


def _policy_lines(found: Document) -> Iterator[Text]:
    published, force = found["published"], found["in_force"]
    if force["version"] == 0:
        yield Text("no policy is in force")
    else:
        off = force["off"] or not force["enabled"]
        word, style = ("OFF", "bold yellow") if off else ("in force", "bold green")
        line = Text().append(f"{word:<11}", style=style)
        yield line.append(f"version {force['version']}, checksum {plain(force['checksum'])}")
    if published and "fault" not in published:
        yield Text(
            f"published  version {published['version']}, checksum {plain(published['checksum'])}, "
            f"{published['budgets']} budgets ({published['enforced']} enforced), "
            f"{published['rules']} rules"
        )
    if force["refused"]:
        yield Text(f"refused    {force['refused']}, the last: {plain(force['refusal'])}")
    health = found["health"]
    left = f" for {duration(health['until_s'])} more" if health["until_s"] else ""
    yield Text(f"health     {plain(health['state'])}{left}")


def _backend_lines(found: Document) -> Iterator[Text]:
    """A backend swaps at its next statement: one that rests is behind, and no worse for it."""
    version = found["in_force"]["version"]
    behind = [one for one in found["backends"] if one["version"] != version]
    yield Text(f"backends   {len(found['backends'])} seated, {len(behind)} on another version")
    for one in behind[:MAX_LAGGING]:
        yield Text(f"           process {one['pid']} last decided by {one['version']}")
    if len(behind) > MAX_LAGGING:
        yield Text(f"           and {len(behind) - MAX_LAGGING} more")


def _budget_table(budgets: list[Document]) -> RenderableType:
    right = ("fill", "running", "held", "blocked", "warned", "delayed", "last")
    table = plain_table("budget", *right, "why", right=frozenset(right))
    for one in budgets:
        name = f"{one['budget']} {one['bucket']}".rstrip()
        fill = "" if one["fill"] is None else f"{one['fill']:.0%}"
        since = one["last_violation_s_ago"]
        counts = (one[key] for key in ("running", "sleeping", "blocked", "warned", "delayed"))
        last = "" if since is None else age_text(since)
        cells = (name, fill, *map(str, counts), last, "; ".join(one["trouble"]))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table
