// Small bar charts as SVG, with their numbers as text for everyone who does not see the bars.

import { count, h, svg } from "./dom.js";

const WIDTH = 360, HEIGHT = 120;

/** A chart of one number of each point: `value(point)`; `format` writes it. `second` is a part of it, drawn lighter. */
export function chart(title, points, value, { total, format = count, second = null, isBad = false } = {}) {
  const numbers = points.map((point) => value(point) ?? 0);
  const most = Math.max(...numbers, 0);
  const step = WIDTH / Math.max(points.length, 1);
  const bars = points.map((point, i) => [
    rectangle(i * step, step, numbers[i], most, title, point, format),
    second && rectangle(i * step, step, second(point) ?? 0, most, title, point, format, "second"),
  ]);
  const shown = total ?? format(numbers.reduce((sum, each) => sum + each, 0));
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${shown}; at most ${format(most)} in one step`,
  }, svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), bars.flat());
  return h(isBad ? "figure.chart.bad-colour" : "figure.chart", {},
    h("figcaption", {}, h("h3", {}, title), h("b", {}, shown)),
    picture,
    h("div.ends", {}, h("span", {}, time(points[0])), h("span", {}, `peak ${format(most)}`), h("span", {}, "now")));
}

function rectangle(x, step, number, most, title, point, format, kind) {
  const height = most ? Math.max((number / most) * (HEIGHT - 8), number ? 2 : 0) : 0;
  const gap = Math.min(step * 0.22, 3);
  return svg("rect", { class: kind, x: x + gap / 2, width: Math.max(step - gap, 0.5), y: HEIGHT - height, height, rx: 1.5 },
    svg("title", {}, `${new Date(point.at).toLocaleString()}: ${format(number)}`));
}

function time(point) {
  if (!point) return "";
  const date = new Date(point.at);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString([], { month: "short", day: "numeric", hour: "2-digit" });
}
