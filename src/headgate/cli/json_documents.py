"""What `--json` prints, by command: documents of the API, as docs/reference/documents.md has them.

The tests of the command line hold each against the route that is asked. What is in OWN is made here
and not by an agent.
"""

from __future__ import annotations

from collections.abc import Mapping

DOCUMENTS: Mapping[str, str] = {
    command: names
    for names, commands in {
        "AcknowledgedDoc": ("state acknowledge",),
        "AnswerDoc BatchDoc": ("check",),
        "AuditsDoc": ("audit",),
        "BudgetDoc": ("budget show",),
        "BudgetReplayDoc": ("budget replay",),
        "ChangeExportDoc": ("changes export",),
        "ChangeMadeDoc": ("changes apply", "changes diff", "changes restore", "changes rollback"),
        "ChangeRevisionsDoc ChangeRevisionWholeDoc": ("changes history",),
        "ChangesDoc": ("changes list",),
        "ClientsDoc RoguesDoc": ("clients",),
        "ExplainDoc PastDoc": ("explain",),
        "FleetDoc": ("fleet status",),
        "HistoryDoc TimelineDoc": ("history",),
        "LinkDoc": ("page",),
        "MetricView": ("metrics show",),
        "MetricView RemovedDoc WideMetricDoc": ("metrics revert",),
        "MetricView WideMetricDoc": ("metrics add", "metrics set"),
        "MetricsDoc": ("metrics list",),
        "PoliciesDoc PolicyDoc": ("budget list",),
        "PolicyChangeDoc": (
            "budget create", "budget delete", "budget forgive", "budget mode", "budget set",
        ),
        "ReachedDoc": ("fleet reach",),
        "RefusalsDoc": ("refusals",),
        "ReloadedDoc": ("reload",),
        "RemovedDoc WideMetricDoc": ("metrics remove",),
        "ReplayDoc": ("replay",),
        "RuleDoc": (
            "hold", "rule change", "rule exempt", "rule extend", "rule hold", "rule metrics",
            "rule ratio", "rule show", "rule thresholds",
        ),
        "RulesDoc": ("favor", "rule lift", "rule rest", "rule wake", "rules"),
        "ShardDoc": (
            "shard add-peer", "shard handover", "shard remove-peer", "shard show", "shard skip",
            "shard take-back", "shard unskip",
        ),
        "StarvationDoc": ("starvation",),
        "StatementExplainDoc": ("budget explain",),
        "StatusDoc": ("status",),
        "ViolationsDoc": ("budget violations",),
        "WokenDoc": ("wake",),
    }.items()
    for command in commands
}  # fmt: skip
_LINTED = "`file` and its `notes`"
_SERVER = "what the Postgres server beside this command says"
_PROXY = "what [the proxy](proxy.md) answers"
OWN: Mapping[str, str] = {
    "budget lint": _LINTED, "lint": _LINTED, "proxy lint": _LINTED,
    "debug bundle": "the manifest: each file of the bundle, or why it is missing",
    "metrics calibrate": "the proposed settings of `commit_delay`",
    "pg disable": _SERVER, "pg enable": _SERVER, "pg install": _SERVER, "pg publish": _SERVER,
    "pg status": _SERVER,
    "proxy reload": _PROXY, "proxy sessions": _PROXY, "proxy status": _PROXY,
    "token": "`token`, `name`, `role` and `sha256`",
    "top": "what one screen is made of: the answers of several routes, by name",
    "version": "`version`",
}  # fmt: skip
