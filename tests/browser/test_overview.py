"""The overview in a browser: what is read within seconds, drawn, changed by clicking, and kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from headgate.history.records import MetricMinute
from tests.browser.driving import Browser, Page, expect
from tests.browser.site import Site, Watch
from tests.fixtures.eventually import DEADLINE_S
from tests.http.serving import LOOPS, Plan, Served, serving

if TYPE_CHECKING:
    from tests.browser.conftest import NewTab

METRIC = "/v1/databases/main/metrics/pool_usage"
METRIC_PAGE = "/databases/main/metrics/pool_usage"


@pytest.fixture
def threshold(site: Site) -> Iterator[None]:
    """Is put back as the file has it."""
    yield
    site.ask("POST", f"{METRIC}/revert")


def limit_of(site: Site) -> float:
    return float(site.get(METRIC)["now"]["threshold"])


def test_how_things_are_is_read_at_once_and_each_metric_is_drawn(site: Site, tab: Page) -> None:
    tab.goto("/")
    expect(tab.locator("#states .state")).to_have_text(
        [re.compile("main admits"), re.compile("replica admits")]
    )
    expect(tab.get_by_role("row", name=re.compile("pool_usage")).first).to_contain_text("healthy")
    course = tab.locator("#metric-main-pool_usage .spark")
    expect(course).to_have_attribute("aria-label", re.compile("last hour: highest .*%"))
    figure = tab.locator("#chart-main-pool_usage")
    figure.scroll_into_view_if_needed()
    canvas = figure.get_by_role("img", name=re.compile("pool_usage on main, last 1h"))
    expect(canvas).to_be_visible()
    expect(figure.locator(".latest")).to_have_text(re.compile(r"%$"))


def test_a_threshold_is_changed_and_put_back_by_clicking(
    site: Site, tab: Page, threshold: None
) -> None:
    """R5: with a preview, in the audit by name, and with the way back."""
    tab.goto("/")
    tab.get_by_role("link", name="Threshold of pool_usage on main").click()
    dialog = tab.get_by_role("dialog")
    dialog.get_by_label("threshold").fill("0.001")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("rejects")
    assert limit_of(site) == 0.9, "a preview changes nothing"
    dialog.get_by_role("button", name="Set it to").click()
    expect(tab.locator("#flash")).to_contain_text("headgate metrics revert main pool_usage")
    assert limit_of(site) == 0.001
    entry = next(entry for entry in site.audit() if "pool_usage" in entry["target"])
    assert entry["who"].startswith("ann")
    dialog.get_by_role("button", name="Close").click()
    expect(tab.locator("#states")).to_contain_text("main rejects since")
    expect(tab).to_have_title(re.compile("^✗ main rejects"))
    tab.get_by_role("link", name="Threshold of pool_usage on main").click()
    tab.on("dialog", lambda asked: asked.accept())
    dialog.get_by_role("button", name="Revert to the file").click()
    expect(dialog).to_contain_text("It is 90% now")
    assert limit_of(site) == 0.9
    tab.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(tab.locator("#states")).to_contain_text("main admits")


def test_what_was_opened_and_focused_stays_so_while_numbers_change(site: Site, tab: Page) -> None:
    """And nothing moves."""
    site.api("PATCH", "/v1/databases/replica/metrics/lag", {"enabled": False})
    try:
        tab.goto("/")
        tab.get_by_text("1 other metric").click()
        link = tab.get_by_role("link", name="Threshold of pool_usage on main")
        link.focus()
        tab.evaluate(
            "window.moved = 0; new PerformanceObserver((list) => { for (const shift of "
            "list.getEntries()) { window.moved += shift.hadRecentInput ? 0 : shift.value } })"
            ".observe({ type: 'layout-shift' })"
        )
        for _ in range(2):
            with tab.expect_response(re.compile("/overview/now")):
                pass
        expect(tab.locator("#others-replica table")).to_be_visible()
        expect(link).to_be_focused()
        assert tab.evaluate("window.moved") < 0.01
    finally:
        site.ask("POST", "/v1/databases/replica/metrics/lag/revert")


def test_another_range_is_kept_by_the_address(site: Site, tab: Page) -> None:
    tab.goto("/")
    with tab.expect_response(re.compile(r"history/metrics.*since=24h.*step=5m")):
        tab.locator("#charts").scroll_into_view_if_needed()
        tab.get_by_role("link", name="24h").click()
    assert tab.url.endswith("/?range=24h")
    tab.reload()
    expect(tab.get_by_role("link", name="24h")).to_have_attribute("aria-current", "true")


def test_a_chart_whose_history_failed_loads_again(
    site: Site, tab: Page, watches: dict[Page, Watch]
) -> None:
    watches[tab].tolerated.append("net::ERR_FAILED")
    tab.route("**/v1/history/metrics*", lambda route: route.abort())
    tab.goto("/")
    figure = tab.locator("#chart-main-pool_usage")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".summary")).to_contain_text("cannot be shown")
    tab.unroute_all()
    expect(figure.locator(".summary")).not_to_contain_text("cannot be shown")
    expect(figure.get_by_role("img")).to_be_visible()


def test_a_viewer_is_shown_why_nothing_can_be_changed(site: Site, viewer_tab: Page) -> None:
    viewer_tab.goto("/")
    expect(viewer_tab.get_by_text("vic may look, not change").first).to_be_visible()
    viewer_tab.get_by_role("link", name="Threshold of pool_usage on main").click()
    preview = viewer_tab.get_by_role("dialog").get_by_role("button", name="Preview")
    expect(preview).to_be_disabled()


def test_it_is_read_without_a_script_and_on_a_phone(site: Site, new_tab: NewTab, tab: Page) -> None:
    plain = new_tab(script=False)
    plain.goto("/")
    expect(plain.locator("#states")).to_contain_text("main admits")
    plain.get_by_role("link", name="Threshold of pool_usage on main").click()
    expect(plain.get_by_role("heading", name="pool_usage on main")).to_be_visible()
    expect(plain.get_by_role("heading", name="Clients it rejected")).to_be_visible()
    tab.set_viewport_size({"width": 390, "height": 844})
    for path in ("/", METRIC_PAGE, "/clients", "/clients/phone", "/rules", "/explain", "/audit"):
        tab.goto(path)
        expect(tab.locator("main h1").first).to_be_attached()
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
        nav = tab.get_by_role("navigation", name="Pages").get_by_role("link")
        tops = {round(box["y"]) for box in (link.bounding_box() for link in nav.all()) if box}
        assert len(tops) == 1, "the navigation is one line"
        last = nav.last.bounding_box()
        assert last is not None and last["x"] + last["width"] <= 390, "without scrolling"


def test_a_metric_has_a_page_of_its_own_where_everything_works(
    site: Site, tab: Page, threshold: None
) -> None:
    """By its address, in a new tab: chart, threshold, who was rejected, what was changed."""
    tab.goto(METRIC_PAGE)
    expect(tab.get_by_role("img", name=re.compile("pool_usage on main, last 1h"))).to_be_visible()
    expect(tab.get_by_role("heading", name="Clients it rejected")).to_be_visible()
    form = tab.get_by_role("region", name="Threshold")
    form.get_by_label("threshold").fill("0.001")
    form.get_by_role("button", name="Preview").click()
    expect(form).to_contain_text("rejects")
    expect(form.get_by_role("button", name="Leave it")).to_be_hidden()
    form.get_by_role("button", name="Set it to").click()
    expect(tab.locator("#now h1")).to_contain_text("breached")
    expect(tab.locator("#about")).to_contain_text("changed metric main/pool_usage")
    assert limit_of(site) == 0.001
    site.check("hurt:job")
    expect(tab.locator("#about")).to_contain_text("hurt:job")


def test_times_are_in_the_zone_of_the_browser_and_utc_is_a_hint(
    site: Site, browser: Browser, watches: dict[Page, Watch]
) -> None:
    rule = site.rule(target="zone", kind="hold", reason="INC-9")
    context = browser.new_context(base_url=site.url, timezone_id="Asia/Tokyo")
    context.set_default_timeout(DEADLINE_S * 1000)
    tab = context.new_page()
    tab.goto("/audit")
    expect(tab.locator("footer")).to_contain_text("Asia/Tokyo")
    at = tab.locator("table.audit tr", has_text=rule["id"]).first.locator("time").first
    utc = datetime.fromisoformat(rule["created_at"])
    expect(at).to_have_attribute("title", f"{utc:%Y-%m-%d %H:%M:%S} UTC")
    expect(at).to_have_text(f"{utc.astimezone(ZoneInfo('Asia/Tokyo')):%H:%M:%S}")
    context.close()


def test_charts_out_of_sight_are_drawn_for_paper(site: Site, tab: Page) -> None:
    tab.set_viewport_size({"width": 1280, "height": 300})
    tab.goto("/")
    expect(tab.locator("#figures figure")).not_to_have_count(0)
    drawn = tab.locator("#figures figure").count()
    expect(tab.locator("#figures canvas")).to_have_count(drawn)
    tab.emulate_media(media="print")
    expect(tab.get_by_role("navigation", name="Pages")).to_be_hidden()
    expect(tab.locator("#figures canvas").last).to_be_visible()
    tab.emulate_media(media="screen")


# --- a day of many metrics ----------------------------------------------------------------------


@pytest.fixture
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Eighteen metrics, each with a day of minutes, a gap and a breach."""
    plan = Plan(databases=("main", "d1", "d2", "d3", "d4", "d5"))
    with serving(LOOPS["uvloop"], tmp_path_factory.mktemp("day"), plan) as served:
        now = int(served.clock.now().wall_s // 60)
        minutes = [
            _minute(now - ago, database, metric, ago)
            for database in plan.databases
            for metric in ("lag", "threads_running", "pool_usage")
            for ago in range(1440, 0, -1)
            if not 300 < ago < 340
        ]
        served.run_there(lambda: served.store.history.add_metric_minutes(minutes))
        yield served


def _minute(minute: int, database: str, metric: str, ago: int) -> MetricMinute:
    value = 9.0 if 20 < ago < 45 else 1.0 + ago % 7 / 10
    breached = 60 if value > 5 else 0
    return MetricMinute(
        minute, database, metric, 60, 0, breached, value * 60, value, value * 1.2, 5.0
    )


def test_a_day_of_eighteen_metrics_is_drawn(browser: Browser, day: Served) -> None:
    """What that costs, bench/page.py says."""
    # So high that every chart is in sight, and drawn.
    context = browser.new_context(base_url=day.base_url, viewport={"width": 1280, "height": 4000})
    context.set_default_timeout(DEADLINE_S * 1000)
    tab = context.new_page()
    watch = Watch(day.base_url)
    watch.follow(tab)
    tab.goto("/?range=24h")
    drawn = re.compile(r"^Highest 10.*8.* at ..:..; above its threshold for 2\d min\.$")
    expect(tab.locator("#figures .summary")).to_have_text([drawn] * 18)
    expect(tab.locator("#figures canvas")).to_have_count(18)
    watch.verify()  # Before it closes: a request that is under way then is no fault of the page.
    context.close()
