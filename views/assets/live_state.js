// The first part of the live page: asking the service, and what it has said so far.
// One answer is a JSON object as `server/live/snapshot.py` says; times in it are seconds.

const EVERY_MS = 1000, KEPT = 180;
const by = (id) => document.getElementById(id);
let now = null, before = null; // the last two answers
let history = []; // {at, rate, running, queued, blocks}, one per answer
let paused = false;
let key = sessionStorage.getItem("stepweave-key") || "";

const rate = (of) => {
  if (!before || now.at <= before.at) return null;
  return (of(now) - of(before)) / (now.at - before.at);
};
const take = (answer) => {
  // A service that began anew counts from zero again.
  if (now && (answer.began !== now.began || answer.at < now.at)) { now = null; history = []; }
  before = now;
  now = answer;
  history.push({
    at: now.at,
    rate: rate((it) => it.totals.tokens),
    running: now.running,
    queued: now.queued,
    blocks: now.blocks_in_all ? now.blocks / now.blocks_in_all : 0,
  });
  history = history.slice(-KEPT);
};

const ask = async () => {
  const headers = key ? { authorization: "Bearer " + key } : {};
  const answer = await fetch("live", { headers, cache: "no-store", redirect: "error" });
  if (answer.status === 401) return demand(true);
  if (!answer.ok) throw new Error("status " + answer.status);
  take(await answer.json());
  if (key) sessionStorage.setItem("stepweave-key", key);
  by("silent").hidden = true;
  document.querySelector("main").hidden = false;
  show();
  return true;
};
const demand = (wrong) => {
  by("wrong").hidden = !(wrong && key);
  key = "";
  sessionStorage.removeItem("stepweave-key");
  by("ask").hidden = false;
  document.querySelector("main").hidden = true;
  by("key").focus();
  return false;
};
const silent = () => {
  by("silent").textContent = now
    ? "The service does not answer; what is shown is what it said last."
    : "The service does not answer.";
  by("silent").hidden = false;
  document.querySelector("main").hidden = false;
  state("silent", "no answer");
};
const state = (name, text) => {
  by("state").dataset.state = name;
  by("state").textContent = text;
};

let round = 0;
const go = async () => {
  const mine = ++round; // whoever begins anew ends the round before
  while (mine === round) {
    if (!paused && !document.hidden) {
      try {
        if (!(await ask())) return;
      } catch (error) {
        silent();
      }
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
};
