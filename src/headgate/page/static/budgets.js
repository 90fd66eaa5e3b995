// Budgets: a preview is of the form as it was; a change that was told is not told again.
"use strict";

const here = new URL(window.location.href);
if (here.searchParams.has("done")) {
  here.searchParams.delete("done");
  window.history.replaceState(null, "", here);
}

document.addEventListener("input", (event) => {
  if (!event.target.closest("#budget-form")) {
    return;
  }
  const stale = document.getElementById("stale");
  const confirms = document.querySelector("#preview [data-confirms]");
  if (stale && confirms) {
    stale.hidden = false;
    confirms.disabled = true;
  }
});

// What the form was answered is shown: what is wrong with it, or what would happen.
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.elt.id !== "draft") {
    return;
  }
  const wrong = document.querySelector("#draft [aria-invalid]");
  const shown = wrong ?? document.getElementById("preview");
  shown?.scrollIntoView({ block: wrong ? "center" : "start" });
  wrong?.focus({ preventScroll: true });
});
