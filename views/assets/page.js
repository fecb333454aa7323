// The last part: search, the keyboard, and what hooks everything up.

// --- search -------------------------------------------------------------------------------------

/** Everything that can be found: what it is, its words, and what of the drawings belongs to it. */
const findable = [
  ...Object.keys(ops).map((name) =>
    entry("op", name, name, (g) => g.matches("g.op") && g.dataset.op === name),
  ),
  ...[
    ...Object.keys(values).map((name) => ["value", name]),
    ...data.states.map((name) => ["state", name]),
  ].map(([kind, name]) =>
    entry(kind, name, name, (g) =>
      g.matches("g.version")
        ? g.dataset.value === name
        : g.matches("g.op") && accesses(g.dataset.op, name),
    ),
  ),
  ...Object.keys(plan.actors).map((name) =>
    entry("actor", name, name, (g) => g.dataset.actor === name),
  ),
  ...plan.waits.map((wait, k) =>
    entry(
      "wait",
      k,
      `${wait.to} waits for ${wait.from}: ${hazards(k)}`,
      (g) => g.matches("g.wait") && g.dataset.wait === String(k),
    ),
  ),
  ...requirements.map((edge, k) =>
    entry(
      "requirement",
      k,
      `${data.requirements[k].title}: ${edge.from} → ${edge.to}`,
      (g) => edgesOf(g).includes(String(k)),
      data.requirements[k].title,
    ),
  ),
];
let found = [];
let turn = -1;

function hazards(index) {
  return data.waits[index].protects.map((each) => each.title).join(", ");
}

function entry(kind, name, label, drawnAs, words = label) {
  return {
    kind,
    name: String(name),
    label,
    drawnAs,
    words: `${kind === "requirement" ? "" : kind} ${words}`.toLowerCase(),
  };
}

function search() {
  const terms = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  found = terms.length
    ? findable.filter((each) => terms.every((term) => each.words.includes(term)))
    : [];
  turn = -1;
  for (const g of marked)
    g.classList.toggle(
      "match",
      found.some((each) => each.drawnAs(g)),
    );
  showFound(terms.length > 0);
}

function showFound(searching) {
  $("search-status").textContent = !searching
    ? ""
    : turn < 0
      ? plural(found.length, "match").replace("matchs", "matches")
      : `${turn + 1} of ${found.length}`;
  $("found").hidden = !found.length;
  const items = found.map((each, k) => {
    const made = link(each.kind, each.name, each.label);
    if (k === turn) made.setAttribute("aria-current", "true");
    return el("li", {}, el("span", { class: "kind" }, `${each.kind} `), made);
  });
  $("found").replaceChildren(...listed("Found", items));
  $("found").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  showPanel();
}

function nextMatch(direction) {
  if (!found.length) return;
  turn =
    turn < 0 && direction < 0 ? found.length - 1 : (turn + direction + found.length) % found.length;
  select(found[turn].kind, found[turn].name);
  showFound(true);
}

function clearSearch() {
  $("search").value = "";
  search();
}

// --- keyboard -----------------------------------------------------------------------------------

const stops = (view) => [
  ...drawings[view].querySelectorAll(view === "slots" ? "g.version" : "g.op"),
];

/** One box of a drawing is in the tab order, and the arrow keys move from box to box. */
function roam(view, to) {
  for (const g of stops(view)) g.setAttribute("tabindex", g === to ? "0" : "-1");
}

function moveFocus(dx, dy) {
  const all = stops(state.view);
  const here = all.includes(document.activeElement) ? document.activeElement : null;
  const middle = (g) => {
    const box = g.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  let best = here
    ? null
    : (sheets[state.view].querySelector("g.op.selected, g.version.selected") ?? all[0]);
  if (here) {
    const [x, y] = middle(here);
    let least = Infinity;
    for (const g of all) {
      const [u, v] = middle(g);
      const ahead = (u - x) * dx + (v - y) * dy;
      const aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      if (ahead > 1 && ahead + 3 * aside < least) [least, best] = [ahead + 3 * aside, g];
    }
  }
  if (!best) return;
  roam(state.view, best);
  best.focus({ preventScroll: true });
  bringIntoSight(best);
}

function escape() {
  if ($("search").value) clearSearch();
  else if (state.focus) go({ focus: null });
  else if (critical) setCritical(false);
  else if (state.kind) go({ kind: null, name: null });
  if (document.activeElement === $("search")) $("search").blur();
}

function setFocus(focus) {
  if (state.kind === "op") go({ focus: state.focus === focus ? null : focus });
}

function setCritical(on) {
  critical = on;
  $("toggle-critical").setAttribute("aria-pressed", on);
  mark();
}

function setGhosts(on) {
  document.body.classList.toggle("no-ghosts", !on);
  $("toggle-ghosts").setAttribute("aria-pressed", on);
}

const SYSTEM_DARK = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (SYSTEM_DARK.matches ? "dark" : "light")) === "dark";
const themed = () => $("theme").setAttribute("aria-pressed", isDark());

function setDark(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  themed();
}

const KEYS = {
  1: () => go({ view: "dag" }),
  2: () => go({ view: "lanes" }),
  3: () => go({ view: "slots" }),
  "+": () => zoom(1.25),
  "=": () => zoom(1.25),
  "-": () => zoom(0.8),
  0: fit,
  "/": () => $("search").focus(),
  u: () => setFocus("up"),
  d: () => setFocus("down"),
  c: () => setCritical(!critical),
  g: () => setGhosts(document.body.classList.contains("no-ghosts")),
  t: () => setDark(!isDark()),
  "?": () => $("help").showModal(),
  Escape: escape,
  ArrowLeft: () => moveFocus(-1, 0),
  ArrowRight: () => moveFocus(1, 0),
  ArrowUp: () => moveFocus(0, -1),
  ArrowDown: () => moveFocus(0, 1),
};

function pressed(event) {
  hideTip();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if ($("help").open) {
    if (event.key === "?") $("help").close();
    return;
  }
  if (event.target === $("search")) {
    if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") escape();
    return;
  }
  const hook = event.target.closest?.(HOOKS);
  if (hook && (event.key === "Enter" || event.key === " ")) choose(hook);
  else if (event.key.startsWith("Arrow") && !roaming(event.target)) return;
  else if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
  else return;
  event.preventDefault();
}

/** Arrow keys belong to the drawing, unless something that scrolls has the focus. */
function roaming(target) {
  return target === document.body || stage.contains(target);
}

// --- hooking up ---------------------------------------------------------------------------------

function choose(g) {
  if (g.matches("g.op")) select("op", g.dataset.op, g.dataset.step ?? null);
  else if (g.matches("g.wait")) select("wait", g.dataset.wait);
  else if (g.matches("g.ghost, g.data")) select("requirement", g.dataset.edges);
  else if (g.matches("g.version, g.access")) select("value", g.dataset.value);
}

/** What can be read by hovering can be read by a screen reader, and thin lines can be hit. */
function prepare() {
  for (const g of stage.querySelectorAll(TOLD)) {
    const title = g.querySelector(":scope > title");
    g.setAttribute("aria-label", title?.textContent ?? "");
    title?.remove(); // or the browser would show a second tooltip
    if (g.matches("g.op, g.wait, g.version")) g.setAttribute("role", "button");
    if (g.matches("g.wait, g.ghost, g.data")) {
      const line = g.querySelector("path:last-of-type").cloneNode();
      line.setAttribute("class", "reach");
      line.removeAttribute("marker-end");
      g.append(line);
    }
  }
  for (const view of VIEWS) {
    drawings[view].setAttribute("role", "group");
    roam(view, stops(view)[0]);
    const seen = new Set();
    for (const g of drawings[view].querySelectorAll("g.wait")) {
      if (!seen.has(g.dataset.wait)) g.setAttribute("tabindex", "0");
      seen.add(g.dataset.wait);
    }
  }
}

function listen() {
  for (const view of VIEWS) $(`tab-${view}`).addEventListener("click", () => go({ view }));
  stage.addEventListener("click", (event) => {
    if (stage.classList.contains("dragged")) return;
    const g = pointed(event.target);
    if (g) choose(g);
    else if (state.kind) go({ kind: null, name: null });
  });
  stage.addEventListener("pointermove", hover);
  for (const moved of ["pointerleave", "pointerdown", "wheel"])
    stage.addEventListener(moved, hideTip, { passive: true });
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("blur", hideTip);
  $("toggle-ghosts").addEventListener("click", KEYS.g);
  $("toggle-critical").addEventListener("click", KEYS.c);
  $("focus-up").addEventListener("click", KEYS.u);
  $("focus-down").addEventListener("click", KEYS.d);
  $("zoom-in").addEventListener("click", KEYS["+"]);
  $("zoom-out").addEventListener("click", KEYS["-"]);
  $("zoom-fit").addEventListener("click", fit);
  $("theme").addEventListener("click", KEYS.t);
  $("help-open").addEventListener("click", KEYS["?"]);
  $("search").addEventListener("input", search);
  $("panel-close").addEventListener("click", () => {
    clearSearch();
    go({ kind: null, name: null });
  });
  addEventListener("keydown", pressed);
  addEventListener("hashchange", () => {
    if (location.hash === address(state)) return;
    if (location.hash === "#tables") return history.replaceState(null, "", address(state));
    show(parsed(location.hash, state.view));
    history.replaceState(null, "", address(state));
    stage.scrollIntoView({ block: "nearest" });
  });
  new ResizeObserver(resized).observe(stage);
}

root.classList.add("js");
prepare();
panning();
listen();
themed();
SYSTEM_DARK.addEventListener("change", themed);
show(parsed(location.hash, "dag"));
