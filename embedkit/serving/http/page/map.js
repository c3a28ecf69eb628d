// The collection in two dimensions: every document a point, those found marked.
import { find } from "./page.js";

const MARGIN = 16;
const NEAR = 12;

export function showMap(content) {
  const canvas = find("canvas");
  const places = new Map(content.points.map((point) => [point.id, point]));
  let marked = [];
  let pointed = null;
  find("map").hidden = false;
  const share = (100 * content.explained).toFixed(0);
  find("map-caption").textContent =
    `${content.points.length.toLocaleString("en")} documents on the two principal axes of their embeddings, ` +
    `which hold ${share} % of their variance. Documents near each other here need not be near in all dimensions.`;

  const at = (point) => [
    MARGIN + ((point.x + 1) / 2) * (canvas.clientWidth - 2 * MARGIN),
    MARGIN + ((1 - point.y) / 2) * (canvas.clientHeight - 2 * MARGIN),
  ];

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    pen.scale(ratio, ratio);
    const dot = (point, radius) => {
      pen.beginPath();
      pen.arc(...at(point), radius, 0, 2 * Math.PI);
      pen.fill();
    };
    pen.fillStyle = style.color;
    pen.globalAlpha = 0.35;
    for (const point of content.points) dot(point, 2);
    pen.globalAlpha = 1;
    pen.fillStyle = resolve(canvas, "--warm");
    for (const id of marked) if (places.has(id)) dot(places.get(id), 5);
    if (pointed !== null && places.has(pointed)) {
      pen.strokeStyle = resolve(canvas, "--accent");
      pen.lineWidth = 3;
      pen.beginPath();
      pen.arc(...at(places.get(pointed)), 9, 0, 2 * Math.PI);
      pen.stroke();
    }
  }

  function point(id) {
    pointed = id;
    find("map-text").textContent = places.get(id)?.text ?? "";
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    let best = null;
    let least = NEAR ** 2;
    for (const candidate of content.points) {
      const [x, y] = at(candidate);
      const distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (distance < least) [best, least] = [candidate.id, distance];
    }
    if (best !== pointed) point(best);
  });
  new ResizeObserver(draw).observe(canvas);
  document.addEventListener("theme", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return { mark: (ids) => { marked = ids; draw(); }, point };
}

// A custom property as a colour that a canvas takes: light-dark() is settled by the cascade only.
function resolve(element, name) {
  const before = element.style.color;
  element.style.color = `var(${name})`;
  const colour = getComputedStyle(element).color;
  element.style.color = before;
  return colour;
}
