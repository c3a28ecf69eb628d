// Results while one types, a column for each way of searching, and where they lie on the map.
import { parseFilter, writeCondition } from "./filter.js";
import { highlight } from "./highlight.js";
import { showMap } from "./map.js";
import { ask, find, lastWins, make } from "./page.js";

const MOST = 100;
let map = null;

function ways(collection) {
  const found = [{ title: "Dense", stage: "dense", about: "by meaning", wish: {} }];
  if (collection.lexical) {
    found.push({ title: "Hybrid", stage: "fused", about: "by meaning and by words", wish: { hybrid: "rrf" } });
  }
  if (collection.reranker) {
    const wish = { rerank: true, ...(collection.lexical ? { hybrid: "rrf" } : {}) };
    found.push({ title: "Re-ranked", stage: "rerank", about: `by ${collection.reranker}`, wish });
  }
  return found;
}

export function startSearch(collection) {
  const columns = ways(collection);
  find("search").hidden = false;
  find("columns").replaceChildren(...columns.map(makeColumn));
  const update = lastWins((signal) => search(columns, signal));
  for (const id of ["query", "k", "effort", "filter"]) find(id).addEventListener("input", update);
  find("legend-way").textContent = ` (${columns.at(-1).title})`;
  document.addEventListener("keydown", (event) => walk(event));
  find("query").focus();
  ask("v1/collection/map").then((content) => { map = showMap(content); }, () => {});
}

function makeColumn(way) {
  const column = make("section", "column");
  const title = make("h2", "", way.title);
  title.id = `title-${way.stage}`;
  const list = make("ol");
  list.setAttribute("aria-labelledby", title.id);
  column.append(title, make("p", "quiet hint", way.about), make("p", "quiet times"), list);
  return column;
}

async function search(columns, signal) {
  const query = find("query").value.trim();
  if (!query) return clear();
  const options = readOptions();
  if (!options) return undefined;
  const wishes = columns.map((way) => ask("v1/search", { query, ...options, ...way.wish }, signal));
  const answers = await Promise.all(wishes);
  if (signal.aborted) return;
  answers.forEach((answer, number) => fill(find("columns").children[number], answer, query));
  const warnings = [...new Set(answers.flatMap((answer) => answer.warnings))];
  find("warnings").textContent = warnings.join(" ");
  find("warnings").hidden = !warnings.length;
  const count = answers[0].hits.length;
  find("status").textContent = `${count} ${count === 1 ? "document" : "documents"} for “${query}”`;
  map?.mark(answers.at(-1).hits.map((hit) => hit.id));
  point(null);
}

// Number of results, effort and filter; null if the filter cannot be read.
function readOptions() {
  const k = Math.min(Math.max(Math.trunc(find("k").valueAsNumber) || 10, 1), MOST);
  const problem = find("filter-problem");
  try {
    const filter = parseFilter(find("filter").value);
    problem.textContent = "";
    return { k, effort: Number(find("effort").value), ...(filter ? { filter } : {}) };
  } catch (error) {
    problem.textContent = error.message;
    return null;
  }
}

function clear() {
  for (const column of find("columns").children) {
    column.querySelector("ol").replaceChildren();
    column.querySelector(".times").replaceChildren();
  }
  find("status").textContent = "";
  find("warnings").hidden = true;
  map?.mark([]);
}

function fill(column, answer, query) {
  const times = Object.entries(answer.latency_ms).map(([stage, ms]) => make("span", "", `${stage} ${ms.toFixed(1)} ms`));
  column.querySelector(".times").replaceChildren(...times);
  const hits = answer.hits.map((hit) => makeHit(hit, query));
  column.querySelector("ol").replaceChildren(...(hits.length ? hits : [make("li", "quiet", "No documents.")]));
}

function makeHit(hit, query) {
  const item = make("li");
  item.tabIndex = -1;
  item.dataset.id = hit.id;
  const head = make("div", "hit-head");
  head.append(make("span", "id", hit.id), make("span", "score", hit.score.toFixed(3)));
  const bar = make("meter"); // all scores have 1 for their best, so that bars of all columns can be compared
  Object.assign(bar, { min: 0, max: 1, value: hit.score });
  bar.setAttribute("aria-hidden", "true");
  const stages = Object.entries(hit.scores).map(([stage, score]) => make("span", "", `${stage} ${score.toFixed(3)}`));
  const scores = make("div", "quiet times");
  scores.append(...stages);
  const text = make("div", "text");
  text.append(...highlight(hit.text, query));
  item.append(head, bar, text, ...makeFields(hit.metadata), scores);
  item.addEventListener("focus", () => point(hit.id));
  item.addEventListener("mouseenter", () => point(hit.id));
  item.addEventListener("mouseleave", () => point(null));
  return item;
}

// The metadata, each field a button that filters by it.
function makeFields(metadata) {
  const fields = Object.entries(metadata ?? {}).map(([name, value]) => {
    const values = (Array.isArray(value) ? value : [value]).filter((one) => typeof one !== "object" || one === null);
    const field = make("span", "field");
    field.append(make("span", "name", name), ...values.map((one) => makeFieldButton(name, one)));
    return field;
  });
  if (!fields.length) return [];
  const row = make("div", "fields");
  row.append(...fields);
  return [row];
}

function makeFieldButton(name, value) {
  const button = make("button", "", String(value));
  button.type = "button";
  button.tabIndex = -1;
  button.title = "Filter by this";
  button.addEventListener("click", () => {
    const before = find("filter").value.trim();
    const condition = writeCondition(name, value);
    if (!before.includes(condition)) find("filter").value = before ? `${before}, ${condition}` : condition;
    find("filter").dispatchEvent(new Event("input"));
  });
  return button;
}

// Show the same document in all columns and on the map.
function point(id) {
  for (const item of find("columns").querySelectorAll("li")) item.classList.toggle("same", item.dataset.id === id);
  map?.point(id);
}

function walk(event) {
  const lists = [...find("columns").querySelectorAll("ol")];
  const here = document.activeElement;
  const column = lists.findIndex((list) => list.contains(here));
  if (event.key === "/" && !here.matches("input, select, textarea")) return go(event, find("query"));
  if (here === find("query") && event.key === "ArrowDown") return go(event, lists[0]?.firstElementChild);
  if (column < 0) return undefined;
  const row = [...lists[column].children].indexOf(here);
  const to = {
    ArrowDown: () => here.nextElementSibling,
    ArrowUp: () => here.previousElementSibling ?? find("query"),
    ArrowRight: () => nearest(lists[column + 1], row),
    ArrowLeft: () => nearest(lists[column - 1], row),
    Escape: () => find("query"),
  }[event.key];
  return to && go(event, to());
}

function nearest(list, row) {
  return list?.children[Math.min(row, list.children.length - 1)];
}

function go(event, element) {
  if (!element) return;
  event.preventDefault();
  element.focus();
}
