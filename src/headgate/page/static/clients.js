// The tree's folding, and walking along a strip by keys.
"use strict";

function names(field) {
  return field.value.split(",").filter(Boolean);
}

function put(field, name, isIn) {
  const others = names(field).filter((one) => one !== name);
  field.value = (isIn ? [...others, name] : others).join(",");
}

// What is filtered, sorted and unfolded is in the address: a link shows the same.
function noteAddress(form) {
  const told = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (value && !(name === "sort" && value === "throttled")) {
      told.set(name, value);
    }
  }
  const query = told.toString();
  window.history.replaceState(null, "", query ? `/clients?${query}` : "/clients");
}

document.addEventListener("click", (event) => {
  const fold = event.target.closest("[data-fold]");
  const form = document.getElementById("clients-filter");
  if (!fold || !form || event.ctrlKey || event.metaKey) {
    return;
  }
  event.preventDefault();
  const opens = fold.dataset.folds === "open";
  put(form.elements.open, fold.dataset.fold, opens);
  put(form.elements.shut, fold.dataset.fold, !opens);
  htmx.trigger(form, "refilter");
  noteAddress(form);
});

document.addEventListener("input", (event) => {
  const form = event.target.closest("#clients-filter");
  if (form) {
    noteAddress(form);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === " " && event.target.matches("[data-fold]")) {
    event.preventDefault();
    event.target.click();
    return;
  }
  const bar = event.target.closest?.(".strip a");
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!bar || !step) {
    return;
  }
  event.preventDefault();
  const bars = [...bar.closest(".strip").querySelectorAll("a")];
  const next = bars[bars.indexOf(bar) + step];
  if (next) {
    bar.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }
});
