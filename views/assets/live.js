// The last part: what is shown when, and what a reader can do.

const STATES = { serving: "serving", draining: "draining", failed: "the engine has failed" };
const show = () => {
  document.title = `${now.model} · Stepweave`;
  by("model").textContent = now.model;
  state(now.state, STATES[now.state] || now.state);
  const { plan } = now;
  const called = plan.of > 1 ? `${plan.name} (${plan.digest.slice(0, 12)})` : plan.digest.slice(0, 12);
  by("plan").textContent = `plan ${called}, depth ${plan.depth}, on ` +
    `${plan.executor}; Stepweave ${now.version}`;
  const { lanes, recorder } = now;
  by("lanes-note").textContent = lanes
    ? `Steps ${lanes.first} to ${lanes.first + lanes.steps - 1}, which ended ` +
      `${one.format(lanes.age_s)} s ago. Colour: step; red: waits of the plan.`
    : recorder ? "No step has been completed yet." : "The recorder is off: --no-recorder.";
  facts();
  charts();
  drawLanes();
  switches();
  tables();
};

by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  key = by("key").value.trim();
  by("key").value = "";
  by("ask").hidden = true;
  go();
});
const hold = () => {
  paused = !paused;
  by("pause").setAttribute("aria-pressed", `${paused}`);
  by("pause").textContent = paused ? "Go on" : "Pause";
};
const dark = () => {
  const root = document.documentElement;
  const is = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  return is;
};
const themed = () => {
  by("theme").setAttribute("aria-pressed", `${dark()}`);
  read();
  if (now) { charts(); drawLanes(); }
};
const turn = () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  themed();
};
by("pause").addEventListener("click", hold);
by("theme").addEventListener("click", turn);
document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey)
    return;
  if (event.key === "p") hold();
  if (event.key === "t") turn();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
new ResizeObserver(() => { if (now) { charts(); drawLanes(); } }).observe(document.body);

by("lanes").addEventListener("pointermove", (event) => {
  const box = by("lanes").getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const hit = drawn.find((it) => x >= it.left && x <= it.right && y >= it.top && y < it.top + LANE);
  by("tip").hidden = !hit;
  if (!hit) return;
  by("tip").textContent = `${now.plan.ops[hit.op]} of step ${hit.step}: ${micro(hit.us)}`;
  by("tip").style.left = Math.min(event.clientX + 12, innerWidth - 200) + "px";
  by("tip").style.top = event.clientY + 14 + "px";
});
by("lanes").addEventListener("pointerleave", () => { by("tip").hidden = true; });

themed();
if (document.body.dataset.key === "yes" && !key) demand(false); else go();
