// Draws pages of kvsim without a browser: runs the script of each HTML file over a small document and
// checks headline, units, tables and charts.
//
//   node kvsim_pages_test.js NAME=FILE ...      NAME: one of PAGES
"use strict";
const fs = require("fs");
const vm = require("vm");

const OVER_TIME = ["Where prompt tokens went", "Hit rate", "Block pool", "Requests", "Computed tokens", "Step time",
                   "Time to first token, over time"];
const LATENCY = ["Time to first token", "Time per output token", "Whole requests"];
const CACHE = ["Hit rate by turn of a session", "Length of the prefix that was hit", "Reuse distance", "LRU position at hit"];
const RUN = [...OVER_TIME, "Evictions", ...LATENCY, ...CACHE];
const LOADS = ["Running requests", "Waiting requests", "Busy", "Pool in use", "Hit rate of replicas", "Prompt tokens per replica",
               "Wrong decisions"];
// Of several runs or roles, each has its own where lines of two would hide each other.
const of = (names, title, charts) => charts.flatMap((chart) => (chart === title ? names.map((name) => `${chart}, ${name}`) : [chart]));
const BANDS = OVER_TIME[0];

// Of each page: its charts in order, tables among others, and what its headline says.
const PAGES = {
  replay: { charts: RUN, tables: ["What was replayed", "What came of it", "Latency", "Where the prompt tokens went"],
            headline: [/396 of 396 requests finished in 9 min \d+ s: /, /of the prompt tokens were hits; that is/,
                       /Half of the first tokens came within [\d.]+ ms, 99 % within/, /all objectives hold|objective is missed/] },
  fixed: { charts: [...OVER_TIME.filter((title) => !/[Tt]ime/.test(title)), "Evictions", ...CACHE],
           tables: ["What came of it"], headline: [/396 of 396/], without: ["first tokens came"] },
  groups: { charts: [...RUN, "KV-cache groups", "Blocks of KV-cache groups"], tables: ["Latency"], headline: [/hits/] },
  compare: { charts: of(["A", "B"], BANDS, RUN), tables: ["Options", "Metrics"], headline: [/metrics differ, and 1 option\./, /in A, .* in B/] },
  same: { charts: of(["A", "B"], BANDS, RUN), tables: ["What came of it"], headline: [/The two runs are the same/] },
  fleet: { charts: [...RUN, ...LOADS], headline: [/396 of 396 requests/],
           tables: ["What was replayed", "What came of it", "Latency", "Where the prompt tokens went", "Replicas"],
           texts: ["4 replicas", "score = 1 x blocks held", "tokens claimed"] },
  forty: { charts: [...RUN, ...LOADS], tables: ["Replicas"], headline: [/hits/],
           texts: ["highest replica", "all 40 rows"] },
  split: { charts: [...of(["prefill", "decode"], BANDS, RUN).filter((title) => title !== "Evictions"), ...LOADS.slice(0, -1)],
           tables: ["What came of it", "Latency", "Where the prompt tokens went, decode", "Replicas"],
           headline: [/396 of 396 requests/, /first tokens/], texts: ["2 prefill replicas (least-tokens)", "hand-over", "link busy"] },
  plan: { charts: ["Requests at once", "Waste", "Memory of the longest request, by kind of layer"],
          tables: ["Plans", "Layer caches"], headline: [/upstream uniform: [\d,]+ blocks, requests at once:/], texts: ["memory, GB"] },
  curve: { charts: ["Hit rate by memory", "Hit rate by blocks", "Memory for a share of the possible hits",
                    "What if: possible hits", "What if: memory"],
           tables: ["What was counted", "What if", "Pools", "Smallest pools"], headline: [/An infinite cache hits 80\.69 %/],
           texts: ["Belady's bound", "infinite cache"] },
  tiers: { charts: ["Hit rate by memory", "Hit rate by blocks", "Memory for a share of the possible hits",
                    "Hit rate with a second tier"], tables: ["Two tiers"], headline: [/An infinite cache/] },
  sweep: { charts: ["Pareto front: hit-rate and pool-gib", "hit-rate by num_blocks", "ttft-p99 by num_blocks",
                    "output-tokens-per-s by num_blocks", "pool-gib by num_blocks"], tables: ["Points"], headline: [/\d points over num_blocks, block_size/] },
  hostile: { tables: ["What was replayed"], headline: [/finished/],
             texts: ["<img src=x onerror=alert(1)>.jsonl"] },
};

let failures = 0;
function check(holds, what) {
  if (holds) return;
  ++failures;
  console.error("FAIL: " + what);
}

// As much of a document as the page needs. There is no way to make markup of a text.
class FakeElement {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, style: {}, className: "", own: "" });
  }
  set textContent(text) {
    this.children = [];
    this.own = String(text);
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(" "); }
  get clientWidth() { return 640; }
  get scrollWidth() { return 640; }
  appendChild(child) {
    this.children.push(child);
    return child;
  }
  remove() { this.own = ""; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  getBoundingClientRect() { return { left: 0, top: 0 }; }
  find(tag) {
    return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.find(tag)]);
  }
}

function draw(file) {
  const html = fs.readFileSync(file, "utf8");
  const data = /<script type="application\/json" id="report">([^<]*)<\/script>/.exec(html)[1];
  const script = /<script>\n([^]*)<\/script>\n<\/body>/.exec(html)[1];
  const ids = { page: new FakeElement("main"), report: new FakeElement("script") };
  ids.report.textContent = data;
  const document = { documentElement: new FakeElement("html"), getElementById: (id) => ids[id],
                     createElement: (tag) => new FakeElement(tag), createElementNS: (_, tag) => new FakeElement(tag) };
  const context = vm.createContext({ document, addEventListener: () => {} });
  vm.runInContext(script, context, { filename: file });
  return { main: ids.page, document, context, data: JSON.parse(data) };
}

function checkPage(name, file) {
  const want = PAGES[name];
  const { main, document } = draw(file);
  const says = (what) => `${name}: ${what}`;
  const figures = main.find("figure");
  const titles = figures.map((figure) => figure.find("h3")[0].textContent);
  if (want.charts) {
    check(titles.join() === want.charts.join(), says(`charts ${titles.join("; ")}; expected ${want.charts.join("; ")}`));
  }
  check(document.documentElement.attributes["data-drawn"] === String(titles.length), says("the page does not count its charts"));
  for (const figure of figures) {
    const svg = figure.find("svg")[0];
    check(svg && figure.attributes["data-points"].split(",").every((points) => Number(points) > 0),
          says(`${figure.find("h3")[0].textContent}: lines without points, ${figure.attributes["data-points"]}`));
    const places = svg.find("path").map((path) => path.attributes.d).join("") + svg.find("rect").map((r) => r.attributes.height).join("");
    check(!/NaN|Infinity|undefined/.test(places), says(`${figure.find("h3")[0].textContent}: no number in a path`));
    check(figure.find("figcaption").length + figure.find("text").length > 2, says("a chart without labels"));
    svg.listeners.pointermove({ clientX: 320 });
  }
  check(figures.some((figure) => figure.find("strong").length > 0), says("no values under the pointer"));
  const captions = main.find("caption").map((caption) => caption.textContent);
  for (const table of want.tables) check(captions.includes(table), says(`no table ${table} among ${captions.join("; ")}`));
  const headline = main.children.filter((child) => child.className === "headline").map((child) => child.textContent).join(" ");
  for (const pattern of want.headline) check(pattern.test(headline), says(`${pattern} is not in the headline: ${headline}`));
  const text = main.textContent;
  for (const part of want.texts || []) check(text.includes(part), says(`${part} is not in the page`));
  for (const part of want.without || []) check(!headline.includes(part), says(`${part} is in the headline`));
  check(!/undefined|NaN|\[object/.test(text), says("a value is missing: " + (/.{0,60}(undefined|NaN|\[object).{0,40}/.exec(text) || [""])[0]));
}

function checkUnits(file) {
  const { context } = draw(file);
  const call = (text) => vm.runInContext(text, context);
  const want = { "span(1.4e6)": "23 min 20 s", "span(0)": "0 ms", "span(0.1234)": "123 µs", "span(85.31)": "85.3 ms",
                 "span(1420)": "1.42 s", "span(3 * 3600e3 + 25 * 60e3)": "3 h 25 min", "span(59.99 * 60e3)": "59 min 59 s",
                 "span(90e3)": "1 min 30 s", "span(NaN)": "n/a",
                 "bytes(12340000000)": "12.34 GB", "bytes('999')": "999 B", "count('1234567')": "1,234,567",
                 "percent(0.34101)": "34.10 %", "ratio({})": "n/a", "plural(1, 'request')": "1 request",
                 "evenTicks(0, 23, 5).join()": "0,5,10,15,20", "evenTicks(0, 1, 5).map((v) => decimal(v)).join()": "0,0.2,0.4,0.6,0.8,1",
                 "makeAxis({ label: 'TTFT', kind: 'ms' }, 0, 1.4e6, 0, 100, 5).label": "TTFT, min",
                 "makeAxis({ label: 't', kind: 'ms', log: true }, 100, 2e6, 0, 600, 20).ticks.map((t) => t.text).join()":
                   "100 ms,200 ms,500 ms,1 s,2 s,5 s,10 s,30 s,1 min,2 min,5 min,10 min,30 min" };
  for (const [code, text] of Object.entries(want)) check(call(code) === text, `${code}: got ${call(code)}, expected ${text}`);
}

const files = process.argv.slice(2).map((argument) => argument.split("="));
for (const [name, file] of files) checkPage(name, file);
checkUnits(files[0][1]);
const missing = Object.keys(PAGES).filter((name) => !files.some(([given]) => given === name));
if (process.env.KVSIM_PAGES !== "some") check(missing.length === 0, `no page for ${missing.join(", ")}`);
console.log(`${files.length} pages, ${failures} failures`);
process.exit(failures > 0 ? 1 : 0);
