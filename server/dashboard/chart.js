// Small bar charts as SVG, with their numbers as text for everyone who does not see the bars.

import { count, h, svg } from "./dom.js";

const WIDTH = 360, HEIGHT = 120;

/** A chart of one number of each point: `value(point)`; `format` writes it. */
export function chart(title, points, value, { total, format = count, isBad = false } = {}) {
  const numbers = points.map((point) => value(point) ?? 0);
  const most = Math.max(...numbers, 0);
  const step = WIDTH / Math.max(points.length, 1);
  const shown = total ?? format(numbers.reduce((sum, each) => sum + each, 0));
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${shown}; at most ${format(most)} in one step`,
  }, [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y, y2: y })),
  points.map((point, i) => bar(i * step, step, numbers[i], most, `${new Date(point.at).toLocaleString()}: ${format(numbers[i])}`)));
  return h(isBad ? "figure.chart.bad-colour" : "figure.chart", {},
    h("figcaption", {}, h("h3", {}, title), h("b", {}, shown)),
    h("div.plot", {}, most > 0 && h("span.peak", { "aria-hidden": "true" }, format(most)), picture),
    h("div.ends", {}, [0, points.length >> 1].map((i) => h("span", {}, time(points[i]))), h("span", {}, "now")));
}

/** A bar, and an area as high as the chart that shows its number under the pointer: a bar of 0 is nothing to point at. */
function bar(x, step, number, most, text) {
  const height = most ? Math.max((number / most) * HEIGHT, number ? 2 : 0) : 0;
  const gap = Math.min(step * 0.22, 3);
  return svg("g", {}, svg("title", {}, text), svg("rect", { class: "area", x, width: step, y: 0, height: HEIGHT }),
    svg("rect", { x: x + gap / 2, width: Math.max(step - gap, 0.5), y: HEIGHT - height, height, rx: 1.5 }));
}

function time(point) {
  if (!point) return "";
  const date = new Date(point.at);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString([], { month: "short", day: "numeric", hour: "2-digit" });
}
