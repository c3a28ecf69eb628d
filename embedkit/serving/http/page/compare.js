// A matrix of cosines while one types; what the server gives has length 1, so a cosine is a sum of products.
import { ask, find, lastWins, make, sayIfSlow } from "./page.js";

const MOST = 24;
const EXAMPLE = [
  "How do I get my money back?",
  "Refunds are paid within 30 days.",
  "Bees find their way home by the sun.",
  "Insects navigate with the help of light.",
];

export function startCompare() {
  find("compare").hidden = false;
  find("texts").value = EXAMPLE.join("\n");
  const update = lastWins(compare);
  find("texts").addEventListener("input", update);
  find("texts").focus();
  update();
}

async function compare(signal) {
  const texts = find("texts").value.split("\n").map((line) => line.trim()).filter(Boolean).slice(0, MOST);
  if (!texts.length) {
    find("matrix").replaceChildren();
    find("compare-status").textContent = "Type two texts or more, one a line.";
    return;
  }
  const began = performance.now();
  const done = sayIfSlow(find("compare-status"), signal);
  const answer = await ask("v1/embeddings", { input: texts, encoding_format: "base64" }, signal).finally(done);
  if (signal.aborted) return;
  const rows = answer.data.map((item) => floats(item.embedding));
  find("matrix").replaceChildren(table(texts, rows));
  const ms = (performance.now() - began).toFixed(0);
  find("compare-status").textContent = `${texts.length} texts, ${answer.usage.total_tokens} tokens, ${ms} ms`;
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, number) => view.getFloat32(4 * number, true));
}

function table(texts, rows) {
  const body = make("tbody");
  texts.forEach((text, number) => {
    const row = make("tr");
    const head = make("th", "", `${number + 1}. ${text}`);
    head.dir = "auto";
    head.scope = "row";
    row.append(head, ...rows.map((other) => cell(cosine(rows[number], other))));
    body.append(row);
  });
  const top = make("tr");
  const corner = make("th");
  top.append(corner, ...texts.map((_, number) => Object.assign(make("th", "", number + 1), { scope: "col" })));
  const head = make("thead");
  head.append(top);
  const whole = make("table");
  whole.append(head, body);
  return whole;
}

function cosine(one, other) {
  return one.reduce((sum, value, number) => sum + value * other[number], 0);
}

function cell(value) {
  const found = make("td", value > 0.8 ? "strong" : "", value.toFixed(2));
  found.style.setProperty("--share", `${Math.max(0, 100 * value).toFixed(0)}%`);
  return found;
}
