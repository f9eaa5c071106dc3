// One chart as SVG: lines, bands that stand on each other, dots or bars, with marks to compare with.
//
//   { title, caption, x: { label, kind, log }, y: { label, kind, max }, categories, marks,
//     lines: [{ name, points: [[x, y], ...] or bars: [y, ...], style: "dashed" | "band" | "dots" }] }
//
// `kind` is one of KINDS; an axis of times or bytes gets the unit that fits what is drawn. Points of a
// line have ascending x, and bands share theirs. Colours are those of page.css, so light, dark and paper
// need no new drawing; another width does.
"use strict";

const HEIGHT = 280, TOP = 10, BOTTOM = 44, RIGHT = 14;
const LETTER = 6.6;  // pixels of a letter of the axes, about
const FEW = 16;      // points of a line that are marked
const NEAR = 24;     // pixels from the pointer within which a line has a value to show

function textWidth(text) {
  return LETTER * String(text).length;
}

// A span of values on `from` to `to` pixels: at(value), ticks, and the label with its unit.
function makeAxis(spec, low, high, from, to, wanted) {
  const kind = KINDS[spec.kind || "number"];
  const unit = kind.units && !spec.log ? unitFor(kind.units, Math.max(Math.abs(low), Math.abs(high))) : null;
  const size = unit ? unit.size : 1;
  const label = [spec.label, unit ? unit.name : ""].filter(Boolean).join(", ");
  if (spec.log) {
    const range = Math.log(high / low) || 1;
    const at = (value) => from + ((to - from) * Math.log(value / low)) / range;
    const round = logTicks(low, high, kind, wanted);
    const ticks = round.length > 1 ? round : evenTicks(low, high, wanted);
    return { at, label, kind, ticks: ticks.map(
      (value) => ({ at: at(value), text: kind.units ? kind.text(value) : decimal(value) })) };
  }
  const range = high - low || 1;
  const at = (value) => from + ((to - from) * (value - low)) / range;
  return { at, label, kind, ticks: evenTicks(low / size, high / size, wanted).map(
    (value) => ({ at: at(value * size), text: decimal(value, 6) })) };
}

// Where the values of each line begin: a band stands on those before it.
function heights(chart) {
  const floor = [];
  return chart.lines.map((line) => {
    const values = line.bars || line.points.map(([, y]) => y);
    if (line.style !== "band") return { low: values.map(() => 0), high: values };
    const low = values.map((_, i) => floor[i] || 0);
    const high = values.map((value, i) => low[i] + (Number.isFinite(value) ? value : 0));
    high.forEach((value, i) => { floor[i] = value; });
    return { low, high };
  });
}

function extent(chart, stacks) {
  let lowX = Infinity, highX = -Infinity, highY = 0, lowY = 0;
  chart.lines.forEach((line, l) => {
    for (const [x] of line.points || []) {
      if (chart.x.log && !(x > 0)) continue;
      lowX = Math.min(lowX, x);
      highX = Math.max(highX, x);
    }
    for (const y of stacks[l].high) {
      if (!Number.isFinite(y)) continue;
      highY = Math.max(highY, y);
      lowY = Math.min(lowY, y);
    }
  });
  if (chart.x.log) {  // A mark just outside is worth a longer axis.
    for (const mark of chart.marks) {
      if (mark.vertical && mark.at > 0 && mark.at < highX * 30) highX = Math.max(highX, mark.at * 1.1);
      if (mark.vertical && mark.at > lowX / 30) lowX = Math.min(lowX, mark.at / 1.1);
    }
    if (highX === lowX) [lowX, highX] = [lowX / 2, highX * 2];
  } else if (lowX >= 0 && lowX < 0.2 * highX) {
    lowX = 0;
  }
  if (!chart.x.log && highX === lowX) [lowX, highX] = [lowX - 1, highX + 1];
  return { lowX, highX, lowY, highY: chart.y.max || (highY > lowY ? highY * 1.05 : lowY + 1) };
}

function drawAxes(svg, chart, x, y, box) {
  for (const tick of y.ticks) {
    shape("line", { class: "grid", x1: box.left, x2: box.right, y1: tick.at, y2: tick.at }, svg);
    shape("text", { class: "tick", x: box.left - 6, y: tick.at + 4, "text-anchor": "end" }, svg, tick.text);
  }
  let free = -Infinity;  // where the next label may begin
  for (const tick of x.ticks) {
    const half = textWidth(tick.text) / 2;
    if (x.at) shape("line", { class: "grid", x1: tick.at, x2: tick.at, y1: box.top, y2: box.bottom }, svg);
    if (tick.at - half < free || tick.at + half > box.right + RIGHT) continue;
    free = tick.at + half + 10;
    shape("text", { class: "tick", x: tick.at, y: box.bottom + 16, "text-anchor": "middle" }, svg, tick.text);
  }
  const middle = (box.top + box.bottom) / 2;
  shape("text", { class: "label", x: (box.left + box.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
        svg, x.label);
  shape("text", { class: "label", x: 12, y: middle, "text-anchor": "middle",
                  transform: `rotate(-90 12 ${middle})` }, svg, y.label);
}

// A path through what is finite; gaps stay gaps.
function pathOf(points) {
  let path = "", isDown = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      isDown = false;
      continue;
    }
    path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  }
  return path;
}

// Returns how many points are to be seen.
function drawLine(svg, line, stack, x, y) {
  const color = "c" + (line.color % 8);
  const xs = line.points.map(([value]) => x.at(value));
  const tops = stack.high.map((value, i) => [xs[i], y.at(value)]);
  const seen = tops.filter(([px, py]) => Number.isFinite(px) && Number.isFinite(py));
  if (line.style === "dots") {
    for (const [px, py] of seen) shape("circle", { class: "dot " + color, cx: px, cy: py, r: 3.5 }, svg);
  } else if (line.style === "band") {
    const under = stack.low.map((value, i) => [xs[i], y.at(value)]).reverse();
    shape("path", { class: "band " + color, d: pathOf(tops) + pathOf(under).replace("M", "L") + "Z" }, svg);
  } else {
    const style = line.style === "dashed" ? " dashed" : "";
    shape("path", { class: "line " + color + style, d: pathOf(tops) }, svg);
    if (seen.length > FEW) return seen.length;
    for (const [px, py] of seen) shape("circle", { class: "dot " + color, cx: px, cy: py, r: 2.5 }, svg);
  }
  return seen.length;
}

function drawBars(svg, chart, x, y) {
  const width = (0.8 * x.step) / chart.lines.length;
  return chart.lines.map((line, l) => {
    line.bars.forEach((value, i) => {
      if (!Number.isFinite(value)) return;
      const left = x.ticks[i].at - 0.4 * x.step + l * width;
      const top = Math.min(y.at(value), y.at(0));
      shape("rect", { class: "bar c" + (line.color % 8), x: left.toFixed(1), y: top.toFixed(1),
                      width: Math.max(0.5, width - 1).toFixed(1), height: Math.abs(y.at(value) - y.at(0)).toFixed(1) }, svg);
    });
    return line.bars.filter(Number.isFinite).length;
  });
}

function drawMarks(svg, chart, x, y, box) {
  for (const mark of chart.marks) {
    const at = mark.vertical ? x.at(mark.at) : y.at(mark.at);
    const [low, high] = mark.vertical ? [box.left, box.right] : [box.top, box.bottom];
    if (!(at >= low && at <= high)) continue;
    const ends = mark.vertical ? { x1: at, x2: at, y1: box.top, y2: box.bottom }
                               : { x1: box.left, x2: box.right, y1: at, y2: at };
    shape("line", { class: "mark", ...ends }, svg);
    const isFar = !mark.vertical || at > (low + high) / 2;
    shape("text", { class: "mark-name", x: mark.vertical ? at + (isFar ? -4 : 4) : box.right - 4,
                    y: mark.vertical ? box.bottom - 6 : at - 4, "text-anchor": isFar ? "end" : "start" },
          svg, mark.name);
  }
}

// What the pointer is near: { at, title, values: [[name, text]] }, or null.
function valuesNear(chart, x, y, px) {
  if (chart.categories.length > 0) {
    const i = Math.max(0, Math.min(chart.categories.length - 1, Math.floor((px - x.left) / x.step)));
    const values = chart.lines.filter((line) => Number.isFinite(line.bars[i]))
      .map((line) => [line.name, y.kind.text(line.bars[i])]);
    return { at: x.ticks[i].at, title: chart.categories[i], values };
  }
  let best = null;
  const nearest = chart.lines.map((line) => {
    let point = null;
    for (const [vx, vy] of line.points) {
      const away = Math.abs(x.at(vx) - px);
      if (Number.isFinite(vy) && (!point || away < point.away)) point = { away, vx, vy };
    }
    if (point && (!best || point.away < best.away)) best = point;
    return point;
  });
  if (!best || best.away > 4 * NEAR) return null;
  const values = [];
  chart.lines.forEach((line, l) => {
    const point = nearest[l];
    if (!point || Math.abs(x.at(point.vx) - x.at(best.vx)) > NEAR) return;
    values.push([line.name, y.kind.text(point.vy)]);
  });
  return { at: x.at(best.vx), title: `${chart.x.label}: ${x.kind.text(best.vx)}`, values };
}

function addHover(plot, svg, chart, x, y, box) {
  const guide = shape("line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" }, svg);
  const tip = element("div", "tip", "", plot);
  tip.hidden = true;
  const hide = () => {
    tip.hidden = true;
    guide.setAttribute("visibility", "hidden");
  };
  svg.addEventListener("pointermove", (event) => {
    const px = event.clientX - svg.getBoundingClientRect().left;
    const near = px < box.left - NEAR || px > box.right + NEAR ? null : valuesNear(chart, x, y, px);
    if (!near) return hide();
    guide.setAttribute("x1", near.at);
    guide.setAttribute("x2", near.at);
    guide.setAttribute("visibility", "visible");
    tip.textContent = "";
    element("strong", "", near.title, tip);
    for (const [name, text] of near.values) element("span", "", `${name}: ${text}`, tip);
    tip.hidden = false;
    const isRight = near.at > (box.left + box.right) / 2;
    tip.style.left = isRight ? "" : near.at + 10 + "px";
    tip.style.right = isRight ? box.width - near.at + 10 + "px" : "";
  });
  svg.addEventListener("pointerleave", hide);
}

function drawLegend(legend, chart) {
  legend.textContent = "";
  for (const line of chart.lines) {
    const entry = element("span", "entry", "", legend);
    element("i", `swatch ${line.style || (line.bars ? "bar" : "line")} c${line.color % 8}`, "", entry);
    element("span", "", line.name, entry);
  }
}

// Draws, or draws anew, into the figure's plot and legend.
function drawChart({ plot, legend, figure, chart }) {
  const width = Math.max(240, plot.clientWidth || 640);
  const stacks = heights(chart);
  const range = extent(chart, stacks);
  const box = { top: TOP, bottom: HEIGHT - BOTTOM, right: width - RIGHT, width };
  const y = makeAxis(chart.y, range.lowY, range.highY, box.bottom, box.top, 5);
  box.left = 30 + Math.max(...y.ticks.map((tick) => textWidth(tick.text)));
  let x;
  if (chart.categories.length > 0) {
    const step = (box.right - box.left) / chart.categories.length;
    x = { step, left: box.left, label: chart.x.label, ticks: chart.categories.map(
      (text, i) => ({ text, at: box.left + (i + 0.5) * step })) };
  } else {
    x = makeAxis(chart.x, range.lowX, range.highX, box.left, box.right, (box.right - box.left) / 75);
  }
  plot.textContent = "";
  const svg = shape("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
                             "aria-label": chart.title }, plot);
  drawAxes(svg, chart, x, y, box);
  const points = chart.categories.length > 0
    ? drawBars(svg, chart, x, y)
    : chart.lines.map((line, l) => drawLine(svg, line, stacks[l], x, y));
  drawMarks(svg, chart, x, y, box);
  addHover(plot, svg, chart, x, y, box);
  drawLegend(legend, chart);
  figure.setAttribute("data-points", points.join(","));
}
