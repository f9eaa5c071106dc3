// The charts of runs: of one replica, of many added up, or of several runs or roles over each other.
"use strict";

const nameOf = (line, run) => (run.name ? `${line}, ${run.name}` : line);
const styleOf = (index) => (index === 0 ? "line" : "dashed");
const TIME_AXIS = { label: "simulated time", kind: "ms" };

function overTime(title, caption, y) {
  return { title, caption, x: TIME_AXIS, y, lines: [], marks: [] };
}

// One line per run; value(point, run) is NaN where there is none.
function addLines(chart, runs, name, color, value) {
  runs.forEach((run, i) => chart.lines.push({
    name: nameOf(name, run), color, style: styleOf(i),
    points: run.points.map((point) => [1e3 * point.start_s, value(point, run)]),
  }));
}

function addPerSecond(chart, runs, name, color, field) {
  addLines(chart, runs, name, color, (point, run) => point[field] / run.tick);
}

// One run each: bands of two cannot lie on each other.
function drawMissBands(page, run) {
  if (!run.caches) return;
  const chart = overTime(nameOf("Where prompt tokens went", run),
    "Tokens of first admissions per second: found in the cache, or why not.",
    { label: "tokens per second" });
  const band = (name, tokens) => {
    const points = run.points.map((point) => [1e3 * point.start_s, Math.max(0, tokens(point)) / run.tick]);
    if (points.some(([, y]) => y > 0)) chart.lines.push({ name, style: "band", points });
  };
  const missed = (point, cause) => run.blockTokens * num(point.missed_blocks[cause]);
  band("hit", (point) => point.hit_tokens);
  run.causes.forEach((cause, i) => band(cause, (point) => missed(point, i)));
  band("partial blocks", (point) =>
    point.queried_tokens - point.hit_tokens - sum(run.causes.map((_, i) => missed(point, i))));
  page.chart(chart);
}

function drawOverTime(page, runs, objectives) {
  page.heading("Over time");
  for (const run of runs) drawMissBands(page, run);
  const add = (title, caption, y, lines, marks) => {
    const chart = overTime(title, caption, y);
    lines.forEach(([name, value], i) => addLines(chart, runs, name, i, value));
    chart.marks = marks || [];
    page.chart(chart);
  };
  add("Hit rate", "Token hit rate of the admissions of each point.", { label: "%", kind: "percent", max: 100 },
      [["hit rate", (p) => (p.queried_tokens === 0 ? NaN : (100 * p.hit_tokens) / p.queried_tokens)]]);
  add("Block pool", "Referenced blocks, which is the gauge of serving engines, and those that hold reusable content as well.",
      { label: "% of the pool", kind: "percent", max: 100 },
      [["referenced", (p) => 100 * p.usage], ["with cached", (p) => 100 * p.resident]]);
  add("Requests", "Running, and waiting for a place or for blocks.", { label: "requests" },
      [["running", (p) => p.running], ["waiting", (p) => p.waiting]]);
  const tokens = overTime("Computed tokens", "Tokens that steps computed.", { label: "tokens per second" });
  addPerSecond(tokens, runs, "prefill", 0, "prefill_tokens");
  addPerSecond(tokens, runs, "decode", 1, "decode_tokens");
  page.chart(tokens);
  if (runs.some((run) => run.meaningful)) {
    add("Step time", "Mean of the steps of each point.", { label: "step time", kind: "ms" },
        [["step", (p) => (p.step_rate > 0 ? p.busy_share / p.step_rate : NaN)]]);
    add("Time to first token, over time", "Mean of the first tokens of each point, from the arrival at the replica.", { label: "TTFT", kind: "ms" },
        [["TTFT", (p) => (p.first_tokens > 0 ? p.ttft_sum / p.first_tokens : NaN)]],
        objectives.filter((o) => o.metric === "ttft").map((o) => ({ at: num(o.limit_ms), name: "SLO" })));
  }
  const perSecond = (field, title, caption, label, color) => {
    if (!runs.some((run) => run[field] > 0)) return;
    const chart = overTime(title, caption, { label });
    addPerSecond(chart, runs, field, color, field);
    page.chart(chart);
  };
  perSecond("evictions", "Evictions", "Cached blocks lost to reuse.", "blocks per second", 0);
  perSecond("preemptions", "Preemptions", "Requests that lost their blocks.", "per second", 1);
}

// Distributions as the share of values up to each. curves(report): [name, Distribution], of all runs alike.
function drawDistributions(page, runs, title, caption, curves, metric) {
  const chart = { title, caption, x: { label: "time", kind: "ms", log: true },
                  y: { label: "% of values up to it", kind: "percent", max: 100 }, lines: [], marks: [] };
  runs.forEach((run, i) => curves(run.report).forEach(([name, distribution], color) => {
    const quantiles = list((distribution || {}).quantiles_ms);
    // A logarithmic axis has no 0.
    const points = quantiles.map((value, q) => [num(value), (100 * q) / (quantiles.length - 1)]).filter(([x]) => x > 0);
    chart.lines.push({ name: nameOf(name, run), color, style: styleOf(i), points });
  }));
  for (const objective of runs[0].objectives.filter((one) => one.metric === metric)) {
    chart.marks.push({ at: num(objective.limit_ms), name: "SLO", vertical: true });
    const wanted = num(objective.percentile);
    if (wanted > 0) chart.marks.push({ at: wanted, name: `p${wanted}` });
  }
  page.chart(chart);
}

function drawLatency(page, runs) {
  page.heading("Latency");
  if (!runs.some((run) => run.meaningful)) {
    page.notes(["Every step took the same time in this run, so it says nothing about latency."]);
    return;
  }
  drawDistributions(page, runs, "Time to first token", "Of requests that finished.",
    ({ latency = {} }) => [["TTFT", latency.ttft]], "ttft");
  drawDistributions(page, runs, "Time per output token",
    "TPOT is one value per request, its mean gap (AIPerf calls that inter-token latency); ITL is every gap between two tokens.",
    ({ latency = {} }) => [["TPOT, ITL per request", latency.tpot], ["ITL per gap", latency.itl]], "tpot");
  drawDistributions(page, runs, "Whole requests", "Arrival to last token, and the phases in it, of requests that came to them.",
    (report) => [["E2E", (report.latency || {}).e2e], ...phasesOf(report)], "e2e");
}

function drawPrefixCache(page, runs) {
  page.heading("Prefix cache");
  const unique = (values) => [...new Set(values)];
  const turns = unique(runs.flatMap((run) => run.turns.map((turn) => turn.name)));
  if (turns.length > 1) {
    page.chart({ title: "Hit rate by turn of a session", caption: "Token hit rate of first admissions.",
                 x: { label: "turn" }, y: { label: "%", kind: "percent", max: 100 }, categories: turns,
                 lines: runs.map((run) => ({ name: nameOf("hit rate", run), bars: turns.map((name) => {
                   const turn = run.turns.find((one) => one.name === name);
                   return turn ? 100 * share(turn.sum, turn.whole) : NaN;
                 }) })) });
  }
  // Buckets are powers of two; their lower ends order and name them.
  const buckets = new Map(runs.flatMap((run) => run.prefixes.map((b) => [num(b.from_tokens), num(b.to_tokens) - 1])));
  const starts = [...buckets.keys()].sort((a, b) => a - b);
  page.chart({ title: "Length of the prefix that was hit",
               caption: "Requests by the tokens that they found at their first admission.",
               x: { label: "tokens" }, y: { label: "requests" },
               categories: starts.map((from) => (buckets.get(from) === from ? count(from)
                 : `${count(from)} to ${count(buckets.get(from))}`)),
               lines: runs.map((run) => ({ name: nameOf("requests", run), bars: starts.map((from) => {
                 const bucket = run.prefixes.find((one) => num(one.from_tokens) === from);
                 return bucket ? bucket.sum : 0;
               }) })) });
  drawReuse(page, runs);
  for (const run of runs) drawGroups(page, run);
}

// The larger the pool, the further hits reach and the less there is of what was evicted and missed.
function drawReuse(page, runs) {
  const chart = { title: "Reuse distance",
    caption: "Blocks that the pool handed out between two uses of a block: of hit blocks (in samples), and of evicted " +
             "blocks that were missed. A pool of so many blocks more would have kept the latter, roughly.",
    x: { label: "blocks", log: true }, y: { label: "% of blocks up to it", kind: "percent", max: 100 },
    lines: [], marks: [] };
  runs.forEach((run, i) => {
    chart.lines.push({ name: nameOf("hit", run), color: 0, style: styleOf(i), points: run.hitDistances });
    chart.lines.push({ name: nameOf("evicted", run), color: 1, style: styleOf(i), points: run.evictedDistances });
    if (run.usableBlocks > 0) chart.marks.push({ at: run.usableBlocks, name: nameOf("pool", run), vertical: true });
  });
  page.chart(chart);
  const most = Math.max(...runs.map((run) => run.places.length));
  if (most === 0) return;
  const categories = Array.from({ length: most }, (_, i) => String(Math.floor((100 * i) / most)));
  page.chart({ title: "LRU position at hit",
    caption: "Where hit blocks stood in the free queue, in samples: at 0 % what is evicted next, at 100 % what was used " +
             "last. \"in use\": held by another request. Hits far left are lost in a smaller pool.",
    x: { label: "place in the free queue, %" }, y: { label: "% of hit blocks", kind: "percent" },
    categories: [...categories, "in use"],
    lines: runs.filter((run) => run.places.length > 0 && run.hitBlocks > 0).map((run) => ({
      name: nameOf("hit blocks", run), bars: [...run.places, run.inUse].map((blocks) => (100 * blocks) / run.hitBlocks) })) });
}

function drawGroups(page, run) {
  if (run.groups.length < 2) return;
  const several = run.reports.length > 1 ? " Of one replica: means over all, and the highest peak." : "";
  page.chart({ title: nameOf("KV-cache groups", run),
    caption: "Blocks that requests hold and cached ones that none does." + several,
    x: { label: "" }, y: { label: "blocks" }, categories: run.groups.map((group) => group.name),
    lines: [{ name: "live, mean", bars: run.groups.map((group) => group.live) },
            { name: "live, peak", bars: run.groups.map((group) => group.peak) },
            { name: "cached, mean", bars: run.groups.map((group) => group.cached) }] });
  const chart = overTime(nameOf("Blocks of KV-cache groups", run),
    "Counted whenever a quarter of the pool was handed out: blocks that requests hold, and cached ones that none does.",
    { label: "blocks" });
  run.groups.forEach((group, g) => {
    for (const [name, field] of [["live", "live_blocks"], ["cached", "cached_blocks"]]) {
      chart.lines.push({ name: `${group.name}, ${name}`, style: "band",
        points: run.occupancy.map((at) => [1e3 * num(at.time_s), num(list(at[field])[g])]) });
    }
  });
  page.chart(chart);
}

// --- Sentences of a headline ---

function hitSentence(rate, possible) {
  if (!rate || num(rate.denominator) === 0) return "";
  const most = possible && num(possible.denominator) > 0
    ? `; that is ${percent(possible.value)} of what an infinite cache would hit` : "";
  return `${percent(rate.value)} of the prompt tokens were hits${most}.`;
}

function latencySentence(latency, meaningful) {
  const ttft = (latency || {}).ttft || {}, tpot = (latency || {}).tpot || {};
  if (!meaningful || num(ttft.count) === 0) return "";
  const gaps = num(tpot.count) > 0 ? `; after it a token every ${span(tpot.p50_ms)}` : "";
  return `Half of the first tokens came within ${span(ttft.p50_ms)}, 99 % within ${span(ttft.p99_ms)}${gaps}.`;
}

function goodputSentence(goodput, slo) {
  if (!goodput) return "";
  const limits = slo ? ` (${slo})` : "";
  return `${percent(goodput.good_share)} of the requests meet every limit${limits}: ` +
         (goodput.met ? "all objectives hold." : "an objective is missed.");
}

// { finished, arrived, ends: [[count, what]], seconds, rate, tokens }
function requestSentence({ finished, arrived, ends, seconds, rate, tokens }) {
  const others = ends.filter(([number]) => num(number) > 0).map(([number, what]) => `, ${count(number)} ${what}`);
  return `${count(finished)} of ${plural(arrived, "request")} finished in ${span(1e3 * num(seconds))}${others.join("")}: ` +
         `${decimal(num(rate))} requests/s, ${decimal(num(tokens))} output tokens/s.`;
}
