// The second part: what is said about an op or an idle time.

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
  const protects = data.waits.find((wait) => wait[0] === op && wait[1] === lane.op[i] &&
    wait[2] === distance)?.[3];
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
