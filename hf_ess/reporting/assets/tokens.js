/* The text, token by token, each on the colour of its value. */

const BYTES = /^(.+?)(<[0-9A-F]{2}(?: [0-9A-F]{2})*>)$/su; // a character and the bytes of it that the token holds

class TokenText {
  /* onMark(position) when a token is chosen, onHover(position or null) when it is pointed at. */
  constructor(root, onMark, onHover) {
    this.root = root;
    this.nodes = [];
    this.marked = null;
    this.onMark = onMark;
    const at = (event) => {
      const token = event.target.closest("[data-at]");
      return token ? Number(token.dataset.at) : null;
    };
    root.addEventListener("click", (event) => at(event) !== null && onMark(at(event)));
    root.addEventListener("pointerover", (event) => onHover(at(event)));
    root.addEventListener("pointerleave", () => onHover(null));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const last = this.nodes.length - 1;
    const from = this.marked ?? -1;
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.onMark(Math.min(last, Math.max(0, to)));
    this.nodes[this.marked]?.scrollIntoView({ block: "nearest" });
  }

  /* texts: a string per token; breaks: positions after which the text goes on in a new line;
     marks: position -> {name, colour} of a delimiter or a place. */
  show(texts, breaks, marks) {
    const ends = new Set(breaks);
    const flow = [];
    this.nodes = texts.map((text, k) => {
      const bytes = BYTES.exec(text);
      const token = bytes ? el("bdi", {}, bytes[1], el("small", {}, bytes[2])) : bdi(text);
      token.className = "token";
      token.dataset.at = k;
      const mark = marks.get(k);
      if (mark) {
        token.classList.add("delimiter");
        token.style.setProperty("--mark", mark.colour);
      }
      flow.push(token);
      if (ends.has(k)) flow.push(el("br"));
      return token;
    });
    this.root.replaceChildren(...flow);
    this.marked = null;
  }

  /* paint(position) gives {background, ink}, or null where there is no value. */
  colour(paint) {
    this.nodes.forEach((node, k) => {
      const found = paint(k);
      node.classList.toggle("empty", found === null);
      node.style.backgroundColor = found ? found.background : "";
      node.style.color = found ? found.ink : "";
    });
  }

  mark(position) {
    if (this.marked !== null) this.nodes[this.marked]?.classList.remove("marked");
    this.marked = position;
    if (position !== null) this.nodes[position]?.classList.add("marked");
  }

  reveal(position) {
    this.nodes[position]?.scrollIntoView({ block: "center" });
  }
}

/* A line at the lower edge of the window with what is known of the token pointed at, else of the one marked. */
function readout(node, parts) {
  node.replaceChildren(...parts.map(([name, value, kind]) =>
    el("span", { class: kind || "" }, el("b", {}, name), " ", kind === "text" ? el("q", {}, bdi(value)) : bdi(value))));
}

function readNothing(node) {
  readout(node, [["", coarse ? "Tap a token for its numbers." : "Point at a token for its numbers; a click marks it in the charts."]]);
}

/* What marks a position in the text and in the charts, and reads it out. */
function marker(tokens, charts, show, node) {
  return (position, reveal) => {
    tokens.mark(position);
    markCharts(charts, position);
    if (reveal && position !== null) tokens.reveal(position);
    show(position);
    if (position !== null) say(node.textContent);
  };
}

function say(text) {
  $("spoken").textContent = text;
}
