// One tree on the screen: the toolbar, the canvas' mouse and keys, the panel and the steps put together.

const READABLE = 0.9, SMALLEST = 0.78; // zoom of an overview, and where a few rows more are to fit

class TreeView {
  constructor(model) {
    this.model = model;
    this.canvas = element("canvas");
    this.layout = new Layout(model);
    this.painter = new Painter(this.canvas, model, this.layout);
    this.panel = new Panel(element("panel"), model, this.painter, (node) => this.select(node, true));
    this.selected = 0;
    this.found = [];
    this.fillFilters();
    // Most nodes of a token tree are proposals that no simulation went to.
    const idle = model.finalN.filter((visits) => visits === 0).length;
    if (idle > model.count / 2) this.layout.filter.visits = 1;
    element("visits").value = String(this.layout.filter.visits);
    this.steps = new Steps(model, () => this.stepped());
    this.bind();
    this.painter.resize();
    this.overview();
    legend(this.painter, model);
    this.select(0);
  }

  fillFilters() {
    const { model } = this;
    const choices = (select, values) => {
      select.replaceChildren(make("option", { value: "" }, "all"), ...values.map(([value, shown]) => make("option", { value }, shown)));
      select.value = "";
    };
    const marks = [...new Set(model.mark.filter((mark) => mark !== null))].sort();
    choices(element("verdict"), marks.map((mark) => [mark, `${VERDICTS[mark]?.[0] ?? ""} ${mark}`]));
    choices(element("source"), model.sources().map((source) => [source, source]));
    element("find").value = "";
    element("found").textContent = "";
  }

  bind() {
    const { canvas, painter, layout } = this;
    const filter = (name, value) => { layout.filter[name] = value; this.filtered(); };
    element("verdict").onchange = (event) => filter("verdict", event.target.value);
    element("source").onchange = (event) => filter("source", event.target.value);
    element("visits").oninput = (event) => filter("visits", Math.max(0, Number(event.target.value) || 0));
    element("find").oninput = () => this.find(element("find").value);
    element("find").onkeydown = (event) => {
      if (event.key === "Enter") { this.nextFound(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape") { element("find").value = ""; this.find(""); canvas.focus(); }
    };
    element("unfold").onclick = () => { layout.folded.clear(); this.relayout(); painter.fit(); };
    element("focus").onclick = () => this.overview();
    element("in").onclick = () => painter.zoomBy(1.25);
    element("out").onclick = () => painter.zoomBy(0.8);
    element("fit").onclick = () => painter.fit();
    element("side").onclick = () => {
      const panel = element("panel");
      panel.hidden = !panel.hidden;
      element("side").setAttribute("aria-expanded", String(!panel.hidden));
      painter.resize();
    };
    canvas.onwheel = (event) => {
      event.preventDefault();
      if (event.shiftKey) painter.panBy(event.deltaX || event.deltaY, 0);
      else painter.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
    };
    let drag = null;
    canvas.onpointerdown = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.offsetX, y: event.offsetY, far: false };
    };
    canvas.onpointermove = (event) => {
      if (drag === null) {
        canvas.classList.toggle("over", painter.hit(event.offsetX, event.offsetY) !== null);
        return;
      }
      const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
      if (!drag.far && Math.hypot(dx, dy) < 4) return;
      drag = { x: event.offsetX, y: event.offsetY, far: true };
      canvas.classList.add("dragging");
      painter.panBy(-dx, -dy);
    };
    canvas.onpointerup = (event) => {
      const still = drag !== null && !drag.far;
      drag = null;
      canvas.classList.remove("dragging");
      const hit = still ? painter.hit(event.offsetX, event.offsetY) : null;
      if (hit === null) return;
      this.select(hit[0]);
      if (hit[1]) this.fold(hit[0]);
    };
    canvas.onpointercancel = () => { drag = null; canvas.classList.remove("dragging"); };
    canvas.ondblclick = (event) => {
      const hit = painter.hit(event.offsetX, event.offsetY);
      if (hit !== null && !hit[1]) this.fold(hit[0]);
    };
    this.watcher = new ResizeObserver(() => painter.resize());
    this.watcher.observe(canvas);
  }

  close() {
    this.steps.pause();
    this.watcher.disconnect();
  }

  relayout() {
    const { layout, model } = this;
    layout.run();
    const rollouts = model.count - model.nodes;
    const parts = [`${whole(layout.order.length)} of ${whole(model.nodes)} nodes${rollouts ? ` and ${whole(rollouts)} rollouts` : ""} shown`];
    if (layout.filter.visits > 0) parts.push(`fewer than ${layout.filter.visits} visits hidden`);
    if (layout.filter.verdict || layout.filter.source) parts.push(`${whole(layout.passing)} pass the filter`);
    if (layout.folded.size) parts.push("+n: folded, double-click to unfold");
    element("shown").textContent = parts.join(" · ");
    this.markNow();
    this.painter.ask();
  }

  filtered() {
    this.layout.folded.clear();
    this.relayout();
    this.painter.fit(0.4);
  }

  overview() {
    this.layout.overview(Math.floor(this.painter.tall / (ROW * READABLE)) - 1);
    this.relayout();
    this.painter.fit(SMALLEST);
  }

  stepped() {
    const { model, painter, layout } = this;
    if (element("follow").checked && model.leaf !== null) {
      if (!layout.shown[model.leaf]) { layout.reveal(model.leaf); this.relayout(); }
      if (layout.shown[model.leaf]) painter.bring(model.leaf);
    }
    this.markNow();
    this.panel.show(this.selected);
    painter.ask();
  }

  markNow() {
    let node = this.model.leaf;
    while (node !== null && node > 0 && !this.layout.shown[node]) node = this.model.parent[node];
    this.painter.now = node;
  }

  select(node, reveal = false) {
    if (reveal && !this.layout.shown[node]) {
      this.layout.reveal(node);
      this.relayout();
    }
    this.selected = this.painter.selected = node;
    this.panel.show(node);
    if (this.layout.shown[node]) this.painter.bring(node);
    this.announce(node);
  }

  announce(node) {
    const { model } = this;
    const parts = [node === 0 ? "root" : `node ${node}, depth ${model.depth[node]}: ${model.label(node)}`];
    parts.push(`${model.N[node]} visits`);
    if (model.q(node) !== null) parts.push(`value ${model.q(node).toFixed(2)}`);
    if (model.mark[node]) parts.push(VERDICTS[model.mark[node]]?.[1] ?? model.mark[node]);
    if (model.children[node].length) parts.push(`${model.children[node].length} children${this.layout.folded.has(node) ? ", folded" : ""}`);
    element("said").textContent = parts.join(", ");
  }

  fold(node) {
    if (!this.model.children[node].length) return;
    const { camera } = this.painter, { layout } = this;
    const y = layout.y[node];
    if (!layout.folded.delete(node)) layout.folded.add(node);
    this.relayout();
    camera.y += layout.y[node] - y; // the node stays under the mouse
    this.announce(node);
  }

  find(text) {
    const { model, painter } = this, wanted = text.trim().toLowerCase();
    this.found = [];
    if (wanted) {
      for (let node = 1; node < model.count; node++) if (model.text[node].toLowerCase().includes(wanted)) this.found.push(node);
      // A token tree spreads words over nodes: there a path's end counts.
      if (!this.found.length && wanted.length > 1) {
        for (let node = 1; node < model.count; node++) {
          const own = model.text[node].length;
          if (own && model.response(node).slice(-(own + wanted.length - 1)).toLowerCase().includes(wanted)) this.found.push(node);
        }
      }
    }
    painter.matches = new Set(this.found);
    this.foundAt = -1;
    element("found").textContent = wanted ? `${whole(this.found.length)} found` : "";
    painter.ask();
  }

  nextFound(direction) {
    if (!this.found.length) return;
    this.foundAt = (this.foundAt + direction + this.found.length) % this.found.length;
    element("found").textContent = `${this.foundAt + 1} of ${this.found.length}`;
    this.select(this.found[this.foundAt], true);
  }

  // Arrow keys: left to the parent, right to the most visited child, up and down among the siblings, then their cousins.
  move(key) {
    const { model, layout } = this, node = this.selected;
    if (key === "ArrowLeft" && node > 0) this.select(model.parent[node], true);
    if (key === "ArrowRight") {
      if (layout.folded.has(node)) this.fold(node);
      const [child] = layout.kids[node] || [];
      if (child !== undefined) this.select(child);
    }
    if (key === "ArrowUp" || key === "ArrowDown") {
      const column = layout.order.filter((one) => model.depth[one] === model.depth[node]);
      const next = column[column.indexOf(node) + (key === "ArrowDown" ? 1 : -1)];
      if (next !== undefined) this.select(next);
    }
  }

  // A key pressed anywhere but in a field; true when it was one of ours.
  key(event) {
    const { painter, steps, model } = this, { key } = event;
    const actions = {
      " ": () => this.fold(this.selected),
      "/": () => element("find").focus(),
      Home: () => this.select(0),
      c: () => this.select(model.chosenEnd, true),
      f: () => painter.fit(),
      o: () => this.overview(),
      u: () => element("unfold").click(),
      d: () => element("side").click(),
      "+": () => painter.zoomBy(1.25),
      "=": () => painter.zoomBy(1.25),
      "-": () => painter.zoomBy(0.8),
      "[": () => steps.go(model.at - 1),
      "]": () => steps.go(model.at + 1),
      "{": () => steps.go(0),
      "}": () => steps.go(model.steps),
      p: () => steps.toggle(),
      n: () => this.nextFound(1),
    };
    if (key.startsWith("Arrow")) this.move(key);
    else if (Object.hasOwn(actions, key)) actions[key]();
    else return false;
    return true;
  }
}

const KEYS = [
  ["← →", "parent, most visited child"], ["↑ ↓", "the nodes above and below at the same depth"], ["space", "fold or unfold"],
  ["c", "end of the chosen path"], ["home", "root"], ["/", "find text; enter for the next one"], ["n", "next one found"],
  ["[ ]", "one simulation back, on"], ["{ }", "first, last simulation"], ["p", "play or pause"], ["+ −", "zoom; also the wheel"],
  ["f", "fit the whole tree"], ["o", "overview: most visited branches"], ["u", "unfold all"], ["d", "panel on or off"],
  ["t", "light or dark"], ["?", "this list"],
];

function legend(painter, model) {
  const body = element("legend-body"), ratio = window.devicePixelRatio || 1;
  const item = (paint, text, wide = 44) => {
    const small = make("canvas", { width: wide * ratio, height: 20 * ratio, "aria-hidden": "true" });
    small.style.width = `${wide}px`;
    small.style.height = "20px";
    const pen = small.getContext("2d");
    pen.scale(ratio, ratio);
    const own = Object.assign(Object.create(Painter.prototype), { pen, colours: painter.colours, values: painter.values });
    paint(own, pen);
    return [small, make("span", {}, text)];
  };
  const outlined = (colour, thick, dash = []) => (own, pen) => {
    own.box(2, 3, 40, 14, 4);
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    pen.setLineDash(dash);
    pen.stroke();
  };
  const line = (colour, from, to = from) => (own, pen) => {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.moveTo(2, 10 - from / 2);
    pen.lineTo(42, 10 - to / 2);
    pen.lineTo(42, 10 + to / 2);
    pen.lineTo(2, 10 + from / 2);
    pen.fill();
  };
  const { colours } = painter;
  const items = [
    item((own, pen) => { for (let i = 0; i < 40; i++) { pen.fillStyle = own.value(i / 39); pen.fillRect(2 + i, 3, 1.5, 14); } }, "mean value Q, 0 to 1"),
    item(line(colours.line, 1, 7), "edge width: visits"),
    item(line(colours.ink, 3), model.choiceRecorded ? "chosen path" : "most visited path"),
    item(line(colours.now, 3), "this simulation's path"),
    item(outlined(colours.student, 1), "student"),
    ...painter.teachers.map((source) => item(outlined(painter.outline(source), 2.25), source)),
  ];
  if (model.direction.some((direction) => direction !== "none")) {
    items.push(item((own) => own.direction("right", 22, 10), "asked for a likely right step"));
    items.push(item((own) => own.direction("wrong", 22, 10), "asked for a likely wrong step"));
  }
  if (model.rollout.some(Boolean)) items.push(item(outlined(colours.student, 1, [4, 3]), "rollout beside the tree; N counts how often"));
  for (const mark of [...new Set(model.mark.filter((one) => one !== null))].sort()) {
    items.push(item((own) => own.mark(mark, 22, 10), VERDICTS[mark]?.[1] ?? mark));
  }
  items.push([make("span", { class: "muted" }, "12 · 0.62"), make("span", {}, "visits N and mean value Q")]);
  body.replaceChildren(...items.flat());
}
