// The last part: choosing, and what keys, wheel and pointer do.

// --- choosing -----------------------------------------------------------------------------------

const at = (px, py) => {
  const lane = lanes.find((each) => py >= each.y && py < each.y + LANE - 4);
  if (!lane || px < gutter) return null;
  const moment = us(px), slack = (view.to - view.from) / (width - gutter);
  let i = after(lane, moment - slack);
  if (i >= lane.op.length) return null;
  if (lane.start[i] <= moment + slack) return { lane, i, gap: false };
  return i > 0 ? { lane, i, gap: true } : null;
};
const requestAt = (px, py) => rows.find((row) => py >= row.y && py < row.y + ROW && px > 0);
const describeRequest = ({ id, at: moments, tokens, end, steps }) => [id,
  PARTS.map((part, i) => {
    const to = moments.slice(i + 1).find((moment) => moment !== null);
    return moments[i] === null || to === undefined || to === moments[i] ? ""
      : `${part} ${time(to - moments[i])}`;
  }).filter(Boolean).join(", "), `${tokens} tokens in ${steps} steps, ended by ${end}`];
const tell = (lines) => {
  picked.replaceChildren();
  lines.filter(Boolean).forEach((line, i) => {
    const it = document.createElement("p");
    const text = i ? it : it.appendChild(document.createElement("b"));
    text.textContent = line;
    picked.append(it);
  });
};
const select = (what, follow = true) => {
  selected = what;
  if (!what) { tell(["", "Pick an op or an idle time to see what held it."]); return draw(); }
  tell(describe(what));
  const links = what.gap ? null : waitLinks(what);
  if (links) picked.append(links);
  if (follow) {
    const [from, to] = extent(what), wide = view.to - view.from;
    if (from < view.from || to > view.to) {
      const middle = (from + Math.min(to, from + wide * 0.8)) / 2;
      return show(middle - wide / 2, middle + wide / 2);
    }
  }
  draw();
};
const extent = ({ lane, i, gap }) =>
  gap ? [lane.end[i - 1], lane.start[i]] : [lane.start[i], lane.end[i]];
const hasGap = (lane, i) => i > 0 && i < lane.op.length && lane.start[i] > lane.end[i - 1];
const start = () => {
  const lane = selected ? selected.lane : lanes.find((each) => each.op.length);
  const i = Math.min(after(lane, view.from), lane.op.length - 1);
  return i < 0 ? null : { lane, i, gap: false };
};
const step = (by) => {
  if (!selected) return select(start());
  const { lane, i, gap } = selected;
  if (by > 0) {
    if (gap) return select({ lane, i, gap: false });
    if (i + 1 < lane.op.length) select({ lane, i: i + 1, gap: hasGap(lane, i + 1) });
  } else if (!gap && hasGap(lane, i)) select({ lane, i, gap: true });
  else if (i > 0) select({ lane, i: i - 1, gap: false });
};
const change = (by) => {
  if (!selected) return select(start());
  const filled = lanes.filter((lane) => lane.op.length);
  const place = filled.indexOf(selected.lane) + by;
  if (place < 0 || place >= filled.length) return;
  const lane = filled[place], i = Math.min(after(lane, extent(selected)[0]), lane.op.length - 1);
  select({ lane, i, gap: false });
};
const nextGap = (by) => {
  const from = selected || start();
  if (!from) return;
  const least = (view.to - view.from) / (width - gutter); // what can be seen
  for (let i = from.i + by; i > 0 && i < from.lane.op.length; i += by) {
    if (from.lane.start[i] - from.lane.end[i - 1] > least) {
      return select({ lane: from.lane, i, gap: true });
    }
  }
};
const follow = () => {
  const to = selected && holder(selected.lane, selected.i);
  if (to) select({ lane: to[0], i: to[1], gap: false });
};
const find = () => {
  const text = search.value.trim().toLowerCase(), number = /^(?:step )?(\d+)$/.exec(text);
  matches = null;
  found.textContent = "";
  if (number) {
    const wanted = Number(number[1]);
    const spans = lanes.filter((lane) => lane.track === main)
      .flatMap((lane) => between(lane, wanted, wanted + 1));
    found.textContent = spans.length ? `step ${wanted}` : "no such step";
    if (spans.length) {
      const from = Math.min(...spans.map(([a]) => a)), to = Math.max(...spans.map(([, b]) => b));
      return show(from - (to - from) * 0.1, to + (to - from) * 0.1);
    }
  } else if (text) {
    matches = new Set(data.ops.keys());
    data.ops.forEach((op, i) => { if (!op.toLowerCase().includes(text)) matches.delete(i); });
    found.textContent = `${matches.size} of ${data.ops.length} ops`;
  }
  draw();
};

// --- theme and help ---------------------------------------------------------------------------

const help = document.getElementById("help");
const isDark = () => (document.documentElement.dataset.theme ??
  (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const setDark = (dark) => {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  repaint();
};

// --- hands --------------------------------------------------------------------------------------

const keys = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1),
  ArrowUp: () => change(-1), ArrowDown: () => change(1),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
  a: () => pan(-0.25), d: () => pan(0.25), PageUp: () => pan(-0.9), PageDown: () => pan(0.9),
  Home: () => show(first, first + view.to - view.from),
  End: () => show(last - (view.to - view.from), last),
  0: () => show(first, last), s: steadyView, p: alignHere, h: follow,
  g: () => nextGap(1), G: () => nextGap(-1), r: markRange,
  m: () => setMeasuring(!measuring), Escape: () => (range ? clearRange() : select(null)),
  Enter: () => {
    if (!selected) return;
    const [from, to] = extent(selected);
    show(from - (to - from) * 0.3, to + (to - from) * 0.3);
  },
};
canvas.addEventListener("keydown", (event) => {
  const action = keys[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
});
const anywhere = {
  "/": () => search.focus(),
  "?": () => help.showModal(),
  t: () => setDark(!isDark()),
};
document.addEventListener("keydown", (event) => {
  tip.hidden = true;
  if (event.target === search || event.ctrlKey || event.metaKey || event.altKey) return;
  if (help.open) {
    if (event.key === "?") { event.preventDefault(); help.close(); }
    return;
  }
  if (!Object.hasOwn(anywhere, event.key)) return;
  event.preventDefault();
  anywhere[event.key]();
});
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { search.value = ""; find(); canvas.focus(); }
  if (event.key === "Enter") canvas.focus();
});
canvas.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), us(event.offsetX));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / (width - gutter));
  }
}, { passive: false });
let held = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  held = { x: event.offsetX, from: view.from, to: view.to, moved: false,
    measures: (measuring || event.shiftKey) && event.offsetX >= gutter };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (held) {
    const by = event.offsetX - held.x;
    if (Math.abs(by) > 3) held.moved = true;
    if (held.moved && held.measures) {
      tip.hidden = true;
      measure(us(held.x), us(Math.min(Math.max(event.offsetX, gutter), width)));
    } else if (held.moved) {
      tip.hidden = true;
      canvas.classList.add("moving");
      const span = ((held.to - held.from) * by) / (width - gutter);
      show(held.from - span, held.to - span);
    }
    return;
  }
  const row = requestAt(event.offsetX, event.offsetY);
  const hit = at(event.offsetX, event.offsetY);
  const count = countAt(event.offsetX, event.offsetY);
  tip.hidden = !hit && !row && !count;
  if (tip.hidden) return;
  const said = hit ? describe(hit) : count ? describeCount(count) : describeRequest(row.request);
  tip.textContent = said.filter(Boolean).join("\n");
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, window.innerHeight - box.height - 8) + "px";
});
const release = (event) => {
  if (held && !held.moved && event.type === "pointerup") {
    const row = requestAt(event.offsetX, event.offsetY);
    if (row) { selected = null; tell(describeRequest(row.request)); draw(); }
    else select(at(event.offsetX, event.offsetY), false);
  }
  held = null;
  canvas.classList.remove("moving");
};
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
canvas.addEventListener("dblclick", (event) => zoom(0.4, us(event.offsetX)));
const jump = (event) => {
  if (!(event.buttons & 1)) return;
  const middle = first + (event.offsetX / map.clientWidth) * (last - first);
  const wide = view.to - view.from;
  show(middle - wide / 2, middle + wide / 2);
};
map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); jump(event); });
map.addEventListener("pointermove", jump);
document.getElementById("fit").onclick = () => show(first, last);
document.getElementById("steady").onclick = steadyView;
document.getElementById("align").hidden = data.tracks.length < 2;
document.getElementById("align").onclick = alignHere;
document.getElementById("in").onclick = () => zoom(0.6);
document.getElementById("out").onclick = () => zoom(1 / 0.6);
document.getElementById("gaps").onchange = draw;
document.getElementById("chain").onchange = draw;
document.getElementById("waits").onchange = draw;
document.getElementById("measure").onclick = () => setMeasuring(!measuring);
document.getElementById("help-open").onclick = () => help.showModal();
document.getElementById("theme").onclick = () => setDark(!isDark());
for (const event of ["scroll", "blur"]) window.addEventListener(event, () => { tip.hidden = true; });
const repaint = () => {
  document.getElementById("theme").setAttribute("aria-pressed", isDark());
  hatch = null;
  read();
  paint();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
window.addEventListener("beforeprint", repaint);
new ResizeObserver(draw).observe(canvas.parentElement);
repaint();
steadyView();
// For tests and for those who script the page: where things are, in pixels of the canvas.
window.timeline = {
  lanes: () => lanes.map(({ track, actor, y }) => ({ track: track.name, actor, y: y + LANE / 2 })),
  place: (lane, op, n) => {
    const it = lanes[lane], i = it.op.findIndex((o, j) => data.ops[o] === op && it.step[j] === n);
    return i < 0 ? null : { from: x(it.start[i]), to: x(it.end[i]),
      idle: i ? x(it.end[i - 1]) : null };
  },
  view: () => ({ ...view }),
  pixel: (at) => x(at),
  range: () => range && [...range],
  arrows: () => drawnArrows,
  counters: () => COUNTERS.map(({ name }, row) => ({ name,
    y: countersTop + TITLE + (row + 0.5) * COUNT })),
  selected: () => selected && { op: data.ops[selected.lane.op[selected.i]],
    step: selected.lane.step[selected.i], actor: selected.lane.actor,
    track: selected.lane.track.name, idle: selected.gap },
};
