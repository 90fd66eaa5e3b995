"""What `headgate proxy` shows, from its documents. Pure, as pages.py is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.render import age_text, plain, plain_table
from headgate.wire.reasons import duration

Document = Mapping[str, Any]
MAX_CLIENTS, MAX_BUDGETS, MAX_PATTERNS = 20, 20, 5
STATE_STYLES = {"serving": "bold green", "draining": "bold yellow", "handed over": "bold yellow"}


def status_page(found: Document) -> RenderableType:
    parts: list[RenderableType] = [*_head(found), *_counts(found)]
    for title, table in _tables(found):
        parts += [Text(), Text(title, style="bold"), table]
    parts += [Text(), *_parts(found)]
    parts += [
        Text().append("advice ", style="yellow").append(plain(line)) for line in found["advice"]
    ]
    parts += [Text(f"problem: {plain(line)}", style="bold red") for line in found["problems"]]
    return Group(*parts)


def _head(found: Document) -> Iterator[Text]:
    about = found["proxy"]
    state = plain(about["state"])
    line = Text(f"{plain(about['name'])} ", style="bold")
    line.append(state, style=STATE_STYLES.get(state, "bold"))
    line.append(
        f"  {plain(about['protocol'])}, process {about['pid']}, up {duration(about['uptime_s'])}"
    )
    line.append(f", {plain(about['loop'])} on {about['threads']} threads")
    line.append(", DRY RUN" if about["dry_run"] else "", style="bold yellow")
    yield line
    for one in about["listen"]:
        tls = "" if one["tls"] == "off" else f", TLS {one['tls']}"
        yield Text(f"listen     {plain(one['address'])} ({one['route']}{tls})")
    if about["predecessor"]:
        yield Text(f"before it  process {about['predecessor']} drains")
    if about["waits_for_restart"]:
        yield Text(f"restart    {', '.join(map(plain, about['waits_for_restart']))} wait for one")
    yield _policy(found["policy"])


def _policy(policy: Document) -> Text:
    line = Text("policy     ")
    if policy["version"] is None:
        return line.append(f"not known: {plain(policy['fault'])}", style="bold magenta")
    if policy["version"] == 0:
        return line.append("none is in force")
    off = policy["off"] or not policy["enabled"]
    line.append(f"version {policy['version']}, checksum {plain(policy['checksum'])}")
    line.append(", OFF" if off else ", in force", style="bold yellow" if off else "green")
    return line.append(f"; health {plain(policy['health'])}")


def _counts(found: Document) -> Iterator[Text]:
    sessions, statements = found["sessions"], found["statements"]
    yield Text(
        f"sessions   {sessions['now']} of {sessions['max']}, {sessions['idle']} idle; "
        f"{sessions['established']} ever, {sessions['refused_sessions']} refused, "
        f"{sessions['failed_startups'] + sessions['failed_connects']} failed"
    )
    share = statements["unidentified_share"]
    told = "" if share is None else f", unidentified {share:.1%}"
    yield Text(
        f"statements {statements['judged']} judged{told}; {statements['running_now']} run, "
        f"{statements['held_now']} held; {statements['total']} through this process"
    )
    yield from _calibration(found["patterns"])


def _calibration(patterns: Document) -> Iterator[Text]:
    if patterns["error_median"] is None:
        return
    worst = ", ".join(
        f"{plain(one['pattern'])} {one['error']:.0%}" for one in patterns["worst"][:MAX_PATTERNS]
    )
    yield Text(
        f"estimates  off by {patterns['error_median']:.0%} (median), {patterns['error_p90']:.0%} "
        f"(p90) of {patterns['measured']} patterns; worst: {worst}"
    )


def _tables(found: Document) -> Iterator[tuple[str, Table]]:
    if found["targets"]:
        yield "servers", _targets(found["targets"])
    if found["clients"]:
        yield _title("clients", found["clients"], MAX_CLIENTS), _clients(found["clients"])
    if found["budgets"]:
        yield _title("budgets", found["budgets"], MAX_BUDGETS), _budgets(found["budgets"])


def _title(what: str, rows: Sequence[Document], most: int) -> str:
    return what if len(rows) <= most else f"{what} ({most} of {len(rows)}; all: --json)"


def _targets(targets: Sequence[Document]) -> Table:
    table = plain_table("server", "address", "role", "TLS")
    for one in targets:
        roles = [word for word in ("primary", "replica") if one[word]]
        cells = (one["name"], one["address"], " ".join(roles) or "no new sessions", one["tls"])
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


_CLIENT_COLUMNS = ("statements", "held", "warned", "delayed", "for", "refused")


def _clients(clients: Sequence[Document]) -> Table:
    table = plain_table("client", *_CLIENT_COLUMNS, "by", right=frozenset(_CLIENT_COLUMNS))
    for one in clients[:MAX_CLIENTS]:
        waited = age_text(one["delayed_s"]) if one["delayed"] else ""
        by = ", ".join(f"{cause} {count}" for cause, count in one["refused"].items())
        counts = (one["statements"], one["waiting"], one["warned"], one["delayed"])
        cells = (one["client"], *map(_count, counts), waited, _count(one["refused_total"]), by)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


_BUDGET_COLUMNS = ("fill", "admitted", "held", "warned", "delayed", "refused", "charged")


def _budgets(budgets: Sequence[Document]) -> Table:
    table = plain_table("budget", *_BUDGET_COLUMNS, "by", right=frozenset(_BUDGET_COLUMNS))
    for one in budgets[:MAX_BUDGETS]:
        fill = "" if one["fill"] is None else f"{one['fill']:.0%}"
        by = ", ".join(f"{limit} {count}" for limit, count in one["refused_by"].items())
        counts = (one[key] for key in ("admitted", "waiting", "warned", "delayed", "refused"))
        cells = (one["budget"], fill, *map(_count, counts), age_text(one["charged_s"]), by)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _count(number: int) -> str:
    return str(number) if number else "·"


def _parts(found: Document) -> Iterator[Text]:
    for part in found["parts"]:
        word, style = ("ok", "green") if part["healthy"] else ("TROUBLE", "bold red")
        line = Text(f"{plain(part['name']):<11}").append(f"{word:<8}", style=style)
        yield line.append(plain(part["summary"]))


def sessions_page(found: Document) -> RenderableType:
    table = plain_table(
        *("id", "client", "user", "database", "from", "server", "age", "state", "for"),
        right=frozenset({"id", "age", "for"}),
    )
    for one in found["sessions"]:
        since = one["statement_s"]
        state = f"{one['phase']}, in transaction" if one["in_transaction"] else one["phase"]
        server = (
            f"{one['server']}/{one['server_process']}" if one["server_process"] else one["server"]
        )
        cells = (
            *(str(one["id"]), one["client"], one["username"], one["database"], one["peer"]),
            *(server, age_text(one["age_s"]), state, "" if since is None else age_text(since)),
        )
        table.add_row(*(Text(plain(cell)) for cell in cells))
    more = [Text("there are more: --limit", style="dim")] if found["next"] else []
    return Group(table, *more) if found["sessions"] else Text("no sessions")


def reload_page(done: Document) -> RenderableType:
    changed = ", ".join(map(plain, done["changed"])) or "nothing has changed"
    lines = [Text().append("RELOADED  ", style="bold green").append(changed)]
    if done["waits_for_restart"]:
        waits = ", ".join(map(plain, done["waits_for_restart"]))
        lines.append(Text(f"waits for a restart (headgate proxy restart): {waits}", style="yellow"))
    lines += [Text(f"advice: {plain(line)}", style="yellow") for line in done["advice"]]
    return Group(*lines)
