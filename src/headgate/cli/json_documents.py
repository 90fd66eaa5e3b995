"""What `--json` prints, by command: documents of the API, as docs/reference/documents.md has them.

The API's own structs stand behind these names; tests hold each command against the routes that it
asks. What is in OWN is made here and not by an agent.
"""

from __future__ import annotations

from collections.abc import Mapping

_BY_DOCUMENT = {
    "AcknowledgedDoc": ["state acknowledge"],
    "AnswerDoc BatchDoc": ["check"],
    "AuditsDoc": ["audit"],
    "BudgetDoc": ["budget show"],
    "BudgetReplayDoc": ["budget replay"],
    "ChangeExportDoc": ["changes export"],
    "ChangeMadeDoc": ["changes apply", "changes diff", "changes restore", "changes rollback"],
    "ChangeRevisionsDoc ChangeRevisionWholeDoc": ["changes history"],
    "ChangesDoc": ["changes list"],
    "ClientsDoc RoguesDoc": ["clients"],
    "ExplainDoc PastDoc": ["explain"],
    "FleetDoc": ["fleet status"],
    "HistoryDoc TimelineDoc": ["history"],
    "LinkDoc": ["page"],
    "MetricView": ["metrics show"],
    "MetricView RemovedDoc WideMetricDoc": ["metrics revert"],
    "MetricView WideMetricDoc": ["metrics add", "metrics set"],
    "MetricsDoc": ["metrics list"],
    "PoliciesDoc PolicyDoc": ["budget list"],
    "PolicyChangeDoc": [
        f"budget {verb}"
        for verb in ("apply", "create", "delete", "forgive", "mode", "rollback", "set")
    ],
    "ReachedDoc": ["fleet reach"],
    "RefusalsDoc": ["refusals"],
    "ReloadedDoc": ["reload"],
    "RemovedDoc WideMetricDoc": ["metrics remove"],
    "ReplayDoc": ["replay"],
    "RevisionsDoc RevisionWholeDoc": ["budget history"],
    "RuleDoc": ["hold"]
    + [
        f"rule {verb}"
        for verb in ("change", "exempt", "extend", "hold", "metrics", "ratio", "show", "thresholds")
    ],
    "RulesDoc": ["favor", "rule lift", "rule rest", "rule wake", "rules"],
    "ShardDoc": [
        f"shard {verb}"
        for verb in ("add-peer", "handover", "remove-peer", "show", "skip", "take-back", "unskip")
    ],
    "StarvationDoc": ["starvation"],
    "StatementExplainDoc": ["budget explain"],
    "StatusDoc": ["status"],
    "ViolationsDoc": ["budget violations"],
    "WokenDoc": ["wake"],
}
DOCUMENTS: Mapping[str, str] = {
    command: names for names, commands in _BY_DOCUMENT.items() for command in commands
}
OWN: Mapping[str, str] = {
    "budget diff": "two policies compared: `difference`, as in LintDoc",
    "budget export": "`document` of PolicyDoc",
    "budget lint": "`file` and its `notes`",
    "debug bundle": "the manifest: each file of the bundle, or why it is missing",
    "lint": "`file` and its `notes`",
    "metrics calibrate": "the proposed settings of `commit_delay`",
    **dict.fromkeys(
        (f"pg {verb}" for verb in ("disable", "enable", "install", "publish", "status")),
        "what the Postgres server beside this command says",
    ),
    "proxy lint": "`file` and its `notes`",
    **dict.fromkeys(
        (f"proxy {verb}" for verb in ("reload", "sessions", "status")),
        "what [the proxy](proxy.md) answers",
    ),
    "token": "`token`, `name`, `role` and `sha256`",
    "top": "what one screen is made of: the answers of several routes, by name",
    "version": "`version`",
}
