/* The page's elements.  Text enters the document as text nodes only: nothing of the data is ever markup. */

const DATA = JSON.parse(document.getElementById("data").textContent);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/* Text of unknown direction, apart from what surrounds it. */
const bdi = (text) => el("bdi", {}, String(text));

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
}

const caption = (text) => el("p", { class: "caption" }, text);
const note = (id, text = "") => el("p", { id, class: "caption" }, text);

/* A native select with its label; options are [value, text]. */
function select(id, label, options, value, onChange) {
  const box = el("select", { id });
  fill(box, options);
  if (value !== undefined) box.value = value;
  box.addEventListener("change", () => onChange(box.value));
  return el("div", { class: "control" }, el("label", { for: id }, label), box);
}

function fill(box, options) {
  const before = box.value;
  box.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  if (options.some(([value]) => String(value) === before)) box.value = before;
}

const $ = (id) => document.getElementById(id);

/* Three or four significant digits, thousands apart. */
function number(value) {
  if (value === null || value === undefined) return "-";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(1);
  return Number(value.toPrecision(Math.abs(value) >= 1000 ? 6 : 3)).toLocaleString("en", { maximumFractionDigits: 4 });
}

/* The same with as many decimals as its size asks for, so that a column of them lines up. */
function fixed(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  const digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function percent(value, digits = 1) {
  if (value === null || value === undefined) return "-";
  const text = Math.abs(100 * value).toFixed(digits);
  return `${Number(text) === 0 ? "" : value > 0 ? "+" : "−"}${text}\u00a0%`;
}

function share(value) {
  return value === null || value === undefined ? "-" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}\u00a0%`;
}

function table(columns, rows, label) {
  const head = el("tr", {}, ...columns.map(([name, kind]) => el("th", { scope: "col", class: kind || "" }, name)));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, k) => el("td", { class: columns[k][1] || "" }, cell)))
  );
  const whole = el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, whole);
}

function pageHead(head, how) {
  const verdict = head.verification;
  $("top").append(
    el("p", { class: "eyebrow" }, head.eyebrow),
    el("h1", {}, bdi(head.model)),
    el(
      "p",
      { class: verdict.good ? "verdict good" : "verdict bad" },
      el("span", { class: "sign", "aria-hidden": "true" }, verdict.good ? "✓" : "!"),
      el("span", {}, el("strong", {}, verdict.verdict), verdict.detail ? ` ${verdict.detail}.` : "")
    ),
    el("dl", { class: "facts" }, ...head.facts.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, bdi(value))))),
    ...listOf("missing", head.missing),
    ...listOf("notes", head.notes),
    el("details", { class: "how", open: "" }, el("summary", {}, "How to read this page"), el("p", {}, how))
  );
  $("foot").append(
    el("details", { id: "provenance" }, el("summary", {}, "Provenance and options"),
      el("dl", { class: "rows" }, ...head.provenance.map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, bdi(value))))))
  );
}

function listOf(id, lines) {
  const title = id === "missing" ? "Not measured" : "Notes";
  const items = lines.map((line) => el("li", {}, bdi(line)));
  return items.length ? [el("div", { id, class: `list ${id}` }, el("h2", {}, title), el("ul", {}, ...items))] : [];
}

/* The value of one colour at the two ends and in the middle. */
function legend(id) {
  return el("div", { id, class: "legend" });
}

function drawLegend(node, scale, low, high, ticks, title) {
  const stops = Array.from({ length: 17 }, (_, k) => css(scale(mix(low, high, k / 16)))).join(",");
  const bar = el("div", { class: "bar", role: "img", "aria-label": `Colours from ${ticks[0]} to ${ticks[ticks.length - 1]}` });
  bar.style.background = `linear-gradient(to right, ${stops})`;
  node.replaceChildren(
    el("span", { class: "legend-title" }, title),
    el("div", { class: "scale" }, bar, el("div", { class: "ticks" }, ...ticks.map((tick) => el("span", {}, tick))))
  );
}

/* Names with a swatch each: the legends of charts, outside of them, because there names would be markup. */
function swatches(items) {
  return el("ul", { class: "swatches" }, ...items.map(({ name, colour, dash }) => {
    const swatch = el("span", { class: `swatch ${dash || ""}`, "aria-hidden": "true" });
    swatch.style.setProperty("--colour", colour);
    return el("li", {}, swatch, bdi(name));
  }));
}
