// The first part of a plan's page: what is selected, and what of the drawings that lights. The
// selection lives in the address (#view=lanes&op=forward.device&step=1), and `show` draws it.

const data = JSON.parse(document.getElementById("plan-data").textContent);
const { plan, ops, values, nearest } = data;
const requirements = [...plan.edges, ...plan.launch_order];
const VIEWS = ["dag", "lanes", "slots"];
const KINDS = ["op", "wait", "requirement", "value", "state", "actor"];
const HOOKS = "g.op, g.wait, g.ghost, g.data, g.order, g.launch, g.version, g.access";
const NOTES = "text.wait-words, text.ghost-words, text.data-words"; // labels of arrows
const TOLD = `${HOOKS}, g.stretch`; // what a tooltip tells something about
const ARROWS = "g.wait, g.ghost, g.data, g.order, g.launch";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const stage = $("stage");
const sheets = Object.fromEntries(VIEWS.map((view) => [view, $(`sheet-${view}`)]));
const drawings = Object.fromEntries(VIEWS.map((view) => [view, sheets[view].querySelector("svg")]));
const marked = [...stage.querySelectorAll(HOOKS)];
const labels = VIEWS.flatMap((view) =>
  [...drawings[view].querySelectorAll(NOTES)].map((text) => labelled(view, text)),
);
const arrowOf = new Map(labels.map(({ text, arrows }) => [text, arrows[0]]));

let state = { view: "dag", kind: null, name: null, step: null, focus: null };
let critical = false;

/** A label with the arrows that it belongs to. */
function labelled(view, text) {
  const { wait, step } = text.dataset;
  const edges = edgesOf(text);
  const arrows = [...drawings[view].querySelectorAll(ARROWS)].filter((g) => {
    const same =
      wait === undefined ? edgesOf(g).some((k) => edges.includes(k)) : g.dataset.wait === wait;
    return same && (step === undefined || g.dataset.step === undefined || g.dataset.step === step);
  });
  return { text, arrows };
}

/** What a pointer is over: an element of a drawing; for a label the arrow that it names. */
function pointed(target) {
  const g = target.closest?.(`${TOLD}, ${NOTES}`) ?? null;
  return g && g.matches(NOTES) ? (arrowOf.get(g) ?? null) : g;
}

function edgesOf(g) {
  return g.dataset.edges ? g.dataset.edges.split(",") : [];
}

// --- the address --------------------------------------------------------------------------------

function parsed(hash, view) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const kind = KINDS.find((each) => known(each, said.get(each))) ?? null;
  const step = /^\d+$/.test(said.get("step") ?? "") && kind === "op" ? said.get("step") : null;
  const focus =
    kind === "op" && ["up", "down"].includes(said.get("focus")) ? said.get("focus") : null;
  return {
    view: VIEWS.includes(said.get("view")) ? said.get("view") : view,
    kind,
    name: kind && said.get(kind),
    step,
    focus,
  };
}

function known(kind, name) {
  if (name === null) return false;
  if (kind === "wait") return plan.waits[name] !== undefined;
  if (kind === "requirement") return name.split(",").every((k) => requirements[k] !== undefined);
  if (kind === "state") return data.states.includes(name);
  return Object.hasOwn({ op: ops, value: values, actor: plan.actors }[kind], name);
}

function address({ view, kind, name, step, focus }) {
  const said = new URLSearchParams({ view });
  if (kind) said.set(kind, name);
  if (step !== null) said.set("step", step);
  if (focus) said.set("focus", focus);
  return `#${said}`;
}

function go(change) {
  const next = { ...state, ...change };
  if ("name" in change && !("focus" in change)) next.focus = null;
  if ("name" in change && !("step" in change)) next.step = null;
  if (address(next) !== location.hash) location.hash = address(next);
  show(next);
}

function select(kind, name, step = null) {
  go({ kind, name: String(name), step });
}

// --- showing a state ----------------------------------------------------------------------------

function show(next) {
  state = next;
  hideTip(); // it may describe what is no longer under the pointer
  for (const view of VIEWS) {
    const current = view === state.view;
    sheets[view].classList.toggle("current", current);
    $(`tab-${view}`).setAttribute("aria-selected", current);
    $(`tab-${view}`).tabIndex = current ? 0 : -1;
  }
  for (const focus of ["up", "down"]) {
    $(`focus-${focus}`).disabled = state.kind !== "op";
    $(`focus-${focus}`).setAttribute("aria-pressed", state.focus === focus);
  }
  mark();
  details();
  const chosen = sheets[state.view].querySelector("g.selected");
  place(state.view);
  fold();
  const legend = drawings[state.view].querySelectorAll("text.legend");
  $("legend").textContent = [...legend].map((line) => line.textContent).join(" ");
  if (chosen) bringIntoSight(chosen);
}

/** Sets the classes selected, related and dim on everything drawn. */
function mark() {
  const relation = related();
  const lit = state.focus ? cone() : critical ? criticalOnly() : relation.lit;
  for (const g of marked) {
    const selected = relation.selected(g);
    g.classList.toggle("selected", selected);
    g.classList.toggle("related", !selected && relation.related(g));
    g.classList.toggle("dim", lit !== null && !lit(g));
    if (selected) g.setAttribute("aria-current", "true");
    else g.removeAttribute("aria-current");
  }
  for (const { text, arrows } of labels)
    text.classList.toggle("dim", lit !== null && !arrows.some(lit));
}

const never = () => false;
const isArrow = (g) => g.matches(ARROWS);
const stepOf = (g) => (g.dataset.step === undefined ? null : Number(g.dataset.step));
const drawnOp = (g) => g.dataset.op ?? null;

/** What is selected, what belongs to it, and what stays lit (null: everything). */
function related() {
  const { kind, name, step } = state;
  const here = (g) => step === null || g.dataset.step === undefined || g.dataset.step === step;
  switch (kind) {
    case "op":
      return {
        selected: (g) => g.matches("g.op, g.access") && g.dataset.op === name && here(g),
        related: (g) => isArrow(g) && touches(g, name, step),
        lit: null,
      };
    case "wait": {
      const wait = plan.waits[name];
      return {
        selected: (g) => g.matches("g.wait") && g.dataset.wait === name,
        related: (g) => g.matches("g.op") && [wait.from, wait.to].includes(g.dataset.op),
        lit: null,
      };
    }
    case "requirement":
      return witnessed(name.split(","));
    case "value":
    case "state": {
      const using = (op) => accesses(op, name);
      const about = (g) => edgesOf(g).some((k) => requirements[k].value === name);
      const protecting = (g) => g.dataset.wait !== undefined && protects(g.dataset.wait, name);
      return {
        selected: (g) => g.matches("g.version") && g.dataset.value === name,
        related: (g) => (g.matches("g.op") && using(g.dataset.op)) || about(g) || protecting(g),
        lit: (g) => {
          if (g.dataset.value !== undefined) return g.dataset.value === name;
          return drawnOp(g) ? using(g.dataset.op) : about(g) || protecting(g);
        },
      };
    }
    case "actor": {
      const on = (op) => ops[op]?.actor === name;
      return {
        selected: never,
        related: (g) => g.matches("g.op") && on(g.dataset.op),
        lit: (g) => (drawnOp(g) ? on(g.dataset.op) : on(g.dataset.from) || on(g.dataset.to)),
      };
    }
    default:
      return { selected: never, related: never, lit: null };
  }
}

/** A requirement is shown by its witness: the path that meets it, from step i = 0 or 1 on. */
function witnessed(indices) {
  const witness = requirements[indices[0]].witness;
  const base = -Math.min(0, ...witness.map(([, distance]) => distance));
  const places = new Set(witness.map(([op, distance]) => `${op}|${base + distance}`));
  const names = new Set(witness.map(([op]) => op));
  const hops = witness.slice(1).map(([op, distance], k) => {
    const [from, at] = witness[k];
    return { from, to: op, distance: distance - at, step: base + at };
  });
  const onPath = (g) =>
    g.matches("g.order, g.launch, g.wait") &&
    hops.some(
      (hop) =>
        g.dataset.from === hop.from &&
        g.dataset.to === hop.to &&
        Number(g.dataset.distance) === hop.distance &&
        (stepOf(g) === null || stepOf(g) === hop.step),
    );
  const own = (g) => edgesOf(g).some((k) => indices.includes(k));
  const included = (g) =>
    stepOf(g) === null ? names.has(g.dataset.op) : places.has(`${g.dataset.op}|${stepOf(g)}`);
  const ends = [witness[0], witness.at(-1)].map(([op, distance]) => `${op}|${base + distance}`);
  const isEnd = (g) => ends.some((end) => end.startsWith(`${g.dataset.op}|`)) && included(g);
  return {
    selected: (g) => own(g) || (g.matches("g.op") && isEnd(g)),
    related: (g) => (g.matches("g.op") && included(g)) || onPath(g),
    lit: (g) => own(g) || (drawnOp(g) ? included(g) : onPath(g)),
  };
}

/** Everything on a path to (or from) the selected op, within the steps that a drawing shows. */
function cone() {
  const up = state.focus === "up";
  const chosen = state.name;
  const at = state.step === null ? null : Number(state.step);
  const ordered = (u, v, distance) =>
    (u === v && distance >= 0) || (nearest[u][v] ?? Infinity) <= distance;
  const reaches = (op, ahead) => (up ? ordered(op, chosen, -ahead) : ordered(chosen, op, ahead));
  return (g) => {
    const middle = at ?? (up ? 2 : 0); // without a step: that of the latest, earliest one drawn
    const ahead = stepOf(g) === null ? 0 : stepOf(g) - middle;
    if (drawnOp(g)) return reaches(g.dataset.op, ahead);
    if (g.dataset.from === undefined) return false;
    const distance = Number(g.dataset.distance);
    if (!up)
      return (
        reaches(g.dataset.from, ahead) &&
        ahead + distance >= 0 &&
        (stepOf(g) !== null || distance <= 0)
      );
    return reaches(g.dataset.to, ahead + distance) && (stepOf(g) !== null || ahead + distance >= 0);
  };
}

function criticalOnly() {
  const cycle = plan.critical_cycle;
  const names = new Set(cycle.map(([op]) => op));
  const hops = cycle.map(([op, distance], k) => [op, cycle[(k + 1) % cycle.length][0], distance]);
  return (g) => {
    if (drawnOp(g)) return names.has(g.dataset.op);
    const { from, to, distance } = g.dataset;
    if (!g.matches("g.order, g.launch, g.wait")) return false;
    return hops.some(([u, v, d]) => u === from && v === to && d === Number(distance));
  };
}

function touches(g, op, step) {
  const { from, to, distance } = g.dataset;
  if (step === null || stepOf(g) === null) return from === op || to === op;
  const at = Number(step);
  return (from === op && stepOf(g) === at) || (to === op && stepOf(g) + Number(distance) === at);
}

function accesses(op, name) {
  return ops[op].writes.includes(name) || ops[op].reads.some(([read]) => read === name);
}

function protects(index, name) {
  return plan.waits[index].protects.some((each) => each.value === name);
}
