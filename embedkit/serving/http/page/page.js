// What the page is for: searching where there is a collection, comparing texts where there is none.
import { startCompare } from "./compare.js";
import { startSearch } from "./search.js";

export const find = (id) => document.getElementById(id);
const DEBOUNCE_MS = 120;
let key = "";

// Ask the server; what is wrong is thrown as its own words.
export async function ask(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.ok) return answer.json();
  if (answer.status === 401) find("key-form").hidden = false;
  const content = await answer.json().catch(() => ({}));
  throw new Error(content.error?.message ?? content.error ?? `the server answered ${answer.status}`);
}

export function tell(problem) {
  find("problem").textContent = problem ? `${problem.message}` : "";
  find("problem").hidden = !problem;
}

// Run `work(signal)` when typing has paused. The last call wins: a newer one aborts those before it.
export function lastWins(work) {
  let timer = 0;
  let controller = new AbortController();
  return () => {
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    timer = setTimeout(async () => {
      try {
        await work(signal);
        tell(null);
      } catch (problem) {
        if (!signal.aborted) tell(problem);
      }
    }, DEBOUNCE_MS);
  };
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
    const documents = collection ? `, ${collection.documents.toLocaleString("en")} documents` : "";
    find("about").textContent = `${names}${documents}`;
    if (collection) startSearch(collection);
    else startCompare();
  } catch (problem) {
    tell(problem);
  }
}

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
