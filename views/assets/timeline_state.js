// The first part of a timeline's page: what there is, and which part of it is in view.
// The data, one column per attribute, all whole numbers; times in `ticks` per µs.
//   tracks: [{name, lanes: [{actor, op, step, gap, us, held, late?}], helds: [[op, distance, by]]}]
//   step: less that of the span before; gap: since the end of the span before; held: into helds.

const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("lanes");
const map = document.getElementById("map");
const tip = document.getElementById("tip");
const picked = document.getElementById("picked");
const found = document.getElementById("found");
const search = document.getElementById("search");
const COUNT_TALL = 30, COUNT_ROWS = data.counts.drafted.some(Boolean) ? 3 : 2;
const RULER = 24, LANE = 34, TITLE = 20, ROW = 16, MOST_ROWS = 24;

// --- what is there ------------------------------------------------------------------------------

const lanes = [];
for (const track of data.tracks) {
  track.index = new Map();
  for (const it of track.lanes) {
    const size = it.op.length;
    const lane = { track, actor: it.actor, op: it.op, held: it.held, late: it.late,
      step: new Int32Array(size), start: new Float64Array(size), end: new Float64Array(size),
      chain: new Uint8Array(size) };
    let at = 0, step = 0;
    for (let i = 0; i < size; i++) {
      lane.start[i] = (at + it.gap[i]) / data.ticks;
      at += it.gap[i] + it.us[i];
      lane.end[i] = at / data.ticks;
      lane.step[i] = step += it.step[i];
      track.index.set(it.op[i] + "," + step, [lane, i]);
    }
    lanes.push(lane);
  }
}
const main = data.tracks[0];
const holder = (lane, i) => {
  const held = lane.track.helds[lane.held[i]];
  return held ? lane.track.index.get(held[0] + "," + (lane.step[i] - held[1])) : undefined;
};
if (data.chain) {
  let link = main.index.get(data.chain.join());
  while (link && link[0].step[link[1]] >= data.steady[0]) {
    link[0].chain[link[1]] = 1;
    link = holder(...link);
  }
}
let first = Infinity, last = -Infinity;
for (const lane of lanes) {
  if (!lane.op.length) continue;
  first = Math.min(first, lane.start[0]);
  last = Math.max(last, lane.end[lane.op.length - 1]);
}
for (const request of data.requests) {
  request.at = request.at.map((at) => (at === null ? null : at / data.ticks));
  first = Math.min(first, ...request.at.filter((at) => at !== null));
  last = Math.max(last, ...request.at.filter((at) => at !== null));
}
if (!(last > first)) { first = 0; last = 1; }

// --- where it is --------------------------------------------------------------------------------

let view = { from: first, to: last };
let selected = null; // {lane, i, gap}: a span, or the idle time before it
let matches = null; // a set of op numbers, or null
let width = 0, height = 0, gutter = 90, colour = {};
const rows = [];
let countersTop = 0;
(() => {
  let y = RULER, track = null;
  for (const lane of lanes) {
    if (lane.track !== track) { track = lane.track; track.y = y; y += TITLE; }
    lane.y = y;
    y += LANE;
  }
  countersTop = y;
  if (data.counts.step.length)
    y += TITLE + COUNT_ROWS * COUNT_TALL;
  if (data.requests.length) {
    rows.y = y;
    y += TITLE;
    data.requests.slice(0, MOST_ROWS).forEach((request) => {
      rows.push({ request, y });
      y += ROW;
    });
  }
  height = y + 6;
})();

const x = (us) => gutter + ((us - view.from) / (view.to - view.from)) * (width - gutter);
const us = (px) => view.from + ((px - gutter) / (width - gutter)) * (view.to - view.from);
const clamp = () => {
  const whole = last - first, span = Math.min(Math.max(view.to - view.from, 0.5), whole * 1.04);
  let from = view.from;
  from = Math.min(Math.max(from, first - whole * 0.02), last + whole * 0.02 - span);
  view = { from, to: from + span };
};
const show = (from, to) => { tip.hidden = true; view = { from, to }; clamp(); draw(); };
const zoom = (factor, at = (view.from + view.to) / 2) =>
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
const pan = (share) => {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
};
const steadyView = () => {
  const begin = Math.min(data.steady[0] + Math.max(0, (data.steady[1] - data.steady[0] - 4) >> 1),
    data.steady[1]);
  const spans = lanes.filter((lane) => lane.track === main)
    .flatMap((lane) => between(lane, begin, begin + 4));
  if (!spans.length) return show(first, last);
  const from = Math.min(...spans.map(([a]) => a)), to = Math.max(...spans.map(([, b]) => b));
  align(begin);
  show(from - (to - from) * 0.02, to + (to - from) * 0.02);
};
// The plan and the run drift apart with every step: let them begin one step together.
const begins = (track, step) => Math.min(...lanes.filter((lane) => lane.track === track)
  .flatMap((lane) => between(lane, step, step + 1)).map(([from]) => from));
const align = (step) => {
  for (const track of data.tracks.slice(1)) {
    const by = begins(main, step) - begins(track, step);
    if (!Number.isFinite(by)) continue;
    track.aligned = step;
    for (const lane of lanes) {
      if (lane.track !== track) continue;
      for (let i = 0; i < lane.op.length; i++) { lane.start[i] += by; lane.end[i] += by; }
    }
  }
};
const alignHere = () => {
  const seen = lanes.filter((lane) => lane.track === main && lane.op.length)
    .map((lane) => lane.step[Math.min(after(lane, view.from), lane.op.length - 1)]);
  align(Math.min(Math.max(Math.max(...seen), data.steady[0]), data.steady[1] - 1));
  draw();
};
const between = (lane, from, to) => {
  const hit = [];
  lane.step.forEach((step, i) => {
    if (step >= from && step < to) hit.push([lane.start[i], lane.end[i]]);
  });
  return hit;
};
// The first span of a lane that ends after a time.
const after = (lane, time) => {
  let low = 0, high = lane.op.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
};
