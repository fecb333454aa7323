// The third part: figures and tables. All texts of the service are set as text, never as HTML.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const micro = (us) => us >= 1e4 ? one.format(us / 1e3) + " ms" : whole.format(us) + " µs";
const milli = (s) => s === null ? "–" : one.format(s * 1e3);
const percent = (share) => share === null ? "–" : whole.format(share * 100) + "%";

const element = (name, text, kind) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
// Cells that are numbers are of the columns in `numbers`; a cell may be an element.
const table = (id, heads, rows, numbers = []) => {
  const filled = (kind, cells) => {
    const row = element("tr");
    cells.forEach((cell, i) => {
      const made = cell instanceof Node ? element(kind) : element(kind, cell);
      if (cell instanceof Node) { made.append(cell); made.className = cell.dataset.cell || ""; }
      if (numbers.includes(i)) made.className = "n";
      row.append(made);
    });
    return row;
  };
  const head = element("thead"), body = element("tbody");
  head.append(filled("th", heads));
  body.append(...rows.map((cells) => filled("td", cells)));
  by(id).replaceChildren(head, body);
  by(id).closest("section").hidden = !rows.length;
};

const fact = (name, value, note = "") => {
  const made = element("div");
  made.append(element("dt", name), element("dd", value));
  made.lastChild.append(element("small", note));
  return made;
};
const facts = () => {
  const { totals, figures } = now, per = rate((it) => it.totals.tokens);
  const drafted = rate((it) => it.totals.drafted);
  const kept = rate((it) => it.totals.accepted), windows = rate((it) => it.totals.windows);
  const recent = drafted > 0 ? { drafted, accepted: kept, windows } : totals;
  const length = (of) => (1 + of.accepted / of.windows).toFixed(2);
  const found = [
    fact("tokens per second", per === null ? "–" : whole.format(per),
      `${whole.format(totals.tokens)} so far`),
    fact("running", `${whole.format(now.running)}`, `of ${whole.format(now.rows)} rows`),
    fact("waiting", `${whole.format(now.queued)}`, `of ${whole.format(now.queue_limit)} at most`),
    fact("KV blocks", percent(now.blocks_in_all ? now.blocks / now.blocks_in_all : null),
      `${whole.format(now.blocks)} of ${whole.format(now.blocks_in_all)}`),
  ];
  if (totals.drafted) {
    found.push(fact("tokens per window", length(recent),
      `${length(totals)} so far`));
    found.push(fact("drafts accepted", percent(recent.accepted / recent.drafted),
      `${percent(totals.accepted / totals.drafted)} so far`));
  }
  if (figures) {
    found.push(fact("time per step", micro(figures.period_us),
      `${micro(figures.predicted_us)} predicted`));
    found.push(fact("host work hidden", percent(figures.hidden), "a device is busy meanwhile"));
  }
  found.push(fact("requests", whole.format(totals.requests),
    `${whole.format(totals.failed_requests)} failed, ${whole.format(totals.preemptions)} preemptions`));
  if (totals.failed_steps) found.push(fact("failed steps", whole.format(totals.failed_steps)));
  by("facts").replaceChildren(...found);
};

const CHARTS = [
  ["tokens per second", (it) => it.rate, (most) => most, whole.format],
  ["running", (it) => it.running, () => now.rows, whole.format],
  ["waiting", (it) => it.queued, (most) => most, whole.format],
  ["KV blocks", (it) => it.blocks, () => 1, percent],
];
const charts = () => {
  if (!by("charts").children.length)
    by("charts").append(...CHARTS.map(() => {
      const made = element("figure");
      made.append(element("figcaption"), element("canvas"));
      made.lastChild.setAttribute("aria-hidden", "true");
      return made;
    }));
  CHARTS.forEach(([name, of, top, said], i) => {
    const values = history.map(of), [caption, canvas] = by("charts").children[i].children;
    const most = Math.max(0, ...values.filter((value) => value !== null));
    caption.textContent = `${name}, the last ${whole.format(KEPT / 60)} minutes; at most ${said(most)}`;
    drawChart(canvas, values, top(most));
  });
};

const switches = () => {
  const { count, latest } = now.switches;
  by("switches-note").textContent =
    `${whole.format(count)} so far. Steps go on meanwhile, and requests notice nothing.`;
  table("switches", ["from step", "before", "after", "why"],
    latest.map((it) => [`${it.step}`, it.before, it.after,
      [it.reason, it.said].filter((part) => part).join(": ")]), [0]);
};
const tables = () => {
  const { figures, totals } = now;
  table("idle", ["actor", "before", "why", "idle µs", "hand-over µs"],
    figures ? figures.idle.map((it) =>
      [it.actor, it.op, it.why, one.format(it.us), one.format(it.late_us)]) : [], [3, 4]);
  table("waits", ["op", "waits for", "µs per step"],
    figures ? figures.waits.map((it) => [it.op, it.event, one.format(it.us)]) : [], [2]);
  table("ops", ["op", "actor", "median µs", "of its actor"],
    figures ? figures.ops.map((it) =>
      [it.op, it.actor, one.format(it.median_us), percent(it.share)]) : [], [2, 3]);
  table("accepted", ["position", "", "of the windows"],
    totals.accepted_at.map((times, i) => {
      const share = totals.windows ? times / totals.windows : 0;
      return [`${i + 1}`, bar([[share, 3]]), percent(share)];
    }), [2]);
  requests();
};
// Parts of a line: [share, colour]; the line is as long as 1.
const bar = (parts) => {
  const made = element("div");
  made.dataset.cell = "bar";
  for (const [share, kind] of parts) {
    const part = element("span", undefined, "part-" + kind);
    part.style.width = Math.max(share, 0) * 100 + "%";
    made.append(part);
  }
  return made;
};
const requests = () => {
  const longest = Math.max(1e-9, ...now.requests.map((it) => it.so_far_s));
  const parts = (it) => {
    const ends = [0, it.submitted_s, it.scheduled_s, it.first_token_s];
    const found = [];
    ends.forEach((from, kind) => {
      if (from === null) return;
      const to = ends.slice(kind + 1).find((at) => at !== null) ?? it.so_far_s;
      found.push([((to - from) / longest) * 0.98, kind]);
    });
    return found;
  };
  const named = (it) => {
    const made = element("div", it.id, "id");
    made.title = it.id;
    return made;
  };
  table("requests",
    ["request", "", "queue ms", "first token ms", "so far ms", "prompt", "tokens", "end"],
    now.requests.map((it) => [named(it), bar(parts(it)), milli(it.scheduled_s),
      milli(it.first_token_s), milli(it.so_far_s), whole.format(it.prompt_tokens),
      whole.format(it.tokens), it.end || "runs"]), [2, 3, 4, 5, 6]);
};
