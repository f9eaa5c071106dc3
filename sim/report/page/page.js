// Draws the whole page from the reports in it: { kind, report, ... } as JSON. What a report is of
// decides which function draws it; the shell has no content of its own.
"use strict";

const DRAWN = {
  Report: drawReplay, Comparison: drawComparison,
  PlanReport: drawPlan, CurveReport: drawCurve, SweepReport: drawSweep,
};

function drawPage() {
  const root = document.documentElement;
  const page = new Page(document.getElementById("page"));
  const data = JSON.parse(document.getElementById("report").textContent);
  DRAWN[data.kind](page, data);
  page.drawCharts();

  let width = page.main.clientWidth;
  addEventListener("resize", () => {
    if (page.main.clientWidth === width) return;
    width = page.main.clientWidth;
    page.drawCharts();
  });
  const setPaper = (isPaper) => {
    root.className = isPaper ? "paper" : "";
    page.drawCharts();
  };
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));
  root.setAttribute("data-drawn", page.charts.length);
  root.setAttribute("data-overflow", root.scrollWidth - root.clientWidth);
}
