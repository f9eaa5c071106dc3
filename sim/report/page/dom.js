// The parts of the page. Every text becomes textContent: what a trace or a model is called is never
// markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function element(tag, className, text, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== "") made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function shape(tag, attributes, parent, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

// A page that is filled from top to bottom. Charts that follow each other stand side by side where
// there is room, and so do tables.
class Page {
  constructor(main) {
    this.main = main;
    this.row = null;
    this.charts = [];
  }

  title(title, subtitle) {
    document.title = title;
    element("h1", "", title, this.main);
    element("p", "subtitle", subtitle, this.main);
  }

  // The result, in sentences.
  headline(sentences) {
    this.row = null;
    const box = element("div", "headline", "", this.main);
    for (const sentence of sentences) if (sentence) element("p", "", sentence, box);
  }

  heading(text) {
    this.row = null;
    element("h2", "", text, this.main);
  }

  notes(texts) {
    this.row = null;
    for (const text of list(texts)) element("p", "note", text, this.main);
  }

  enter(className) {
    if (!this.row || this.row.className !== className) {
      this.row = element("div", className, "", this.main);
    }
    return this.row;
  }

  // { title, columns, rows }: without columns the first cell of a row is its heading. Long tables
  // show `shown` rows and the others on request.
  table({ title, columns, rows, shown = 60 }) {
    if (rows.length === 0) return;
    const box = element("div", "", "", this.enter("tables"));
    const made = element("table", "", "", box);
    if (title) element("caption", "", title, made);
    if (columns) {
      const head = element("tr", "", "", element("thead", "", "", made));
      for (const name of columns) element("th", "", name, head).setAttribute("scope", "col");
    }
    const body = element("tbody", "", "", made);
    const add = (cells) => {
      const line = element("tr", "", "", body);
      cells.forEach((cell, i) => {
        const made = element(i === 0 ? "th" : "td", "", String(cell), line);
        if (i === 0) made.setAttribute("scope", "row");
      });
    };
    rows.slice(0, shown).forEach(add);
    if (rows.length <= shown) return;
    const more = element("button", "", `all ${count(rows.length)} rows`, box);
    more.addEventListener("click", () => {
      rows.slice(shown).forEach(add);
      more.remove();
    });
  }

  // See chart.js; drawn later, when its width is known. Lines without a value are left out, and so is a chart without lines.
  chart(chart) {
    const lines = chart.lines.filter((line) =>
      line.bars ? line.bars.some(Number.isFinite) : list(line.points).some(([, y]) => Number.isFinite(y)));
    if (lines.length === 0) return;
    const figure = element("figure", "", "", this.enter("charts"));
    element("h3", "", chart.title, figure);
    const plot = element("div", "plot", "", figure);
    const legend = element("div", "legend", "", figure);
    if (chart.caption) element("figcaption", "", chart.caption, figure);
    const drawn = { categories: [], marks: [], ...chart, lines };
    lines.forEach((line, i) => { if (line.color === undefined) line.color = i; });
    this.charts.push({ plot, legend, figure, chart: drawn });
  }

  // Draws all charts: when the page is complete, and when its width has changed.
  drawCharts() {
    for (const made of this.charts) drawChart(made);
  }
}
