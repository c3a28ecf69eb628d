// Results while one types, a column for each way of searching, and where they lie on the map.
import { findPassage, highlight } from "./highlight.js";
import { showMap } from "./map.js";
import { ask, counted, find, lastWins, make, sayIfSlow } from "./page.js";

const MOST = 100;
const WRONG_FILTER = "filter: ";
const SCANS = ["exact", "FLAT"];
let map = null;
let idle = "";
let found = []; // ids of the last column

function ways(collection) {
  const found = [{ title: "Dense", stage: "dense", about: "by meaning", wish: { mode: "dense" } }];
  if (collection.lexical) {
    found.push({ title: "Hybrid", stage: "fused", about: "by meaning and by words", wish: { mode: "hybrid" } });
  }
  if (collection.reranker) {
    found.push({ title: "Re-ranked", stage: "rerank", about: `by ${collection.reranker}`, wish: { rerank: true } });
  }
  return found;
}

export function startSearch(collection) {
  const columns = ways(collection);
  find("search").hidden = false;
  find("effort-label").hidden = collection.index.split(", ").every((kind) => SCANS.includes(kind));
  find("columns").replaceChildren(...columns.map(makeColumn));
  find("columns").hidden = true;
  find("tabs").replaceChildren(...(columns.length > 1 ? columns.map(makeTab) : []));
  find("tabs").hidden = columns.length < 2;
  choose(columns.length - 1);
  idle = collection.documents
    ? "Results appear as you type."
    : "The collection has no documents yet; embedkit index add puts some into it.";
  find("status").textContent = idle;
  const update = lastWins((signal) => search(columns, signal));
  for (const id of ["query", "k", "effort", "filter"]) find(id).addEventListener("input", update);
  find("legend-way").textContent = ` (${columns.at(-1).title})`;
  document.addEventListener("keydown", (event) => walk(event));
  find("query").focus();
  ask("v1/collection/map").then((content) => { map = showMap(content); map.mark(found); }, () => {});
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

// On a narrow screen one column is shown, the last one first: it is the best order.
function makeTab(way, number) {
  const tab = make("button", "", way.title);
  tab.type = "button";
  tab.title = way.about;
  tab.addEventListener("click", () => choose(number));
  return tab;
}

function choose(number) {
  [...find("tabs").children].forEach((tab, place) => tab.setAttribute("aria-pressed", place === number));
  [...find("columns").children].forEach((column, place) => column.classList.toggle("chosen", place === number));
}

async function search(columns, signal) {
  const query = find("query").value.trim();
  if (!query) return clear();
  const options = readOptions();
  const wishes = columns.map((way) => ask("v1/search", { query, ...options, ...way.wish }, signal));
  const done = sayIfSlow(find("status"), signal);
  const answers = await Promise.all(wishes).catch((problem) => refuseFilter(problem, signal)).finally(done);
  if (signal.aborted || !answers) return;
  find("filter-problem").textContent = "";
  answers.forEach((answer, number) => fill(find("columns").children[number], answer, query));
  const warnings = [...new Set(answers.flatMap((answer) => answer.warnings))];
  find("warnings").textContent = warnings.join(" ");
  find("warnings").hidden = !warnings.length;
  showStatus(answers[0].hits.length, query);
  suggestFilter(answers.flatMap((answer) => answer.hits));
  found = answers.at(-1).hits.map((hit) => hit.id);
  map?.mark(found);
  point(null);
}

function showStatus(count, query) {
  const status = find("status");
  const quoted = `“\u2068${query}\u2069”`; // isolated, whichever its direction
  find("columns").hidden = !count;
  if (count) {
    status.textContent = `${counted(count)} for ${quoted}`;
    return;
  }
  status.textContent = `Nothing found for ${quoted}.`;
  if (!find("filter").value.trim()) return;
  const remove = make("button", "", "Search without the filter");
  remove.type = "button";
  remove.addEventListener("click", () => {
    find("filter").value = "";
    find("filter").dispatchEvent(new Event("input"));
  });
  status.append(" ", remove);
}

// An example of a filter, of a field that the documents have.
function suggestFilter(hits) {
  const fields = hits.flatMap((hit) => Object.entries(hit.metadata ?? {}));
  const [name, value] = fields.find(([, one]) => ["string", "number", "boolean"].includes(typeof one)) ?? [];
  if (name !== undefined) find("filter").placeholder = writeCondition(name, value);
}

// A condition as the server reads it; a text has quotation marks, and so has a name with signs of its own.
function writeCondition(field, value) {
  const plain = /^[\p{L}_](?:[^"=!<>,]*[^"=!<>,\s])?$/u.test(field);
  return `${plain ? field : JSON.stringify(field)} = ${JSON.stringify(value)}`;
}

// Number of results, effort and filter, which the server reads as it is written.
function readOptions() {
  const k = Math.min(Math.max(Math.trunc(find("k").valueAsNumber) || 10, 1), MOST);
  const filter = find("filter").value.trim();
  return { k, effort: Number(find("effort").value), ...(filter ? { filter } : {}) };
}

// What is wrong with the filter is said beside it, and the results stay.
function refuseFilter(problem, signal) {
  if (signal.aborted || !problem.message.startsWith(WRONG_FILTER)) throw problem;
  find("filter-problem").textContent = problem.message.slice(WRONG_FILTER.length);
}

function clear() {
  for (const column of find("columns").children) {
    column.querySelector("ol").replaceChildren();
    column.querySelector(".times").replaceChildren();
  }
  find("status").textContent = idle;
  find("columns").hidden = true;
  find("warnings").hidden = true;
  found = [];
  map?.mark(found);
}

function fill(column, answer, query) {
  const times = Object.entries(answer.latency_ms).map(([stage, ms]) => make("span", "", `${stage} ${ms.toFixed(1)} ms`));
  column.querySelector(".times").replaceChildren(...times);
  const best = Math.max(1, ...answer.hits.map((hit) => hit.score)); // fused scores are not limited to 1
  const hits = answer.hits.map((hit) => makeHit(hit, query, best));
  column.querySelector("ol").replaceChildren(...(hits.length ? hits : [make("li", "quiet", "No documents.")]));
}

function makeHit(hit, query, best) {
  const item = make("li");
  item.tabIndex = -1;
  item.dataset.id = hit.id;
  const head = make("div", "hit-head");
  const id = make("span", "id", hit.id);
  id.dir = "auto";
  head.append(id, make("span", "score", hit.score.toFixed(3)));
  const bar = make("meter");
  Object.assign(bar, { min: 0, max: best, value: hit.score });
  bar.setAttribute("aria-hidden", "true");
  const stages = Object.entries(hit.scores).map(([stage, score]) => make("span", "", `${stage} ${score.toFixed(3)}`));
  const scores = make("div", "quiet times");
  scores.append(...stages);
  const { title, section, ...others } = hit.metadata ?? {};
  const path = [title, section].filter((one) => typeof one === "string" && one);
  const place = path.length ? [make("div", "quiet section", path.at(-1).startsWith(path[0]) ? path.at(-1) : path.join(" > "))] : [];
  item.append(head, bar, ...place, ...makeTexts(hit.text, query), ...makeFields(others), scores);
  item.addEventListener("click", () => item.classList.toggle("open"));
  item.addEventListener("focus", () => point(hit.id));
  item.addEventListener("mouseenter", () => point(hit.id));
  item.addEventListener("mouseleave", () => point(null));
  return item;
}

// The passage that matches the query, and if there is more, the whole text, shown instead in an open hit.
function makeTexts(whole, query) {
  const [start, end] = findPassage(whole, query);
  const passage = make("div", "text passage");
  passage.append(start ? "… " : "", ...highlight(whole.slice(start, end), query), end < whole.length ? " …" : "");
  passage.dir = "auto";
  if (end - start === whole.length) return [passage];
  const text = make("div", "text whole");
  text.dir = "auto";
  text.append(...highlight(whole, query));
  return [passage, text];
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
  button.dir = "auto";
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
  const lists = [...find("columns").querySelectorAll("ol")].filter((list) => list.offsetParent);
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
