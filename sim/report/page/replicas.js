// What a report of several replicas has for each of them: tables, their loads over time, and how
// good the choices of the router were.
"use strict";

const MOST_LINES = 16;  // of one chart; more replicas are drawn as the lowest, their mean and the highest

// Columns of the table, of which those show that any row fills: [name, field of Replica, text].
const REPLICA_COLUMNS = [
  ["requests sent", "requests_sent", count], ["finished", "requests_finished", count], ["prompt tokens", "prompt_tokens", count],
  ["tokens hit", "hit_tokens", count], ["hit rate", "hit_rate", percent], ["tokens computed", "computed_tokens", count],
  ["output tokens", "output_tokens", count], ["busy", "busy_share", percent], ["preempted", "preemptions", count],
  ["missed hits", "oracle_more_tokens", count], ["waits", "lost_share", percent], ["no requests", "dummy_share", percent],
];

function drawReplicaTables(page, run) {
  const { replicas, scaling = {} } = run.report, rows = list(replicas);
  const columns = REPLICA_COLUMNS.filter(([, field]) => rows.some((row) => num(row[field]) > 0));
  page.table({ title: nameOf("Replicas", run), shown: MOST_LINES, columns: ["replica", ...columns.map(([name]) => name)],
    rows: rows.map((row) => [row.name || "", ...columns.map(([, field, text]) => text(row[field]))]) });
  page.table({ title: nameOf("Replicas that came and went", run), columns: ["time", "replica", "", "live then"],
    rows: list(scaling.timeline).map((event) =>
      [span(1e3 * num(event.time_s)), String(num(event.replica)), event.kind || "", count(event.live)]) });
}

// A line per replica, or their lowest, mean and highest where they would be too many.
function replicaLines(run, value) {
  const named = run.engines.flatMap((engine) => engine.replicas.map(({ name, points }) => (
    { name, points: points.map((p) => [1e3 * p.start_s, value(p)]) })));
  if (named.length <= MOST_LINES) return named;
  const times = new Map();
  for (const { points } of named) {
    for (const [x, y] of points) if (Number.isFinite(y)) times.set(x, [...(times.get(x) || []), y]);
  }
  const sorted = [...times].sort((a, b) => a[0] - b[0]);
  const line = (name, of, style) => ({ name, style, points: sorted.map(([x, ys]) => [x, of(ys)]) });
  return [line("highest replica", (ys) => Math.max(...ys), "dashed"), line("mean", (ys) => sum(ys) / ys.length, "line"),
          line("lowest replica", (ys) => Math.min(...ys), "dashed")];
}

function drawReplicas(page, run) {
  const rows = list(run.report.replicas);
  if (rows.length === 0) return;
  page.heading(nameOf("Replicas", run));
  const add = (title, caption, y, value) =>
    page.chart({ ...overTime(nameOf(title, run), caption, y), lines: replicaLines(run, value) });
  const shares = { label: "%", kind: "percent", max: 100 };
  add("Running requests", "Mean number of requests that ran.", { label: "requests" }, (p) => p.running);
  add("Waiting requests", "Mean number of requests that waited at the replica.", { label: "requests" }, (p) => p.waiting);
  add("Busy", "Share of the time in which a step ran.", shares, (p) => 100 * p.busy_share);
  add("Pool in use", "Share of the blocks that requests held.", shares, (p) => 100 * p.usage);
  add("Hit rate of replicas", "Token hit rate of the admissions of each point.", shares,
      (p) => (p.queried_tokens === 0 ? NaN : (100 * p.hit_tokens) / p.queried_tokens));
  const prompts = rows.map((row) => (row.report || {}).prompt_tokens || {});
  page.chart({ title: nameOf("Prompt tokens per replica", run),
    caption: "Hit tokens, all others, and hits that another replica would have had more.",
    x: { label: "replica" }, y: { label: "tokens" }, categories: rows.map((row) => row.name || ""),
    lines: [{ name: "hit", bars: prompts.map((prompt) => num(prompt.hit)) },
            { name: "not hit", bars: prompts.map((prompt) => num(prompt.known) - num(prompt.hit)) },
            { name: "missed hits", bars: rows.map((row) => num(row.oracle_more_tokens) || NaN) }] });
  drawDecisions(page, run);
}

function drawDecisions(page, run) {
  const series = (run.report.router || {}).decision_series || {};
  const tick = commonTick([series]);
  const added = new Map();
  const lines = [["missed hits", "oracle_more_tokens"], ["claimed, not found", "missing_tokens"], ["found, not claimed", "unknown_tokens"]];
  for (const point of list(series.points)) {
    const start = Math.floor(num(point.start_s) / tick + 1e-9) * tick;
    const made = added.get(start) || {};
    for (const [, field] of lines) made[field] = num(made[field]) + num(point[field]);
    added.set(start, made);
  }
  page.chart({ ...overTime(nameOf("Wrong decisions", run), "Hit tokens per second that another replica would have had more; and " +
    "what the router claimed and was not found, or did not know of.", { label: "tokens per second" }),
    lines: lines.filter(([, field]) => [...added.values()].some((made) => made[field] > 0)).map(([name, field]) => (
      { name, points: [...added].map(([start, made]) => [1e3 * start, made[field] / tick]) })) });
}
