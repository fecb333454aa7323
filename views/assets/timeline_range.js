// The sixth part: measuring a range of time. Drag with Shift held, or with "Measure" on; or press
// r at one op, then at another.

let range = null; // [from, to] in µs
let measuring = false;
let marked = null; // where r was pressed first

const setMeasuring = (on) => {
  measuring = on;
  document.getElementById("measure").setAttribute("aria-pressed", on);
  canvas.classList.toggle("measuring", on);
};

const measure = (from, to) => {
  range = from <= to ? [from, to] : [to, from];
  tell(describeRange());
  draw();
};

const clearRange = () => {
  range = marked = null;
  draw();
};

/** How much of the range each lane of the run is busy, and what began in it. */
const describeRange = () => {
  const [from, to] = range;
  const shares = lanes.filter((lane) => lane.track === main).map((lane) => {
    let busy = 0;
    for (let i = after(lane, from); i < lane.op.length && lane.start[i] < to; i++)
      busy += Math.min(lane.end[i], to) - Math.max(lane.start[i], from);
    return `${lane.actor} ${percent(busy, to - from || 1)}`;
  });
  const steps = counted.filter((place) => from <= place.from && place.from < to);
  const tokens = steps.reduce((sum, { k }) => sum + data.counts.tokens[k], 0);
  return [
    `${time(to - from)} measured, from ${time(from - first)} to ${time(to - first)}`,
    `${((to - from) / data.period).toFixed(2)} periods of the run; busy: ${shares.join(", ")}`,
    steps.length ? `${steps.length} steps begin in it, and settle ${tokens} tokens` : "",
  ];
};

const paintRange = (pen) => {
  if (!range) return;
  const [left, right] = range.map(x);
  pen.fillStyle = colour.data;
  pen.globalAlpha = 0.16;
  pen.fillRect(left, RULER - 6, right - left, height);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour.data;
  for (const edge of [left, right]) {
    pen.beginPath(); pen.moveTo(edge, RULER - 6); pen.lineTo(edge, height); pen.stroke();
  }
  const words = time(range[1] - range[0]), wide = pen.measureText(words).width + 10;
  const at = Math.max(gutter, Math.min((left + right - wide) / 2, width - wide));
  pen.fillStyle = colour.data;
  pen.fillRect(at, 2, wide, 17);
  pen.fillStyle = colour.bg;
  pen.fillText(words, at + 5, 11);
};

/** r: the range begins with the selected op, or ends with it if it has begun. */
const markRange = () => {
  if (!selected) return;
  const [from, to] = extent(selected);
  if (marked === null) {
    marked = from;
    return measure(from, to);
  }
  measure(Math.min(marked, from), Math.max(marked, to));
  marked = null;
};
