// The strip of a guide: where its tour stands, what to look at, and on to the next scene.
"use strict";

(() => {
  const guide = document.currentScript.dataset.tour;
  const EVERY_MS = 1000;
  const ELSEWHERE = "another agent's page: to change things there, sign in by the address in the terminal";
  let shown = "";

  function link(look) {
    const there = document.createElement("a");
    there.href = (look.agent ?? "") + look.path;
    there.textContent = look.text;
    if (there.origin !== location.origin) {
      there.textContent += " ↗";
      there.title = ELSEWHERE;
    }
    return there;
  }

  // What stands between `…` is a command.
  function words(text) {
    return text.split("`").map((piece, at) => {
      if (at % 2 === 0) {
        return piece;
      }
      const code = document.createElement("code");
      code.textContent = piece;
      return code;
    });
  }

  function step(name, to, disabled) {
    const button = document.createElement("button");
    button.textContent = name;
    button.disabled = disabled;
    button.addEventListener("click", () => go(to));
    return button;
  }

  function show(tour) {
    const strip = document.getElementById("tour");
    const now = JSON.stringify(tour);
    if (now === shown) {
      return;
    }
    shown = now;
    const scene = tour.scenes.find((one) => one.n === tour.scene) ?? tour.scenes[0];
    const title = document.createElement("strong");
    title.textContent = `${scene.n} of ${tour.scenes.length}: ${scene.title}`;
    const says = document.createElement("p");
    says.append(...words(scene.says), " ");
    for (const look of scene.look) {
      says.append(" → ", link(look));
    }
    if (scene.look.some((look) => (look.agent ?? location.origin) !== location.origin)) {
      says.append(` (↗ ${ELSEWHERE})`);
    }
    const focused = strip.contains(document.activeElement);
    const plays = tour.busy && !tour.waits_for;
    strip.replaceChildren(title, says, step("Back", "back", plays || tour.scene <= 1), onward(tour));
    strip.hidden = false;
    if (focused) {
      strip.lastElementChild.focus();
    }
  }

  function onward(tour) {
    if (tour.waits_for) {
      return step(`Go on: ${tour.waits_for}`, "next", false);
    }
    if (tour.busy) {
      return step("…", "next", true);
    }
    const last = tour.scene >= tour.scenes.length;
    return last ? step("From the start", 1, false) : step("Next", "next", false);
  }

  // A statement to explain stands after the `#`, where no server sees it.
  function fill() {
    const form = document.querySelector("form textarea[name=sql]")?.form;
    const given = new URLSearchParams(location.hash.slice(1));
    if (!form || !given.has("sql")) {
      return;
    }
    for (const [name, value] of given) {
      const field = form.elements.namedItem(name);
      if (field && field.type !== "hidden") {
        field.value = value;
      }
    }
    form.requestSubmit();
    form.scrollIntoView();
  }

  async function go(to) {
    await fetch(`${guide}/tour`, { method: "POST", body: JSON.stringify({ to }), headers: { "Content-Type": "application/json" } }).catch(() => {});
    await look();
  }

  async function look() {
    if (document.hidden) {
      return;
    }
    try {
      const told = await fetch(`${guide}/tour`, { signal: AbortSignal.timeout(2000) });
      show(await told.json());
    } catch {
      document.getElementById("tour").hidden = true;
      shown = "";
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    look();
    fill();
  });
  window.addEventListener("hashchange", fill);
  window.setInterval(look, EVERY_MS);
})();
