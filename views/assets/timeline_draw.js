// The third part: painting lanes, requests and the map on their canvases.

const read = () => {
  const style = getComputedStyle(document.documentElement);
  colour = {};
  for (const name of ["bg", "ink", "muted", "line", "band", "node", "wait", "ghost", "data",
    "on-step"]) colour[name] = style.getPropertyValue("--sw-" + name).trim();
  colour.steps = Array.from({ length: data.colours }, (_, i) =>
    style.getPropertyValue("--sw-step-" + i).trim());
};
const prepare = (it, tall) => {
  const ratio = window.devicePixelRatio || 1;
  const wide = it.clientWidth;
  it.width = Math.round(wide * ratio);
  it.height = Math.round(tall * ratio);
  const pen = it.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = colour.bg;
  pen.fillRect(0, 0, wide, tall);
  return [pen, wide];
};
let hatch = null;
const hatched = (pen) => {
  if (hatch) return hatch;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const it = tile.getContext("2d");
  it.strokeStyle = colour.ghost;
  it.lineWidth = 1;
  for (const shift of [-7, 0, 7]) {
    it.beginPath(); it.moveTo(shift, 7); it.lineTo(shift + 7, 0); it.stroke();
  }
  hatch = pen.createPattern(tile, "repeat");
  return hatch;
};
const FONT = "12px Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans Condensed', sans-serif";
const fitted = (pen, texts, room) => texts.find((text) => pen.measureText(text).width <= room);

let waiting = false;
let drawnArrows = 0;
const draw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(); });
};
const paint = () => {
  canvas.style.height = height + "px";
  let pen;
  [pen, width] = prepare(canvas, height);
  pen.font = FONT;
  gutter = Math.min(150, 18 + Math.max(60, ...lanes.map((lane) =>
    pen.measureText(lane.actor).width)));
  pen.textBaseline = "middle";
  for (const lane of lanes) {
    pen.fillStyle = colour.band;
    pen.fillRect(gutter, lane.y, width - gutter, LANE - 4);
  }
  pen.save();
  pen.beginPath(); pen.rect(gutter, 0, width - gutter, height); pen.clip();
  ruler(pen);
  lanes.forEach((lane) => paintLane(pen, lane));
  paintCounts(pen);
  rows.forEach((row) => paintRequest(pen, row));
  drawnArrows = paintArrows(pen);
  paintRange(pen);
  pen.restore();
  titles(pen);
  countNames(pen);
  paintMap();
};
const ruler = (pen) => {
  const rough = ((view.to - view.from) / (width - gutter)) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  for (let at = Math.ceil((view.from - first) / unit) * unit; at <= view.to - first; at += unit) {
    const place = Math.round(x(first + at)) + 0.5;
    pen.strokeStyle = colour.line;
    pen.beginPath(); pen.moveTo(place, RULER - 6); pen.lineTo(place, height); pen.stroke();
    pen.fillStyle = colour.muted;
    pen.fillText(time(at).replace(".0 µs", " µs").replace(".00 ms", " ms"), place + 4, 11);
  }
};
const titles = (pen) => {
  pen.textAlign = "left";
  for (const track of data.tracks) {
    const aligned = track.aligned === undefined ? "" : `, aligned at step ${track.aligned}`;
    title(pen, track.name + aligned, track.y);
  }
  if (rows.length) {
    const more = data.requests.length - rows.length;
    title(pen, "requests" + (more > 0 ? `, the first ${rows.length} of ${data.requests.length}` : ""),
      rows.y);
    let at = gutter + 100;
    PARTS.forEach((part, i) => {
      pen.fillStyle = tones()[i];
      pen.fillRect(at, rows.y + TITLE / 2 - 4, 9, 9);
      pen.fillStyle = colour.muted;
      pen.fillText(part, at + 13, rows.y + TITLE / 2 + 1);
      at += 26 + pen.measureText(part).width;
    });
  }
  pen.fillStyle = colour.ink;
  for (const lane of lanes) {
    const on = selected && selected.lane === lane;
    pen.font = (on ? "bold " : "") + FONT;
    pen.fillText(clip(pen, lane.actor, gutter - 16), 10, lane.y + (LANE - 4) / 2);
  }
  pen.font = FONT;
  for (const row of rows) {
    pen.fillStyle = colour.ink;
    pen.fillText(clip(pen, row.request.id, gutter - 16), 10, row.y + ROW / 2);
  }
};
const title = (pen, text, y) => {
  pen.font = "600 11px Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans Condensed', sans-serif";
  pen.fillStyle = colour.muted;
  pen.fillText(text.toUpperCase(), 10, y + TITLE / 2 + 1);
  pen.font = FONT;
};
const clip = (pen, text, room) => {
  if (pen.measureText(text).width <= room) return text;
  while (text && pen.measureText(text + "…").width > room) text = text.slice(0, -1);
  return text + "…";
};
const paintLane = (pen, lane) => {
  const top = lane.y + 3, tall = LANE - 10;
  const gaps = document.getElementById("gaps").checked;
  const chain = document.getElementById("chain").checked;
  let drawn = -Infinity; // what is narrower than a pixel is drawn once per pixel
  for (let i = after(lane, view.from); i < lane.op.length; i++) {
    const left = x(lane.start[i]), right = Math.max(x(lane.end[i]), left + 1);
    if (i > 0 && gaps && lane.start[i] > lane.end[i - 1]) paintGap(pen, lane, i, top, tall);
    if (lane.start[i] > view.to) break;
    if (right < drawn + 1) continue;
    drawn = Math.floor(right);
    const wide = right - left;
    pen.globalAlpha = matches && !matches.has(lane.op[i]) ? 0.2 : 1;
    pen.fillStyle = colour.steps[lane.step[i] % data.colours];
    pen.fillRect(left, top, Math.max(wide - (wide > 4 ? 1 : 0), 1), tall);
    if (chain && lane.chain[i]) {
      pen.fillStyle = colour.wait;
      pen.fillRect(left, top + tall - 3, Math.max(wide - (wide > 4 ? 1 : 0), 1), 3);
    }
    if (wide > 22) {
      const visible = Math.min(right, width) - Math.max(left, gutter) - 8;
      const name = data.ops[lane.op[i]], short = name.replace(/\.(host|device)/, "");
      const text = fitted(pen, [`${short} ${lane.step[i]}`, short, `${lane.step[i]}`], visible);
      if (text) {
        pen.fillStyle = colour["on-step"];
        pen.fillText(text, Math.max(left, gutter) + 4, top + tall / 2 - 1);
      }
    }
    pen.globalAlpha = 1;
    if (selected && !selected.gap && selected.lane === lane && selected.i === i) {
      frame(pen, left, top, wide, tall);
    }
  }
};
const frame = (pen, left, top, wide, tall) => {
  pen.strokeStyle = colour.ink;
  pen.lineWidth = 2;
  pen.strokeRect(left - 1, top - 1, wide + 2, tall + 2);
  pen.lineWidth = 1;
};
const paintGap = (pen, lane, i, top, tall) => {
  const left = Math.max(x(lane.end[i - 1]), gutter), right = Math.min(x(lane.start[i]), width);
  if (right - left < 3) return;
  pen.fillStyle = hatched(pen);
  pen.fillRect(left, top + 3, right - left, tall - 6);
  if (right - left > 70) {
    const held = lane.track.helds[lane.held[i]];
    const name = held && (held[2] !== "order" || data.serial) ? "waits for " + data.ops[held[0]] : "hand-over";
    const text = fitted(pen, [name, "waits"], right - left - 16);
    if (text) {
      const wide = pen.measureText(text).width + 8, at = (left + right - wide) / 2;
      pen.fillStyle = colour.band;
      pen.fillRect(at, top + 4, wide, tall - 8);
      pen.fillStyle = colour.muted;
      pen.fillText(text, at + 4, top + tall / 2);
    }
  }
  if (selected && selected.gap && selected.lane === lane && selected.i === i) {
    frame(pen, left, top, right - left, tall);
  }
};
const tones = () => [colour.wait, colour.ghost, colour.data, colour.steps[2]];
const PARTS = ["grammar", "queue", "prefill", "decode"];
const paintRequest = (pen, { request, y }) => {
  PARTS.forEach((part, i) => {
    const from = request.at[i];
    if (from === null) return;
    const to = request.at.slice(i + 1).find((at) => at !== null);
    if (to === undefined) return;
    const left = x(from), right = Math.max(x(to), left + 1);
    pen.fillStyle = tones()[i];
    pen.fillRect(left, y + 3, right - left, ROW - 6);
  });
};
const paintMap = () => {
  const [pen, wide] = prepare(map, 40);
  const at = (value) => ((value - first) / (last - first)) * wide;
  const shown = lanes.filter((lane) => lane.track === main);
  const tall = 36 / shown.length;
  shown.forEach((lane, row) => {
    let drawn = -1;
    for (let i = 0; i < lane.op.length; i++) {
      const left = at(lane.start[i]), right = at(lane.end[i]);
      if (right < drawn) continue;
      drawn = Math.ceil(Math.max(right, left + 0.5));
      pen.fillStyle = colour.steps[lane.step[i] % data.colours];
      pen.fillRect(left, 2 + row * tall, Math.max(right - left, 0.5), Math.max(tall - 2, 1));
    }
  });
  pen.fillStyle = colour.bg;
  pen.globalAlpha = 0.6;
  pen.fillRect(0, 0, at(view.from), 40);
  pen.fillRect(at(view.to), 0, wide - at(view.to), 40);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour.ink;
  pen.lineWidth = 2;
  pen.strokeRect(at(view.from) + 1, 1, Math.max(at(view.to) - at(view.from) - 2, 2), 38);
  pen.lineWidth = 1;
};
