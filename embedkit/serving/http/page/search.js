// Results while one types, a column for each way of searching, and where they lie on the map.
import { showMap } from "./map.js";
import { ask, find, lastWins, make } from "./page.js";

const HITS = 10;
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
  find("query").addEventListener("input", update);
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
  const wishes = columns.map((way) => ask("v1/search", { query, k: HITS, ...way.wish }, signal));
  const answers = await Promise.all(wishes);
  if (signal.aborted) return;
  answers.forEach((answer, number) => fill(find("columns").children[number], columns[number], answer));
  const count = answers[0].hits.length;
  find("status").textContent = `${count} ${count === 1 ? "document" : "documents"} for “${query}”`;
  map?.mark(answers.at(-1).hits.map((hit) => hit.id));
}

function clear() {
  for (const column of find("columns").children) {
    column.querySelector("ol").replaceChildren();
    column.querySelector(".times").replaceChildren();
  }
  find("status").textContent = "";
  map?.mark([]);
}

function fill(column, way, answer) {
  const times = Object.entries(answer.latency_ms).map(([stage, ms]) => make("span", "", `${stage} ${ms.toFixed(1)} ms`));
  column.querySelector(".times").replaceChildren(...times);
  const best = Math.max(...answer.hits.map((hit) => hit.score), 0);
  const worst = Math.min(...answer.hits.map((hit) => hit.score), 0);
  column.querySelector("ol").replaceChildren(...answer.hits.map((hit) => makeHit(hit, worst, best)));
}

function makeHit(hit, worst, best) {
  const item = make("li");
  item.tabIndex = -1;
  item.dataset.id = hit.id;
  const head = make("div", "hit-head");
  head.append(make("span", "id", hit.id), make("span", "score", hit.score.toFixed(4)));
  const bar = make("meter");
  Object.assign(bar, { min: worst, max: best > worst ? best : worst + 1, value: hit.score });
  bar.setAttribute("aria-hidden", "true");
  const stages = Object.entries(hit.scores).map(([stage, score]) => make("span", "", `${stage} ${score.toFixed(3)}`));
  const scores = make("div", "quiet times");
  scores.append(...stages);
  item.append(head, bar, make("div", "text", hit.text), scores);
  item.addEventListener("focus", () => point(hit.id));
  item.addEventListener("mouseenter", () => point(hit.id));
  item.addEventListener("mouseleave", () => point(null));
  return item;
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
  if (event.key === "/" && here !== find("query")) return go(event, find("query"));
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
