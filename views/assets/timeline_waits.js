// The fifth part: arrows for the waits of the plan, in every step that is in view.

const MOST_STEPS = 14; // in view; with more, arrows would cover the lanes
const waitsInto = new Map(); // number of an op: the indices of the waits before it
data.waits.forEach(([, target], k) => {
  if (!waitsInto.has(target)) waitsInto.set(target, []);
  waitsInto.get(target).push(k);
});

const stepsInView = () => {
  let [low, high] = [Infinity, -Infinity];
  for (const lane of lanes) {
    if (lane.track !== main || !lane.op.length) continue;
    const begin = Math.min(after(lane, view.from), lane.op.length - 1);
    const end = Math.min(after(lane, view.to), lane.op.length - 1);
    low = Math.min(low, lane.step[begin]);
    high = Math.max(high, lane.step[end]);
  }
  return high - low + 1;
};

/** The waits whose ends are both drawn: where the awaited op ended, where the waiting one began. */
function* arrows() {
  for (const lane of lanes) {
    for (let i = after(lane, view.from); lane.start[i] <= view.to; i++) {
      for (const k of waitsInto.get(lane.op[i]) ?? []) {
        const [source, , distance] = data.waits[k];
        const from = lane.track.index.get(source + "," + (lane.step[i] - distance));
        if (from && from[0].start[from[1]] <= view.to) yield { k, from, to: [lane, i] };
      }
    }
  }
}

const touches = (arrow) => selected && !selected.gap &&
  [arrow.from, arrow.to].some(([lane, i]) => selected.lane === lane && selected.i === i);

const paintArrows = (pen) => {
  if (!document.getElementById("waits").checked || stepsInView() > MOST_STEPS) return 0;
  let count = 0;
  for (const arrow of arrows()) {
    const [source, target] = [arrow.from[0], arrow.to[0]];
    const down = target.y > source.y;
    const x1 = x(source.end[arrow.from[1]]), x2 = x(target.start[arrow.to[1]]);
    const y1 = source.y + (down || source === target ? LANE - 7 : 3);
    const y2 = target.y + (down ? 3 : LANE - 7);
    const middle = source === target ? y1 + 12 : (y1 + y2) / 2;
    pen.strokeStyle = pen.fillStyle = colour.wait;
    pen.globalAlpha = touches(arrow) ? 1 : 0.7;
    pen.lineWidth = touches(arrow) ? 2.5 : 1.2;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1, middle, x2, middle, x2, y2);
    pen.stroke();
    const tip = y2 > middle ? -6 : 6;
    pen.beginPath();
    pen.moveTo(x2, y2);
    pen.lineTo(x2 - 3.5, y2 + tip);
    pen.lineTo(x2 + 3.5, y2 + tip);
    pen.fill();
    count++;
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  return count;
};

/** Links from an op to its waits in the table of the plan's waits. */
const waitLinks = ({ lane, i }) => {
  const op = lane.op[i];
  const own = data.waits.map((wait, k) => [wait, k])
    .filter(([[source, target]]) => source === op || target === op);
  if (!own.length) return null;
  const line = document.createElement("p");
  line.append("In the plan: ");
  own.forEach(([[source, target], k], place) => {
    const link = document.createElement("a");
    link.href = `#wait-${k + 1}`;
    link.textContent = `wait ${k + 1}`;
    const which = target === op ? `it waits for ${data.ops[source]}`
      : `${data.ops[target]} waits for it`;
    line.append(place ? "; " : "", link, ` (${which})`);
  });
  return line;
};
