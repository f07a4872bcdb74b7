"use strict";
// Without it the page is whole but for what a tap on a token tells.
const told = document.getElementById("told");

function tell(token) {
  document.querySelector("b.on")?.classList.remove("on");
  told.hidden = !token;
  if (!token) return;
  token.classList.add("on");
  const [place, ...ids] = token.dataset.t.split(" · ");
  told.textContent = `place ${place}; id and logprob: ${ids.join(" · ")}; ${token.classList.contains("t") ? "" : "not "}trained`;
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

document.addEventListener("click", (event) => tell(event.target.closest("b[data-t]")));
document.getElementById("all").addEventListener("click", (event) => {
  const traces = [...document.querySelectorAll("details.trace")];
  const open = traces.some((trace) => !trace.open);
  for (const trace of traces) trace.open = open;
  event.target.textContent = open ? "close all" : "open all";
});
addEventListener("hashchange", openTarget);
if (location.hash) openTarget();
