// Draws the charts of an HtmlPage: reads their data from the JSON in the page, makes one Chart each,
// and makes them anew when colours change or paper is asked for. With #check in the address each
// figure says what was drawn, for tests.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent);
  let charts = [];

  const themeColor = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const lineColor = (place) => themeColor("c" + (place % 8));
  const withThousands = (value) =>
    typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : value;

  // Lines across the chart at given values, named where they end.
  const marksPlugin = {
    id: "marks",
    afterDatasetsDraw(chart, _, options) {
      const { ctx, chartArea: area, scales } = chart;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = themeColor("ink");
      ctx.font = "11px system-ui, sans-serif";
      ctx.setLineDash([4, 4]);
      for (const mark of options.list || []) {
        const scale = mark.vertical ? scales.x : scales.y;
        const at = scale.getPixelForValue(mark.at);
        const low = mark.vertical ? area.left : area.top;
        const high = mark.vertical ? area.right : area.bottom;
        if (!(at >= low && at <= high)) continue;
        ctx.beginPath();
        ctx.moveTo(mark.vertical ? at : area.left, mark.vertical ? area.top : at);
        ctx.lineTo(mark.vertical ? at : area.right, mark.vertical ? area.bottom : at);
        ctx.stroke();
        const isFar = mark.vertical ? at > (low + high) / 2 : false;
        ctx.textAlign = mark.vertical ? (isFar ? "right" : "left") : "right";
        ctx.fillText(mark.name, mark.vertical ? at + (isFar ? -4 : 4) : area.right - 4,
                     mark.vertical ? area.bottom - 6 : at - 4);
      }
      ctx.restore();
    },
  };

  const datasetOf = (line, isBars) => {
    const color = lineColor(line.color);
    const isBand = line.style === "band";
    return {
      label: line.name,
      data: isBars ? line.bars : line.points.map(([x, y]) => ({ x, y })),
      borderColor: color,
      backgroundColor: isBand || isBars ? color + (isBars ? "" : "b0") : color,
      borderWidth: isBars ? 0 : isBand ? 0.5 : 1.8,
      borderDash: line.style === "dashed" ? [6, 4] : [],
      fill: isBand ? "stack" : false,
      stack: isBand ? "bands" : line.name,
      showLine: line.style !== "dots",
      pointRadius: line.style === "dots" ? 3.5 : 0,
      pointHitRadius: 6,
    };
  };

  // A linear axis ends where the data do, and begins at 0 if they begin near it.
  const rangeOf = (chart) => {
    if (chart.log) return {};
    let low = Infinity, high = -Infinity;
    for (const line of chart.lines) {
      for (const [x] of line.points) {
        low = Math.min(low, x);
        high = Math.max(high, x);
      }
    }
    if (!(high > low)) return {};
    return { min: low >= 0 && low < 0.2 * high ? 0 : low, max: high };
  };

  const draw = (chart, figure) => {
    const isBars = chart.categories.length > 0;
    const isStacked = chart.lines.some((line) => line.style === "band");
    const soft = themeColor("soft"), rule = themeColor("rule");
    const axis = (text, more) => ({
      title: { display: text !== "", text, color: soft },
      grid: { color: rule, drawBorder: false },
      ticks: { color: soft, maxRotation: 0, autoSkipPadding: 12, ...(more || {}) },
    });
    const numeric = { callback: (value) => withThousands(value), includeBounds: false };
    // 1, 2 and 5 times powers of ten: more of them would stand in each other's way.
    const isRound = (value) => [1, 2, 5].includes(+(value / 10 ** Math.floor(Math.log10(value) + 1e-9)).toFixed(6));
    const logarithmic = { ...numeric, callback: (value) => isRound(value) ? withThousands(value) : "" };
    const isLines = !isBars && !isStacked;
    return new Chart(figure.querySelector("canvas"), {
      type: isBars ? "bar" : "line",
      data: {
        labels: isBars ? chart.categories : undefined,
        datasets: chart.lines.map((line) => datasetOf(line, isBars)),
      },
      plugins: [marksPlugin],
      options: {
        animation: false,
        responsive: true,
        maintainAspectRatio: false,
        interaction: { mode: isBars ? "index" : "nearest", axis: "x", intersect: false },
        scales: {
          x: isBars ? axis(chart.x, {})
                    : { type: chart.log ? "logarithmic" : "linear", ...rangeOf(chart),
                      ...axis(chart.x, chart.log ? logarithmic : numeric) },
          y: { beginAtZero: true, stacked: isStacked, ...axis(chart.y, numeric),
               ...(chart.top > 0 ? { max: chart.top } : {}) },
        },
        plugins: {
          legend: { position: "bottom", labels: {
            color: soft, boxHeight: 8, boxWidth: isLines ? 28 : 14,
            usePointStyle: isLines, pointStyle: isLines ? "line" : undefined,
          } },
          tooltip: {
            callbacks: {
              title: (items) => isBars ? items[0].label
                : chart.x + ": " + withThousands(items[0].parsed.x),
              label: (item) => item.dataset.label + ": " + withThousands(item.parsed.y),
            },
          },
          marks: { list: chart.marks },
        },
      },
    });
  };

  // What a test asks of each figure: points inside the plot, and how much of it is not blank.
  const describe = (figure, chart) => {
    const canvas = figure.querySelector("canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let inked = 0;
    for (let i = 3; i < pixels.length; i += 4) inked += pixels[i] > 0 ? 1 : 0;
    const counts = chart.data.datasets.map(
      (_, i) => chart.getDatasetMeta(i).data.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y)).length);
    figure.dataset.points = counts.join(",");
    figure.dataset.ink = Math.round((1000 * inked * 4) / pixels.length);
  };

  const drawAll = () => {
    charts.forEach((chart) => chart.destroy());
    charts = data.map((chart, i) => draw(chart, document.getElementById("chart-" + i)));
    if (location.hash === "#check") {
      charts.forEach((chart, i) => describe(document.getElementById("chart-" + i), chart));
      const root = document.documentElement;
      root.dataset.drawn = charts.length;
      root.dataset.overflow = root.scrollWidth - root.clientWidth;
    }
  };

  const setPaper = (isPaper) => {
    document.documentElement.classList.toggle("paper", isPaper);
    drawAll();
  };
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
