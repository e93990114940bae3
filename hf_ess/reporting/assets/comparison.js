/* The page of a comparison: effects, curves under every token, layer by position, layers, heads, the prompt. */

const N = DATA.candidates.length;
const CONTROL = DATA.candidates.findIndex((c) => c.role === "control");
const OTHERS = DATA.candidates.map((_, k) => k).filter((k) => k !== CONTROL);
const state = {
  prompt: 0, layer: -1, tolerance: Math.floor(DATA.tolerances.length / 2), candidate: OTHERS[0], quantity: "difference",
};

const prompt = () => DATA.prompts[state.prompt];
const colourOf = (k) => legible(DATA.candidates[k].colour);
const labelOf = (k) => DATA.candidates[k].label;
const toleranceName = (t) => `tolerance ${DATA.tolerances[t]}${DATA.unit}`;
const layerName = (k) => (k < 0 ? "all layers" : `layer ${DATA.layers[k].label}`);

/* Total ESS of a layer (-1: all) under a token, or null. */
function curveOf(candidate, layer, tolerance = state.tolerance) {
  const index = prompt().index[candidate][tolerance][layer + 1];
  return index === null ? null : prompt().curves[index];
}

function difference(layer) {
  const mine = curveOf(state.candidate, layer);
  const other = curveOf(CONTROL, layer);
  return mine && other ? mine.map((v, k) => (v === null || other[k] === null ? null : v - other[k])) : null;
}

const signed = (value) => (value === null || value === undefined ? "-" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value))}`);

pageHead(
  DATA.header,
  "The same text is run once with each token at the same places. The effective state-size (ESS) counts the singular " +
    "values of H_i = T[i:, :i] that reach the tolerance, the memory carried from the tokens before i into token i and after; the cut i " +
    `lies before token i. For a place p, m is the smallest total ESS over the cuts p to p + ${DATA.window - 1}. The effect is the change of m ` +
    "against the control token in its place, exp(mean log ratio over prompts) − 1: position, text and the ends of the " +
    "sequence, where ESS is low whatever the text is, cancel. Intervals are 95\u00a0% t intervals over prompts; p is Wilcoxon's signed rank " +
    "test, not corrected for the number of rows."
);

const controls = el("div", { class: "controls", role: "group", "aria-label": "What is shown" },
  select("candidate", "Token", OTHERS.map((k) => [k, labelOf(k)]), state.candidate, (v) => choose({ candidate: Number(v) })),
  select("tolerance", "Tolerance", DATA.tolerances.map((t, k) => [k, t + DATA.unit]), state.tolerance, (v) => choose({ tolerance: Number(v) })),
  select("layer", "Layer", [[-1, "all layers"], ...DATA.layers.map((l, k) => [k, `layer ${l.label} · ${l.kind}`])], -1, (v) => choose({ layer: Number(v) })),
  select("prompt", "Prompt", DATA.prompts.map((p, k) => [k, `${k}: ${p.shown.slice(0, 8).join("").slice(0, 30)}…`]), 0, (v) => {
    state.prompt = Number(v);
    newPrompt();
  }),
  select("quantity", "Colours of the text", [["difference", "token minus control"], ["value", "under the token"], ["control", "under the control"]],
    "difference", (v) => choose({ quantity: v }))
);

const text = el("div", {
  id: "tokens", class: "tokens", role: "group", tabindex: "0",
  "aria-label": "Tokens of the prompt; the arrow keys move the mark",
});
const info = el("div", { id: "readout", class: "readout" });
const along = chart("along", "Total ESS along the prompt under every token", 320);
const heat = chart("heat", "Layer by position, token minus control", 320);
const layers = chart("layers", "Effect of every token on every layer, with intervals", 340);
const heads = chart("heads", "Heads or groups of channels, the most modulated first", 400);
const CHARTS = [along, heat];

$("content").append(
  section("effects", "Effect on the memory carried past the place", el("div", { id: "effect-table" })),
  controls,
  section("curve", "Along the prompt", el("div", { id: "curve-legend" }), along, note("curve-note")),
  section("text", "The prompt", el("div", { class: "legends" }, legend("legend"), el("div", { id: "marks" })), text),
  section("layers-by-position", "Layer by position: token minus control", el("div", { class: "legends" }, legend("heat-legend")), heat, note("heat-note")),
  section("per-layer", "Effect per layer", el("div", { id: "layer-legend" }), layers, note("layer-note")),
  section("ranking", "Heads, the most modulated first", heads, note("head-note")),
  info
);

const tokens = new TokenText(text, (k) => setMark(k, false), (k) => showReadout(k ?? tokens.marked));

const setMark = marker(tokens, CHARTS, showReadout, info);

function showReadout(position) {
  if (position === null || position === undefined) {
    readNothing(info);
    return;
  }
  const at = position - 1;
  const mine = curveOf(state.candidate, state.layer)?.[at];
  const other = curveOf(CONTROL, state.layer)?.[at];
  readout(info, [
    ["position", position],
    ["token", shownText()[position], "text"],
    ...(at < 0 ? [["", "no cut before the first token"]] : [
      [labelOf(state.candidate), number(mine), "value"],
      [labelOf(CONTROL), number(other)],
      ["difference", mine === null || other === null || mine === undefined ? "-" : signed(mine - other)],
    ]),
    ...(prompt().places.includes(position) ? [["", "place"]] : []),
  ]);
}

/* ---- what follows a choice ---- */

const shownText = () => {
  const places = new Set(prompt().places);
  return prompt().shown.map((t, k) => (places.has(k) ? DATA.candidates[state.quantity === "control" ? CONTROL : state.candidate].text : t));
};

function newPrompt() {
  tokens.marked = null;
  for (const node of CHARTS) {
    node.position = null;
    node.bands = prompt().places.map((p) => [p - 0.4, p + DATA.window - 0.6]);
  }
  update();
}

function choose(change) {
  Object.assign(state, change);
  update();
}

function update() {
  const marked = tokens.marked;
  const marks = new Map(prompt().places.map((p) => [p, { name: "place", colour: colourOf(state.candidate) }]));
  tokens.show(shownText(), prompt().breaks, marks);
  tokens.mark(marked);
  $("marks").replaceChildren(swatches([{ name: `place  × ${prompt().places.length}`, colour: colourOf(state.candidate), dash: "under" }]));
  paintTokens();
  drawAlong();
  drawHeat();
  drawLayers();
  drawHeads();
  showReadout(tokens.marked);
}

function paintTokens() {
  const byDifference = state.quantity === "difference";
  const values = byDifference ? difference(state.layer) : curveOf(state.quantity === "control" ? CONTROL : state.candidate, state.layer);
  const known = (values || []).filter((v) => v !== null);
  if (!known.length) {
    tokens.colour(() => null);
    drawLegend($("legend"), sequential, 0, 1, ["-"], "no values");
    return;
  }
  const top = Math.max(...known.map(Math.abs)) || 1;
  const colours = byDifference ? palette(diverging, -1, 1) : palette(sequential, 0, 1);
  tokens.colour((k) => {
    const value = k === 0 ? null : values[k - 1];
    if (value === null || value === undefined) return null;
    return colours[Math.round(255 * (byDifference ? (value / top + 1) / 2 : value / top))];
  });
  const where = `${layerName(state.layer)}, ${toleranceName(state.tolerance)}`;
  if (byDifference) drawLegend($("legend"), diverging, -1, 1, [signed(-top), "0", signed(top)], `ESS, ${where}: token minus control`);
  else drawLegend($("legend"), sequential, 0, 1, [0, top / 2, top].map(number), `ESS, ${where}`);
}

const chartEvents = {
  plotly_click: (event) => setMark(positionOf(event), true),
  plotly_hover: (event) => showReadout(positionOf(event)),
  plotly_unhover: () => showReadout(tokens.marked),
};

function drawAlong() {
  const p = prompt();
  const x = Array.from({ length: p.tokens - 1 }, (_, k) => k + 1);
  const order = [...Array(N).keys()].sort((a, b) => (a === state.candidate) - (b === state.candidate));
  const shown = order.filter((k) => curveOf(k, state.layer));
  const traces = shown.map((k) => ({
    type: "scatter", mode: "lines", x, y: curveOf(k, state.layer), connectgaps: false,
    line: { color: colourOf(k), width: k === state.candidate ? 2.6 : DATA.candidates[k].role === "candidate" ? 1.4 : 1.1 },
    hovertemplate: "position %{x}: %{y:,.6~g}<extra></extra>",
  }));
  $("curve-legend").replaceChildren(swatches([...shown].sort((a, b) => a - b).map((k) => ({ name: labelOf(k), colour: colourOf(k) }))));
  $("curve-note").textContent = `Total ESS of ${layerName(state.layer)} at ${toleranceName(state.tolerance)}, summed over channels` +
    `${state.layer < 0 ? " and layers" : ""}. Bands: the cuts at which a token is judged. All curves share one sequence but for the tokens at the places.` +
    (traces.length ? "" : " No values here: a layer failed its verification under some token.");
  plot(along, traces, {
    xaxis: { title: { text: "position i: the cut lies before token i" }, range: [0.5, p.tokens - 0.5] },
    yaxis: { rangemode: "tozero", title: { text: "total ESS" } },
  }, chartEvents);
}

function drawHeat() {
  const p = prompt();
  const z = DATA.layers.map((_, k) => difference(k) || Array(p.tokens - 1).fill(null));
  const top = Math.max(highest(z), highest(z.map((row) => row.map((v) => (v === null ? null : -v))))) || 1;
  heat.style.height = `${Math.min(720, Math.max(190, 76 + 26 * z.length))}px`;
  drawLegend($("heat-legend"), diverging, -1, 1, [signed(-top), "0", signed(top)], "change of total ESS");
  $("heat-note").replaceChildren(bdi(labelOf(state.candidate)), " minus ", bdi(labelOf(CONTROL)),
    `, ${toleranceName(state.tolerance)}. Orange: less memory than under the control; blue: more. H_i has the rows of all later tokens, so a token changes the cuts before it too.`);
  plot(heat, [{
    type: "heatmap", z, x0: 1, dx: 1, y: DATA.layers.map((l) => l.label), zmin: -top, zmax: top, showscale: false,
    colorscale: plotlyScale(diverging, -1, 1), hoverongaps: false, ygap: z.length > 40 ? 0 : 1,
    hovertemplate: "layer %{y}, position %{x}: %{z:,.5~g}<extra></extra>",
  }], {
    xaxis: { title: { text: "position i" }, range: [0.5, p.tokens - 0.5], showgrid: false },
    yaxis: { type: "category", autorange: "reversed", title: { text: "layer" }, showgrid: false, nticks: 24 },
  }, chartEvents);
}

/* Points with their intervals; values are shares, drawn as percent. */
function intervals(rows, along, across, look) {
  const error = { type: "data", symmetric: false, thickness: 1.4, width: 0, color: look.color,
    array: rows.map((r) => (r.high === null ? 0 : 100 * (r.high - r.effect))),
    arrayminus: rows.map((r) => (r.low === null ? 0 : 100 * (r.effect - r.low))) };
  const values = rows.map((r) => 100 * r.effect);
  const spans = rows.map((r) => (r.low === null ? "no interval" : `${percent(r.low)} to ${percent(r.high)}`));
  return { type: "scatter", mode: "markers", marker: look, customdata: spans,
    ...(across ? { x: values, y: along, error_x: error } : { x: along, y: values, error_y: error }) };
}

function drawLayers() {
  const n = DATA.layers.length;
  const apart = Math.min(0.16, 0.7 / OTHERS.length);
  const traces = OTHERS.map((k, place) => {
    const rows = DATA.effects.filter((r) => r.candidate === k && r.tolerance === state.tolerance && r.effect !== null);
    const at = rows.map((r) => (r.layer < 0 ? -1.5 : r.layer) + (place - (OTHERS.length - 1) / 2) * apart);
    return { ...intervals(rows, at, false, { color: colourOf(k), size: k === state.candidate ? 9 : 6.5 }),
      hovertemplate: "%{y:+.1f} % (%{customdata})<extra></extra>" };
  });
  const step = Math.ceil(n / (innerWidth < 640 ? 8 : 32));
  const ticks = [-1.5, ...DATA.layers.map((_, k) => k).filter((k) => k % step === 0)];
  $("layer-legend").replaceChildren(swatches(OTHERS.map((k) => ({ name: labelOf(k), colour: colourOf(k) }))));
  $("layer-note").textContent = `At ${toleranceName(state.tolerance)}, with 95\u00a0% intervals over prompts; all prompts together. Left: all layers.`;
  plot(layers, traces, {
    xaxis: { tickvals: ticks, ticktext: ticks.map((k) => (k < 0 ? "all" : DATA.layers[k].label)), range: [-2.1, n - 0.4], title: { text: "layer" }, showgrid: false },
    yaxis: { ticksuffix: " %", title: { text: "effect on ESS" }, zeroline: true, zerolinecolor: variable("--muted") },
  });
}

function drawHeads() {
  const rows = DATA.groups.filter((r) => r.candidate === state.candidate && r.tolerance === state.tolerance);
  $("ranking").hidden = !DATA.groups.length;
  if (!DATA.groups.length) return;
  const names = rows.map((r) => {
    const layer = DATA.layers[r.layer];
    return `layer ${layer.label} · ${layer.unit}${r.first === r.last ? ` ${r.first}` : `s ${r.first}-${r.last}`}`;
  });
  heads.style.height = `${70 + 21 * Math.max(rows.length, 3)}px`;
  $("head-note").replaceChildren(bdi(labelOf(state.candidate)), ` at ${toleranceName(state.tolerance)}, against the control, with 95\u00a0% intervals over prompts; not corrected for picking the largest.`);
  plot(heads, [{ ...intervals(rows, names, true, { color: colourOf(state.candidate), size: 8 }),
    hovertemplate: "%{y}: %{x:+.1f} % (%{customdata})<extra></extra>" }], {
    xaxis: { ticksuffix: " %", title: { text: "effect on ESS" }, zeroline: true, zerolinecolor: variable("--muted") },
    yaxis: { type: "category", autorange: "reversed", tickmode: "linear" },
  });
}

function drawEffects() {
  const whole = DATA.effects.filter((r) => r.layer < 0);
  const left = whole.some((r) => r.left_out > 0);
  const columns = [["token"], ["tolerance", "n"], ["effect", "n"], ["95\u00a0% interval", "n"], ["p", "n"], ["own dip", "n"], ["control's dip", "n"], ["prompts", "n"],
    ["places", "n"], ...(left ? [["left out", "n"]] : [])];
  const rows = whole.map((r) => [
    swatches([{ name: labelOf(r.candidate), colour: colourOf(r.candidate) }]), DATA.tolerances[r.tolerance], el("strong", {}, percent(r.effect)),
    r.low === null ? "-" : `${percent(r.low)} to ${percent(r.high)}`,
    r.p_value === null ? "-" : r.p_value < 0.001 ? "< 0.001" : r.p_value.toFixed(3), percent(r.dip), percent(r.control_dip),
    r.prompts, r.places, ...(left ? [r.left_out] : []),
  ].map((cell) => (cell instanceof Node ? cell : String(cell))));
  const emptied = whole.some((r) => r.emptied > 0);
  $("effect-table").replaceChildren(
    table(columns, rows, "Effects"),
    el("p", { class: "caption" }, "Over all layers and prompts, against ", bdi(labelOf(CONTROL)), ". Dip: m against the mean of the same curve over the cuts p − 12 to p − 3." +
      (emptied ? " An effect of −100\u00a0%: in some prompt m is 0 at every place; such a row has no interval." : ""))
  );
}

onScheme(() => { drawEffects(); update(); });
drawEffects();
newPrompt();
