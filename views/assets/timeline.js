"use strict";
// The data, one column per attribute, all whole numbers; times in `ticks` per µs.
//   tracks: [{name, lanes: [{actor, op, step, gap, us, held, late?}], helds: [[op, distance, by]]}]
//   step: less that of the span before; gap: since the end of the span before; held: into helds.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("lanes");
  const map = document.getElementById("map");
  const tip = document.getElementById("tip");
  const picked = document.getElementById("picked");
  const found = document.getElementById("found");
  const search = document.getElementById("search");
  const RULER = 24, LANE = 34, TITLE = 20, ROW = 16, MOST_ROWS = 24;

  // --- what is there -------------------------------------------------------------------------

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

  // --- where it is ---------------------------------------------------------------------------

  let view = { from: first, to: last };
  let selected = null; // {lane, i, gap}: a span, or the idle time before it
  let matches = null; // a set of op numbers, or null
  let width = 0, height = 0, gutter = 90, colour = {};
  const rows = [];
  (() => {
    let y = RULER, track = null;
    for (const lane of lanes) {
      if (lane.track !== track) { track = lane.track; track.y = y; y += TITLE; }
      lane.y = y;
      y += LANE;
    }
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
  const show = (from, to) => { view = { from, to }; clamp(); draw(); };
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

  // --- words ---------------------------------------------------------------------------------

  const time = (value) => {
    const size = Math.abs(value);
    return size >= 1e6 ? (value / 1e6).toFixed(3) + " s"
      : size >= 1e4 ? (value / 1e3).toFixed(2) + " ms"
      : value.toFixed(size >= 100 ? 0 : 1) + " µs";
  };
  const why = (lane, i) => {
    const held = lane.track.helds[lane.held[i]];
    if (!held) return "nothing: the run began";
    const [op, distance, by] = held, name = `${data.ops[op]} of step ${lane.step[i] - distance}`;
    if (by === "order") return `${name}, the op before it` + (data.serial ? "" : " on its actor");
    if (by === "launch") return `its launch, ${name}`;
    const protects = data.waits[[op, lane.op[i], distance].join()];
    return `the wait for ${name}` + (protects ? ` (${protects})` : "");
  };
  const describe = ({ lane, i, gap }) => {
    const op = `${data.ops[lane.op[i]]} of step ${lane.step[i]}`;
    const late = lane.late ? lane.late[i] / data.ticks : 0;
    if (!gap) {
      return [`${op}`, `${time(lane.end[i] - lane.start[i])} on ${lane.actor}, ${lane.track.name}; ` +
        `from ${time(lane.start[i] - first)}`, `held by ${why(lane, i)}`,
        late > 0 ? `hand-over ${time(late)}` : ""];
    }
    const idle = lane.start[i] - lane.end[i - 1];
    const over = Math.min(late, idle);
    const cause = lane.track.helds[lane.held[i]];
    const said = cause && cause[2] === "order" && !data.serial ? "hand-over alone: nothing was waited for"
      : `because of ${why(lane, i)}`;
    return [`${lane.actor} idle for ${time(idle)}`, `before ${op}`, said,
      cause && (cause[2] !== "order" || data.serial) && over > 0 ? `of it hand-over: ${time(over)}` : ""];
  };

  // --- drawing -------------------------------------------------------------------------------

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
    rows.forEach((row) => paintRequest(pen, row));
    pen.restore();
    titles(pen);
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

  // --- choosing ------------------------------------------------------------------------------

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

  // --- hands ---------------------------------------------------------------------------------

  const keys = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1),
    ArrowUp: () => change(-1), ArrowDown: () => change(1),
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    a: () => pan(-0.25), d: () => pan(0.25), PageUp: () => pan(-0.9), PageDown: () => pan(0.9),
    Home: () => show(first, first + view.to - view.from),
    End: () => show(last - (view.to - view.from), last),
    0: () => show(first, last), s: steadyView, p: alignHere, h: follow,
    g: () => nextGap(1), G: () => nextGap(-1), Escape: () => select(null),
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
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target === search) return;
    event.preventDefault();
    search.focus();
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
    held = { x: event.offsetX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = event.offsetX - held.x;
      if (Math.abs(by) > 3) held.moved = true;
      if (held.moved) {
        tip.hidden = true;
        canvas.classList.add("moving");
        const span = ((held.to - held.from) * by) / (width - gutter);
        show(held.from - span, held.to - span);
      }
      return;
    }
    const row = requestAt(event.offsetX, event.offsetY);
    const hit = at(event.offsetX, event.offsetY);
    tip.hidden = !hit && !row;
    if (tip.hidden) return;
    tip.textContent = (hit ? describe(hit) : describeRequest(row.request)).filter(Boolean).join("\n");
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
  const repaint = () => { hatch = null; read(); paint(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  window.addEventListener("beforeprint", repaint);
  new ResizeObserver(draw).observe(canvas.parentElement);
  read();
  paint();
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
    selected: () => selected && { op: data.ops[selected.lane.op[selected.i]],
      step: selected.lane.step[selected.i], actor: selected.lane.actor,
      track: selected.lane.track.name, idle: selected.gap },
  };
})();
