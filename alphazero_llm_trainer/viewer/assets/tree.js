// One tree on the screen: the toolbar, the canvas' mouse, touch and keys, the panel and the steps put together.

const SMALLEST = 0.78, EASY = 0.95; // zooms at which text can be read, and read on end
const NARROW = matchMedia("(max-width: 640px)"); // as in page.css: the panel is a sheet below the tree

class TreeView {
  constructor(model, node = 0) {
    this.model = model;
    this.canvas = element("canvas");
    this.layout = new Layout(model);
    this.painter = new Painter(this.canvas, model, this.layout);
    this.panel = new Panel(element("panel"), model, this.painter, {
      select: (chosen) => this.select(chosen, true), split: (card) => this.split(card), close: () => this.showPanel(false),
    });
    this.selected = 0;
    this.found = [];
    this.idle = model.parent.filter((_, member) => model.unvisited(member)).length;
    // Most nodes of a token tree are proposals that no simulation went to.
    this.layout.filter.unvisited = this.idle <= model.count / 2;
    this.fillFilters();
    this.steps = new Steps(model, () => this.stepped());
    this.bind();
    this.showPanel(!NARROW.matches);
    this.painter.resize();
    this.narrow = NARROW.matches;
    this.choose();
    legend(this.painter, model);
    this.select(node < model.count ? node : 0, true);
    this.painter.draw();
  }

  fillFilters() {
    const { model } = this;
    const choices = (select, values) => {
      select.replaceChildren(make("option", { value: "" }, "all"), ...values.map(([value, shown]) => make("option", { value }, shown)));
      select.value = "";
      select.parentElement.hidden = values.length < 2;
    };
    const marks = [...new Set(model.mark.filter((mark) => mark !== null))].sort();
    choices(element("verdict"), marks.map((mark) => [mark, `${VERDICTS[mark]?.[0] ?? ""} ${mark}`]));
    choices(element("source"), model.sources().map((source) => [source, source]));
    element("visits").value = "0";
    element("find").value = "";
    element("found").textContent = "";
    element("phrases").hidden = !model.tokens;
    element("unvisited").hidden = this.idle === 0;
  }

  bind() {
    const { canvas, painter, layout } = this;
    const filter = (name, value) => { layout.filter[name] = value; this.filtered(); };
    element("verdict").onchange = (event) => filter("verdict", event.target.value);
    element("source").onchange = (event) => filter("source", event.target.value);
    element("visits").oninput = (event) => filter("visits", Math.max(0, Number(event.target.value) || 0));
    element("unvisited").onclick = () => { layout.filter.unvisited = !layout.filter.unvisited; this.overview(); };
    element("phrases").onclick = () => { layout.phrases = !layout.phrases; layout.expanded.clear(); this.overview(); };
    element("outline").onclick = () => { layout.outline = !layout.outline; this.overview(); };
    element("find").oninput = () => this.find(element("find").value);
    element("find").onkeydown = (event) => {
      if (event.key === "Enter") { this.nextFound(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape") { element("find").value = ""; this.find(""); canvas.focus(); }
    };
    element("unfold").onclick = () => { layout.folded.clear(); this.relayout(); painter.fit(); painter.moved = true; };
    element("focus").onclick = () => this.overview();
    element("in").onclick = () => painter.zoomBy(1.25);
    element("out").onclick = () => painter.zoomBy(0.8);
    element("fit").onclick = () => painter.fit();
    element("side").onclick = () => this.showPanel(element("panel").hidden);
    element("more").onclick = () => element("more").setAttribute("aria-expanded", String(element("tools").classList.toggle("open")));
    canvas.onwheel = (event) => {
      event.preventDefault();
      if (event.shiftKey) painter.panBy(event.deltaX || event.deltaY, 0);
      else painter.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
    };
    canvas.ondblclick = (event) => {
      const hit = painter.hit(event.offsetX, event.offsetY);
      if (hit !== null && hit[1] === "card") this.fold(hit[0]);
    };
    this.bindPointers();
    this.watcher = new ResizeObserver(() => this.resized());
    this.watcher.observe(canvas);
  }

  // One pointer drags or clicks, two zoom.
  bindPointers() {
    const { canvas, painter } = this, down = new Map();
    let moved = false;
    canvas.onpointerdown = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      moved = moved && down.size > 0;
      down.set(event.pointerId, [event.offsetX, event.offsetY]);
      if (down.size > 1) moved = true;
    };
    canvas.onpointermove = (event) => {
      const at = [event.offsetX, event.offsetY], before = down.get(event.pointerId);
      if (before === undefined) {
        canvas.classList.toggle("over", painter.hit(...at) !== null);
        return;
      }
      if (!moved && Math.hypot(at[0] - before[0], at[1] - before[1]) < 4) return;
      moved = true;
      canvas.classList.add("dragging");
      const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
      painter.panBy(...[0, 1].map((axis) => (before[axis] - at[axis]) / down.size));
      if (other !== undefined) {
        const apart = (point) => Math.max(10, Math.hypot(point[0] - other[0], point[1] - other[1]));
        painter.zoomBy(apart(at) / apart(before), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
      }
      down.set(event.pointerId, at);
    };
    const up = (event) => {
      const clicked = down.delete(event.pointerId) && !moved && event.type === "pointerup";
      if (down.size === 0) canvas.classList.remove("dragging");
      const hit = clicked ? painter.hit(event.offsetX, event.offsetY) : null;
      if (hit === null) return;
      const [card, part] = hit;
      this.select(card);
      if (part === "fold") this.fold(card);
      else if (part === "phrase") this.split(card);
      else if (NARROW.matches) this.showPanel(true);
    };
    canvas.onpointerup = canvas.onpointercancel = up;
  }

  resized() {
    this.painter.resize();
    const { painter } = this;
    if (this.narrow !== NARROW.matches) {
      this.narrow = NARROW.matches;
      this.choose();
    } else if (!painter.moved && !(this.narrow && !element("panel").hidden)) this.overview();
    else if (this.narrow) painter.bring(this.selected); // above the sheet
  }

  // A tree, but an outline where the chosen path would not fit.
  choose() {
    this.layout.outline = this.narrow;
    this.overview();
    if (this.layout.shown[this.model.chosenEnd] || this.narrow) return;
    this.layout.outline = true;
    this.overview();
  }

  showPanel(open) {
    element("panel").hidden = !open;
    element("side").setAttribute("aria-expanded", String(open));
    if (!open && element("panel").contains(document.activeElement)) this.canvas.focus();
  }

  close() {
    this.steps.pause();
    this.watcher.disconnect();
  }

  relayout() {
    const { layout, model } = this;
    layout.run();
    const rollouts = model.count > model.nodes, shown = layout.shown.reduce((sum, one) => sum + one, 0);
    const parts = [`${whole(shown)} of ${whole(model.count)} ${rollouts ? "nodes and rollouts" : "nodes"} shown`];
    if (layout.filter.visits > 0) parts.push(`fewer than ${layout.filter.visits} visits hidden`);
    if (layout.filter.verdict || layout.filter.source) parts.push(`${whole(layout.passing)} pass the filter`);
    element("shown").textContent = parts.join(" · ");
    element("hint").hidden = !layout.order.some((card) => layout.folds(card));
    element("unvisited").textContent = `${whole(this.idle)} unvisited ${layout.filter.unvisited ? "shown: hide" : "hidden: show"}`;
    element("phrases").setAttribute("aria-pressed", String(layout.phrases));
    element("outline").setAttribute("aria-pressed", String(layout.outline));
    this.markNow();
    this.painter.repaint();
  }

  filtered() {
    this.painter.moved = true;
    this.layout.folded.clear();
    this.relayout();
    this.painter.fit(0.4);
  }

  // The whole tree at a size to read: what there is no room for is folded.
  overview() {
    const { painter, layout } = this, zoom = layout.outline ? EASY : SMALLEST;
    layout.overview(painter.wide / zoom, (painter.tall - BELOW) / zoom);
    this.relayout();
    painter.fit(zoom);
    painter.moved = false;
  }

  stepped() {
    const { model, painter, layout } = this;
    if (element("follow").checked && model.leaf !== null) {
      if (!layout.shown[model.leaf]) { layout.reveal(model.leaf); this.relayout(); }
      if (layout.shown[model.leaf]) painter.bring(model.leaf);
    }
    this.markNow();
    this.panel.show(this.selected);
    painter.repaint();
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
      this.painter.moved = true;
    }
    this.selected = this.painter.selected = node;
    this.panel.show(node);
    if (this.layout.shown[node]) this.painter.bring(node);
    this.announce(node);
  }

  announce(node) {
    const { model, layout } = this, card = layout.card[node], phrase = layout.shown[node] && layout.phrase(card);
    const parts = [node === 0 ? "root" : `node ${node}, depth ${model.depth[node]}: ${model.label(node)}`];
    if (phrase) parts.push(`in the phrase ${model.label(card, layout.first[card])}`);
    parts.push(`${model.N[node]} visits`);
    if (model.q(node) !== null) parts.push(`value ${model.q(node).toFixed(2)}`);
    if (model.mark[node]) parts.push(VERDICTS[model.mark[node]]?.[1] ?? model.mark[node]);
    if (model.children[node].length) parts.push(`${model.children[node].length} children${layout.folded.has(node) ? ", folded" : ""}`);
    element("said").textContent = parts.join(", ");
  }

  // Change the layout so that the card stays under the mouse.
  around(card, change) {
    const { camera } = this.painter, { layout } = this, y = layout.y[card];
    change();
    this.relayout();
    this.painter.moved = true;
    camera.y += layout.y[layout.card[card]] - y;
    this.panel.show(this.selected);
    this.announce(this.selected);
  }

  fold(node) {
    const { layout } = this, card = layout.shown[node] ? layout.card[node] : node;
    if (!this.model.children[card].length) return;
    this.around(card, () => { if (!layout.folded.delete(card)) layout.folded.add(card); });
  }

  // A phrase's tokens one by one, or as a phrase again.
  split(node) {
    const { layout } = this;
    this.around(layout.card[node], () => layout.split(layout.card[node]));
  }

  find(text) {
    const { model, painter } = this, wanted = text.trim().toLowerCase();
    this.found = [];
    if (wanted) {
      for (let node = 1; node < model.count; node++) if (model.text[node].toLowerCase().includes(wanted)) this.found.push(node);
      // A token tree spreads words over nodes: there a path's end counts.
      if (!this.found.length && wanted.length > 1) {
        for (let node = 1; node < model.count; node++) {
          const reach = model.text[node].length + wanted.length - 1;
          if (model.text[node] && model.tail(node, reach).slice(-reach).toLowerCase().includes(wanted)) this.found.push(node);
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

  // Arrow keys: left to the parent, right to the most visited child, up and down to the next card of the same depth; in the
  // outline to the next row.
  move(key) {
    const { layout } = this, card = layout.card[this.selected];
    if (key === "ArrowLeft" && card > 0) this.select(layout.up[card], true);
    if (key === "ArrowRight") {
      if (layout.folded.has(card)) this.fold(card);
      const [child] = layout.kids[card] || [];
      if (child !== undefined) this.select(child);
    }
    if (key === "ArrowUp" || key === "ArrowDown") {
      const column = layout.outline ? layout.order : layout.order.filter((other) => layout.level[other] === layout.level[card]);
      const next = column[column.indexOf(card) + (key === "ArrowDown" ? 1 : -1)];
      if (next !== undefined) this.select(next);
    }
  }

  // A key pressed anywhere but in a field; true when it was one of ours.
  key(event) {
    const { painter, steps, model } = this, { key } = event;
    const press = (id) => () => { if (!element(id).hidden) element(id).click(); };
    const actions = {
      " ": () => this.fold(this.selected),
      "/": () => element("find").focus(),
      Home: () => this.select(0),
      c: () => this.select(model.chosenEnd, true),
      f: press("fit"),
      o: press("focus"),
      u: press("unfold"),
      l: press("outline"),
      w: press("phrases"),
      v: press("unvisited"),
      e: () => this.split(this.selected),
      d: press("side"),
      "+": press("in"),
      "=": press("in"),
      "-": press("out"),
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
  ["← →", "parent, most visited child"], ["↑ ↓", "the cards above and below at the same depth; in the outline the next row"],
  ["space", "fold or unfold"], ["e", "a phrase's tokens one by one, or merged again"], ["c", "end of the chosen path"], ["home", "root"],
  ["/", "find text; enter for the next one"], ["n", "next one found"], ["[ ]", "one simulation back, on"],
  ["{ }", "before the first, after the last simulation"], ["p", "play or pause"], ["+ −", "zoom; also the wheel, or two fingers"],
  ["f", "fit everything that is unfolded"], ["o", "overview: fold what there is no room for"], ["u", "unfold all"],
  ["l", "outline or tree"], ["w", "tokens merged into phrases or not"], ["v", "unvisited nodes shown or hidden"],
  ["d", "details on or off"], ["t", "light or dark"], ["?", "this list"],
];
