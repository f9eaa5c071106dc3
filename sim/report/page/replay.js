// Pages of one replay and of two compared: sentences, tables and configuration around the charts of
// run.js. One replica, many and replicas by role have the same page.
"use strict";

const columnsOf = (runs) => (runs.length === 1 ? null : ["", ...runs.map((run) => run.name)]);

function deviceText(config) {
  return `${config.model || ""} on ${count(config.tensor_parallel)} x ${config.device || ""}`;
}

// What the report's table says: a row per label, with a column per run.
function drawFacts(page, title, runs, part) {
  const texts = runs.map(({ facts }) => new Map(list((facts || {})[part]).map((fact) => [fact.label, fact.text])));
  const labels = [...new Set(texts.flatMap((of) => [...of.keys()]))];
  page.table({ title, columns: columnsOf(runs), rows: labels.map((label) => [label, ...texts.map((of) => of.get(label) || "")]) });
}

// [name, Distribution] of what requests waited for, in the order of their lives.
function phasesOf({ latency = {}, router = {}, handover = {} }) {
  return [["queueing", latency.queueing], ["in the router's queue", router.queueing], ["prefill", handover.prefill],
          ["hand-over", handover.handover], ["transfer", handover.transfer], ["decode", handover.decode]];
}

function drawLatencyTable(page, runs) {
  const lines = runs.filter((run) => run.meaningful).flatMap((run) => {
    const { latency = {} } = run.report;
    return [["TTFT", latency.ttft], ["TPOT, ITL per request", latency.tpot], ["ITL per gap", latency.itl], ["E2E", latency.e2e],
            ...phasesOf(run.report)].filter(([, d]) => d && num(d.count) > 0).map(([name, d]) => [nameOf(name, run), d]);
  });
  page.table({ title: "Latency", columns: ["", "mean", "p50", "p90", "p99", "max", "what"],
    rows: lines.map(([name, d]) => [name, ...["mean", "p50", "p90", "p99", "max"].map((of) => span(d[`${of}_ms`])), d.definition || ""]) });
}

function drawMissTable(page, run) {
  if (!run.caches || !(run.prompt.known > 0)) return;
  const rows = [["hit", run.prompt.hit, "found in the prefix cache"], ...run.misses.map((cause) => [cause.cause, cause.sum, cause.meaning]),
                ["partial blocks", run.prompt.partial_blocks, "behind the last full block: never cached"]];
  page.table({ title: nameOf("Where the prompt tokens went", run), columns: ["", "tokens", "share", "meaning"],
    rows: rows.filter(([, tokens]) => tokens > 0).map(([name, tokens, meaning]) =>
      [name, count(tokens), percent(share(tokens, run.prompt.known)), meaning || ""]) });
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

// Everything of `runs`, { name, report, facts }, but what is said of one alone.
function drawReports(page, runs) {
  drawFacts(page, "What was replayed", runs, "setup");
  drawFacts(page, "What came of it", runs, "outcome");
  const drawn = runs.map(drawnRun);
  const engines = drawn.flatMap((run) => run.engines);
  drawLatencyTable(page, drawn);
  for (const engine of engines) drawMissTable(page, engine);
  for (const run of drawn) drawReplicaTables(page, run);
  drawOverTime(page, engines, drawn[0].objectives);
  drawLatency(page, drawn);
  drawPrefixCache(page, engines);
  for (const run of drawn) drawReplicas(page, run);
}

function drawReplay(page, { report, facts }) {
  const { workload = {}, setup = {}, config = {}, kinds } = report;
  const replicas = list(report.replicas).length;
  page.title(`Replay of ${workload.name || ""}` + (replicas > 0 ? ` through ${plural(replicas, "replica")}` : ""),
    kinds ? `${plural(kinds.length, "kind")} of replicas`
          : `${deviceText(config)}, ${count(setup.num_blocks)} blocks of ${count(setup.block_tokens)} tokens` + (replicas > 0 ? " each" : ""));
  page.headline(replayHeadline(report));
  page.notes(report.notes);
  drawReports(page, [{ name: "", report, facts }]);
  const rows = Object.entries(config).filter(([, value]) => typeof value !== "object");
  if (rows.length > 0) page.heading("Configuration");
  page.table({ title: "", rows: rows.map(([name, value]) => [name, String(value)]) });
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

function drawComparison(page, { report: comparison, a, b, facts_a, facts_b }) {
  page.title("Two runs compared", `A: ${comparison.a || ""}, B: ${comparison.b || ""}`);
  const runs = [{ name: "A", report: a, facts: facts_a }, { name: "B", report: b, facts: facts_b }];
  page.headline(comparisonHeadline(comparison, runs));
  for (const run of runs) page.notes(list(run.report.notes).map((note) => `${run.name}: ${note}`));
  drawReports(page, runs);
  drawDifferences(page, comparison);
}
