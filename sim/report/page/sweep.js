// The page of a sweep: the Pareto front, each metric over the first option that has numbers, all points.
"use strict";

const MOST_COMBINATIONS = 12;

// Of metrics: { name, is_percent, larger_is_better, decimals }.
const isTime = (metric) => /^(ttft|tpot|itl|e2e|queueing|router-queueing)-/.test(metric.name);

const metricAxis = (metric) => ({ kind: metric.is_percent ? "percent" : isTime(metric) ? "ms" : "number",
  label: metric.name + (metric.larger_is_better ? " (more is better)" : " (less is better)") });

// As it is drawn; NaN: the point has none.
function metricValue(metric, row) {
  const entry = list(row.values).find((one) => one.metric === metric.name);
  return entry ? num(entry.value) * (metric.is_percent ? 100 : 1) : NaN;
}

function metricText(metric, row) {
  const value = metricValue(metric, row);
  if (row.problem || Number.isNaN(value)) return row.problem ? "" : "n/a";
  if (isTime(metric)) return span(value);
  const digits = num(metric.decimals);
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) +
         (metric.is_percent ? " %" : "");
}

function settingOf(row, option) {
  return (list(row.settings).find((setting) => setting.option === option) || { value: "" }).value;
}

// Texts like "64" alone are numbers, "2GiB" and "" are not.
function settingNumber(row, option) {
  const text = String(settingOf(row, option)).trim();
  return text === "" ? NaN : Number(text);
}

function drawFront(page, rows, front) {
  if (front.length < 2) return;
  const points = (wanted) => rows.filter((row) => Boolean(row.on_front) === wanted)
    .map((row) => [metricValue(front[1], row), metricValue(front[0], row)])
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)).sort((a, b) => a[0] - b[0]);
  page.chart({ title: `Pareto front: ${front[0].name} and ${front[1].name}`,
    caption: `Each point of the sweep. On the front are those that no other point beats in ${front.map((m) => m.name).join(", ")}.`,
    x: metricAxis(front[1]), y: metricAxis(front[0]), lines: [
      // With three metrics and more the front is no line.
      { name: "on the front", style: front.length > 2 ? "dots" : "line", points: points(true) },
      { name: "others", style: "dots", points: points(false) }] });
}

// One line per combination of the other options.
function drawMetric(page, rows, metric, option) {
  const lines = new Map();
  for (const row of rows) {
    const x = settingNumber(row, option), y = metricValue(metric, row);
    if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
    const others = list(row.settings).filter((setting) => setting.option !== option)
      .map((setting) => `${setting.option}=${setting.value}`);
    const name = others.join(", ") || metric.name;
    if (!lines.has(name) && lines.size < MOST_COMBINATIONS) lines.set(name, []);
    if (lines.has(name)) lines.get(name).push([x, y]);
  }
  page.chart({ title: `${metric.name} by ${option}`,
    caption: lines.size === MOST_COMBINATIONS ? `The first ${MOST_COMBINATIONS} combinations of the other options.`
                                              : "One line per combination of the other options.",
    x: { label: option }, y: metricAxis(metric),
    lines: [...lines].map(([name, points]) => ({ name, points: points.sort((a, b) => a[0] - b[0]) })) });
}

function drawSweep(page, { report, metrics: facts }) {
  const rows = list(report.rows), options = list(report.options);
  const metrics = list((facts || {}).metrics);
  const front = list(report.front_metrics).map((name) => metrics.find((metric) => metric.name === name)).filter(Boolean);
  const failed = rows.filter((row) => row.problem).length, best = rows.filter((row) => row.on_front).length;
  page.title(`A sweep of ${plural(rows.length, "point")}`, report.workload || "");
  page.headline([
    `${plural(rows.length, "point")} over ${options.join(", ") || "no option"}` + (failed > 0 ? `; ${count(failed)} have no figures.` : "."),
    front.length > 1 ? `${plural(best, "point")} on the front of ${front.map((metric) => metric.name).join(" and ")}.` : "",
  ]);
  page.notes(report.notes);
  drawFront(page, rows, front);
  const option = options.find((name) => rows.some((row) => Number.isFinite(settingNumber(row, name))));
  if (option) for (const metric of metrics) drawMetric(page, rows, metric, option);
  page.table({ title: "Points", columns: ["front", ...options, ...metrics.map((metric) => metric.name), "problem"],
    rows: rows.map((row) => [row.on_front ? "*" : "", ...options.map((name) => settingOf(row, name)),
      ...metrics.map((metric) => metricText(metric, row)), row.problem || ""]) });
}
