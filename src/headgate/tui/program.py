"""One program behind `top`, `budget top`, `fleet status --watch` and `proxy status --watch`."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from headgate.cli.api import Api
from headgate.cli.output import console
from headgate.cli.top import TopOptions
from headgate.tui.layout import View
from headgate.tui.poller import Poller, look_at_proxy
from headgate.tui.sources import DOCUMENTS, PROXY_DOCUMENTS, Chosen
from headgate.tui.views import PROXY_VIEWS, VIEWS

POLL_TIMEOUT_S = 2.0
PATIENT_TIMEOUT_S = 10.0
"""For history and changes, which are more work than a status."""


def watch(wanted: TopOptions) -> None:
    if (proxy := wanted.proxy) is not None:
        with Poller(proxy, wanted.interval_s, look=look_at_proxy) as poller:
            first = PROXY_VIEWS["proxy"]
            _run(poller, proxy, PROXY_VIEWS, first, wanted.interval_s, PROXY_DOCUMENTS)
        return
    numbers = {view.key: view.name for view in VIEWS.values()}
    view = VIEWS.get(numbers.get(wanted.view, wanted.view))
    if view is None:
        told = f"{wanted.view!r} is no view; there are: {', '.join(VIEWS)}"
        raise typer.BadParameter(told, param_hint="--view")
    api = wanted.agent.connect(timeout_s=POLL_TIMEOUT_S)
    patient = wanted.agent.connect(timeout_s=PATIENT_TIMEOUT_S)
    narrowed = wanted.database is not None or bool(wanted.fleet)
    chosen = Chosen(wanted.database, wanted.fleet, wanted.interval_s if narrowed else None)
    if wanted.agent.as_json or (wanted.snapshot is not None and wanted.snapshot.suffix == ".json"):
        from headgate.tui.export import print_document, save_document

        if wanted.snapshot is None:
            print_document(patient)
        else:
            save_document(wanted.snapshot, patient)
        return
    if wanted.once or wanted.snapshot is not None:
        from headgate.tui.export import one_frame

        one_frame(
            api, patient, view, wanted.interval_s, chosen=chosen, snapshot=wanted.snapshot,
            wake=wanted.wake,
        )  # fmt: skip
        return
    with Poller(api, wanted.interval_s, wake=wanted.wake, patient=patient, chosen=chosen) as poller:
        _run(poller, patient, VIEWS, view, wanted.interval_s)


def _run(
    poller: Poller, api: Api, views: Mapping[str, View], view: View, interval_s: float,
    documents: Mapping[str, str] = DOCUMENTS,
) -> None:  # fmt: skip
    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal:
        from headgate.cli.signals import ending_on_signals
        from headgate.tui.session import ScreenSession

        with ending_on_signals():
            ScreenSession(screen, poller, api, views, view.name, documents=documents).run()
    else:
        from headgate.tui.export import scroll

        scroll(screen, poller, view, interval_s, interval_s + POLL_TIMEOUT_S)
