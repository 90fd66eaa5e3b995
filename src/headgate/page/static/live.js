// What all pages share: whether the agent still answers, keys, flashes, dialogs.
"use strict";

const ASK_AFTER_MS = 2500;
const LOST_AFTER_MS = 4000;
const TICK_MS = 500;
// When the agent was last heard, when what is shown was made, when this page came into sight.
const times = { heard: Date.now(), drawn: Date.now(), seen: Date.now() };
let asking = false;

// The agent tells times in this browser's zone, once it knows it.
function noteZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || zone === document.body.dataset.zone) {
    return;
  }
  document.cookie = `headgate-zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;
  const form = document.querySelector("main form[method=post]");
  if (document.cookie.includes("headgate-zone=") && !form && sessionStorage.getItem("zone") !== zone) {
    sessionStorage.setItem("zone", zone); // Once: an agent that does not know the zone stays with UTC.
    window.location.reload();
  }
}

function clock(ms) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return new Date().toDateString() === at.toDateString() ? time : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

function showLost() {
  const box = document.getElementById("lost");
  box.textContent = `The agent does not answer since ${clock(times.heard)}. What you see is from ${clock(times.drawn)}. Asking again …`;
  box.hidden = false;
  document.body.classList.add("is-lost");
}

function heard() {
  times.heard = Date.now();
  document.getElementById("lost").hidden = true;
  document.body.classList.remove("is-lost");
}

function drawn() {
  times.drawn = Date.now();
  document.body.classList.remove("is-old");
}

// Live parts ask by themselves. Where there is none, and where they get no answer, this does.
async function ask() {
  asking = true;
  try {
    await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(3000) });
    heard();
  } catch {
    // Told by the next tick.
  } finally {
    asking = false;
  }
}

function tick() {
  const now = Date.now();
  if (document.hidden) {
    return;
  }
  if (now - Math.max(times.heard, times.seen) > LOST_AFTER_MS) {
    showLost();
  }
  if (now - times.heard > ASK_AFTER_MS && !asking) {
    ask();
  }
}
window.setInterval(tick, TICK_MS);

document.addEventListener("htmx:afterRequest", (event) => {
  const { xhr, elt } = event.detail;
  if (xhr.status === 0) {
    return;
  }
  heard();
  showWhetherEnded(xhr.getResponseHeader("X-Headgate-Who"));
  if (xhr.status < 400 && elt.hasAttribute("data-live") && elt.id !== "banner") {
    drawn();
  }
});

// The agent may have restarted, or the session be over, while the page was open.
function showWhetherEnded(who) {
  if (who !== null) {
    document.getElementById("ended").hidden = decodeURIComponent(who) === document.body.dataset.who;
  }
}

// A page that nobody sees asks for nothing. Seen again, it is grey until it is new.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.hasAttribute("data-live")) {
    event.preventDefault();
  }
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    return;
  }
  times.seen = Date.now();
  const live = document.querySelectorAll("[data-live]:not(#banner)");
  if (live.length > 0 && times.seen - times.drawn > LOST_AFTER_MS) {
    document.body.classList.add("is-old");
  }
  for (const part of live) {
    htmx.trigger(part, "seen");
  }
  tick();
});

// What a person has opened stays open when its part is drawn anew.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name) => name !== "open";

// What a part of a page has to say, it says in <template data-flash="good">…</template>.
function takeFlashes(root) {
  for (const told of root.querySelectorAll("template[data-flash]")) {
    const note = document.createElement("div");
    note.className = `note ${told.dataset.flash}`;
    note.append(told.content.cloneNode(true));
    const close = document.createElement("button");
    close.className = "small plain";
    close.textContent = "Close";
    close.addEventListener("click", () => note.remove());
    note.append(" ", close);
    document.getElementById("flash").append(note);
    window.setTimeout(() => note.remove(), told.dataset.flash === "bad" ? 60_000 : 15_000);
    told.remove();
  }
}
document.addEventListener("htmx:afterSettle", () => takeFlashes(document));

// <button data-opens="id"> shows a dialog; <button data-closes> ends the one it is in.
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    document.getElementById(opener.dataset.opens)?.showModal();
  }
  event.target.closest("[data-closes]")?.closest("dialog")?.close();
});
document.addEventListener("htmx:afterSwap", (event) => {
  const target = event.detail.target;
  const dialog = target.closest?.("dialog") ?? target.querySelector?.("dialog[data-show]");
  if (dialog && !dialog.open && (dialog.hasAttribute("data-show") || target === dialog)) {
    dialog.showModal();
  }
});

// An answer folds the form that it answers.
document.addEventListener("htmx:afterSwap", (event) => {
  const form = document.getElementById(event.detail.target.dataset?.folds ?? "");
  if (form && event.detail.xhr.status < 400) {
    form.open = false;
  }
});

// g and a letter go to a page; ? shows the keys.
let gone = 0;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "g") {
    gone = Date.now();
  } else if (event.key === "?") {
    showKeys();
  } else if (event.key === "/") {
    const filter = document.querySelector("[data-filter]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  } else if (Date.now() - gone < 1500) {
    gone = 0;
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
  }
});

function showKeys() {
  let dialog = document.getElementById("keys");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "keys";
    const title = document.createElement("h2");
    title.textContent = "Keys";
    const list = document.createElement("ul");
    const pages = [...document.querySelectorAll("nav a[data-key]")];
    const told = pages.map((page) => [`g ${page.dataset.key}`, page.textContent]);
    for (const [key, what] of [...told, ["/", "filter, where there is one"], ["Esc", "close"], ["?", "this"]]) {
      const line = document.createElement("li");
      const shown = document.createElement("kbd");
      shown.textContent = key;
      line.append(shown, ` ${what}`);
      list.append(line);
    }
    dialog.append(title, list);
    document.body.append(dialog);
  }
  dialog.showModal();
}

// A token behind the # of the address signs in: it never reaches a server's log.
document.addEventListener("DOMContentLoaded", () => {
  noteZone();
  takeFlashes(document);
  const form = document.getElementById("sign-in");
  const token = window.location.hash.slice(1);
  if (form && token) {
    window.history.replaceState(null, "", window.location.pathname + window.location.search);
    form.elements.token.value = decodeURIComponent(token);
    form.requestSubmit();
  }
});
