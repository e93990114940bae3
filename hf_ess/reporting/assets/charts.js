/* Charts by plotly.js.  Names from the data never go in: plotly takes a little HTML for markup. */

const coarse = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  displaylogo: false,
  responsive: true,
  displayModeBar: coarse ? false : "hover",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  showTips: false,
};

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layoutOf(extra) {
  const ink = variable("--ink");
  const axis = {
    gridcolor: variable("--grid"),
    zeroline: false,
    linecolor: variable("--rule"),
    automargin: true,
    fixedrange: coarse,
    title: { standoff: 8 },
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: variable("--sans"), size: 12, color: ink },
    margin: { l: 48, r: 12, t: 12, b: 44 },
    hovermode: "closest",
    hoverlabel: { bgcolor: variable("--panel"), bordercolor: variable("--rule"), font: { color: ink } },
    showlegend: false,
    dragmode: coarse ? false : "zoom", // a finger scrolls the page
    ...extra,
    xaxis: { ...axis, ...extra.xaxis, title: { ...axis.title, ...extra.xaxis?.title } },
    yaxis: { ...axis, ...extra.yaxis, title: { ...axis.title, ...extra.yaxis?.title } },
  };
}

/* Charts are drawn when they come near the window; what changes before that waits. */
const waiting = new Map();
const near = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => {
    target.near = isIntersecting;
    if (isIntersecting) draw(target);
  }),
  { rootMargin: "400px" }
);

function chart(id, label, height) {
  const node = el("div", { id, class: "chart", role: "img", "aria-label": label });
  node.style.height = `${height}px`;
  near.observe(node);
  return node;
}

function plot(node, traces, layout, events = {}) {
  waiting.set(node, { traces, layout, events });
  if (node.near) draw(node);
}

function draw(node) {
  const what = waiting.get(node);
  if (!what) return;
  waiting.delete(node);
  Plotly.react(node, what.traces, { ...layoutOf(what.layout), shapes: shapesOf(node) }, CONFIG);
  node.drawn = true;
  for (const [name, handler] of Object.entries(what.events)) {
    node.removeAllListeners(name);
    node.on(name, handler);
  }
}

/* The marked position is a line in every chart along the tokens; bands are places of a comparison. */
function shapesOf(node) {
  const bands = (node.bands || []).map(([a, b]) => ({
    type: "rect", xref: "x", yref: "paper", x0: a, x1: b, y0: 0, y1: 1, layer: "below",
    fillcolor: variable("--band"), line: { width: 0 },
  }));
  if (node.position === undefined || node.position === null) return bands;
  const line = { color: variable("--mark"), width: 1.5 };
  return [...bands, {
    type: "line", xref: "x", yref: "paper", x0: node.position, x1: node.position, y0: 0, y1: 1, line, name: "mark",
  }];
}

function markCharts(nodes, position) {
  for (const node of nodes) {
    node.position = position;
    if (node.drawn && !waiting.has(node)) Plotly.relayout(node, { shapes: shapesOf(node) });
  }
}

/* Where in a chart a click or the pointer is: the position on its x axis. */
const positionOf = (event) => Math.round(event.points[0].x);

/* A curve for a small screen area: the smallest and the largest value of every bin, in their order. */
function thinned(values, most) {
  const n = values.length;
  if (n <= 2 * most) return { x: values.map((_, k) => k + 1), y: values };
  const x = [];
  const y = [];
  for (let bin = 0; bin < most; bin += 1) {
    const from = Math.floor((bin * n) / most);
    const to = Math.floor(((bin + 1) * n) / most);
    let low = -1;
    let high = -1;
    let gap = -1;
    for (let k = from; k < to; k += 1) {
      if (values[k] === null) gap = k;
      else {
        if (low < 0 || values[k] < values[low]) low = k;
        if (high < 0 || values[k] > values[high]) high = k;
      }
    }
    for (const k of [...new Set([low, high, gap])].filter((i) => i >= 0).sort((a, b) => a - b)) {
      x.push(k + 1);
      y.push(values[k]);
    }
  }
  return { x, y };
}

const highest = (curves) => curves.flat().reduce((top, v) => (v !== null && v > top ? v : top), 0);

/* Drawn again in other colours when the reader's system turns dark or light. */
function onScheme(again) {
  darkQuery.addEventListener("change", again);
}
