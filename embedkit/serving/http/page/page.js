// Search while one types, where the server has a collection.
import { startSearch } from "./search.js";

export const find = (id) => document.getElementById(id);
const DEBOUNCE_MS = 120;
const SLOW_MS = 400;
const VERY_SLOW_MS = 5000;
const RETRY_MS = 3000;
let key = "";
let retry = null; // what to do again when the server is back
let waiting = 0;

class Offline extends Error {
  constructor() {
    super("The server does not answer. What you see below is from before.");
  }
}

// Ask the server; what is wrong is thrown as its own words.
export async function ask(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, options).catch((problem) => {
    throw signal?.aborted ? problem : new Offline();
  });
  if (answer.ok) return answer.json();
  if (answer.status === 401) find("key-form").hidden = false;
  const content = await answer.json().catch(() => ({}));
  throw new Error(content.error?.message ?? content.error ?? `the server answered ${answer.status}`);
}

// Show a problem, or none. While the server does not answer, `again` is tried until it does.
export function tell(problem, again = null) {
  clearTimeout(waiting);
  retry = problem instanceof Offline ? again : null;
  document.body.classList.toggle("offline", problem instanceof Offline);
  find("problem").querySelector("p").textContent = problem ? problem.message : "";
  find("again").hidden = !retry;
  find("problem").hidden = !problem;
  if (retry) waiting = setTimeout(() => retry?.(), RETRY_MS);
}

// Say in `status` that an answer takes long, until the returned function is called.
export function sayIfSlow(status, signal) {
  const say = (text) => () => {
    if (signal.aborted) return;
    document.body.classList.add("busy");
    status.textContent = text;
  };
  const timers = [setTimeout(say("Searching …"), SLOW_MS), setTimeout(say("Still searching; the server is slow."), VERY_SLOW_MS)];
  return () => {
    timers.forEach(clearTimeout);
    if (!signal.aborted) document.body.classList.remove("busy");
  };
}

// Run `work(signal)` when typing has paused. The last call wins: a newer one aborts those before it.
export function lastWins(work) {
  let timer = 0;
  let controller = new AbortController();
  const run = () => {
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    timer = setTimeout(async () => {
      try {
        await work(signal);
        tell(null);
      } catch (problem) {
        if (!signal.aborted) tell(problem, run);
      }
    }, DEBOUNCE_MS);
  };
  return run;
}

export function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

async function start() {
  tell(null);
  try {
    const { data } = await ask("v1/models");
    find("key-form").hidden = true;
    const collection = await ask("v1/collection");
    const names = data.map((model) => model.id).join(" and ");
    const documents = collection ? `, ${counted(collection.documents)}` : "";
    find("about").textContent = `${names}${documents}`;
    if (collection) startSearch(collection);
    find("no-collection").hidden = Boolean(collection);
  } catch (problem) {
    tell(problem, start);
  }
}

export function counted(documents) {
  return `${documents.toLocaleString("en")} ${documents === 1 ? "document" : "documents"}`;
}

find("again").addEventListener("click", () => retry?.());
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("key").value.trim();
  start();
});
find("theme").addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.target.value;
  document.dispatchEvent(new Event("theme"));
});
start();
