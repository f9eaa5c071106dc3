// What charts of a run need of its report, and the reports of replicas as one: so that one replica and
// forty have the same charts.
"use strict";

const MOST_POINTS = 200;  // of a line: more cannot be told from each other

const COUNTS = ["prefill_tokens", "decode_tokens", "queried_tokens", "hit_tokens", "evictions",
                "preemptions", "first_tokens"];

// Points of `tick` seconds; neighbours are merged as the report merges ticks: counts are added up,
// gauges averaged.
function bucketed(series, tick) {
  const causes = list(series.miss_causes).length;
  const buckets = new Map();
  for (const point of list(series.points)) {
    const index = Math.floor(num(point.start_s) / tick + 1e-9);
    let made = buckets.get(index);
    if (!made) {
      made = { start_s: index * tick, ticks: 0, running: 0, waiting: 0, usage: 0, resident: 0, busy_share: 0,
               step_rate: 0, ttft_sum: 0, missed_blocks: new Array(causes).fill(0) };
      for (const name of COUNTS) made[name] = 0;
      buckets.set(index, made);
    }
    made.ticks += 1;
    for (const name of COUNTS) made[name] += num(point[name]);
    for (const name of ["running", "waiting", "usage", "resident", "busy_share"]) made[name] += num(point[name]);
    if (num(point.step_time_ms) > 0) made.step_rate += num(point.busy_share) / num(point.step_time_ms);
    made.ttft_sum += num(point.first_tokens) * num(point.ttft_ms);
    list(point.missed_blocks).forEach((blocks, i) => { made.missed_blocks[i] += num(blocks); });
  }
  for (const made of buckets.values()) {
    for (const name of ["running", "waiting", "usage", "resident", "busy_share", "step_rate"]) made[name] /= made.ticks;
  }
  return [...buckets.values()].sort((a, b) => a.start_s - b.start_s);
}

// The tick with which every one of the series has at most MOST_POINTS.
function commonTick(all) {
  let tick = Math.max(1e-9, ...all.map((series) => num(series.tick_s)));
  const ends = all.map((series) => {
    const points = list(series.points);
    return points.length === 0 ? 0 : num(points[points.length - 1].start_s) - num(points[0].start_s);
  });
  return tick * Math.max(1, Math.ceil((Math.max(0, ...ends) / tick + 1) / MOST_POINTS));
}

// The sums of several replicas' points; of shares the means over the replicas.
function addedUp(all) {
  const sums = new Map();
  for (const points of all) {
    for (const point of points) {
      const made = sums.get(point.start_s);
      if (!made) {
        sums.set(point.start_s, { ...point, missed_blocks: [...point.missed_blocks] });
        continue;
      }
      for (const name of [...COUNTS, "running", "waiting", "usage", "resident", "busy_share", "step_rate", "ttft_sum"]) {
        made[name] += point[name];
      }
      point.missed_blocks.forEach((blocks, i) => { made.missed_blocks[i] = num(made.missed_blocks[i]) + blocks; });
    }
  }
  for (const made of sums.values()) {
    for (const name of ["usage", "resident", "busy_share", "step_rate"]) made[name] /= all.length;
  }
  return [...sums.values()].sort((a, b) => a.start_s - b.start_s);
}

// Quantiles of a mixture: [[value, percent up to it], ...]. Each part is { values, weight }.
function mixedQuantiles(parts) {
  const all = [];
  for (const { values, weight } of parts) {
    const last = values.length - 1;
    values.forEach((value, i) => all.push([num(value), i === 0 ? 0 : weight / last]));
  }
  const total = sum(all.map(([, weight]) => weight));
  if (!(total > 0)) return [];
  all.sort((a, b) => a[0] - b[0]);
  let reached = 0;
  const points = all.map(([value, weight]) => [value, (100 * (reached += weight)) / total]);
  const stride = Math.ceil(points.length / MOST_POINTS);
  return points.filter(([value], i) => value > 0 && (i % stride === 0 || i === points.length - 1));
}

function addedArrays(arrays) {
  const length = Math.max(0, ...arrays.map((one) => one.length));
  return Array.from({ length }, (_, i) => sum(arrays.map((one) => num(one[i]))));
}

function sumBy(entries, key, add) {
  const made = new Map();
  for (const entry of entries) {
    if (!made.has(key(entry))) made.set(key(entry), { ...entry, sum: 0, whole: 0 });
    add(made.get(key(entry)), entry);
  }
  return [...made.values()];
}

// What is drawn of one run, { name, report, ... }: `engines`, its replicas together or, where prefill
// and decode are disaggregated, those of each role; and the latencies that clients saw.
function drawnRun(run) {
  const { report } = run, replicas = list(report.replicas);
  const roles = [...new Set(replicas.map((row) => row.role || ""))];
  const engines = replicas.length === 0 ? [drawnEngine(run.name, [{ name: "", report }], report.config)]
    : roles.map((role) => drawnEngine([role, run.name].filter(Boolean).join(" "), replicas.filter((row) => (row.role || "") === role),
                                      report.config));
  return { ...run, engines, meaningful: Boolean((report.setup || {}).latency_is_meaningful),
           objectives: list((report.goodput || {}).objectives) };
}

function drawnEngine(name, rows, config) {
  const reports = rows.map((row) => row.report || {});
  const series = reports.map((report) => report.series || {}), tick = commonTick(series);
  const replicas = series.map((one, r) => ({ name: rows[r].role ? rows[r].name : `replica ${rows[r].name || ""}`, points: bucketed(one, tick) }));
  const of = (pick) => reports.flatMap((report) => list(pick(report)));
  const total = (pick) => sum(reports.map((report) => num(pick(report))));
  const reuse = reports.map((report) => report.hit_reuse || {});
  const setup = (reports[0] || {}).setup || {};
  const prompt = {};
  for (const field of ["known", "hit", "partial_blocks"]) prompt[field] = total((report) => (report.prompt_tokens || {})[field]);
  return {
    name, reports, tick, replicas, prompt,
    meaningful: reports.some((report) => (report.setup || {}).latency_is_meaningful),
    points: replicas.length === 1 ? replicas[0].points : addedUp(replicas.map(({ points }) => points)),
    causes: list((series.find((one) => list(one.miss_causes).length > 0) || {}).miss_causes),
    caches: [config, ...reports.map((report) => report.config)].some((one) => one && one.prefix_caching),
    blockTokens: num(setup.hit_unit_tokens) || num(setup.block_tokens),
    evictions: total((report) => (report.pool || {}).evictions),
    preemptions: total((report) => (report.preemption || {}).preemptions),
    misses: sumBy(of((report) => (report.first_admission_misses || {}).causes), (cause) => cause.cause,
                  (made, cause) => { made.sum += num(cause.tokens); }),
    turns: sumBy(of((report) => (report.hit_groups || {}).turns), (turn) => turn.name, (made, turn) => {
      made.sum += num((turn.token_hit_rate || {}).numerator);
      made.whole += num((turn.token_hit_rate || {}).denominator);
    }),
    prefixes: sumBy(of((report) => (report.hit_prefix_length || {}).buckets), (bucket) => num(bucket.from_tokens),
                    (made, bucket) => { made.sum += num(bucket.count); }),
    hitDistances: mixedQuantiles(reuse.map((one) => (
      { values: list(one.distance_quantiles_blocks), weight: num(one.hit_blocks) || 1 }))),
    evictedDistances: mixedQuantiles(reports.map((report) => {
      const evicted = (report.first_admission_misses || {}).evicted || {};
      return { values: list(evicted.distance_quantiles_blocks), weight: num(evicted.blocks) || 1 };
    })),
    usableBlocks: num(setup.usable_blocks),
    places: addedArrays(reuse.map((one) => list(one.blocks_by_place))),
    inUse: sum(reuse.map((one) => num(one.in_use_blocks))),
    hitBlocks: sum(reuse.map((one) => num(one.hit_blocks))),
    groups: groupsOf(reports),
    occupancy: reports.length === 1 ? list(reports[0].group_occupancy) : [],
  };
}

// KV-cache groups: means over replicas, and the highest peak.
function groupsOf(reports) {
  const first = list((reports[0] || {}).groups);
  return first.map((group, g) => {
    const all = reports.map((report) => list(report.groups)[g] || {});
    const mean = (pick) => sum(all.map((one) => num((one[pick] || {}).mean))) / all.length;
    return { name: `${num(group.id)} ${group.kind || ""}`, live: mean("live_blocks"), cached: mean("cached_blocks"),
             peak: Math.max(...all.map((one) => num((one.live_blocks || {}).peak))) };
  });
}
