"""Write the reference pages from the tables in the code: scripts/generate_docs.py [--check].

docs/reference/{settings,metrics,verdicts,rules,budgets,prometheus,proxy,routes,documents}.md and
cli.md are made here, and nowhere else; tests/test_docs.py fails where they are not what this
would write. In docs/requirements.md, only the tests below each sentence are (requirements_page.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.base.declared import Table, table_of
from headgate.base.names import Scope
from headgate.budgets.limits import (
    BUDGET_RULE_SETTINGS,
    BUDGET_SETTINGS,
    KEY_MEANINGS,
    POLICY_SETTINGS,
)
from headgate.budgets.policy import (
    MAX_BUDGETS,
    MAX_KEY_BYTES,
    MAX_RULES,
    MAX_VALUE_BYTES,
)
from headgate.check.answers import FRENO_STATUS, STATUS
from headgate.check.model import VERDICT_MEANINGS
from headgate.cli import reference as cli_reference
from headgate.http.control import ROUTES, description
from headgate.http.exposition import LABELS, SECTIONS
from headgate.http.exposition import Series as AgentSeries
from headgate.http.openapi import body_schema, documents
from headgate.http.routes import Caller, Route, SettingsBody, parameters
from headgate.metrics.builtins import BUILTINS, BuiltinMetric
from headgate.metrics.samples import CAUSE_MEANINGS
from headgate.metrics.settings import METRIC_SETTINGS
from headgate.proxy.control import ROUTES as PROXY_ROUTES
from headgate.proxy.metrics import LABELS as PROXY_LABELS
from headgate.proxy.metrics import SERIES as PROXY_SERIES
from headgate.proxy.metrics import Series as ProxySeries
from headgate.rules.matching import JUSTIFICATION_MEANINGS, KIND_MEANINGS
from headgate.rules.settings import FAVOR_SETTINGS, RULE_SETTINGS, RuleLimits
from headgate.rules.times import SCHEDULE_SETTINGS
from headgate.settings import agent as agent_file
from headgate.settings import proxy as proxy_file
from headgate.shard.rollup import ROLLUP_MEANINGS

sys.path.insert(0, str(Path(__file__).parent))  # also where a test loads this file

import requirements_page

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = DOCS / "reference"
MADE = "<!-- Made by scripts/generate_docs.py from the tables in the code. -->\n\n"


UNITS = (
    'A key that ends in `_s` is a number of seconds, or a text with its unit: `0.25`, `"250ms"`,',
    '`"1h30m"`, `"7d"`. A share is a part of 1, or a text in percent: `0.05`, `"5%"`. A size is a',
    """number in the unit that the key's name ends in, or a text: `"64 KiB"`, `"4 GiB"`. A text""",
    "without a unit is an error.",
    "",
)


def settings_page() -> str:
    return "\n".join(
        (
            "# Settings",
            "",
            "One TOML file. An unknown key is an error that names the nearest known one and the",
            "line. While the file is invalid, the last good settings stay in force. `headgate lint",
            "FILE` validates a file as the agent does when it starts, without connecting. With",
            "`--connect` it also reads each metric once; with `--file-only` it leaves out what is",
            "on the agent's host. `SIGHUP` or `headgate reload` makes a running agent read its",
            "file again. A file without a database is invalid, except for an agent that shows a",
            "fleet. A reload also rejects a file that lacks a database that is in force, or that",
            "seems to be cut short. `headgate reload --drop NAME` and `--whole` confirm it, and so",
            "does a restart.",
            "",
            *UNITS,
            "## [agent]",
            "",
            "The environment overrides each of these: `HEADGATE_LISTEN` for `listen`, and so on.",
            "",
            _section("[agent]"),
            "## [databases.NAME]",
            "",
            _section("[databases.NAME]"),
            "## [databases.NAME.metrics.METRIC]",
            "",
            "The same keys are the body of a [runtime change](http.md#looking-and-changing).",
            "",
            _settings(METRIC_SETTINGS),
            "### Rollups",
            "",
            "How members' values become a shard's: `rollup` is one of these, or the name of an",
            "entry point in the group `headgate.rollups`, see",
            "[other rollups](shard.md#rollups).",
            "",
            _table(("rollup", "the shard's value"), _meanings(ROLLUP_MEANINGS)),
            "## [databases.NAME.peers.MEMBER]",
            "",
            "One table for each other member of the shard, by its name; see",
            "[how to put agents beside a shard](../howto/shard.md).",
            "",
            _section("[databases.NAME.peers.MEMBER]"),
            "## [databases.NAME.traffic]",
            "",
            "Traffic control: [budgets](../howto/budgets.md) on the statements themselves.",
            "`SIGHUP` takes changes here, and of the policy file, over.",
            "",
            _section("[databases.NAME.traffic]"),
            "## [databases.NAME.traffic.identity]",
            "",
            "How the extension names the client of a statement, for rules; see",
            "[rules on clients](pg_headgate.md#rules-on-clients). `priority_tag` is for proxies.",
            "",
            _section("[databases.NAME.traffic.identity]"),
            "## [[databases.NAME.traffic.identity.trust]]",
            "",
            "Tags that count only from some users, or signed; one table for each.",
            "",
            _section("[[databases.NAME.traffic.identity.trust]]"),
            "## [peers]",
            "",
            "How this agent authenticates to the others of its shards, and which it trusts.",
            "Changes here wait for a restart.",
            "",
            _section("[peers]"),
            "## [fleet]",
            "",
            "The store that agents share, and this agent's place among them; see",
            "[a fleet](../howto/fleet.md). Changes here wait for a restart.",
            "",
            _section("[fleet]"),
            "## [patroni]",
            "",
            "Where Patroni keeps its keys, for databases with `patroni`. Without `endpoints`: in",
            "the fleet's etcd. Changes here wait for a restart.",
            "",
            _section("[patroni]"),
            "## [page]",
            "",
            "[The page](../howto/page.md) for people. `SIGHUP` takes changes here over.",
            "",
            _section("[page]"),
            "## [tracing]",
            "",
            "[Traces](../howto/tracing.md) of what the agent does, for a collector of OTLP; needs",
            "the extra `otel`. Without this section nothing is traced or loaded.",
            "Changes wait for a restart.",
            "",
            _section("[tracing]"),
            "## [starvation]",
            "",
            "When a throttled client counts as starved, and when that is an alert; see",
            "[starvation](../howto/starvation.md). `SIGHUP` takes changes here over.",
            "",
            _section("[starvation]"),
            "## [alerts]",
            "",
            "Where alerts go besides the log and `/metrics`. `SIGHUP` takes changes over.",
            "",
            _section("[alerts]"),
            "## Tokens",
            "",
            "`[[tokens]]`, one table each. `headgate token` makes one.",
            "",
            _section("[[tokens]]"),
        )
    )


def metrics_page() -> str:
    rows = (
        (
            f"`{m.name}`",
            m.about + _options(m.options),
            f"{m.comparison.value} {m.threshold:g} {m.unit}".rstrip(),
            f"{m.interval_s:g} s",
            _shard_default(m),
            ", ".join(sorted(engine.value for engine in m.engines)),
            m.why,
        )
        for m in BUILTINS.values()
    )
    causes = _meanings({cause.value: told for cause, told in CAUSE_MEANINGS.items()})
    return "\n".join(
        (
            "# Metrics",
            "",
            "A metric is measured only where the settings name it:",
            "`[databases.main.metrics.lag]`, with nothing below it, takes the defaults here.",
            "",
            _table(
                (
                    *("metric", "what it measures", "rejects at", "every", "in a shard"),
                    *("engines", "why there"),
                ),
                rows,
            ),
            "“In a shard”: where a check that names no scope looks (`scope`), and whose values",
            "the shard's is made of (`rollup_of`), by `max` unless `rollup` says otherwise.",
            "",
            "Anything else is a custom metric: give `sql`, `url`, `command` or `plugin` and a",
            "threshold, see [settings](settings.md) and",
            "[how to measure your own](../howto/custom-metrics.md).",
            "",
            "## Causes of `absence`",
            "",
            "Every reading is a value with its time, or unavailable with one of these causes.",
            'None of them ever counts as healthy, unless the metric says `absence = "ignore"`',
            'or `"hold"`. Some also come with a value and explain it: lag that',
            "grows because replication was stopped. At shard scope `warming_up`, `no_primary`,",
            "`split_brain`, `elsewhere` and `handing_over` are about the shard itself, and always",
            "reject. A missing member and an empty shard have",
            "[policies of their own](shard.md#missing-members).",
            "",
            _table(("cause", "meaning"), causes),
        )
    )


def verdicts_page() -> str:
    rows = (
        (f"`{verdict.value}`", told, str(STATUS[verdict]), str(FRENO_STATUS[verdict]))
        for verdict, told in VERDICT_MEANINGS.items()
    )
    return "\n".join(
        (
            "# Verdicts",
            "",
            "`OK` is the only answer on which work may start.",
            "",
            _table(("verdict", "meaning", "status", "freno's status"), rows),
        )
    )


def prometheus_page() -> str:
    sections: list[str] = []
    for heading, series in SECTIONS.items():
        sections += [f"## {heading}", "", _series(series)]
    return "\n".join(
        (
            "# Prometheus metrics",
            "",
            "At `GET /metrics` of each agent; those of a proxy are [with its",
            "settings](proxy.md#prometheus-metrics). How to have them scraped, shown and watched:",
            "[monitoring](../howto/monitoring.md). What cannot be measured is missing, never 0.",
            "",
            *sections,
            "`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and",
            "the others that begin with `process_` are of the agent's process, as everywhere.",
            "",
            "## Labels",
            "",
            "Each is bounded, whatever clients call themselves.",
            "",
            _table(("label", "its values"), _meanings(LABELS)),
        )
    )


def _series(series: Iterable[AgentSeries] | Iterable[ProxySeries]) -> str:
    rows = (
        (f"`{s.name}`", s.kind, ", ".join(f"`{label}`" for label in s.labels), s.about)
        for s in series
    )
    return _table(("name", "kind", "labels", "meaning"), rows)


def proxy_page() -> str:
    """Every table of a proxy's file, its API and its metrics."""
    sections: list[str] = []
    for heading, struct in proxy_file.STRUCTS.items():
        sections += [f"### {heading}", "", *_proxy_notes(heading), _settings(table_of(struct))]
    routes = ((f"`{method} {path}`", about) for method, path, _, about in PROXY_ROUTES)
    return "\n".join(
        (
            "# Proxy",
            "",
            "What `headgate proxy` reads, answers and counts; see",
            "[how to run one](../howto/proxy.md).",
            "",
            "## Settings",
            "",
            "One TOML file. An unknown key is an error that names the nearest known one and the",
            "line. While the file is invalid, the last good settings stay in force.",
            "`headgate proxy lint FILE` validates a file without starting anything. `SIGHUP` or",
            "`headgate proxy reload` makes a running proxy read its file again. Changes in",
            "[proxy], [control] and [memory], and addresses that are gone, wait for",
            "`headgate proxy restart`. No client's connection fails during a restart.",
            "",
            *UNITS,
            *sections,
            "## API",
            "",
            "On the Unix socket `control.sock` in `directory`, and at `[control] address`. Changes",
            "over TCP need a token with the role `operator`; each leaves a line in the log.",
            "",
            _table(("route", "meaning"), routes),
            "## Prometheus metrics",
            "",
            "At `GET /metrics`. How to have them scraped, shown and watched:",
            "[monitoring](../howto/monitoring.md).",
            "",
            _series(PROXY_SERIES),
            "### Labels",
            "",
            "Each is bounded, whatever clients call themselves.",
            "",
            _table(("label", "its values"), _meanings(PROXY_LABELS)),
        )
    )


def _proxy_notes(heading: str) -> list[str]:
    told = {
        "[proxy]": "The environment overrides each of these: `HEADGATE_PROXY_THREADS` and so on.",
        "[[listen]]": "One table for each address that clients connect to.",
        "[[server]]": "The server, or several: one primary, and replicas for read-only listeners.",
        "[agent]": "The agent that knows the database's health and rules, or several.",
        "[follow]": "Instead of fixed servers: the shard's own, as its agents see them.",
        "[release]": "How many statements the gate releases while it is open.",
        "[memory]": "Sizes of what threads and processes share, rounded up to powers of two.",
    }
    return [told[heading], ""] if heading in told else []


def rules_page() -> str:
    kinds = _meanings({kind.value: told for kind, told in KIND_MEANINGS.items()})
    because = _meanings({one.value: told for one, told in JUSTIFICATION_MEANINGS.items()})
    return "\n".join(
        (
            "# Rules",
            "",
            "The body of `POST /v1/rules`, and in part of `PATCH /v1/rules/{rule}`; the file of",
            "`headgate replay --with` has the same keys. See",
            "[how to use them](../howto/rules.md). An unknown key is an error that names the",
            "nearest known one, and so is a key that has no effect in a rule of its kind.",
            "",
            _settings(RULE_SETTINGS),
            "`id`, `target`, `kind` and `database` are what a rule is: they are not changed, and",
            "the rest is. `for` and `expires_at` are bounded by `rule_max_s`, `ratio` by",
            "`rule_max_ratio` (see [settings](settings.md)). At most",
            f"{RuleLimits().max_rules:,} rules are kept, those that ended within the last day",
            "included; these make room for new ones.",
            "",
            "## Kinds",
            "",
            _table(("kind", "what it does"), kinds),
            "## Justifications of an exemption",
            "",
            _table(("justification", "for"), because),
            "## schedule",
            "",
            "A table of these, or one line: `mon-fri 07:00-09:30 Europe/Berlin`.",
            "",
            _settings(SCHEDULE_SETTINGS),
            "## Favor",
            "",
            "The body of `POST /v1/rules/favor`: two rules of kind `ratio`, kept in one",
            "transaction and lifted together.",
            "",
            _settings(FAVOR_SETTINGS),
        )
    )


def budgets_page() -> str:
    limits = (
        (f"`{row.name}`", row.range_text, row.default_text, row.about)
        for row in BUDGET_SETTINGS.values()
    )
    return "\n".join(
        (
            "# Budgets",
            "",
            "The policy of traffic control: which statements fall under which budget, and what a",
            "budget admits. One document, in TOML or JSON with the same names; an unknown key is",
            "an error that names the nearest known one, and every fault is listed with its place.",
            "",
            "```toml",
            BUDGETS_EXAMPLE,
            "```",
            "",
            "## [[budgets]]",
            "",
            f"At most {MAX_BUDGETS:,}, each with a name of its own. Every limit is optional: left",
            "out (in JSON also `null`), nothing is limited by it; an explicit 0 admits nothing.",
            "Percentages and seconds have at most three decimals. `% s` are seconds of the whole",
            "server in percent: 100 on 8 CPUs is 8 seconds of CPU. A text may have the unit:",
            '`rate = "20%"`, `capacity = "2s"` (of the whole server: 200), `max_delay_s = "50ms"`.',
            "",
            _table(("key", "range", "default", "meaning"), limits),
            "## [[budgets.rules]]",
            "",
            "A statement falls under a budget if any of its rules matches; a rule matches if all",
            f"that it names is so. At most {MAX_RULES:,} rules in all. A rule that names nothing",
            "matches everything; a budget without rules matches nothing, and is for cooperative",
            "checks that name it.",
            "",
            _settings(BUDGET_RULE_SETTINGS),
            "### Keys",
            "",
            f"Values are compared byte by byte, and have at most {MAX_VALUE_BYTES:,} bytes; names",
            f'of tags at most {MAX_KEY_BYTES}. In TOML quote a tag\'s whole key: `"tag.tenant"`.',
            "",
            _table(("key", "what it is"), _meanings(KEY_MEANINGS)),
            "## [policy]",
            "",
            _settings(POLICY_SETTINGS),
        )
    )


BUDGETS_EXAMPLE = """\
[policy]
exempt_usernames = ["postgres", "monitor"]

[[budgets]]
name = "exports"
mode = "enforce"
rate = "20%"        # a fifth of the server, in the long run
capacity = "2s"     # a debt of at most two seconds of the whole server
burst = "1s"
max_workers = 2
comment = "INC-7"

[[budgets.rules]]
match = { username = "etl", "tag.controller" = "export" }

[[budgets.rules]]
match = { remote_address = "10.20.0.0/16" }
each = ["tag.tenant"]"""


# --- the API -------------------------------------------------------------------------------

ROUTE_HEADINGS = {
    "Checks": ("",),
    "Status, metrics and history": ("agent", "metrics", "clients", "watching", "unthrottling"),
    "Rules": ("ruling",),
    "Budgets": ("budgeting", "budget_replaying", "publishing"),
    "Shards": ("peering",),
    "Changes": ("changing",),
    "A fleet": ("fleet_viewing", "fleet"),
    "Deciding locally": ("streaming", "reporting"),
    "Between agents": ("exchanging",),
    "Operating the agent": ("debugging", "reloading", "page_links"),
}
"""By the name that http/control has for their handlers."""


def routes_page() -> str:
    described = [route for route in ROUTES if route.answer is not None]
    sections: list[str] = []
    for heading, parts in ROUTE_HEADINGS.items():
        of_it = [route for route in described if _part(route) in parts]
        rows = ((f"[`{r.method} {r.path}`](#{_anchor(r)})", r.summary) for r in of_it)
        sections += [f"## {heading}", "", _table(("route", "what it does"), rows)]
        for route in of_it:
            sections += _route(route)
    return "\n".join(
        (
            "# Routes",
            "",
            "Every route of the agent, with an example. [The HTTP API](http.md) says how they",
            "belong together; [documents](documents.md) has the fields of what they answer with.",
            "For programs: `GET /openapi.json`, from the same table.",
            "",
            "The agent answers 400 to a request that does not fit its description here. It answers",
            "422 to one that fits, but is rejected because of other values or the present state.",
            "",
            *sections,
        )
    )


def _part(route: Route) -> str:
    part = route.handler.rpartition(".")[0]
    between = part == "peering" and route.role is Caller.PEER
    return "exchanging" if between else part


def _anchor(route: Route) -> str:
    """As the site's generator makes it of the heading."""
    kept = "".join(c for c in f"{route.method} {route.path}".lower() if c.isalnum() or c in " _-")
    return "-".join(kept.split())


def _route(route: Route) -> Iterator[str]:
    yield from (f"### `{route.method} {route.path}`", "", f"{route.summary}. {route.about}".strip())
    yield ""
    if route.role is not Caller.ANYONE:
        yield from (f"Needs {route.role.value}.", "")
    if route.query is not None and (found := parameters(route.query)):
        rows = ((f"`{name}`", _shape(one), _told(one)) for name, one in found.items())
        yield _table(("parameter", "value", "meaning"), rows)
    if route.body is not None and isinstance(route.body, SettingsBody):
        yield from _settings_body(body_schema(route))
    elif route.body is not None:
        yield from (f"The body is {_doc_link(body_schema(route)['$ref'])}.", "")
    answers = " or ".join(_doc_link(doc.__name__) for doc in documents(route))
    if answers:
        yield from (f"Answers {answers}{', with 201 where it is new' * route.created}.", "")
    if route.rejects:
        yield from (f"422: {route.rejects}.", "")
    example = f"{route.method} {route.target}"
    if route.sends is not None:
        sent = json.dumps(route.sends, ensure_ascii=False)
        example += f"\nContent-Type: application/json\n\n{sent}"
    yield from ("```http", example, "```", "")


def _settings_body(schema: Mapping[str, Any]) -> Iterator[str]:
    if "allOf" in schema:
        yield from (f"The body is {_doc_link(schema['allOf'][0]['$ref'])}.", "")
        return
    variants = schema.get("oneOf", [schema])
    rows = {
        name: one for variant in variants for name, one in variant.get("properties", {}).items()
    }
    if rows:
        yield "The body has:\n"
        cells = ((f"`{name}`", _shape(one), _told(one)) for name, one in rows.items())
        yield _table(("key", "value", "meaning"), cells)


def documents_page() -> str:
    schemas = description()["components"]["schemas"]
    sections: list[str] = []
    for name in sorted(schemas):
        schema = schemas[name]
        if "properties" not in schema:
            sections += [f"## {name}", "", f"{_shape(schema)}.", ""]
            continue
        rows = (
            (f"`{key}`", _shape(one), one.get("description", ""))
            for key, one in schema["properties"].items()
        )
        sections += [f"## {name}", "", _table(("field", "value", "meaning"), rows)]
    return "\n".join(
        (
            "# Documents",
            "",
            "What [the API](routes.md) takes and answers with, as JSON, and what `--json` of",
            "[the command line](cli.md) prints. A newer agent may add fields.",
            "",
            *sections,
        )
    )


def _shape(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return _doc_link(schema["$ref"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shape(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_shape(schema['additionalProperties'])}"
    bounds = [f"{sign}{schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join([str(kind), *bounds])


_BOUNDS = {"minimum": "≥ ", "exclusiveMinimum": "> ", "maximum": "≤ ", "exclusiveMaximum": "< "}


def _told(schema: Mapping[str, Any]) -> str:
    default = f" Default: `{json.dumps(schema['default'])}`." if "default" in schema else ""
    default = " Required." if schema.get("required") is True else default.replace('"', "")
    inner = schema.get("anyOf", [schema])[0]
    told = schema.get("description", inner.get("description", ""))
    return f"{told}{default}".strip()


def _doc_link(name: str) -> str:
    name = name.rpartition("/")[2]
    anchor = name.lower().replace(".", "")
    return f"[{name}](documents.md#{anchor})"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "verdicts.md": verdicts_page,
    "rules.md": rules_page,
    "budgets.md": budgets_page,
    "prometheus.md": prometheus_page,
    "proxy.md": proxy_page,
    "routes.md": routes_page,
    "documents.md": documents_page,
    "cli.md": cli_reference.render,
}


def render(name: str) -> str:
    return MADE + PAGES[name]().rstrip() + "\n"


def _section(heading: str) -> str:
    return _settings(table_of(agent_file.STRUCTS[heading]))


def _settings(rows: Table) -> str:
    cells = ((f"`{row.name}`", row.takes, row.default_text, row.about) for row in rows.values())
    return _table(("key", "takes", "default", "meaning"), cells)


def _meanings(told: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in told.items())


def _shard_default(metric: BuiltinMetric) -> str:
    where = "shard" if metric.scope is Scope.SHARD else "host"
    return f"{where}; of {metric.rollup_of.value}"


def _options(options: Iterable[tuple[str, str]]) -> str:
    told = ". ".join(f"`{name}`: {about}" for name, about in options)
    return f" Options: {told}." if told else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    escaped = ("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |" for cells in lines)
    return "\n".join(escaped) + "\n"


def main(argv: list[str]) -> int:
    wanted = {REFERENCE / name: render(name) for name in PAGES}
    wanted[requirements_page.PAGE] = requirements_page.render(
        requirements_page.PAGE.read_text(), requirements_page.cited()
    )
    stale = {path: text for path, text in wanted.items() if _current(path) != text}
    for path, text in stale.items():
        name = path.relative_to(DOCS.parent)
        if "--check" in argv:
            print(f"{name} is not what the code says: run scripts/generate_docs.py")
        else:
            path.write_text(text)
            print(f"wrote {name}")
    return 1 if stale and "--check" in argv else 0


def _current(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
