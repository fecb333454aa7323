// The second part: everything about what is selected, in words, and the short form on hovering.
// Names come from users' files, so text is only ever set as text.

/** An element with text and elements inside; strings become text, never markup. */
function el(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.flat().filter((child) => child !== null));
  return made;
}

function link(kind, name, text = name) {
  return el("a", { href: `#${kind}=${encodeURIComponent(name)}` }, String(text));
}

const opLink = (op) => link("op", op);
const dataLink = (name, text) => link(data.states.includes(name) ? "state" : "value", name, text);
const stepWords = (distance) =>
  distance === 0 ? "the same step" : `step ${distance > 0 ? "+" : "−"}${Math.abs(distance)}`;
const carried = (name, carry) => (carry ? `${name}@-${carry}` : name);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function listed(heading, items) {
  if (!items.length) return [];
  return [
    el("h3", {}, heading),
    el(
      "ul",
      {},
      items.map((item) => el("li", {}, item)),
    ),
  ];
}

function joined(parts, between = ", ") {
  return parts.flatMap((part, k) => (k ? [between, part] : [part]));
}

function details() {
  const { kind, name } = state;
  const shown = {
    op: ofOp,
    wait: ofWait,
    requirement: ofRequirements,
    value: ofValue,
    state: ofState,
    actor: ofActor,
  }[kind];
  $("details").replaceChildren(...(shown ? shown(name) : []));
  showPanel();
}

function showPanel() {
  $("panel").hidden = state.kind === null && $("found").hidden;
}

function ofOp(name) {
  const op = ops[name];
  const cost = op.cost_us === null ? "" : `, ${op.cost_us} µs`;
  const indexed = requirements.map((edge, k) => [edge, k]);
  const waits = plan.waits.map((wait, k) => [wait, k]);
  const about = op.side === "host" ? "host thread" : "stream";
  return [
    el("h2", {}, name),
    el(
      "p",
      { class: "kind" },
      `${op.side} op of ${op.node} on ${about} `,
      link("actor", op.actor),
      cost,
    ),
    ...(op.launch ? [el("p", {}, "launched by ", opLink(op.launch))] : []),
    ...(plan.critical_cycle.some(([each]) => each === name)
      ? [el("p", {}, "on the critical cycle, which sets the period")]
      : []),
    ...listed(
      "Reads",
      op.reads.map(([read, carry]) => [
        dataLink(read, carried(read, carry)),
        readWords(read, carry),
      ]),
    ),
    ...listed(
      "Writes",
      op.writes.map((each) => [dataLink(each), data.states.includes(each) ? " in place" : ""]),
    ),
    ...listed(
      "Waits for",
      waits.filter(([wait]) => wait.to === name).map(([wait, k]) => waitLine(wait, k, wait.from)),
    ),
    ...listed(
      "Is waited for by",
      waits.filter(([wait]) => wait.from === name).map(([wait, k]) => waitLine(wait, k, wait.to)),
    ),
    ...requirementList(
      "Required before it",
      indexed.filter(([edge]) => edge.to === name),
      "from",
    ),
    ...requirementList(
      "Required after it",
      indexed.filter(([edge]) => edge.from === name),
      "to",
    ),
  ];
}

function readWords(name, carry) {
  if (data.states.includes(name)) return " (state)";
  return carry ? `, written ${plural(carry, "step")} earlier` : "";
}

function waitLine(wait, index, other) {
  return [
    link("wait", index, `wait ${index + 1}`),
    ": ",
    opLink(other),
    `, ${stepWords(wait.distance)}`,
  ];
}

function requirementList(heading, found, end) {
  return listed(
    `${heading} (${found.length})`,
    found.map(([edge, k]) => [
      link("requirement", k, data.requirements[k].title),
      end === "from" ? " after " : " before ",
      opLink(edge[end]),
      `, ${stepWords(edge.distance)}; by ${edge.by}`,
      el("p", { class: "aside" }, witnessWords(edge)),
    ]),
  );
}

function witnessWords(edge) {
  return edge.witness
    .map(([op, d]) => (d ? `${op} @${d > 0 ? "+" : "−"}${Math.abs(d)}` : op))
    .join(" → ");
}

function ofWait(index) {
  const wait = plan.waits[index];
  const said = data.waits[index];
  return [
    el("h2", {}, `Wait ${Number(index) + 1}`),
    el("p", {}, opLink(wait.to), " waits for ", opLink(wait.from), `, ${stepWords(wait.distance)}`),
    el("p", {}, said.realized),
    ...listed(
      "It protects",
      said.protects.map((each) => [
        el("span", { class: "hazard" }, each.title),
        el("p", {}, each.needed),
        el("p", {}, `Without the wait, ${each.without}`),
      ]),
    ),
    ...listed("It also orders, though something else does too", said.also),
    el("h3", {}, "Cost"),
    el("p", {}, said.cost),
  ];
}

function ofRequirements(indices) {
  return indices.split(",").flatMap((k) => {
    const edge = requirements[k];
    const said = data.requirements[k];
    const event = edge.event ? [", event of ", opLink(edge.event)] : [];
    return [
      el("h2", {}, said.title),
      el(
        "p",
        { class: "kind" },
        `requirement ${Number(k) + 1}, between ${edge.from_stream} and ${edge.to_stream}`,
      ),
      el("p", {}, opLink(edge.from), " before ", opLink(edge.to), `, ${stepWords(edge.distance)}`),
      el("p", {}, said.needed),
      el("p", {}, `If nothing ordered them, ${said.without}`),
      el("h3", {}, "Met"),
      el("p", {}, `by ${edge.by}`, ...event, ". Witness:"),
      el(
        "p",
        {},
        joined(
          edge.witness.map(([op, d]) =>
            el("span", {}, opLink(op), d ? ` @${d > 0 ? "+" : "−"}${Math.abs(d)}` : ""),
          ),
          " → ",
        ),
      ),
    ];
  });
}

function ofValue(name) {
  const value = values[name];
  const slots =
    value.slots === null ? "fresh: made anew in each step" : plural(value.slots, "slot");
  const where = value.external ? "given from outside" : slots;
  const lifetime = {
    null: "Each version is kept until its last reader is done.",
    1: "Each version lives in the one slot, until the next is written there.",
  };
  const turns =
    `Version i lives in slot i mod ${value.slots}, ` +
    `until version i + ${value.slots} is written there.`;
  return [
    el("h2", {}, name),
    el("p", { class: "kind" }, `value on ${value.place}, ${where}`),
    el(
      "p",
      {},
      value.external ? "It is there before the first step." : (lifetime[value.slots] ?? turns),
    ),
    ...accessors(name),
  ];
}

function ofState(name) {
  return [
    el("h2", {}, name),
    el("p", { class: "kind" }, "state, changed in place across steps"),
    ...accessors(name),
  ];
}

function accessors(name) {
  const all = Object.keys(ops);
  const reads = all.flatMap((op) =>
    ops[op].reads.filter(([read]) => read === name).map(([, carry]) => [op, carry]),
  );
  const needed = requirements
    .map((edge, k) => [edge, k])
    .filter(([edge]) => edge.value === name && edge.hazard !== "LAUNCH");
  const guards = plan.waits.map((wait, k) => [wait, k]).filter(([, k]) => protects(k, name));
  return [
    ...listed("Written by", all.filter((op) => ops[op].writes.includes(name)).map(opLink)),
    ...listed(
      "Read by",
      reads.map(([op, carry]) => [opLink(op), carry ? `, ${plural(carry, "step")} later` : ""]),
    ),
    ...listed(
      "Protected by",
      guards.map(([wait, k]) => [
        link("wait", k, `wait ${k + 1}`),
        ": ",
        opLink(wait.to),
        " waits for ",
        opLink(wait.from),
      ]),
    ),
    ...listed(
      `Requirements (${needed.length})`,
      needed.map(([edge, k]) => [
        link("requirement", k, data.requirements[k].title),
        ": ",
        opLink(edge.from),
        " before ",
        opLink(edge.to),
        `, ${stepWords(edge.distance)}; by ${edge.by}`,
      ]),
    ),
  ];
}

function ofActor(name) {
  const program = plan.actors[name];
  const side = ops[program[0][0]].side === "host" ? "host thread" : "stream";
  return [
    el("h2", {}, name),
    el("p", { class: "kind" }, `${side}, runs its ops in this order in each iteration t`),
    ...listed(
      "Program",
      program.map(([op, offset]) => [
        opLink(op),
        offset ? `, of step t ${offset > 0 ? "−" : "+"} ${Math.abs(offset)}` : "",
      ]),
    ),
  ];
}

// --- hovering -----------------------------------------------------------------------------------

function tipLines(g) {
  const name = g.getAttribute("aria-label");
  if (g.matches("g.op")) {
    const op = ops[g.dataset.op];
    const reads = op.reads.map(([read, carry]) => carried(read, carry)).join(", ");
    const waits = plan.waits.filter((wait) => wait.to === g.dataset.op).map((wait) => wait.from);
    const into = requirements.filter((edge) => edge.to === g.dataset.op).length;
    const out = requirements.filter((edge) => edge.from === g.dataset.op).length;
    return [
      name,
      reads && `reads ${reads}`,
      op.writes.length ? `writes ${op.writes.join(", ")}` : "",
      waits.length ? `waits for ${waits.join(", ")}` : "",
      `${plural(into, "requirement")} before it, ${out} after it`,
    ];
  }
  if (g.matches("g.wait")) {
    const said = data.waits[g.dataset.wait];
    return [
      said.headline,
      ...said.protects
        .slice(0, 2)
        .map((each) => `${each.title}: without the wait, ${each.without}`),
      said.protects.length > 2 ? `and ${said.protects.length - 2} more; click to read` : "",
    ];
  }
  if (g.matches("g.version")) {
    const { place, slots } = values[g.dataset.value];
    return [name, slots === null ? `fresh, ${place}` : `${plural(slots, "slot")}, ${place}`];
  }
  const edges = edgesOf(g);
  return [name, ...edges.slice(0, 2).map((k) => data.requirements[k].needed)];
}

function hideTip() {
  $("tip").hidden = true;
}

function hover(event) {
  const g =
    event.pointerType === "touch" || stage.classList.contains("dragged")
      ? null
      : pointed(event.target);
  const tip = $("tip");
  tip.hidden = !g;
  if (!g) return;
  if (tip.about !== g) {
    tip.about = g;
    tip.replaceChildren(
      ...tipLines(g)
        .filter(Boolean)
        .map((line) => el("p", {}, line)),
    );
  }
  const { width, height } = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const below = event.clientY + 18;
  tip.style.left = `${Math.max(8, x)}px`;
  const above = Math.max(8, event.clientY - height - 12);
  tip.style.top = `${below + height > innerHeight ? above : below}px`;
}
