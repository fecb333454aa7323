// The third part: where each drawing lies on the stage and how large it is; panning and zooming.

const [READABLE, LARGEST] = [0.6, 1.25]; // scales at which a drawing may be shown at first
const size = (view) => drawings[view].viewBox.baseVal;
const sight = Object.fromEntries(
  VIEWS.map((view) => [view, { scale: 0, x: 0, y: 0, touched: false }]),
);

const narrow = matchMedia("(max-width: 900px)"); // as in page.css

/** How high the stage may be: on a narrow page it is only as high as its drawing. */
function room() {
  return narrow.matches ? Math.round(innerHeight * 0.62) : stage.clientHeight;
}

/** The scale at which all of a drawing fits. */
function whole(view) {
  return Math.min(stage.clientWidth / size(view).width, room() / size(view).height);
}

/** How far down the boxes of a drawing reach, in its own units. */
function reach(view) {
  const boxes = [...drawings[view].querySelectorAll("g.op, g.version")];
  return Math.max(...boxes.map((g) => g.getBBox()).map((box) => box.y + box.height));
}

const reaches = Object.fromEntries(VIEWS.map((view) => [view, reach(view)]));

/**
 * At first as large as it fits beside the details. All lanes fit; where the drawing is too wide
 * to be read whole, its first steps do.
 */
function place(view) {
  const at = sight[view];
  if (!at.touched) {
    const lanes = room() / (reaches[view] + 12);
    const readable = view === "lanes" ? Math.min(READABLE, lanes) : READABLE;
    at.scale = Math.min(Math.max(whole(view), readable), LARGEST);
    centre(view, stage.clientWidth);
  }
  drawn(view);
}

/** On a narrow page what follows the drawing begins where the drawing ends. */
function fold() {
  const at = sight[state.view];
  if (!at.touched)
    stage.style.setProperty("--drawn", `${size(state.view).height * at.scale + at.y}px`);
}

/** The room for the drawings changed: the window did, or the details opened or closed. */
function resized() {
  hideTip();
  VIEWS.forEach(place);
  fold();
  const chosen = sheets[state.view].querySelector("g.selected");
  if (chosen && sight[state.view].touched) bringIntoSight(chosen);
}

function centre(view, width) {
  const at = sight[view];
  at.x = Math.max(0, (width - size(view).width * at.scale) / 2);
  at.y = Math.max(0, Math.min(16, room() - size(view).height * at.scale));
}

function drawn(view) {
  const at = sight[view];
  const svg = drawings[view];
  svg.style.width = `${size(view).width * at.scale}px`;
  svg.style.height = `${size(view).height * at.scale}px`;
  svg.style.transform = `translate(${at.x}px, ${at.y}px)`;
}

function pan(dx, dy) {
  const at = sight[state.view];
  const { width, height } = size(state.view);
  const edge = 60; // so much of the drawing stays in sight
  at.x = Math.min(Math.max(at.x + dx, edge - width * at.scale), stage.clientWidth - edge);
  at.y = Math.min(Math.max(at.y + dy, edge - height * at.scale), stage.clientHeight - edge);
  at.touched = true;
  drawn(state.view);
}

/** Zooms so that what lies under (x, y) of the window stays there. */
function zoom(factor, x, y) {
  const at = sight[state.view];
  const box = stage.getBoundingClientRect();
  const [cx, cy] = [
    (x ?? box.left + box.width / 2) - box.left,
    (y ?? box.top + box.height / 2) - box.top,
  ];
  const scale = Math.min(Math.max(at.scale * factor, Math.min(0.15, whole(state.view))), 8);
  at.x = cx - ((cx - at.x) * scale) / at.scale;
  at.y = cy - ((cy - at.y) * scale) / at.scale;
  at.scale = scale;
  pan(0, 0);
}

function fit() {
  const at = sight[state.view];
  at.scale = whole(state.view);
  at.touched = true;
  centre(state.view, stage.clientWidth);
  drawn(state.view);
}

function bringIntoSight(g) {
  const box = g.getBoundingClientRect();
  const around = stage.getBoundingClientRect();
  const shift = (low, high, from, to) =>
    low < from ? from - low : high > to ? Math.max(to - high, from - low) : 0;
  const dx = shift(box.left, box.right, around.left + 20, around.right - 20);
  const dy = shift(box.top, box.bottom, around.top + 20, around.bottom - 20);
  if (dx || dy) pan(dx, dy);
}

function panning() {
  const pointers = new Map();
  let travelled = 0;
  const spread = () => {
    const [a, b] = [...pointers.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, apart: Math.hypot(a.x - b.x, a.y - b.y) || 1 };
  };
  stage.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  });
  addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const [dx, dy] = [event.clientX - last.x, event.clientY - last.y];
    const before = pointers.size === 2 ? spread() : null;
    travelled += Math.abs(dx) + Math.abs(dy);
    if (before) {
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      const after = spread();
      pan(after.x - before.x, after.y - before.y);
      zoom(after.apart / before.apart, after.x, after.y);
    } else if (travelled > 4) {
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      stage.classList.add("dragged");
      pan(dx, dy);
    }
  });
  const released = (event) => {
    pointers.delete(event.pointerId);
    if (!pointers.size) setTimeout(() => stage.classList.remove("dragged")); // after the click
  };
  addEventListener("pointerup", released);
  addEventListener("pointercancel", released);
  stage.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === 1 ? 20 : 1);
      zoom(
        Math.exp(-Math.max(-240, Math.min(240, pixels)) / (event.ctrlKey ? 120 : 600)),
        event.clientX,
        event.clientY,
      );
    },
    { passive: false },
  );
}
