/* The page of a result: tokens by value, curves along the text, layer by position, the table of layers. */

const MARKS = ["#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#009e73", "#56b4e9", "#767676"];
const MOST_MARKS = 200; // of one delimiter on top of a chart: more would run together
const THIN = 1000; // bins of a curve in the chart of all layers
const state = { prompt: 0, layer: "all", measure: DATA.middle, quantity: "ess", unit: "mean", colours: "spread", whole: false };

const prompt = () => DATA.prompts[state.prompt];
const measure = () => DATA.measures.find((m) => m.key === state.measure);
const curve = (index) => (index === null || index === undefined ? null : prompt().curves[index]);
const layerNow = () => (state.layer === "all" ? null : prompt().layers[Number(state.layer)]);
const quantity = () => (measure().size ? state.quantity : "ess");

/* Sums and means of several layers, or of one: {values, tss, bound, low, high}, each a curve or null. */
function seriesOf(layer, unit = "mean") {
  const source = layer || prompt().total;
  const tss = curve(source.tss);
  const bound = curve(source.bound);
  const single = layer && unit !== "mean" ? layer.units[state.measure]?.[Number(unit)] : undefined;
  const ess = curve(single === undefined ? source.ess[state.measure] : single);
  if (quantity() === "ess") {
    const limits = measure().size ? { tss, bound } : { tss: null, bound: null };
    return { values: ess, ...limits, low: curve(layer?.low[state.measure]), high: curve(layer?.high[state.measure]) };
  }
  const limit = quantity() === "share" ? "tss" : "bound";
  const kept = layer && single === undefined ? curve(layer.ratios[limit][state.measure]) : null;
  return { values: kept || divided(ess, limit === "tss" ? tss : bound), tss: null, bound: null, low: null, high: null };
}

function divided(part, whole) {
  return part && whole ? part.map((v, k) => (v === null || !whole[k] ? null : v / whole[k])) : null;
}

function quantityName(layer) {
  const name = measure().short;
  const ratio = { ess: "", share: " / TSS", full: " / bound" }[quantity()];
  if (!layer) return ratio ? `${name}${ratio}, all layers` : `${name}, sum over channels and layers`;
  if (state.unit !== "mean") return `${name}${ratio}, ${layer.unit} ${state.unit}`;
  return `${name}${ratio}, mean per ${layer.unit}`;
}

const shownValue = (value) => (quantity() === "ess" ? number(value) : share(value));

/* ---- the page ---- */

pageHead(
  DATA.header,
  "The effective state-size (ESS) counts how many singular values of H_i = T[i:, :i] reach the tolerance: how many " +
    "dimensions of memory are carried from the tokens before i into token i and after. The cut i lies before token i, so a " +
    "token that wipes the memory shows its low value on itself, and the first token has none. Every curve starts and ends low " +
    "whatever the text is, since H_i has only i columns and L − i rows; the bound min(TSS, i, L − i) shows how much of a fall " +
    "is due to that. A small tolerance counts faint memory too. TSS, the theoretical state size, is what the layer could hold."
);

const layerName = (layer) => `layer ${layer.label} · ${layer.kind}`;
const controls = el("div", { class: "controls", role: "group", "aria-label": "What is shown" });
controls.append(
  select("prompt", "Prompt", DATA.prompts.map((p, k) => [k, `${k}: ${p.shown.slice(0, 6).join("").slice(0, 28)}…`]), "0", (v) => {
    state.prompt = Number(v);
    state.layer = "all";
    newPrompt();
  }),
  select("layer", "Layer", [], undefined, (v) => {
    state.layer = v;
    state.unit = "mean";
    newLayer();
  }),
  select("measure", "Measure", DATA.measures.map((m) => [m.key, m.name]), state.measure, (v) => {
    state.measure = v;
    newLayer();
  }),
  select("quantity", "Show", [["ess", "the value"], ["share", "share of TSS"], ["full", "share of the bound"]], "ess", (v) => {
    state.quantity = v;
    update();
  }),
  select("unit", "Head or channel", [["mean", "mean"]], "mean", (v) => {
    state.unit = v;
    update();
  }),
  select("colours", "Colours", [["spread", "5\u00a0% to 95\u00a0% of the values"], ["zero", "0 to the largest"]], "spread", (v) => {
    state.colours = v;
    paintTokens();
    drawHeat();
  })
);

const text = el("div", {
  id: "tokens", class: "tokens", role: "group", tabindex: "0",
  "aria-label": "Tokens of the text; the arrow keys move the mark",
});
const info = el("div", { id: "readout", class: "readout" });
const along = chart("along", "ESS along the text, of the layer chosen", 300);
const depth = chart("depth", "ESS along the text, a line per layer", 300);
const heat = chart("heat", "Layer by position", 320);
const CHARTS = [along, depth, heat];
const wholeBox = el("input", { type: "checkbox", id: "whole" });
wholeBox.addEventListener("change", () => {
  state.whole = wholeBox.checked;
  drawAlong();
});

$("content").append(
  controls,
  section("text", "The text", el("div", { class: "legends" }, legend("legend"), el("div", { id: "marks" })), note("text-note"), text),
  section("curve", "Along the text", el("div", { id: "curve-legend" }), along,
    el("label", { class: "tick", for: "whole" }, wholeBox, " the whole height of TSS and bound"), note("curve-note")),
  section("depths", "Every layer", el("div", { class: "legends" }, legend("depth-legend")), depth, note("depth-note")),
  section("layers-by-position", "Layer by position", el("div", { class: "legends" }, legend("heat-legend")), heat, note("heat-note")),
  section("layer-table", "Layers", el("div", { id: "layers" })),
  info
);
if (DATA.prompts.length === 1) $("prompt")?.closest(".control").remove();

const tokens = new TokenText(text, (k) => setMark(k, false), (k) => showReadout(k ?? tokens.marked));

const setMark = marker(tokens, CHARTS, showReadout, info);

function showReadout(position) {
  if (position === null || position === undefined) {
    readNothing(info);
    return;
  }
  const p = prompt();
  const at = position - 1;
  const { values } = seriesOf(layerNow(), state.unit);
  const limits = layerNow() || p.total;
  const names = p.delimiters.filter(([, places]) => places.includes(position)).map(([name]) => name);
  readout(info, [
    ["position", position],
    ["token", p.shown[position], "text"],
    ["id", p.ids[position]],
    [quantityName(layerNow()), at < 0 ? "no cut before the first token" : shownValue(values?.[at]), "value"],
    ["TSS", at < 0 ? "-" : number(curve(limits.tss)?.[at])],
    ["bound", at < 0 ? "-" : number(curve(limits.bound)?.[at])],
    ...(names.length ? [["delimiter", names.join("  "), "text"]] : []),
  ]);
}

/* ---- what follows a choice ---- */

function newPrompt() {
  const p = prompt();
  fill($("layer"), [["all", "all layers"], ...p.layers.map((layer, k) => [k, layerName(layer)])]);
  $("layer").value = state.layer;
  const marks = new Map();
  const colours = p.delimiters.map((_, k) => MARKS[k % MARKS.length]);
  p.delimiters.forEach(([name, places], k) => places.forEach((i) => marks.has(i) || marks.set(i, { name, colour: colours[k] })));
  tokens.show(p.shown, p.breaks, marks);
  $("marks").replaceChildren(p.delimiters.length
    ? swatches(p.delimiters.map(([name, places], k) => ({ name: `${name}  × ${places.length}`, colour: legible(colours[k]), dash: "under" })))
    : "");
  drawTable();
  newLayer();
}

function newLayer() {
  const layer = layerNow();
  const count = layer?.units[state.measure]?.length || 0;
  fill($("unit"), [["mean", layer ? "mean" : "sum"], ...Array.from({ length: count }, (_, k) => [k, `${layer.unit} ${k}`])]);
  if (Number(state.unit) >= count) state.unit = "mean";
  $("unit").value = state.unit;
  $("unit").disabled = count === 0;
  $("quantity").disabled = !measure().size;
  update();
}

function update() {
  paintTokens();
  drawAlong();
  drawDepth();
  drawHeat();
  showReadout(tokens.marked);
}

function paintTokens() {
  const layer = layerNow();
  const { values } = seriesOf(layer, state.unit);
  const known = (values || []).filter((v) => v !== null);
  const name = quantityName(layer);
  if (!known.length) {
    tokens.colour(() => null);
    $("legend").replaceChildren();
    $("text-note").textContent = layer
      ? layer.status === "verified" ? `Layer ${layer.label} has no values of this measure.` : `Layer ${layer.label} has no values: ${layer.status}.`
      : `${measure().short} has no total over the layers: choose one layer.`;
    return;
  }
  const { low, high, ticks } = rangeOf(known);
  const colours = palette(sequential, 0, 1);
  tokens.colour((k) => {
    const value = k === 0 ? null : values[k - 1];
    if (value === null || value === undefined) return null;
    return colours[Math.round(255 * Math.min(1, Math.max(0, (value - low) / (high - low))))];
  });
  drawLegend($("legend"), sequential, 0, 1, ticks, name);
  $("text-note").textContent = "Hatched: no value.";
}

/* What the colours reach from and to, and the marks of their legend. */
function rangeOf(known) {
  const sorted = Float64Array.from(known).sort();
  const last = sorted.length - 1;
  let [low, high] = [0, last < 0 ? 0 : sorted[last]];
  const spread = state.colours === "spread" && last > 0 && sorted[Math.floor(0.05 * last)] < sorted[Math.ceil(0.95 * last)];
  if (spread) [low, high] = [sorted[Math.floor(0.05 * last)], sorted[Math.ceil(0.95 * last)]];
  const ticks = [low, (low + high) / 2, high].map(shownValue);
  return { low, high: high > low ? high : low + 1, ticks: spread ? [`≤ ${ticks[0]}`, ticks[1], `≥ ${ticks[2]}`] : ticks };
}

function drawAlong() {
  const layer = layerNow();
  const s = seriesOf(layer, state.unit);
  const p = prompt();
  const x = Array.from({ length: p.tokens - 1 }, (_, k) => k + 1);
  const traces = [];
  const items = [];
  const line = (values, look, name, hover = "skip") =>
    traces.push({ type: "scatter", mode: "lines", x, y: values, line: look, name, hoverinfo: hover, connectgaps: false });
  const faint = variable("--muted");
  const strong = css(sequential(0.8));
  const showSpread = s.low && s.high && state.unit === "mean" && !s.low.includes(null);
  if (showSpread) {
    line(s.low, { width: 0 }, "low");
    traces.push({ type: "scatter", mode: "lines", x, y: s.high, fill: "tonexty", fillcolor: variable("--spread"),
      line: { width: 0 }, hoverinfo: "skip" });
    items.push({ name: `10\u00a0% to 90\u00a0% of the ${layer.unit}s`, colour: variable("--spread"), dash: "area" });
  }
  if (s.tss) line(s.tss, { color: faint, width: 1.2, dash: "dot" }, "TSS");
  if (s.bound) line(s.bound, { color: faint, width: 1.2, dash: "dash" }, "bound");
  if (s.values) {
    traces.push({ type: "scatter", mode: "lines", x, y: s.values, line: { color: strong, width: 2 }, connectgaps: false,
      hovertemplate: "position %{x}: %{y:.4~g}<extra></extra>" });
    items.push({ name: quantityName(layer), colour: strong });
  }
  if (s.tss) items.push({ name: "TSS", colour: faint, dash: "dotted" }, { name: "bound min(TSS, i, L − i)", colour: faint, dash: "dashed" });
  p.delimiters.forEach(([, places], k) => places.length <= MOST_MARKS && traces.push({
    type: "scatter", mode: "markers", x: places, y: places.map(() => 1), yaxis: "y2", cliponaxis: false, hoverinfo: "skip",
    marker: { symbol: "line-ns-open", size: 9, color: legible(MARKS[k % MARKS.length]), line: { width: 1.5 } },
  }));
  const top = highest([s.values || [], showSpread ? s.high : []]);
  const limit = highest([s.tss || [], s.bound || []]);
  const whole = state.whole || limit <= 3 * top || top === 0;
  wholeBox.closest("label").hidden = limit <= 3 * top;
  const height = (whole ? Math.max(top, limit) : top) || 1;
  $("curve-legend").replaceChildren(swatches(items));
  $("curve-note").textContent =
    (layer ? `Layer ${layer.label}, ${layer.kind}. ` : "All layers together. ") +
    (whole ? "" : `TSS and bound go on above, up to ${number(limit)}. `) +
    (layer && !p.units ? "Curves of single heads or channels are not in this page, to keep its size reasonable: see ess.parquet. " : "") +
    (p.delimiters.length ? `Marks on top: delimiters${p.delimiters.some(([, places]) => places.length > MOST_MARKS) ? ` that occur at most ${MOST_MARKS} times` : ""}.` : "");
  plot(along, traces, {
    xaxis: { title: { text: "position i: the cut lies before token i" }, range: [0.5, p.tokens - 0.5] },
    yaxis: { range: [0, 1.08 * height], title: { text: quantity() === "ess" ? measure().short : "share" },
      tickformat: quantity() === "ess" ? "" : ".0%" },
    yaxis2: { overlaying: "y", range: [0, 1.02], visible: false, fixedrange: true },
  }, chartEvents);
}

function drawDepth() {
  const p = prompt();
  const n = p.layers.length;
  const traces = [];
  p.layers.forEach((layer, k) => {
    const { values } = seriesOf(layer);
    if (!values) return;
    const mine = String(k) === state.layer;
    const thin = thinned(values, THIN);
    traces.push({ type: "scatter", mode: "lines", ...thin, connectgaps: false,
      line: { color: mine ? variable("--mark") : depthColour(k, n), width: mine ? 2.5 : 1.2 },
      hovertemplate: `layer ${layer.label}, position %{x}: %{y:.4~g}<extra></extra>` });
  });
  drawLegend($("depth-legend"), sequential, n > 1 ? 0.3 : 0.7, n > 1 ? 1 : 0.7,
    n > 1 ? [`layer ${p.layers[0].label}`, `layer ${p.layers[n - 1].label}`] : [`layer ${p.layers[0]?.label ?? ""}`], "depth");
  $("depth-note").textContent = `${measure().short}${{ ess: "", share: " / TSS", full: " / bound" }[quantity()]}, mean over the heads or channels of each layer.` +
    (p.tokens > 2 * THIN ? " Long text: of neighbouring positions only the smallest and the largest value are drawn." : "");
  plot(depth, traces, {
    xaxis: { title: { text: "position i" }, range: [0.5, p.tokens - 0.5] },
    yaxis: { rangemode: "tozero", title: { text: quantity() === "ess" ? measure().short : "share" }, tickformat: quantity() === "ess" ? "" : ".0%" },
  }, chartEvents);
}

function drawHeat() {
  const p = prompt();
  const z = p.layers.map((layer) => seriesOf(layer).values || Array(p.tokens - 1).fill(null));
  const { low, high, ticks } = rangeOf(z.flat().filter((v) => v !== null));
  heat.style.height = `${Math.min(720, Math.max(170, 76 + 22 * z.length))}px`;
  drawLegend($("heat-legend"), sequential, 0, 1, ticks, `${measure().short}, mean over each layer`);
  const families = new Set(p.layers.map((layer) => layer.family));
  $("heat-note").textContent = (z.some((row) => row.includes(null)) ? "Gaps: no value." : "") +
    (families.size > 1 && quantity() === "ess" ? " Layers of different kinds differ in TSS: the share of TSS makes them comparable." : "");
  plot(heat, [{
    type: "heatmap", z, x0: 1, dx: 1, y: p.layers.map((layer) => layer.label), zmin: low, zmax: high, showscale: false,
    colorscale: plotlyScale(sequential, 0, 1), hoverongaps: false, xgap: 0, ygap: z.length > 40 ? 0 : 1,
    hovertemplate: "layer %{y}, position %{x}: %{z:.4~g}<extra></extra>",
  }], {
    xaxis: { title: { text: "position i" }, range: [0.5, p.tokens - 0.5], showgrid: false },
    yaxis: { type: "category", autorange: "reversed", title: { text: "layer" }, showgrid: false, nticks: 24 },
  }, chartEvents);
}

const chartEvents = {
  plotly_click: (event) => setMark(positionOf(event), true),
  plotly_hover: (event) => showReadout(positionOf(event)),
  plotly_unhover: () => showReadout(tokens.marked),
};

function drawTable() {
  const p = prompt();
  const sizes = DATA.measures.filter((m) => m.key.startsWith("t"));
  const entropy = p.layers.some((layer) => layer.entropyMean !== null);
  const unresolved = p.layers.some((layer) => layer.unresolved > 0);
  const columns = [["layer"], ["kind"], ["operators", "n"], ["TSS", "n"], ...sizes.flatMap((m) => [[m.short, "n"], ["of TSS", "n"]]),
    ...(entropy ? [["entropy-ESS", "n"]] : []), ...(unresolved ? [["unresolved", "n"]] : []), ["error", "n"], ["verified"], ["module"]];
  const rows = p.layers.map((layer, k) => {
    const pick = el("button", { type: "button", class: "link", "aria-label": `Show layer ${layer.label}` }, layer.label);
    pick.addEventListener("click", () => {
      $("layer").value = String(k);
      $("layer").dispatchEvent(new Event("change"));
      $("text").scrollIntoView();
    });
    const verified = layer.status === "verified";
    return [pick, bdi(layer.kind), `${layer.operators.toLocaleString("en")} ${layer.unit}${layer.operators === 1 ? "" : "s"}`, number(layer.tssMean),
      ...sizes.flatMap((_, t) => [fixed(layer.essMean[t]), share(layer.share[t])]),
      ...(entropy ? [fixed(layer.entropyMean)] : []), ...(unresolved ? [number(layer.unresolved)] : []), layer.error,
      el("span", { class: verified ? "yes" : "no" }, verified ? "yes" : layer.status), el("code", {}, bdi(layer.module))];
  });
  $("layers").replaceChildren(table(columns, rows, "Layers"), caption("Means over the heads or channels and over the text."));
}

onScheme(() => newPrompt());
newPrompt();
