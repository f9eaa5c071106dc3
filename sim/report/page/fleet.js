// Pages of several replicas: behind a router, and with prefill and decode on replicas of their own.
"use strict";

const MOST_LINES = 16;  // of one chart; more replicas are drawn as the lowest, their mean and the highest

function distributionText(d) {
  if (!d || num(d.count) === 0) return "none";
  return `mean ${span(d.mean_ms)}, p50 ${span(d.p50_ms)}, p90 ${span(d.p90_ms)}, p99 ${span(d.p99_ms)}`;
}

const looksAtContent = (router) => ["prefix", "prefix-approximate", "oracle"].includes(router.router);

// Every router says what it looks at.
function routerText(router) {
  const parts = [router.router || ""];
  if (looksAtContent(router)) {
    parts.push(`score = ${num(router.hit_weight)} x blocks held - ${num(router.load_weight)} x load - ` +
               `${num(router.queue_weight)} x queue`);
    if (num(router.temperature) > 0) parts.push(`temperature ${router.temperature}`);
  }
  if (router.router === "prefix-approximate") parts.push(`tree of ${count(router.tree_blocks)} blocks`);
  if (router.router === "session") parts.push(`at most ${num(router.session_factor)} x the mean`);
  const limits = [num(router.queue_requests) > 0 ? plural(router.queue_requests, "request") : "",
                  num(router.queue_tokens) > 0 ? plural(router.queue_tokens, "token") : ""].filter(Boolean);
  if (limits.length > 0) {
    parts.push(`at most ${limits.join(" and ")} per replica`, "others wait" + (router.queue_by_priority ? " by priority" : ""));
    if (num(router.queue_limit) >= 0) parts.push(`${count(router.queue_limit)} of them at most`);
  }
  if (num(router.router_delay_ms) > 0) parts.push(`delay ${span(router.router_delay_ms)}`);
  if (router.router === "prefix" && num(router.event_delay_ms) > 0) parts.push(`events ${span(router.event_delay_ms)} late`);
  if (router.router === "prefix" && num(router.event_loss) > 0) parts.push(`${percent(router.event_loss)} of the events lost`);
  return parts.join(", ");
}

// "2 replicas of 8 data-parallel ranks in lockstep".
function replicasText(report) {
  const groups = list(report.rank_groups);
  if (groups.length === 0) return plural(list(report.replicas).length, "replica");
  const kinds = new Map();
  for (const group of groups) {
    const kind = `${num(group.ranks)} data-parallel ranks${group.lockstep ? " in lockstep" : ""}`;
    kinds.set(kind, (kinds.get(kind) || 0) + 1);
  }
  const others = list(report.replicas).length - sum(groups.map((group) => num(group.ranks)));
  const parts = [...kinds].map(([kind, number]) => `${plural(number, "replica")} of ${kind}`);
  return parts.join(", ") + (others > 0 ? `, ${count(others)} of one` : "");
}

function scalingRows(scaling) {
  if (!scaling) return [];
  const rows = [["scaling", `${count(scaling.replica_s)} replica-seconds, ${decimal(num(scaling.mean_on))} replicas on average, ` +
    `${count(scaling.most_live)} live at most; ${plural(scaling.starts, "start")} (${count(scaling.restarts)} again), ` +
    `${plural(scaling.stops, "stop")}, ${count(scaling.crashes)} ${num(scaling.crashes) === 1 ? "crash" : "crashes"}` +
    (num(scaling.refused) > 0 ? `; ${plural(scaling.refused, "change")} found no replica in the right state` : "")]];
  if (num(scaling.requests_lost) > 0) {
    rows.push(["lost", `${plural(scaling.requests_lost, "request")} by crashes: ${count(scaling.requests_retried)} sent again, ` +
      `${count(scaling.requests_failed)} failed; ${count(scaling.lost_tokens)} tokens computed in vain`]);
  }
  if (num(scaling.requests_held) > 0) {
    rows.push(["held", `${plural(scaling.requests_held, "request")} found no live replica and waited for one`]);
  }
  return rows;
}

function decisionRows(report) {
  const { router = {} } = report, { decisions: d = {} } = router;
  const rows = [["choices", `${count(d.routed)} requests sent; for ${count(d.another_held_more)} another replica held more of ` +
    `the prompt, by ${count(d.oracle_more_tokens)} tokens in all`]];
  if (looksAtContent(router)) {
    rows.push(["claims", `${count(d.claimed_tokens)} tokens claimed, ${count(d.found_tokens)} found at admission; too high for ` +
      `${plural(d.claims_too_high, "request")} (${count(d.missing_tokens)} tokens missing), too low for ` +
      `${count(d.claims_too_low)} (${count(d.unknown_tokens)} tokens unknown)`]);
  }
  return rows;
}

function fleetRows(report) {
  const { workload = {}, totals = {}, router = {}, whole_run: hits = {}, goodput, config = {} } = report;
  const { imbalance = {} } = router;
  const rows = [["fleet", replicasText(report)]];
  for (const kind of list(report.kinds)) {
    const first = num(kind.first), last = first + num(kind.count) - 1;
    rows.push([last > first ? `${first} to ${last}` : String(first),
               `${deviceText(kind)}, ${count(kind.num_blocks)} blocks${kind.options ? `: ${kind.options}` : ""}`]);
  }
  rows.push(["router", routerText(router)]);
  rows.push(["requests", [`${count(workload.requests_arrived)} arrived`, `${count(totals.requests_finished)} finished`,
    ...[["rejected", totals.requests_rejected], ["aborted", totals.requests_aborted], ["failed", totals.requests_failed],
        ["left out", workload.requests_skipped]].filter(([, n]) => num(n) > 0).map(([what, n]) => `${count(n)} ${what}`)].join(", ")]);
  rows.push(["hit rate", ratio(hits.token_hit_rate)]);
  if (num(router.queue_requests) > 0 || num(router.queue_tokens) > 0) {
    rows.push(["router queue", `${plural(router.requests_queued, "request")} waited, ${count(router.most_queued)} at once at most; ` +
      (num(router.requests_queued) > 0 ? `${distributionText(router.queueing)}; ` : "") +
      `${count(router.requests_rejected)} rejected there, ${count(router.requests_aborted)} gave up`]);
  }
  if (goodput) {
    rows.push(["goodput", `${percent(goodput.good_share)} of ${count(goodput.requests_total)} requests meet ${config.slo || ""}, ` +
      `${decimal(num(goodput.good_requests_per_s))} requests/s; ${goodput.met ? "all limits hold" : "not all limits hold"}`]);
  }
  rows.push(["most / mean", [["requests", imbalance.requests], ["prompt tokens", imbalance.prompt_tokens],
    ["output tokens", imbalance.output_tokens], ["busy time", imbalance.busy_time]]
    .map(([name, value]) => `${name} ${num(value).toFixed(3)}`).join(", ")]);
  rows.push(...decisionRows(report));
  for (const group of list(report.rank_groups).filter((one) => one.lockstep)) {
    rows.push(["lockstep", `ranks from ${num(group.first)}: ${count(group.passes)} passes in ${span(1e3 * num(group.passes_s))}, of ` +
      `which a rank computes ${percent(group.own_share)}, waits for a slower one ${percent(group.lost_share)} and has no ` +
      `requests ${percent(group.dummy_share)}; ${count(group.idle_passes)} more passes without any requests`]);
  }
  return [...rows, ...scalingRows(report.scaling)];
}

function drawReplicaTable(page, report) {
  const lockstep = list(report.rank_groups).some((group) => group.lockstep);
  page.table({ title: "Replicas", shown: MOST_LINES,
    columns: [list(report.rank_groups).length > 0 ? "rank" : "replica", "requests", "prompt tokens", "hit rate", "output tokens",
              "busy", "preempted", "missed hits", ...(lockstep ? ["waits", "no requests"] : [])],
    rows: list(report.replicas).map((row) => [row.name || "", count(row.requests_sent), count(row.prompt_tokens),
      percent(row.hit_rate), count(row.output_tokens), percent(row.busy_share), count(row.preemptions),
      count(row.oracle_more_tokens), ...(lockstep ? [percent(row.lost_share), percent(row.dummy_share)] : [])]) });
  page.table({ title: "Replicas that came and went", columns: ["time", "replica", "", "live then"],
    rows: list((report.scaling || {}).timeline).map((event) =>
      [span(1e3 * num(event.time_s)), String(num(event.replica)), event.kind || "", count(event.live)]) });
}

// A line per replica, or their lowest, mean and highest where they would be too many.
function replicaLines(replicas, value) {
  const named = replicas.map((points, r) => ({ name: `replica ${r}`,
    points: points.map((p) => [1e3 * p.start_s, value(p)]) }));
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

function drawReplicaLoads(page, run) {
  page.heading("Load of each replica");
  const add = (title, caption, y, value) =>
    page.chart({ ...overTime(title, caption, y), lines: replicaLines(run.replicas, value) });
  const shares = { label: "%", kind: "percent", max: 100 };
  add("Running requests", "Mean number of requests that ran.", { label: "requests" }, (p) => p.running);
  add("Waiting requests", "Mean number of requests that waited at the replica.", { label: "requests" }, (p) => p.waiting);
  add("Busy", "Share of the time in which a step ran.", shares, (p) => 100 * p.busy_share);
  add("Pool in use", "Share of the blocks that requests held.", shares, (p) => 100 * p.usage);
  add("Hit rate of replicas", "Token hit rate of the admissions of each point.", shares,
      (p) => (p.queried_tokens === 0 ? NaN : (100 * p.hit_tokens) / p.queried_tokens));
}

function drawDecisions(page, report) {
  page.heading("Decisions");
  const series = (report.router || {}).decision_series || {}, points = list(series.points);
  const tick = commonTick([series]);
  const lines = [["missed hits", "oracle_more_tokens"],
                 ...(looksAtContent(report.router || {}) ? [["claimed, not found", "missing_tokens"],
                                                            ["found, not claimed", "unknown_tokens"]] : [])];
  const added = new Map();
  for (const point of points) {
    const start = Math.floor(num(point.start_s) / tick + 1e-9) * tick;
    const made = added.get(start) || {};
    for (const [, field] of lines) made[field] = num(made[field]) + num(point[field]);
    added.set(start, made);
  }
  page.chart({ ...overTime("Wrong decisions", "Hit tokens per second that another replica would have had more; and what the " +
    "router claimed and was not found, or did not know of.", { label: "tokens per second" }),
    lines: lines.map(([name, field]) => ({ name, points: [...added].map(([start, made]) => [1e3 * start, made[field] / tick]) })) });
  const rows = list(report.replicas);
  page.chart({ title: "Prompt tokens per replica",
    caption: "Hit tokens, all others, and hits that another replica would have had more.",
    x: { label: "replica" }, y: { label: "tokens" }, categories: rows.map((row) => row.name || ""),
    lines: [{ name: "hit", bars: rows.map((row) => num(row.hit_tokens)) },
            { name: "computed", bars: rows.map((row) => num(row.queried_tokens) - num(row.hit_tokens)) },
            { name: "missed hits", bars: rows.map((row) => num(row.oracle_more_tokens)) }] });
}

function drawFleet(page, report) {
  const { config = {}, router = {}, latency = {}, workload = {} } = report;
  page.title(`Replay of ${workload.name || ""} through ${plural(list(report.replicas).length, "replica")}`,
    list(report.kinds).length > 0 ? `${plural(report.kinds.length, "kind")} of replicas behind ${router.router || ""}`
                                  : `${deviceText(config)} each, behind ${router.router || ""}`);
  const run = drawnRun(report, "");
  page.headline(replayHeadline(report));
  page.notes(report.notes);
  page.table({ title: "What came of it", rows: fleetRows(report) });
  latencyTable(page, "Latency", [["queueing", latency.queueing], ["in the router's queue", router.queueing],
    ["TTFT", latency.ttft], ["TPOT", latency.tpot], ["E2E", latency.e2e]]);
  drawReplicaTable(page, report);
  drawTierTable(page, report.tiers);
  drawRuns(page, [run]);
  drawReplicaLoads(page, run);
  drawDecisions(page, report);
  drawConfiguration(page, config);
}

// --- Prefill and decode on replicas of their own ---

const withRole = (report, role) => list(report.replicas).filter((row) => row.role === role);

function splitRows(report) {
  const { handover: setup, goodput } = report, { transfers = {} } = setup;
  const rows = [
    ["replicas", `${plural(withRole(report, "prefill").length, "prefill replica")} (${setup.prefill_router}), ` +
      `${plural(withRole(report, "decode").length, "decode replica")} (${setup.decode_router}); the first token is the ${setup.first_token}'s`],
    ["link", `${num(setup.link_gb_per_s)} GB/s, latency ${span(setup.link_latency_ms)}, ` +
      `${setup.link_scope === "shared" ? "one for all" : "one into each decode replica"}, ` +
      `${setup.link_sharing === "fifo" ? "one transfer after the other" : "in equal parts"}; ${count(setup.bytes_per_token)} bytes ` +
      `per token${num(setup.window_bytes_per_token) ? `, ${count(setup.window_bytes_per_token)} more in windows,` : ""} ` +
      `of what the decode replica ${setup.transferred === "all" ? "needs, also if it is there" : "lacks"}`],
    ["transfers", `${count(transfers.count)} of ${count(transfers.loaded_tokens)} tokens, ${bytes(transfers.bytes)}; link busy ` +
      `${percent(transfers.busy_share)}, at most ${count(transfers.peak_under_way)} at once, queueing mean ` +
      `${span((transfers.queueing || {}).mean_ms)}`],
    ["blocks held without work, time x requests", `${span(1e3 * num(transfers.prefill_hold_s))} on prefill replicas, ` +
      `${span(1e3 * num(transfers.decode_hold_s))} on decode replicas`],
    ["computed where they decode", plural(setup.requests_local, "request")],
  ];
  if (goodput) rows.push(["goodput", `${percent(goodput.good_share)} of requests meet every limit` +
                                     (goodput.met ? "" : "; a percentile is missed")]);
  return rows;
}

function drawSplit(page, report) {
  const { handover, latency = {}, config = {} } = report;
  const rows = list(report.replicas);
  page.title(`Replay with ${["prefill", "decode"].map((role) => plural(withRole(report, role).length, `${role} replica`)).join(" and ")}`, `${deviceText(config)} each`);
  page.headline(replayHeadline(report));
  page.notes(report.notes);
  page.table({ title: "What came of it", rows: splitRows(report) });
  const phases = [["queueing", "queueing"], ["prefill", "prefill"], ["hand-over", "handover"], ["transfer", "transfer"],
                  ["decode", "decode"]];
  const ofPhases = { queueing: latency.queueing, prefill: handover.prefill, handover: handover.handover,
                     transfer: handover.transfer, decode: handover.decode };
  latencyTable(page, "Latency", [["TTFT", latency.ttft], ["TPOT", latency.tpot], ["E2E", latency.e2e],
    ...phases.map(([name, field]) => [name, ofPhases[field]])]);
  page.table({ title: "Replicas", columns: ["", "requests", "tokens hit", "tokens computed", "output tokens", "busy", "preempted"],
    rows: rows.map((row) => [row.name, count(row.requests_finished), count(row.hit_tokens), count(row.computed_tokens),
      count(row.output_tokens), percent(row.busy_share), count(row.preemptions)]) });
  page.heading("Latency");
  const run = { name: "", latency: { ...latency, ...ofPhases }, objectives: list((report.goodput || {}).objectives) };
  drawDistributions(page, [run], "Time to first token", "Of requests that finished.", [["TTFT", "ttft"]], "ttft");
  drawDistributions(page, [run], "Time per output token", "One value per request, its mean gap.", [["TPOT", "tpot"]], "tpot");
  drawDistributions(page, [run], "Whole requests", "Arrival to last token.", [["E2E", "e2e"]], "e2e");
  drawDistributions(page, [run], "Phases", "Of requests that came to them, in this order.", phases, "");
  page.heading("Replicas");
  const bars = (title, y, lines) => page.chart({ title, caption: "", x: { label: "replica" }, y,
    categories: rows.map((row) => row.name), lines });
  bars("Busy", { label: "%", kind: "percent", max: 100 }, [{ name: "busy", bars: rows.map((row) => 100 * num(row.busy_share)) }]);
  bars("Tokens", { label: "tokens" }, [["hit", "hit_tokens"], ["computed", "computed_tokens"], ["output", "output_tokens"]]
    .map(([name, field]) => ({ name, bars: rows.map((row) => num(row[field])) })));
  drawConfiguration(page, config);
}
