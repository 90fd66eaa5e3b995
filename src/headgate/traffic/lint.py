"""Advice on a policy that is valid but probably not what was meant.

As everywhere (core/lint.py): what, why, and what to do instead; it changes nothing. An ERROR is
what a publisher rejects without `--anyway`: it would lock out a user who is needed to fix it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headgate.core.lint import Advice, Severity
from headgate.traffic.limits import in_thousands, instant_text
from headgate.traffic.policy import (
    QUERY,
    REMOTE_ADDRESS,
    Budget,
    BudgetRule,
    Condition,
    Mode,
    Policy,
    is_tag,
    shown_value,
    tag_name,
)
from headgate.traffic.shadows import Placed, Shadows, all_hidden, placed_rules

MAX_PREFIXES_TOLD = 3
MAX_TOLD = 10
"""Of one kind: who has made it ten thousand times has made it once, in a program."""

UNBOUNDED_TAGS = frozenset(
    {
        "traceparent", "tracestate", "trace_id", "traceid", "span_id", "spanid", "request_id",
        "requestid", "x-request-id", "correlation_id", "correlationid", "transaction_id",
        "session_id", "sessionid", "job_id", "jid", "uuid", "guid", "nonce", "timestamp",
    }
)  # fmt: skip
MAINTENANCE = Condition("database", b"postgres")
"""Where tools of administrators, and agents, connect to."""
_TAG_TEXT = re.compile(r"[A-Za-z0-9_\-./:,]+")


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of where the policy is to be in force."""

    administrators: Sequence[str] = ("postgres",)
    replicators: Sequence[str] = ("replicator",)
    agents: Sequence[str] = ()
    workers: int | None = None
    cpus: float | None = None
    wall_ms: int | None = None


def advise(
    policy: Policy,
    *,
    administrators: Sequence[str] = ("postgres",),
    replicators: Sequence[str] = ("replicator",),
    agents: Sequence[str] = (),
    workers: int | None = None,
    cpus: float | None = None,
    wall_ms: int | None = None,
) -> list[Advice]:
    """`agents`: roles that measure the server, where none of them publishes the policy: one that
    does exempts its own. `workers`: what 100 % of concurrency is; `wall_ms`: Unix time, to tell
    what has expired."""
    server = Server(administrators, replicators, agents, workers, cpus, wall_ms)
    rules = placed_rules(policy)
    shadows = Shadows(rules)
    budgets = ((f"budgets[{at}]", budget) for at, budget in enumerate(policy.budgets))
    kept = [(place, budget) for place, budget in budgets if budget.mode is not Mode.OFF]
    advice = [
        *(found for placed in kept for found in _of_budget(*placed, server)),
        *_overcommitted(policy, server),
        *(found for placed in rules for found in _of_rule(placed, policy, server)),
        *_shadowed(shadows),
        *_hidden_prefixes(shadows),
    ]
    return _bounded(advice)


def _bounded(advice: Iterable[Advice]) -> list[Advice]:
    """Errors first; of each kind the first few, and how many more there are."""
    by_code = defaultdict[tuple[Severity, str], list[Advice]](list)
    for one in advice:
        by_code[one.severity, one.code].append(one)
    told = list[Advice]()
    for (severity, code), found in sorted(by_code.items(), key=lambda kind: kind[0][0].value):
        told += found[:MAX_TOLD]
        if len(found) > MAX_TOLD:
            message = f"the same in {len(found) - MAX_TOLD:,} more places"
            told.append(Advice(severity, code, "budgets", message))
    return told


def _warning(code: str, place: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, place, message)


# --- of one budget -------------------------------------------------------------------------


def _of_budget(place: str, budget: Budget, server: Server) -> Iterator[Advice]:
    yield from _no_rule(place, budget)
    yield from _kill_switch(place, budget)
    yield from _bucket(place, budget)
    yield from _never_fits(place, budget)
    yield from _warning_threshold(place, budget)
    yield from _rounded_up(place, budget, server.workers)
    yield from _expired(place, budget, server.wall_ms)


_ZEROES = {
    "rate": "rate_mpct",
    "capacity": "capacity_mpcts",
    "burst": "burst_mpcts",
    "concurrency": "concurrency_mpct",
    "max_workers": "max_workers",
}


def _no_rule(place: str, budget: Budget) -> Iterator[Advice]:
    if not budget.rules:
        message = (
            f"budget {budget.name} has no rule, so no statement matches it: only checks that name "
            "it debit it. To limit statements give it one, such as --match username=etl, or "
            "--match '*' for all of them"
        )
        yield _warning("no-rule", place, message)


def _kill_switch(place: str, budget: Budget) -> Iterator[Advice]:
    if not budget.rules:
        return
    zero = next((name for name, field in _ZEROES.items() if getattr(budget, field) == 0), None)
    if zero is None:
        return
    does = "blocks" if budget.mode is Mode.ENFORCE else "would block, once enforced,"
    message = (
        f"is 0: budget {budget.name} {does} every statement that it matches. If no limit is meant, "
        "leave it out"
    )
    yield _warning("kill-switch", f"{place}.{zero}", message)
    if budget.mode is Mode.ENFORCE and budget.expires_at_ms is None:
        message = (
            f"is not set, and budget {budget.name} blocks everything that it matches: set an end, "
            "so that nobody has to remember it"
        )
        yield _warning("kill-switch-without-end", f"{place}.expires_at", message)


def _bucket(place: str, budget: Budget) -> Iterator[Advice]:
    rate, capacity = budget.rate_mpct, budget.capacity_mpcts
    if rate and capacity is None:
        message = (
            f"is {in_thousands(rate)} % without a capacity: a bucket without a size never "
            "overflows, so nothing is limited by it. Set capacity, such as "
            f"{in_thousands(10 * rate)} (ten seconds' worth)"
        )
        yield _warning("rate-without-capacity", f"{place}.rate", message)
    elif capacity and rate is None:
        message = (
            f"is {in_thousands(capacity)} % s without a rate: it drains at once, and limits "
            "only what one statement costs. Set rate, or say burst if that is meant"
        )
        yield _warning("capacity-without-rate", f"{place}.capacity", message)
    elif not budget.has_limit:
        message = f"{budget.name} has no limit: it counts what it matches, and blocks nothing"
        yield _warning("no-limit", place, message)


def _never_fits(place: str, budget: Budget) -> Iterator[Advice]:
    burst, capacity = budget.burst_mpcts, budget.capacity_mpcts
    if not burst or not capacity or burst <= capacity:
        return
    message = (
        f"is {in_thousands(burst)}, above capacity = {in_thousands(capacity)}: a statement that "
        "costs more than the capacity never fits, but its error says to retry. Lower burst to "
        "capacity, so that the error says that it never fits"
    )
    yield _warning("burst-above-capacity", f"{place}.burst", message)


def _warning_threshold(place: str, budget: Budget) -> Iterator[Advice]:
    if budget.warning_mpct is None:
        return
    limits = budget.capacity_mpcts, budget.burst_mpcts, budget.concurrency_mpct, budget.max_workers
    if budget.mode is Mode.WARN:
        message = f"says nothing while {budget.name} only warns: it is for enforced budgets"
    elif all(limit is None for limit in limits):
        message = "is a share of capacity, burst and concurrency, and none of them is set"
    else:
        return
    yield _warning("warning-threshold", f"{place}.warning_threshold", message)


def _rounded_up(place: str, budget: Budget, workers: int | None) -> Iterator[Advice]:
    share = budget.concurrency_mpct
    if not share or workers is None or share * workers >= 100_000:
        return
    message = (
        f"is {in_thousands(share)} % of {workers} workers, which is {share * workers / 100_000:.3g}"
        ", rounded up to 1: if one worker is meant, say max_workers = 1; if none, 0"
    )
    yield _warning("rounded-up", f"{place}.concurrency", message)


def _is_over(budget: Budget, server: Server) -> bool:
    return server.wall_ms is not None and budget.expired(server.wall_ms)


def _expired(place: str, budget: Budget, wall_ms: int | None) -> Iterator[Advice]:
    if wall_ms is None or budget.expires_at_ms is None or not budget.expired(wall_ms):
        return
    message = (
        f"is {instant_text(budget.expires_at_ms)}, which is over: {budget.name} matches nothing "
        "any more. Remove it, or give it another end"
    )
    yield _warning("expired", f"{place}.expires_at", message)


def _overcommitted(policy: Policy, server: Server) -> Iterator[Advice]:
    shares = [
        budget.rate_mpct
        for budget in policy.budgets
        if budget.mode is Mode.ENFORCE and budget.rate_mpct and budget.capacity_mpcts is not None
        if not _is_over(budget, server)
    ]
    total = sum(shares)
    if total <= 100_000:
        return
    cpus = server.cpus
    of = "" if cpus is None else f" ({total / 100_000 * cpus:.3g} of {cpus:g} CPUs)"
    message = (
        f"{len(shares)} enforced budgets have rates of {in_thousands(total)} % in all{of}: if all "
        "use theirs, the server is full before any of them blocks a statement. They are limits and "
        "reserve nothing; lower them, unless they are never busy at once"
    )
    yield _warning("rates-above-100", "budgets", message)


# --- of one rule ---------------------------------------------------------------------------


def _of_rule(placed: Placed, policy: Policy, server: Server) -> Iterator[Advice]:
    yield from _match_all(placed)
    yield from _locked_out(placed, policy, server)
    yield from _each(placed)
    yield from _query_id(placed)
    yield from _no_such_tag(placed)


def _match_all(placed: Placed) -> Iterator[Advice]:
    if placed.rule.conditions or placed.rule.each:
        return
    message = (
        f"matches every statement of everybody, except exempt_usernames, for budget "
        f"{placed.budget.name}: if that is not meant, name a key in match"
    )
    yield _warning("match-all", placed.place, message)


def _locked_out(placed: Placed, policy: Policy, server: Server) -> Iterator[Advice]:
    if placed.budget.mode is not Mode.ENFORCE or not placed.budget.has_limit:
        return
    if _is_over(placed.budget, server):
        return
    needed = [("the administrator", "administrator", name) for name in server.administrators]
    needed += [("replication", "replication", name) for name in server.replicators]
    needed += [("the agent that measures this server", "agent", name) for name in server.agents]
    for who, code, username in needed:
        if username not in policy.exempt_usernames and _concerns(placed.rule, username):
            yield _lock_out(placed, f"{who} ({username}){_where(placed.rule)}", code, username)


def _concerns(rule: BudgetRule, username: str) -> bool:
    """Whether the rule matches whatever that user does, where such users work: by any address
    there is, and in the database that is there for them."""
    mine = Condition("username", username.encode())
    met = all(one == mine or _is_anywhere(one) for one in rule.conditions)
    return met and not any(map(is_tag, rule.each))


def _is_anywhere(condition: Condition) -> bool:
    if condition.key == REMOTE_ADDRESS:
        return condition.network.prefixlen == 0
    return condition == MAINTENANCE


def _where(rule: BudgetRule) -> str:
    by_address = any(one.key == REMOTE_ADDRESS for one in rule.conditions)
    of_database = MAINTENANCE in rule.conditions
    return " over the network" * by_address + " in the database postgres" * of_database


def _lock_out(placed: Placed, who: str, code: str, username: str) -> Advice:
    budget = placed.budget
    advised = f'add "{username}" to exempt_usernames, or narrow the rule'
    if budget.admits_nothing:
        message = f"budget {budget.name} locks out {who}: {advised}"
        return Advice(Severity.ERROR, f"locks-out-{code}", placed.place, message)
    message = f"budget {budget.name} may block {who} when it is needed most: {advised}"
    return _warning(f"may-refuse-{code}", placed.place, message)


def _each(placed: Placed) -> Iterator[Advice]:
    named = {condition.key for condition in placed.rule.conditions}
    for key in placed.rule.each:
        if is_tag(key) and tag_name(key).lower() in UNBOUNDED_TAGS:
            message = (
                f"{key} is another one for nearly every statement: each gets a bucket of its own, "
                "which limits nothing and evicts those that do. Use a tag with few values"
            )
            yield _warning("unbounded-each", f"{placed.place}.each", message)
        elif key in named and key != REMOTE_ADDRESS:
            message = f"{key} is matched already, so there is only one value for it; leave it out"
            yield _warning("each-of-one", f"{placed.place}.each", message)


def _query_id(placed: Placed) -> Iterator[Advice]:
    if all(condition.key != QUERY for condition in placed.rule.conditions):
        return
    message = (
        "a query id changes with the major version, and after a table was created "
        "again: match by fingerprint, which is the same everywhere"
    )
    yield _warning("query-id", f"{placed.place}.match.query", message)


def _no_such_tag(placed: Placed) -> Iterator[Advice]:
    for key, value in placed.rule.conditions:
        if not is_tag(key):
            continue
        texts = tag_name(key), value.decode()
        wrong = next((text for text in texts if not _TAG_TEXT.fullmatch(text)), None)
        if wrong is not None:
            message = (
                f"matches nothing: {wrong!r} holds what no tag may (letters, digits and _-./:, "
                "after decoding), and such tags are ignored"
            )
            yield _warning("never-matches", f"{placed.place}.match.{key}", message)


# --- of several rules ----------------------------------------------------------------------


def _shadowed(shadows: Shadows) -> Iterator[Advice]:
    for placed, other in shadows.shadowed():
        if other.rule == placed.rule:
            message = f"is the same as {other.place}; remove one of them"
            yield _warning("duplicate", placed.place, message)
        else:
            message = (
                f"says nothing: {other.place} ({other.rule}) of the same budget matches all that "
                "it does; remove it, or narrow the other"
            )
            yield _warning("shadowed", placed.place, message)


def _hidden_prefixes(shadows: Shadows) -> Iterator[Advice]:
    for placed, hiders in shadows.hidden():
        if all_hidden(placed, hiders):
            message = f"says nothing: {_prefixes(hiders)}, with longer prefixes, cover all of it"
            yield _warning("shadowed", f"{placed.place}.match.{REMOTE_ADDRESS}", message)
            continue
        elsewhere = [one for one in hiders if one.bucket != placed.bucket]
        if elsewhere:
            message = (
                f"does not apply to {_prefixes(elsewhere)}: the longest prefix alone applies. To "
                f"limit these in {placed.budget.name} as well, name their prefixes there, too"
            )
            yield _warning("longer-prefix", f"{placed.place}.match.{REMOTE_ADDRESS}", message)


def _prefixes(rules: list[Placed]) -> str:
    told = [
        f"{shown_value(REMOTE_ADDRESS, one.address)} (budget {one.budget.name})"
        for one in rules[:MAX_PREFIXES_TOLD]
        if one.address is not None
    ]
    more = len(rules) - len(told)
    return ", ".join(told) + (f" and {more:,} more" if more else "")
