"""A proxy, its sessions, and a Postgres server with traffic control. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headgate.check.reasons import duration
from headgate.present.view import DASH, Block, Line, Note, Said, Table, Tone, columns, line
from headgate.present.words import advice_of, age
from headgate.proxy.api import (
    CalibrationDoc,
    InstalledDoc,
    PgBudgetDoc,
    PgStatusDoc,
    PolicyPutDoc,
    ProxyBudgetDoc,
    ProxyClientDoc,
    ProxyPolicyDoc,
    ProxyReloadedDoc,
    ProxySessionDoc,
    ProxySessionListDoc,
    ProxyStatusDoc,
)

MAX_CLIENTS, MAX_BUDGETS, MAX_PATTERNS, MAX_BACKENDS = 20, 20, 5, 8
NONE = "·"
_TONES: Mapping[str, Tone] = {"serving": "good", "draining": "warned", "handed over": "warned"}


def _count(number: int) -> str:
    return f"{number:,}" if number else NONE


def _by(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _problems(problems: Sequence[str]) -> list[Note]:
    return [Note("problem", "bad", one) for one in problems]


# --- a proxy ------------------------------------------------------------------------------------


def proxy_view(found: ProxyStatusDoc) -> list[Block]:
    blocks: list[Block] = [*_problems(found.problems), *_head(found), *_counts(found)]
    if found.targets:
        blocks += [line(), _targets(found)]
    if found.clients:
        blocks += [line(), _clients(found.clients), *_more("clients", found.clients, MAX_CLIENTS)]
    if found.budgets:
        blocks += [line(), _budgets(found.budgets), *_more("budgets", found.budgets, MAX_BUDGETS)]
    blocks.append(line())
    for part in found.parts:
        state = Said("ok      ", "good") if part.healthy else Said("TROUBLE ", "bad")
        blocks.append(line(f"{part.name:<11}", state, part.summary))
    return [*blocks, *advice_of(found.advice)]


def _head(found: ProxyStatusDoc) -> Iterator[Line]:
    about = found.proxy
    yield line(
        Said(f"{about.name} ", "strong"),
        Said(about.state, _TONES.get(about.state, "strong")),
        f"  {about.protocol}, process {about.pid}, up {duration(about.uptime_s)}, "
        f"{about.threads} threads",
        Said(", DRY RUN" if about.dry_run else "", "warned"),
    )
    for one in about.listen:
        tls = "" if one.tls == "off" else f", TLS {one.tls}"
        yield line(f"listen     {one.address} ({one.route}{tls})")
    if about.predecessor:
        yield line(f"before it  process {about.predecessor} drains")
    if about.waits_for_restart:
        yield line(f"restart    {', '.join(about.waits_for_restart)} wait for one")
    yield _policy(found.policy)


def _policy(policy: ProxyPolicyDoc) -> Line:
    if policy.version is None:
        return line("policy     ", Said(f"not known: {policy.fault}", "unknown"))
    if policy.version == 0:
        return line("policy     none is in force")
    is_off = policy.off or not policy.enabled
    state = Said(", OFF", "warned") if is_off else Said(", in force", "good")
    version = f"policy     version {policy.version}, checksum {policy.checksum}"
    return line(version, state, f"; health {policy.health}")


def _counts(found: ProxyStatusDoc) -> Iterator[Line]:
    sessions, statements = found.sessions, found.statements
    failed = sessions.failed_startups + sessions.failed_connects
    yield line(
        f"sessions   {sessions.now:,} of {sessions.max:,}, {sessions.idle:,} idle; "
        f"{sessions.established:,} so far, {sessions.rejected_sessions:,} rejected, "
        f"{failed:,} failed"
    )
    share = statements.unidentified_share
    unidentified = "" if share is None else f", unidentified {share:.1%}"
    yield line(
        f"statements {statements.compared:,} compared with budgets{unidentified}; "
        f"{statements.running_now:,} run, {statements.held_now:,} delayed; "
        f"{statements.total:,} through this process"
    )
    yield from _calibration(found.patterns)


def _calibration(patterns: CalibrationDoc) -> Iterator[Line]:
    if patterns.error_median is None or patterns.error_p90 is None:
        return
    worst = ", ".join(f"{one.pattern} {one.error:.0%}" for one in patterns.worst[:MAX_PATTERNS])
    yield line(
        f"estimates  off by {patterns.error_median:.0%} (median), {patterns.error_p90:.0%} (p90) "
        f"of {patterns.measured:,} patterns; worst: {worst}"
    )


def _more(what: str, rows: Sequence[object], most: int) -> list[Line]:
    left = len(rows) - most
    return [line(Said(f"and {left:,} more {what}: --json", "quiet"))] if left > 0 else []


def _targets(found: ProxyStatusDoc) -> Table:
    rows = [
        [
            one.name,
            one.address,
            " ".join(
                r for r, is_one in (("primary", one.primary), ("replica", one.replica)) if is_one
            )
            or "no new sessions",
            one.tls,
        ]
        for one in found.targets
    ]
    return Table(columns("server", "address", "role", "TLS"), rows)


def _clients(clients: Sequence[ProxyClientDoc]) -> Table:
    numbers = ("statements", "waiting", "warned", "delayed", "for", "blocked")
    rows = [
        [
            one.client,
            *map(_count, (one.statements, one.waiting, one.warned, one.delayed)),
            age(one.delayed_s) if one.delayed else "",
            _count(one.blocked_total),
            _by(one.blocked),
        ]
        for one in clients[:MAX_CLIENTS]
    ]
    return Table(columns("client", *numbers, "by", right=numbers), rows)


def _budgets(budgets: Sequence[ProxyBudgetDoc]) -> Table:
    numbers = ("fill", "admitted", "waiting", "warned", "delayed", "blocked", "charged")
    rows = [
        [
            one.budget,
            "" if one.fill is None else f"{one.fill:.0%}",
            *map(_count, (one.admitted, one.waiting, one.warned, one.delayed, one.blocked)),
            age(one.charged_s),
            _by(one.blocked_by),
        ]
        for one in budgets[:MAX_BUDGETS]
    ]
    return Table(columns("budget", *numbers, "by", right=numbers), rows)


def sessions_view(found: ProxySessionListDoc) -> list[Block]:
    if not found.sessions:
        return [line("no sessions")]
    names = ("id", "client", "user", "database", "from", "server", "age", "state", "for")
    table = Table(
        columns(*names, right=("id", "age", "for")), [_session(one) for one in found.sessions]
    )
    return [table, *([line(Said("there are more: --limit", "quiet"))] if found.next else [])]


def _session(one: ProxySessionDoc) -> list[str]:
    server = f"{one.server}/{one.server_process}" if one.server_process else one.server
    state = f"{one.phase}, in transaction" if one.in_transaction else one.phase
    lasted = "" if one.statement_s is None else age(one.statement_s)
    who = (one.client, one.username, one.database, one.peer)
    return [str(one.id), *who, server, age(one.age_s), state, lasted]


def reloaded_view(done: ProxyReloadedDoc) -> list[Block]:
    blocks: list[Block] = [
        Note("reloaded", "good", ", ".join(done.changed) or "nothing has changed")
    ]
    if done.waits_for_restart:
        waits = ", ".join(done.waits_for_restart)
        blocks.append(line(Said(f"waits for `headgate proxy restart`: {waits}", "warned")))
    return [*blocks, *advice_of(done.advice)]


# --- a Postgres server --------------------------------------------------------------------------


def installed_view(done: InstalledDoc) -> list[Block]:
    return [
        line(Said(f"installed for {done.postgres}", "good")),
        line(f"  {done.library}"),
        line(f"  {done.control}"),
        line(),
        line("in postgresql.conf:"),
        *(line(f"  {setting}") for setting in done.settings),
        line(),
        line(
            "Restart the server once. Then run `headgate pg enable --data-directory PGDATA "
            "--policy FILE`, or give an agent [databases.NAME.traffic] and use `headgate budget`."
        ),
    ]


def published_view(done: PolicyPutDoc) -> list[Block]:
    advice = [Note("advice", "", f"{a.place}: {a.message} [{a.code}]") for a in done.advice]
    remedy = [line("to switch it on: headgate pg enable")] if done.off else []
    return [*advice, _put(done, "published, still off" if done.off else "in force"), *remedy]


def disabled_view(done: PolicyPutDoc) -> list[Block]:
    return [_put(done, "switched off"), *(line(f"removed {name}") for name in done.removed)]


def _put(done: PolicyPutDoc, achieved: str) -> Note:
    what = f"version {done.version} (checksum {done.checksum})"
    if done.took_ms is not None:
        after = "" if done.took_ms is None else f", after {duration(done.took_ms / 1000)}"
        return Note(achieved, "good", what + after)
    return Note("published", "warned", f"{what}: {done.detail}")


def pg_view(found: PgStatusDoc) -> list[Block]:
    blocks: list[Block] = [*_server(found), *_policies(found), *_backends(found)]
    blocks += [line(), _pg_budgets(found.budgets)] if found.budgets else []
    blocks += _problems(found.problems)
    outside = f"over SQL, since {found.from_outside}"
    return [*blocks, *([line(Said(outside, "quiet"))] if found.from_outside else [])]


def _server(found: PgStatusDoc) -> Iterator[Line]:
    server = found.server
    version = f"{server.version_num // 10_000}.{server.version_num % 10_000}"
    process = f", process {server.pid}" if server.pid else ""
    about = f", pg_headgate {server.extension}, {server.cpus:g} CPUs"
    connections = f", {server.max_connections} connections"
    yield line(Said("Postgres ", "strong"), f"{version}{process}{about}{connections}")


def _policies(found: PgStatusDoc) -> Iterator[Line]:
    force, published = found.in_force, found.published
    if force.version == 0:
        yield line("no policy is in force")
    else:
        is_off = force.off or not force.enabled
        word = Said("OFF        ", "warned") if is_off else Said("in force   ", "good")
        yield line(word, f"version {force.version}, checksum {force.checksum}")
    if published is not None and published.fault is None:
        yield line(
            f"published  version {published.version}, checksum {published.checksum}, "
            f"{published.budgets} budget{'s' * (published.budgets != 1)} "
            f"({published.enforced} enforced), {published.rules} rule{'s' * (published.rules != 1)}"
        )
    if force.rejected:
        yield line(f"rejected   {force.rejected}, the last: {force.rejection}")
    left = f" for {duration(found.health.until_s)} more" if found.health.until_s else ""
    yield line(f"health     {found.health.state}{left}")


def _backends(found: PgStatusDoc) -> Iterator[Line]:
    """A backend swaps at its next statement: an idle one is behind, and no worse for it."""
    behind = [one for one in found.backends if one.version != found.in_force.version]
    yield line(f"backends   {len(found.backends)} attached, {len(behind)} on another version")
    for one in behind[:MAX_BACKENDS]:
        yield line(f"           process {one.pid} last decided by {one.version}")
    if len(behind) > MAX_BACKENDS:
        yield line(f"           and {len(behind) - MAX_BACKENDS} more")


def _pg_budgets(budgets: Sequence[PgBudgetDoc]) -> Table:
    numbers = ("fill", "running", "delayed now", "blocked", "warned", "delayed", "last")
    rows = [
        [
            f"{one.budget} {one.bucket}".rstrip(),
            DASH if one.fill is None else f"{one.fill:.0%}",
            *map(_count, (one.running, one.sleeping, one.blocked, one.warned, one.delayed)),
            age(one.last_violation_s_ago),
            "; ".join(one.trouble),
        ]
        for one in budgets
    ]
    return Table(columns("budget", *numbers, "why", right=numbers), rows)
