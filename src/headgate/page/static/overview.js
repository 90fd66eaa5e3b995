// Metrics over hours: one chart each, drawn when it comes into sight; the live rows append to it.
"use strict";

(() => {
  const RANGES_S = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400 };
  const STEPS = { "15m": 1, "1h": 1, "6h": 1, "24h": 5 }; // Minutes that one point sums up.
  const MAX_CHARTS = 24; // Drawn at once; those out of sight are let go of beyond it.
  const MAX_TAIL = 200; // Readings that are newer than the last whole minute of history.
  const REFETCH_MS = 60_000;
  const ANSWER_MS = 8_000;
  const RETRY_MS = 2_000;
  const CAP = 3; // Thresholds that a chart shows.
  const GAP_S = 15; // No look for longer, as in a tab that nobody saw: no line is drawn across.
  const figures = document.getElementById("figures");
  const section = document.getElementById("charts");
  if (!figures || !section || !window.uPlot) {
    return;
  }
  const charts = new Map(); // "database name" → Chart
  let range = section.dataset.range;
  let ink = readInk();

  function readInk() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return { ink: of("ink"), quiet: of("quiet"), line: of("line"), series: of("series-1"), bad: of("bad"), breach: of("breach") };
  }

  function shown(value, unit) {
    if (value === null || value === undefined) {
      return "–";
    }
    if (unit === "ratio") {
      return `${(value * 100).toFixed(value >= 0.1 || value === 0 ? 0 : 1)}%`;
    }
    if (unit === "s" && value > 0 && value < 0.1) {
      return `${Number((value * 1000).toPrecision(3))} ms`;
    }
    return `${value >= 10000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4))} ${unit}`.trim();
  }

  // In the browser's zone, as all times of the page are.
  function hhmm(seconds) {
    const at = new Date(seconds * 1000);
    return `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  }

  class Chart {
    constructor(row) {
      const { database, chart, unit } = row.dataset;
      this.database = database;
      this.name = chart;
      this.unit = unit;
      this.threshold = Number(row.dataset.threshold);
      this.plot = null;
      this.minutes = null; // Of history: arrays by minute, gaps are null.
      this.tail = { at: [], value: [], bad: [] };
      this.drawnAt = 0;
      this.seen = false;
      this.loading = false;
      this.failedAt = 0;
      this.shows = null; // The range that its history is of.
      this.element = this.#figure();
    }

    #figure() {
      const figure = document.createElement("figure");
      figure.id = `chart-${encodeURIComponent(this.database)}-${encodeURIComponent(this.name)}`;
      const caption = document.createElement("figcaption");
      const title = document.createElement("b");
      title.textContent = this.name;
      const where = document.createElement("span");
      where.className = "quiet";
      where.textContent = this.database;
      this.latest = document.createElement("span");
      this.latest.className = "latest";
      caption.append(title, where, this.latest);
      this.box = document.createElement("div");
      this.box.className = "chart";
      this.summary = document.createElement("p");
      this.summary.className = "summary";
      figure.append(caption, this.box, this.summary);
      return figure;
    }

    async load() {
      this.loading = true;
      await this.#fetch();
      this.loading = false;
    }

    retries(now) {
      return this.seen && this.shows !== range && !this.loading && now - this.failedAt >= RETRY_MS;
    }

    async #fetch() {
      const asked = range;
      const query = new URLSearchParams({ database: this.database, metric: this.name, since: asked, step: `${STEPS[asked]}m` });
      let told;
      try {
        const answer = await fetch(`/v1/history/metrics?${query}`, { signal: AbortSignal.timeout(ANSWER_MS) });
        told = await answer.json();
        if (!answer.ok) {
          throw new Error(told.detail ?? `answered ${answer.status}`);
        }
      } catch (error) {
        const why = error.name === "TimeoutError" ? `no answer within ${ANSWER_MS / 1000} s` : error.message;
        this.summary.textContent = `History cannot be shown: ${why}. Asking again …`;
        this.failedAt = Date.now();
        this.shows = null;
        return;
      }
      if (asked === range && this.seen) {
        this.#take(told.minutes, told.step_minutes);
        this.shows = asked;
        this.draw();
        this.summarise();
      }
    }

    // Every step of the range has its place, so that one that is missing is a gap.
    #take(rows, step) {
      const count = RANGES_S[range] / 60 / step + 1;
      const first = Math.floor(Date.now() / 60000 / step) - count + 1;
      this.step = step;
      const empty = () => new Array(count).fill(null);
      const minutes = { at: empty(), low: empty(), mean: empty(), high: empty(), bad: empty() };
      for (let n = 0; n < count; n += 1) {
        minutes.at[n] = (first + n + 0.5) * step * 60;
      }
      let newest = 0;
      for (const row of rows) {
        const place = Math.floor(Date.parse(row.at) / 60000 / step);
        const n = place - first;
        if (n >= 0 && n < count) {
          minutes.low[n] = row.low;
          minutes.mean[n] = row.mean;
          minutes.high[n] = row.high;
          minutes.bad[n] = row.breached_share;
          newest = place + 1;
        }
      }
      this.minutes = minutes;
      this.known = Math.min(newest * step * 60, Math.floor(Date.now() / 60000) * 60); // Up to then; what is newer is the tail's.
      const keep = this.tail.at.findIndex((at) => at >= this.known);
      for (const list of Object.values(this.tail)) {
        list.splice(0, keep < 0 ? list.length : keep);
      }
    }

    append(row, at) {
      this.threshold = Number(row.dataset.threshold);
      const value = row.dataset.value === "" ? null : Number(row.dataset.value);
      const before = this.tail.at.at(-1);
      if (before !== undefined && at - before > GAP_S) {
        this.#push(before + 1, null, 0);
      }
      this.#push(at, value, row.dataset.state === "breached" ? 1 : 0);
      this.breached = row.dataset.state === "breached";
      this.latest.textContent = value === null ? (row.dataset.state === "disabled" ? "off" : "no value") : shown(value, this.unit);
      this.element.classList.toggle("bad", row.dataset.state === "breached" || row.dataset.state === "unavailable");
    }

    #push(at, value, bad) {
      this.tail.at.push(at);
      this.tail.value.push(value);
      this.tail.bad.push(bad);
      if (this.tail.at.length > MAX_TAIL) {
        for (const list of Object.values(this.tail)) {
          list.shift();
        }
      }
    }

    // A reading every two seconds moves no pixel of a day.
    due(now) {
      return this.seen && this.minutes !== null && now - this.drawnAt >= (RANGES_S[range] * 1000) / 900;
    }

    #data() {
      const m = this.minutes;
      const end = m.at.findIndex((at) => at > this.known);
      const cut = end < 0 ? m.at.length : end;
      const from = this.tail.at.findIndex((at) => at >= this.known);
      const t = from < 0 ? { at: [], value: [] } : { at: this.tail.at.slice(from), value: this.tail.value.slice(from) };
      const from_s = t.at[0] - (m.at[cut - 1] ?? 0);
      if (from_s > Math.max(100, this.step * 90)) {
        t.at.unshift(t.at[0] - 1); // What history has not got, and nobody saw, is a gap.
        t.value.unshift(null);
      }
      const joined = (list, more) => list.slice(0, cut).concat(more);
      return [joined(m.at, t.at), joined(m.low, t.value), joined(m.high, t.value), joined(m.mean, t.value)];
    }

    draw() {
      this.drawnAt = Date.now();
      const data = this.#data();
      if (this.plot === null) {
        this.plot = new uPlot(this.#options(), data, this.box);
        this.#describe();
      } else {
        this.plot.setData(data);
      }
    }

    #options() {
      const axis = { stroke: () => ink.quiet, grid: { stroke: () => ink.line, width: 1 }, ticks: { stroke: () => ink.line, width: 1 }, font: "11px system-ui" };
      const chart = this;
      const band = { stroke: () => ink.series, width: 0, points: { show: false } };
      return {
        width: Math.max(200, this.box.clientWidth),
        height: this.box.clientHeight || 176,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { size: 5 }, y: false },
        scales: {
          x: { time: true, range: () => [Date.now() / 1000 - RANGES_S[range], Date.now() / 1000] },
          y: { range: (u, low, high) => [Math.min(0, low ?? 0), chart.#top(high ?? 0)] },
        },
        axes: [
          { ...axis, space: 60, size: 28, values: [[3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([incr, form]) => [incr, form, null, null, null, null, null, null, 1]) },
          { ...axis, size: 58, values: (u, ticks) => ticks.map((value) => shown(value, chart.unit)) },
        ],
        series: [
          {},
          band,
          band,
          { stroke: () => ink.series, width: 1.5, points: { size: 3, fill: () => ink.series }, spanGaps: false },
        ],
        bands: [{ series: [2, 1], fill: () => `color-mix(in srgb, ${ink.series} 25%, transparent)` }],
        hooks: {
          drawClear: [(u) => chart.#shade(u)],
          draw: [(u) => chart.#limit(u), (u) => chart.#beyond(u)],
          setCursor: [(u) => chart.#point(u)],
        },
      };
    }

    // A spike must not flatten the rest: what is beyond three thresholds is marked at the top.
    #top(high) {
      const limit = this.threshold > 0 ? this.threshold : 0;
      const peak = limit > 0 ? Math.min(high, limit * CAP) : high;
      return (Math.max(peak, limit) || 1) * 1.08;
    }

    #beyond(u) {
      const { ctx, bbox } = u;
      const top = u.scales.y.max;
      const size = 4 * devicePixelRatio;
      ctx.save();
      ctx.fillStyle = ink.bad;
      let last = -Infinity;
      for (let n = 0; n < u.data[0].length; n += 1) {
        const x = u.valToPos(u.data[0][n], "x", true);
        if ((u.data[2][n] ?? 0) > top && x >= bbox.left && x - last > size * 2) {
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x + size, bbox.top + size * 1.6);
          ctx.lineTo(x - size, bbox.top + size * 1.6);
          ctx.fill();
          last = x;
        }
      }
      ctx.restore();
    }

    // Minutes in which it was above its threshold, for the whole or a part of them.
    #shade(u) {
      const { ctx, bbox } = u;
      const rect = (from, until) => {
        const left = Math.max(bbox.left, u.valToPos(from, "x", true));
        const right = Math.min(bbox.left + bbox.width, u.valToPos(until, "x", true));
        if (right > left) {
          ctx.fillRect(left, bbox.top, right - left, bbox.height);
        }
      };
      ctx.save();
      ctx.fillStyle = ink.breach;
      const m = this.minutes;
      for (let n = 0; n < m.at.length; n += 1) {
        if (m.bad[n]) {
          const from = n;
          while (n + 1 < m.at.length && m.bad[n + 1]) {
            n += 1;
          }
          rect(m.at[from] - this.step * 30, m.at[n] + this.step * 30);
        }
      }
      const t = this.tail;
      for (let n = 0; n < t.at.length; n += 1) {
        if (t.bad[n] && t.at[n] >= this.known) {
          rect(t.at[n], t.at[n + 1] ?? Date.now() / 1000);
        }
      }
      ctx.restore();
    }

    #limit(u) {
      if (!Number.isFinite(this.threshold)) {
        return;
      }
      const { ctx, bbox } = u;
      const y = Math.round(u.valToPos(this.threshold, "y", true));
      ctx.save();
      ctx.strokeStyle = ink.bad;
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    }

    #point(u) {
      const n = u.cursor.idx;
      if (n === null || n === undefined || u.cursor.left < 0) {
        this.summarise();
        return;
      }
      const [at, low, high, mean] = u.data;
      this.summary.textContent =
        mean[n] === null || mean[n] === undefined
          ? `${hhmm(at[n])}: no value`
          : `${hhmm(at[n])}: ${shown(mean[n], this.unit)}${low[n] === high[n] ? "" : `, from ${shown(low[n], this.unit)} to ${shown(high[n], this.unit)}`}`;
    }

    // What the chart shows, in a sentence.
    summarise() {
      const m = this.minutes;
      if (m === null) {
        return;
      }
      let peak = -1;
      let bad = 0;
      for (let n = 0; n < m.at.length; n += 1) {
        if (m.high[n] !== null) {
          peak = peak < 0 || m.high[n] > m.high[peak] ? n : peak;
        }
        bad += (m.bad[n] ?? 0) * this.step;
      }
      this.told = peak < 0
        ? `No value is kept of the last ${range}.`
        : `Highest ${shown(m.high[peak], this.unit)} at ${hhmm(m.at[peak])}; ${bad > 0 ? `above its threshold for ${bad < 1 ? "less than a minute" : `${Math.round(bad)} min`}` : this.breached ? "above its threshold now" : "never above its threshold"}.`;
      this.summary.textContent = this.told;
      this.#describe();
    }

    #describe() {
      const canvas = this.box.querySelector("canvas");
      if (canvas) {
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `${this.name} on ${this.database}, last ${range}. ${this.told ?? ""}`);
      }
    }

    release() {
      this.plot?.destroy();
      this.plot = null;
      this.minutes = null;
      this.shows = null;
    }
  }

  const byElement = new WeakMap();
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = byElement.get(entry.target);
      if (!chart) {
        continue;
      }
      chart.seen = entry.isIntersecting;
      if (chart.seen && chart.minutes === null) {
        chart.load();
      }
    }
    letGo();
  }, { rootMargin: "150px" });
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const chart = byElement.get(entry.target.parentElement);
      const width = Math.floor(entry.contentRect.width);
      const height = Math.floor(entry.contentRect.height);
      if (chart?.plot && width > 0 && (width !== chart.plot.width || height !== chart.plot.height)) {
        chart.plot.setSize({ width, height });
      }
    }
  });

  function letGo() {
    let drawn = [...charts.values()].filter((chart) => chart.plot !== null);
    for (const chart of drawn) {
      if (drawn.length <= MAX_CHARTS) {
        return;
      }
      if (!chart.seen) {
        chart.release();
        drawn = drawn.filter((one) => one !== chart);
      }
    }
  }

  function remove(key, chart) {
    sight.unobserve(chart.element);
    sizes.unobserve(chart.box);
    chart.release();
    chart.element.remove();
    charts.delete(key);
  }

  // The live rows say which metrics there are, and what each is now.
  function follow() {
    document.title = document.getElementById("now")?.dataset.title ?? document.title;
    const rows = [...document.querySelectorAll("#now [data-chart]")];
    const there = new Set();
    const at = Date.now() / 1000;
    for (const row of rows) {
      const key = `${row.dataset.database} ${row.dataset.chart}`;
      there.add(key);
      let chart = charts.get(key);
      if (!chart) {
        chart = new Chart(row);
        charts.set(key, chart);
        byElement.set(chart.element, chart);
        figures.append(chart.element);
        sight.observe(chart.element);
        sizes.observe(chart.box);
      }
      chart.append(row, at);
      if (chart.due(Date.now())) {
        chart.draw();
      } else if (chart.retries(Date.now())) {
        chart.load();
      }
    }
    for (const [key, chart] of charts) {
      if (!there.has(key)) {
        remove(key, chart);
      }
    }
  }

  section.addEventListener("click", (event) => {
    const chosen = event.target.closest("a[data-range]");
    if (!chosen || event.ctrlKey || event.metaKey || event.shiftKey) {
      return;
    }
    event.preventDefault();
    range = chosen.dataset.range;
    for (const one of section.querySelectorAll("a[data-range]")) {
      one.toggleAttribute("aria-current", false);
    }
    chosen.setAttribute("aria-current", "true");
    window.history.replaceState(null, "", `${window.location.pathname}?range=${range}`);
    for (const chart of charts.values()) {
      if (chart.seen) {
        chart.load();
      } else {
        chart.release();
      }
    }
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    ink = readInk();
    for (const chart of charts.values()) {
      chart.plot?.redraw(false);
    }
  });

  // Those out of sight are drawn too, one by one, when the browser has nothing else to do: paper and
  // a picture of the whole page show them.
  function drawRest() {
    const next = [...charts.values()].slice(0, MAX_CHARTS).find((chart) => chart.plot === null && !chart.loading && chart.failedAt === 0);
    if (next) {
      next.seen = true;
      next.load().then(() => whenIdle(drawRest));
    }
  }
  const whenIdle = window.requestIdleCallback ?? ((then) => window.setTimeout(then, 200));
  whenIdle(drawRest);
  window.addEventListener("beforeprint", () => {
    for (const chart of charts.values()) {
      if (chart.minutes !== null) {
        chart.draw();
      }
    }
  });

  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id === "now" || event.detail.elt?.id === "now") {
      follow();
    }
  });
  // What history has got meanwhile, of those in sight.
  window.setInterval(() => {
    if (!document.hidden) {
      for (const chart of charts.values()) {
        if (chart.seen) {
          chart.load();
        }
      }
    }
  }, REFETCH_MS);
  follow();
})();
