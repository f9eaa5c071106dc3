// The page of a hit-rate curve: pools of every size, bounds, variants, replays and two tiers.
"use strict";

const GIB = 1024 ** 3;
const shareName = (answer) => `${decimal(100 * num(answer.share_of_possible))} %`;

// Hits as a share of what the curve counts.
function hitShare(report, hits) {
  return report.counted_blocks === "ids" ? share(hits, report.prompt_blocks)
                                         : share(num(hits) * num(report.block_tokens), report.prompt_tokens);
}

function drawCurveTable(page, report) {
  const rows = [
    ["workload", `${report.trace || ""} (${report.format || ""}): ${count(report.requests)} requests, ${count(report.prompt_tokens)} prompt tokens`],
    ["curve", `${report.mode || ""} mode: ${report.exactness || ""}`],
    ["blocks", `${count(report.block_tokens)} tokens, ${count(report.block_bytes)} bytes on each device`],
  ];
  if (num(report.full_pool) > 0) {
    rows.push(["an infinite cache hits", `${percent(hitShare(report, report.possible_hits))}: ${count(report.possible_hits)} blocks, ` +
      `with ${count(report.full_pool)} blocks or more`]);
  }
  page.table({ title: "What was counted", rows });
}

// `at(blocks, gib)`: where a pool stands on the axis.
function drawHitRates(page, report, title, x, at) {
  const points = list(report.points), sampled = Boolean(report.sampling);
  const line = (name, color, style, value, of = points) => ({ name, color, style, points: of.map((point) =>
    [at(num(point.num_blocks), num(point.gib)), 100 * value(point)]) });
  const lines = [line(sampled ? "pool, mean of the samples" : "pool", 0, "line", (p) => num(p.hit_rate))];
  if (sampled) {
    lines.push(line("lowest sample", 2, "dashed", (p) => num(p.low_hit_rate)),
               line("highest sample", 3, "dashed", (p) => num(p.high_hit_rate)));
  }
  lines.push(line("Belady's bound", 1, "line", (p) => hitShare(report, p.belady_hits), points.filter((p) => num(p.belady_hits) > 0)),
             line("replays", points.length === 0 ? 0 : 4, points.length === 0 ? "line" : "dots", (r) => num(r.hit_rate),
                  list(report.replays).filter((replay) => !replay.problem)));
  const marks = [];
  if (num(report.possible_hits) > 0) marks.push({ at: 100 * hitShare(report, report.possible_hits), name: "infinite cache" });
  if (num(report.device_blocks) > 0) {
    marks.push({ at: at(num(report.device_blocks), (num(report.device_blocks) * num(report.block_bytes)) / GIB), vertical: true,
                 name: `${count(report.tensor_parallel)} x ${report.device}` });
  }
  page.chart({ title, x: { ...x, log: true }, y: { label: "%", kind: "percent" }, lines, marks,
    caption: report.counted_blocks === "ids" ? "Share of the prompts' blocks that are hit." : "Share of the prompt tokens that are hit." });
}

function drawVariants(page, report) {
  const variants = list(report.variants);
  if (variants.length === 0) return;
  const possible = (variant) => (report.counted_blocks === "ids" ? share(variant.possible_hits, variant.prompt_blocks)
                                                                : share(variant.possible_hit_tokens, report.prompt_tokens));
  const answer = (variant, wanted) => list(variant.answers).find((one) => num(one.share_of_possible) === wanted) || {};
  const categories = variants.map((variant) => variant.name);
  page.chart({ title: "What if: possible hits", caption: "What an infinite cache would hit.", categories, x: { label: "" },
    y: { label: report.counted_blocks === "ids" ? "% of blocks" : "% of prompt tokens", kind: "percent" },
    lines: [{ name: "possible", bars: variants.map((variant) => 100 * possible(variant)) }] });
  page.chart({ title: "What if: memory", caption: "The smallest pool that hits so much of what is possible there.", categories,
    x: { label: "" }, y: { label: "GiB on each device", kind: "gib" }, lines: [0.5, 0.9, 0.99].map((wanted) => (
      { name: `${100 * wanted} % of it`, bars: variants.map((variant) => num(answer(variant, wanted).gib)) })) });
  page.table({ title: "What if", columns: ["", "possible", "blocks for 50 %", "90 %", "99 %", "100 %", ""],
    rows: variants.map((variant) => [variant.name, percent(possible(variant)),
      ...[0.5, 0.9, 0.99, 1].map((wanted) => count(answer(variant, wanted).num_blocks)), variant.note || ""]) });
}

function drawPools(page, report) {
  const points = list(report.points);
  const bounded = points.length > 0 && num(points[0].belady_hits) > 0;
  page.table({ title: "Pools", columns: ["usable blocks", "tokens", "GiB", "hit rate", "of possible",
      ...(bounded ? ["Belady, of possible", "pool, of Belady"] : []), ""],
    rows: points.filter((point) => point.is_row).map((point) => [count(point.num_blocks), count(point.tokens),
      decimal(num(point.gib)), percent(point.hit_rate), percent(point.share_of_possible),
      ...(bounded ? [percent(share(point.belady_hits, report.possible_hits)), percent(point.lru_share_of_belady)] : []),
      [(point.label || "").replace(/^<- /, ""), point.too_small_for_some ? "see the note on small pools" : ""]
        .filter(Boolean).join(", ")]) });
  page.table({ title: "Smallest pools", columns: ["of the possible hits", "usable blocks", "tokens", "GiB", "of what the device holds"],
    rows: list(report.answers).map((one) => [shareName(one), count(one.num_blocks), count(one.tokens), decimal(num(one.gib)),
      num(one.devices) > 0 ? percent(one.devices) : "n/a"]) });
  page.table({ title: "Replays",
    columns: ["usable blocks", "GiB", "hit tokens", "hit rate", "the curve's hit tokens", "preempted", "rejected", ""],
    rows: list(report.replays).map((replay) => [count(replay.num_blocks), decimal(num(replay.gib)), count(replay.hit_tokens),
      percent(replay.hit_rate), num(replay.curve_hit_tokens) > 0 ? count(replay.curve_hit_tokens) : "n/a",
      count(replay.preemptions), count(replay.rejected), replay.problem || ""]) });
}

// A colour per pool: solid if everything is written through, dashed on eviction.
function drawTwoTiers(page, report) {
  const pools = new Map();
  for (const tiers of list(report.tiers)) {
    const name = `${count(tiers.first_blocks)} blocks`;
    if (!pools.has(name)) pools.set(name, []);
    if (!tiers.problem) pools.get(name).push(tiers);
  }
  const line = (name, color, style, all, field) =>
    ({ name, color, style, points: all.map((tiers) => [num(tiers.second_gib), 100 * num(tiers[field])]) });
  page.chart({ title: "Hit rate with a second tier", caption: "Of a pool and a tier behind it, both LRU, with free transfers.",
    x: { label: "GiB of the second tier", kind: "gib", log: true }, y: { label: "%", kind: "percent" },
    lines: [...pools].flatMap(([name, all], color) => [line(name, color, "line", all, "inclusive_hit_rate"),
      line(`${name}, on eviction`, color, "dashed", all, "exclusive_hit_rate")]) });
  page.table({ title: "Two tiers", columns: ["pool", "second tier", "GiB of it", "hit rate of the pool", "with both, written through",
      "with both, written on eviction", ""],
    rows: list(report.tiers).map((tiers) => [count(tiers.first_blocks), count(tiers.second_blocks), decimal(num(tiers.second_gib)),
      percent(tiers.first_hit_rate), percent(tiers.inclusive_hit_rate), percent(tiers.exclusive_hit_rate), tiers.problem || ""]) });
}

function drawCurve(page, { report }) {
  page.title(`Hit rate of every pool: ${report.trace || ""}`, `${deviceText(report)}, blocks of ${count(report.block_tokens)} tokens`);
  page.headline([num(report.possible_hits) > 0
    ? `An infinite cache hits ${percent(hitShare(report, report.possible_hits))} of ` +
      `${report.counted_blocks === "ids" ? "the prompts' blocks" : "the prompt tokens"}.` : "", ...list(report.sentences).slice(0, 3)]);
  page.notes([...list(report.sentences).slice(3), ...list(report.notes)]);
  drawCurveTable(page, report);
  // One curve, once in the unit of what is bought and once in that of what is configured.
  drawHitRates(page, report, "Hit rate by memory", { label: "GiB on each device", kind: "gib" }, (blocks, gib) => gib);
  drawHitRates(page, report, "Hit rate by blocks", { label: "usable blocks" }, (blocks) => blocks);
  const answers = list(report.answers);
  page.chart({ title: "Memory for a share of the possible hits",
    caption: "The smallest pool that hits so much of what an infinite cache hits.",
    x: { label: "share of the possible hits" }, y: { label: "GiB on each device", kind: "gib" }, categories: answers.map(shareName),
    lines: [{ name: "memory", bars: answers.map((one) => num(one.gib)) }] });
  drawVariants(page, report);
  drawPools(page, report);
  drawTwoTiers(page, report);
}
