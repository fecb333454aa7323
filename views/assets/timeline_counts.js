// The fourth part: what each step had to do with, drawn over the time from its beginning in the
// run to that of the next step.

const COUNT = COUNT_TALL;
const percent = (part, of) => `${Math.round((100 * part) / of)} %`;
const COUNTERS = data.counts.step.length ? [
  { name: "rows", at: (k) => data.counts.rows[k], most: Math.max(1, ...data.counts.rows),
    says: (k) => `${data.counts.rows[k]} rows, ${data.counts.waiting[k]} requests without one` },
  { name: "cache", at: (k) => data.counts.blocks[k], most: data.counts.blocks_in_all,
    says: (k) => `${data.counts.blocks[k]} of ${data.counts.blocks_in_all} blocks held ` +
      `(${percent(data.counts.blocks[k], data.counts.blocks_in_all)})` },
  ...(data.counts.drafted.some(Boolean) ? [{ name: "accepted",
    at: (k) => (data.counts.drafted[k] ? data.counts.accepted[k] / data.counts.drafted[k] : null),
    most: 1,
    says: (k) => (data.counts.drafted[k] ? `${data.counts.accepted[k]} of ` +
      `${data.counts.drafted[k]} drafts accepted ` +
      `(${percent(data.counts.accepted[k], data.counts.drafted[k])})` : "no drafts verified") }] : []),
] : [];

/** When each counted step begins in the run; a step that is not drawn has no place. */
const counted = (() => {
  const begun = new Map();
  for (const lane of lanes) {
    if (lane.track !== main) continue;
    lane.step.forEach((step, i) =>
      begun.set(step, Math.min(begun.get(step) ?? Infinity, lane.start[i])));
  }
  const places = data.counts.step.flatMap((step, k) =>
    (begun.has(step) ? [{ k, step, from: begun.get(step) }] : []));
  places.forEach((place, n) => { place.to = places[n + 1]?.from ?? last; });
  return places;
})();

const paintCounts = (pen) => {
  COUNTERS.forEach((counter, row) => {
    const floor = countersTop + TITLE + (row + 1) * COUNT - 6, tall = COUNT - 8;
    pen.fillStyle = colour.band;
    pen.fillRect(gutter, floor - tall, width - gutter, tall);
    for (const { k, step, from, to } of counted) {
      const value = counter.at(k);
      if (value === null || to < view.from || from > view.to) continue;
      const high = Math.max((value / counter.most) * tall, value ? 1 : 0);
      pen.fillStyle = colour.steps[step % data.colours];
      pen.fillRect(x(from), floor - high, Math.max(x(to) - x(from), 1), high);
    }
  });
};

const countNames = (pen) => {
  if (!COUNTERS.length) return;
  title(pen, "counts by step", countersTop);
  pen.fillStyle = colour.ink;
  COUNTERS.forEach((counter, row) =>
    pen.fillText(counter.name, 10, countersTop + TITLE + (row + 0.5) * COUNT));
};

const countAt = (px, py) => {
  const row = Math.floor((py - countersTop - TITLE) / COUNT);
  if (!COUNTERS[row] || py < countersTop + TITLE || px < gutter) return null;
  const moment = us(px);
  const place = counted.find(({ from, to }) => from <= moment && moment < to);
  return place ? { counter: COUNTERS[row], place } : null;
};

const describeCount = ({ place: { k, step } }) => [
  `step ${step}`, ...COUNTERS.map((counter) => counter.says(k)),
  `${data.counts.tokens[k]} tokens settled`,
];
