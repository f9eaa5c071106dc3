// Pages of one replay and of two compared: tables, notes and configuration around the charts of
// run.js.
"use strict";

// Rows of `fields`: [name, text(report)], with a column per run.
function rowsOf(runs, fields) {
  return fields.map(([name, text]) => [name, ...runs.map((run) => text(run.report))]);
}

const columnsOf = (runs) => (runs.length === 1 ? null : ["", ...runs.map((run) => run.name)]);

function deviceText(config) {
  return `${config.model || ""} on ${count(config.tensor_parallel)} x ${config.device || ""}`;
}

function drawSetupTable(page, runs) {
  page.table({ title: "What was replayed", columns: columnsOf(runs), rows: rowsOf(runs, [
    ["workload", ({ workload: w = {} }) => `${w.name || ""}: ${count(w.requests_arrived)} requests, ` +
      `${count(w.input_tokens)} prompt and ${count(w.requested_output_tokens)} output tokens`],
    ["pool", ({ setup: s = {} }) => `${count(s.num_blocks)} blocks of ${count(s.block_tokens)} tokens` +
      (num(s.block_bytes) > 0 ? `, ${bytes(num(s.num_blocks) * num(s.block_bytes))}` : "") + `; ${s.num_blocks_source || ""}`],
    ["engine", ({ config: c = {} }) => `${c.engine || ""}${c.async ? ", async" : ", sync"}; at most ` +
      `${count(c.max_num_batched_tokens)} tokens and ${count(c.max_num_seqs)} requests per step`],
    ["model and device", ({ config: c = {} }) => deviceText(c)],
    ["step times from", ({ setup: s = {} }) => s.time_source || ""],
  ]) });
}

function drawResultTable(page, runs) {
  page.table({ title: "What came of it", columns: columnsOf(runs), rows: rowsOf(runs, [
    ["token hit rate", ({ whole_run: r = {} }) => ratio(r.token_hit_rate)],
    ["of what an infinite cache would hit", ({ whole_run: r = {} }) => ratio(r.possible_hit_rate)],
    ["token hit rate after warm-up", ({ after_warmup: r = {} }) => ratio(r.token_hit_rate)],
    ["requests finished, rejected, aborted", ({ totals: t = {} }) =>
      `${count(t.requests_finished)}, ${count(t.requests_rejected)}, ${count(t.requests_aborted)}`],
    ["requests per second", ({ throughput: t = {} }) => decimal(num(t.requests_per_s))],
    ["output tokens per second", ({ throughput: t = {} }) => decimal(num(t.output_tokens_per_s))],
    ["device busy", ({ throughput: t = {} }) => percent(t.busy_share)],
    ["pool referenced, mean and peak", ({ pool: { usage = {} } = {} }) => `${percent(usage.mean)}, ${percent(usage.peak)}`],
    ["cached blocks evicted", ({ pool = {} }) => count(pool.evictions)],
    ["preemptions", ({ preemption = {} }) => count(preemption.preemptions)],
    ["requests that meet every SLO", ({ goodput, config = {} }) => (goodput
      ? `${percent(goodput.good_share)} of ${count(goodput.requests_total)}; ${config.slo || ""}` : "no SLO given")],
  ]) });
}

// `lines`: [name, Distribution].
function latencyTable(page, title, lines) {
  const shown = lines.filter(([, d]) => d && num(d.count) > 0);
  const isDefined = shown.some(([, d]) => d.definition);
  page.table({ title, columns: ["", "mean", "p50", "p90", "p99", "max", ...(isDefined ? ["what"] : [])],
    rows: shown.map(([name, d]) => [name, span(d.mean_ms), span(d.p50_ms), span(d.p90_ms), span(d.p99_ms), span(d.max_ms),
      ...(isDefined ? [d.definition || ""] : [])]) });
}

function drawLatencyTable(page, runs) {
  const fields = [["queueing", "queueing"], ["TTFT", "ttft"], ["TPOT, ITL per request", "tpot"], ["ITL per gap", "itl"],
                  ["E2E", "e2e"]];
  const timed = runs.filter(({ report }) => (report.setup || {}).latency_is_meaningful);
  latencyTable(page, "Latency", fields.flatMap(([name, field]) =>
    timed.map((run) => [nameOf(name, run), (run.report.latency || {})[field]])));
}

function drawMissTable(page, report) {
  const prompt = report.prompt_tokens || {};
  if (!(report.config || {}).prefix_caching || num(prompt.known) === 0) return;
  const rows = [["hit", prompt.hit, "found in the prefix cache"],
                ...list((report.first_admission_misses || {}).causes).map((c) => [c.cause, c.tokens, c.meaning]),
                ["partial blocks", prompt.partial_blocks, "behind the last full block: never cached"]];
  page.table({ title: "Where the prompt tokens went", columns: ["", "tokens", "share", "meaning"],
    rows: rows.filter(([, tokens]) => num(tokens) > 0).map(([name, tokens, meaning]) =>
      [name, count(tokens), percent(share(tokens, prompt.known)), meaning || ""]) });
}

function drawTierTable(page, tiers) {
  if (!tiers) return;
  const link = (use) => (use ? `${plural(use.transfers, "transfer")}, mean ${span(use.mean_transfer_ms)}` : "free");
  page.table({ title: "Tiers", columns: ["", "used", "hit tokens", "read", "written", "evicted, chunks", "loads", "stores"],
    rows: list(tiers.tiers).map((t) => [(t.name || "") + (t.is_shared ? ", shared" : ""),
      num(t.capacity_bytes) > 0 ? `${bytes(t.used_bytes)} of ${bytes(t.capacity_bytes)}`
                                : `${count(t.used_chunks)} of ${plural(t.capacity_chunks, "chunk")}`,
      count(t.hit_tokens), bytes(t.read_bytes), bytes(t.written_bytes), count(t.evicted_chunks),
      link(t.read_link), link(t.write_link)]) });
}

function drawConfiguration(page, config) {
  const rows = Object.entries(config || {}).filter(([, value]) => typeof value !== "object");
  if (rows.length === 0) return;
  page.heading("Configuration");
  page.table({ title: "", rows: rows.map(([name, value]) => [name, String(value)]) });
}

function replayHeadline(report) {
  const { totals = {}, throughput = {}, whole_run: hits = {}, setup = {}, workload = {} } = report;
  return [
    requestSentence({ finished: totals.requests_finished, arrived: workload.requests_arrived,
      ends: [[totals.requests_rejected, "rejected"], [totals.requests_aborted, "aborted"], [totals.requests_failed, "failed"]],
      seconds: throughput.duration_s, rate: throughput.requests_per_s, tokens: throughput.output_tokens_per_s }),
    hitSentence(hits.token_hit_rate, hits.possible_hit_rate),
    latencySentence(report.latency, setup.latency_is_meaningful),
    goodputSentence(report.goodput, (report.config || {}).slo),
  ];
}

function drawReplay(page, { report }) {
  if (report.handover) return drawSplit(page, report);
  if (report.replicas) return drawFleet(page, report);
  const { workload = {}, setup = {}, config = {} } = report;
  page.title(`Replay of ${workload.name || ""}`,
    `${deviceText(config)}, ${count(setup.num_blocks)} blocks of ${count(setup.block_tokens)} tokens`);
  page.headline(replayHeadline(report));
  page.notes(report.notes);
  const runs = [{ name: "", report }];
  drawSetupTable(page, runs);
  drawResultTable(page, runs);
  drawLatencyTable(page, runs);
  drawMissTable(page, report);
  drawTierTable(page, report.tiers);
  drawRuns(page, [drawnRun(report, "")]);
  drawConfiguration(page, config);
}

// --- Two runs ---

function drawDifferences(page, comparison) {
  page.heading("Differences");
  if (comparison.same) page.notes(["The two runs are the same."]);
  const cell = (value) => (value === undefined ? "n/a" : value);
  page.table({ title: "Options", columns: ["", "A", "B"],
    rows: list(comparison.configuration).map((field) => [field.name, cell(field.a), cell(field.b)]) });
  const schedule = comparison.schedule;
  if (schedule) {
    page.notes([schedule.same ? "The schedules are the same."
      : `The schedules part after ${count(schedule.equal_steps)} equal steps.`]);
  }
  page.table({ title: "Metrics", columns: ["", "A", "B", "change", "relative", "tolerance"], shown: 200,
    rows: list(comparison.changes).map((change) => [change.name, cell(change.a), cell(change.b), cell(change.change),
      change.relative === undefined ? "n/a" : (change.relative > 0 ? "+" : "") + percent(change.relative),
      (change.tolerance || "") + (change.exceeded ? " exceeded" : "")]) });
}

function comparisonHeadline(comparison, runs) {
  const [a, b] = runs.map(({ report }) => report);
  const rate = (report) => percent(((report.whole_run || {}).token_hit_rate || {}).value);
  const ttft = (report) => span((((report.latency || {}).ttft) || {}).p50_ms);
  const timed = [a, b].every((report) => (report.setup || {}).latency_is_meaningful);
  return [
    comparison.same ? "The two runs are the same."
      : `${count(comparison.metrics_changed)} of ${plural(comparison.metrics, "metric")} differ, and ` +
        `${plural(list(comparison.configuration).length, "option")}.`,
    `Token hit rate: ${rate(a)} in A, ${rate(b)} in B.`,
    timed ? `Half of the first tokens came within ${ttft(a)} in A, ${ttft(b)} in B.` : "",
    num(comparison.metrics_judged) === 0 ? ""
      : `${count(comparison.metrics_exceeded)} of ${count(comparison.metrics_judged)} judged metrics exceed their tolerance.`,
  ];
}

function drawComparison(page, { report: comparison, a, b }) {
  page.title("Two runs compared", `A: ${comparison.a || ""}, B: ${comparison.b || ""}`);
  const runs = [{ name: "A", report: a }, { name: "B", report: b }];
  page.headline(comparisonHeadline(comparison, runs));
  for (const run of runs) page.notes(list(run.report.notes).map((note) => `${run.name}: ${note}`));
  drawSetupTable(page, runs);
  drawResultTable(page, runs);
  drawLatencyTable(page, runs);
  drawRuns(page, runs.map(({ name, report }) => drawnRun(report, name)));
  drawDifferences(page, comparison);
}
