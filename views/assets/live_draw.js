// The second part: lanes and charts on their canvases.

const LANE = 30, RULER = 20;
let colour = {}, drawn = [];
const FONT = "12px Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans Condensed', sans-serif";

const read = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bg", "ink", "muted", "line", "band", "wait", "ghost", "data", "on-step"])
    colour[name] = style.getPropertyValue("--sw-" + name).trim();
  colour.steps = Array.from({ length: 6 }, (_, i) =>
    style.getPropertyValue("--sw-step-" + i).trim());
};
const prepare = (canvas, tall) => {
  const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth;
  canvas.style.height = tall + "px";
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(tall * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = colour.bg;
  pen.fillRect(0, 0, wide, tall);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return [pen, wide];
};
const clip = (pen, text, room) => {
  if (pen.measureText(text).width <= room) return text;
  while (text && pen.measureText(text + "…").width > room) text = text.slice(0, -1);
  return text + "…";
};

const drawLanes = () => {
  const lanes = now.lanes ? now.lanes.lanes : [];
  drawn = [];
  by("lanes").hidden = !lanes.length;
  if (!lanes.length) return;
  const [pen, wide] = prepare(by("lanes"), RULER + LANE * lanes.length + 4);
  const gutter = Math.min(110, 16 + Math.max(...lanes.map((it) => pen.measureText(it.actor).width)));
  const last = Math.max(...lanes.flatMap((it) => it.spans.map(([, , from, us]) => from + us)));
  const x = (us) => gutter + (us / last) * (wide - gutter - 4);
  ruler(pen, x, last, gutter, wide, lanes.length);
  const at = new Map(); // "op,step" to where it is
  lanes.forEach((lane, row) => {
    const top = RULER + row * LANE;
    pen.fillStyle = colour.ink;
    pen.fillText(clip(pen, lane.actor, gutter - 12), 6, top + LANE / 2);
    pen.fillStyle = colour.band;
    pen.fillRect(gutter, top + 2, wide - gutter - 4, LANE - 4);
    for (const [op, step, from, us] of lane.spans) {
      const left = x(from), right = Math.max(x(from + us), left + 1);
      at.set(op + "," + step, { left, right, y: top + LANE / 2 });
      drawn.push({ left, right, top, op, step, us });
      paintOp(pen, op, step, left, right, top);
    }
  });
  paintWaits(pen, at);
};
const paintOp = (pen, op, step, left, right, top) => {
  const wide = right - left;
  pen.fillStyle = colour.steps[step % colour.steps.length];
  pen.fillRect(left, top + 4, Math.max(wide - (wide > 4 ? 1 : 0), 1), LANE - 8);
  if (wide < 24) return;
  const short = now.plan.ops[op].replace(/\.(host|device)/, "");
  const text = [`${short} ${step}`, short, `${step}`].find(
    (each) => pen.measureText(each).width <= wide - 8);
  if (!text) return;
  pen.fillStyle = colour["on-step"];
  pen.fillText(text, left + 4, top + LANE / 2 + 1);
};
const paintWaits = (pen, at) => {
  pen.strokeStyle = colour.wait;
  for (const [source, target, distance] of now.plan.waits) {
    for (const [place, to] of at) {
      const [op, step] = place.split(",").map(Number);
      const from = op === target ? at.get(source + "," + (step - distance)) : undefined;
      if (!from || from.y === to.y) continue;
      pen.beginPath();
      pen.moveTo(from.right, from.y);
      pen.lineTo(to.left, to.y);
      pen.stroke();
    }
  }
};
const ruler = (pen, x, last, gutter, wide, rows) => {
  const rough = (last / Math.max(wide - gutter, 1)) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  for (let us = 0; us <= last; us += unit) {
    const place = Math.round(x(us)) + 0.5;
    pen.strokeStyle = colour.line;
    pen.beginPath();
    pen.moveTo(place, RULER - 6);
    pen.lineTo(place, RULER + rows * LANE);
    pen.stroke();
    pen.fillStyle = colour.muted;
    if (place + 50 < wide) pen.fillText(micro(us), place + 4, 9);
  }
};

// A line over the last minutes; `most` is at the top.
const drawChart = (canvas, values, most) => {
  const tall = 64, [pen, wide] = prepare(canvas, tall);
  const span = Math.max(KEPT - 1, 1), top = most || 1;
  const place = (value, i) =>
    [wide - ((values.length - 1 - i) / span) * wide, tall - 4 - (value / top) * (tall - 10)];
  pen.strokeStyle = colour.data;
  pen.lineWidth = 1.5;
  pen.beginPath();
  let begun = false;
  values.forEach((value, i) => {
    if (value === null) { begun = false; return; }
    const [left, y] = place(value, i);
    if (begun) pen.lineTo(left, y); else pen.moveTo(left - (values.length === 1 ? 3 : 0), y);
    begun = true;
  });
  pen.stroke();
};
