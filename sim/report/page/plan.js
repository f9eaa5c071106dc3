// The page of a plan: what a model's layers store, and how much of it a pool holds.
"use strict";

const planName = (plan) => `${plan.policy || ""} ${plan.layout || ""}`;

function planSubtitle(report) {
  const stages = num(report.pipeline_parallel) > 1 ? ` in each of ${count(report.pipeline_parallel)} stages`
    : num(report.data_parallel) > 1 ? `, one of ${count(report.data_parallel)} data-parallel ranks` : "";
  return `${report.kv_cache_dtype || ""} cache on ${count(report.tensor_parallel)} x ${report.device || ""}${stages}, ` +
         `${bytes(report.available_bytes)} per device = ${report.available_source || ""}`;
}

function planHeadline(report) {
  return list(report.plans).map((plan) => {
    if (num(plan.num_blocks) === 0) return `${planName(plan)}: nothing fits.`;
    const problems = list(plan.problems).length > 0 ? "; the length asked for does not fit" : "";
    const held = list(plan.lengths).map((at) => `${decimal(num(at.concurrency), 3)} of ${count(at.length)} tokens`);
    return `${planName(plan)}: ${count(plan.num_blocks)} blocks, requests at once: ${held.join(", ")}${problems}.`;
  });
}

function drawPlan(page, { report }) {
  const plans = list(report.plans);
  const lengths = [...new Set(plans.flatMap((plan) => list(plan.lengths).map((at) => num(at.length))))].sort((a, b) => a - b);
  const atLength = (plan, length) => list(plan.lengths).find((at) => num(at.length) === length);
  page.title(`Plan of ${report.model || ""}`, planSubtitle(report));
  page.headline(planHeadline(report));
  page.notes(plans.flatMap((plan) => list(plan.problems).map((problem) =>
    `Does not fit, ${plan.policy}, ${problem.code}: ${problem.message}`)));
  page.notes(report.suggestions);
  page.notes(report.notes);

  const row = (name, text) => [name, ...plans.map((plan) => (num(plan.num_blocks) > 0 ? text(plan) : "nothing fits"))];
  const atRow = (name, length, text) => row(name, (plan) => {
    const at = atLength(plan, length);
    return at ? text(at) : "n/a";
  });
  page.table({ title: "Plans", columns: ["", ...plans.map(planName)], rows: [
    row("groups", (plan) => count(list(plan.groups).length)),
    row("blocks, null block included", (plan) => count(plan.num_blocks)),
    row("tokens a hit advances by", (plan) => count(plan.scheduler_block_tokens)),
    row("longest request alone, tokens", (plan) => count(plan.longest_context)),
    ...lengths.flatMap((length) => [
      atRow(`requests of ${count(length)} tokens`, length, (at) => num(at.concurrency).toFixed(2)),
      atRow(`wasted of ${count(length)}`, length, (at) => percent(at.waste_share)),
    ]),
  ] });
  const byLength = (title, caption, y, value) => page.chart({ title, caption, x: { label: "tokens per request" }, y,
    categories: lengths.map(count), lines: plans.map((plan) => ({ name: planName(plan), bars: lengths.map((length) => {
      const at = atLength(plan, length);
      return at ? value(at) : 0;
    }) })) });
  byLength("Requests at once", "Requests of one length that the pool holds together.", { label: "requests" },
           (at) => num(at.concurrency));
  byLength("Waste", "Share of a request's bytes in which no layer stores anything.", { label: "%", kind: "percent" },
           (at) => 100 * num(at.waste_share));
  const kinds = list(report.layer_kinds);
  page.chart({ title: "Memory of the longest request, by kind of layer",
    caption: "What one request of the length asked for takes on one device.",
    x: { label: "" }, y: { label: "memory", kind: "bytes" }, categories: kinds.map((kind) => `${count(kind.layers)} x ${kind.kind}`),
    lines: [{ name: "memory", bars: kinds.map((kind) => num(kind.blocks_at_max_len) * num(kind.page_bytes) * num(kind.layers)) }] });
  page.table({ title: "Layer caches",
    columns: ["", "layers", "block, tokens", "page", "window, tokens", "bytes per token", "blocks of the longest request"],
    rows: kinds.map((kind) => [kind.kind, count(kind.layers), count(kind.block_tokens), `${count(kind.page_bytes)} bytes`,
      num(kind.window) === 0 ? "" : count(kind.window), decimal(num(kind.bytes_per_token)), count(kind.blocks_at_max_len)]) });
}
