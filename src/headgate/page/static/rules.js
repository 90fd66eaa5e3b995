// The rules page: time left counts down between two polls, and a preview that is out of date says so.
"use strict";

// As rules_view.py tells it.
function leftText(left) {
  const two = (number) => String(number).padStart(2, "0");
  if (left >= 86400) {
    return `${Math.floor(left / 86400)} d ${Math.floor((left % 86400) / 3600)} h`;
  }
  if (left >= 3600) {
    return `${Math.floor(left / 3600)} h ${two(Math.floor((left % 3600) / 60))} min`;
  }
  return left >= 60 ? `${Math.floor(left / 60)} min ${two(left % 60)} s` : `${left} s`;
}

const told = new WeakMap();

function countDown() {
  const now = performance.now();
  for (const figure of document.querySelectorAll("[data-left-s]")) {
    const said = figure.dataset.leftS;
    let since = told.get(figure);
    if (!since || since.said !== said) {
      since = { said, at: now };
      told.set(figure, since);
    }
    const left = Math.max(0, Math.floor(Number(said) - (now - since.at) / 1000));
    figure.textContent = leftText(left);
  }
}
window.setInterval(countDown, 1000);

// What was previewed is what is set: after a change the form asks for another look.
document.addEventListener("input", (event) => {
  const preview = event.target.closest("form")?.querySelector("[data-preview]");
  if (preview) {
    preview.classList.add("is-stale");
    preview.querySelector(".stale").hidden = false;
    preview.querySelector("#confirm").disabled = true;
  }
});

// Who types a length or a date means that one of both.
document.addEventListener("input", (event) => {
  const picks = event.target.dataset?.picks;
  if (picks) {
    event.target.form.querySelector(`input[name="end"][value="${picks}"]`).checked = true;
  }
});

document.addEventListener("rules-changed", () => {
  document.getElementById("rule-dialog")?.close();
});

// What happened is said once, not again with each reload.
document.addEventListener("DOMContentLoaded", () => {
  const here = new URL(window.location.href);
  if (here.searchParams.has("done")) {
    ["done", "rule", "undo"].forEach((name) => here.searchParams.delete(name));
    window.history.replaceState(null, "", here.pathname + here.search);
  }
});
