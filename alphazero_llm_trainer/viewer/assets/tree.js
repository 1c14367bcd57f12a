// One tree on the screen: cards in columns by depth, edges by visits, colours by value, filters, keys and the slider.

const GAP = 34, ROW = 34, CARD = 27; // pixels between columns, from row to row, of a card
const ROWS = 36; // rows that a tree opens with: its least visited branches are folded
const MOST_CARDS = 3000; // drawn at once

class TreeView {
  constructor(model, node) {
    this.model = model;
    this.folded = new Set(); // nodes that end a card
    this.zoom = 1;
    this.showUnvisited = false;
    this.wide = (innerWidth <= 640 ? 168 : 216) * (model.seen.some(Boolean) ? 1.5 : 1); // of a card, wider with a world's answer
    this.panel = new Panel(element("panel"), model, (one) => this.select(one, true));
    for (const [id, choices] of [["verdict", new Set(model.mark.filter(Boolean))], ["source", new Set(model.source.slice(1))]]) {
      element(id).replaceChildren(make("option", { value: "" }, "all"), ...[...choices].sort().map((one) => make("option", { value: one }, VERDICTS[one]?.[1] ?? one)));
      element(id).onchange = () => this.draw();
    }
    Object.assign(element("find"), { value: "", oninput: () => this.draw() });
    Object.assign(element("visits"), { value: "0", oninput: () => this.draw() });
    element("unvisited").onclick = () => { this.showUnvisited = !this.showUnvisited; this.draw(); };
    element("overview").onclick = () => { this.overview(); this.draw(); };
    element("unfold").onclick = () => { this.folded.clear(); this.draw(); };
    element("in").onclick = () => this.scale(1.25);
    element("out").onclick = () => this.scale(0.8);
    element("fit").onclick = () => this.fit();
    element("steps").hidden = model.steps === 0;
    Object.assign(element("slider"), { max: String(model.steps), value: String(model.steps), oninput: (event) => this.step(Number(event.target.value)) });
    element("ramp-low").textContent = Number.isFinite(model.range[0]) ? `Q ${number(model.range[0], 2)}` : "no visits";
    element("ramp-high").textContent = Number.isFinite(model.range[1]) ? number(model.range[1], 2) : "";
    this.selected = node < model.count ? node : 0;
    this.overview();
    this.reveal(this.selected);
    this.step(model.steps);
    this.select(this.selected);
    if (this.tall > element("stage").clientHeight && innerWidth > 640) this.fit();
  }

  // The cards below a node: each ends in a node; tokens that follow each other without a branch are one card.
  cards(above) {
    const { model } = this;
    return model.children[above].filter((child) => this.shows(child)).map((first) => {
      let last = first;
      while (model.tokens && model.mark[last] === null) {
        const onward = model.children[last].filter((child) => this.shows(child));
        if (onward.length !== 1 || model.rollout(onward[0]) || model.source[onward[0]] !== model.source[last]) break;
        [last] = onward;
      }
      return { first, last };
    });
  }

  shows(node) {
    const { model } = this;
    return (this.showUnvisited || !model.unvisited(node)) && model.finalN[node] >= this.least && (this.kept === null || this.kept.has(node));
  }

  // The nodes that the filters of verdict and source leave, with all above them; null: all.
  filter() {
    const { model } = this, verdict = element("verdict").value, source = element("source").value;
    this.least = Number(element("visits").value) || 0;
    this.kept = null;
    if (!verdict && !source) return;
    this.kept = new Set();
    for (let node = 0; node < model.count; node++) {
      if ((verdict && model.mark[node] !== verdict) || (source && model.source[node] !== source)) continue;
      for (let up = node; up >= 0 && !this.kept.has(up); up = model.parent[up]) this.kept.add(up);
    }
  }

  // Fold everything but the chosen path and the most visited branches, as far as there are rows.
  overview() {
    const { model } = this;
    this.filter();
    this.folded.clear();
    const waiting = [0];
    let rows = 1;
    while (waiting.length) {
      waiting.sort((a, b) => model.chosen.has(b) - model.chosen.has(a) || model.finalN[b] - model.finalN[a]);
      const card = waiting.shift(), below = this.cards(card);
      if (!below.length) continue;
      if (rows + below.length - 1 > ROWS && !model.chosen.has(card) && card !== 0) { this.folded.add(card); continue; }
      rows += below.length - 1;
      waiting.push(...below.map(({ last }) => last));
    }
  }

  reveal(node) {
    for (const up of this.model.path(node)) if (up !== node) this.folded.delete(up);
  }

  // Places of all cards that are shown, parents before children, by one walk and one sum from the leaves.
  layout() {
    const order = [], stack = [{ first: 0, last: 0, up: null, column: 0 }];
    while (stack.length && order.length < MOST_CARDS) {
      const card = stack.pop();
      order.push(card);
      const below = this.cards(card.last);
      card.hidden = this.folded.has(card.last) && below.length > 0;
      if (!card.hidden) for (const one of below.reverse()) stack.push({ ...one, up: card, column: card.column + 1 });
    }
    this.cut = stack.length;
    const inner = new Set(order.map(({ up }) => up));
    let rows = 0;
    for (const card of order) if (!inner.has(card)) card.y = 12 + ROW * rows++;
    for (const card of [...order].reverse()) {
      if (card.up === null) continue;
      card.up.low ??= card.y; // the last child, which comes first here
      card.up.y = (card.up.low + card.y) / 2;
    }
    for (const card of order) card.x = 12 + card.column * (this.wide + GAP);
    this.tall = rows * ROW + 24;
    this.across = Math.max(...order.map(({ x }) => x)) + this.wide + 60;
    return order;
  }

  draw() {
    this.filter();
    const { model } = this, order = this.layout(), wanted = element("find").value.toLowerCase();
    const matches = (card) => wanted !== "" && model.phrase(card.last, card.up === null ? -1 : card.up.last).toLowerCase().includes(wanted);
    this.shown = new Map();
    let found = 0;
    const drawn = order.map((card) => {
      const match = matches(card);
      found += match;
      const made = this.card(card, match);
      for (let node = card.last; ; node = model.parent[node]) {
        this.shown.set(node, made);
        if (node === card.first) break;
      }
      return made;
    });
    const holder = element("tree");
    holder.style.width = `${this.across}px`;
    holder.style.height = `${this.tall}px`;
    holder.replaceChildren(this.edges(order), ...drawn);
    const left = model.parent.filter((_, node) => model.unvisited(node)).length;
    element("unvisited").hidden = left === 0;
    element("unvisited").textContent = this.showUnvisited ? `Hide ${whole(left)} unvisited` : `Show ${whole(left)} unvisited`;
    element("shown").textContent = `${whole(order.length - 1)} of ${whole(model.count - 1)} nodes and phrases` + (this.cut ? `; no more than ${whole(MOST_CARDS)} are drawn` : "");
    element("found").textContent = wanted ? `${whole(found)} found` : "";
    this.mark();
  }

  card({ first, last, up, x, y, hidden }, match) {
    const { model } = this, q = model.q(last), there = last < model.born || first === 0;
    const classes = ["card", model.chosen.has(last) && model.done && "chosen", match && "match", model.source[last] !== "student" && last > 0 && "teacher", model.rollout(last) && "rollout", !there && "ahead", last === model.leaf && "now"];
    const mark = model.mark[last], asked = { right: "▲ ", wrong: "▼ " }[model.direction[last]] ?? "";
    const made = make("div", { class: classes.filter(Boolean).join(" "), "data-node": last, click: () => this.select(last), dblclick: () => this.fold(last) },
      make("span", { class: "label" }, asked + model.label(last, up === null ? -1 : up.last)),
      model.answered(last) ? make("span", { class: "given", title: "what the world answers" }, model.answered(last)) : null,
      make("span", { class: "figures" }, q === null ? "–" : `${whole(model.N[last])} · ${q.toFixed(2)}`),
      mark ? make("span", { class: `mark ${mark}`, title: VERDICTS[mark]?.[1] ?? mark }, VERDICTS[mark]?.[0] ?? "?") : null,
      hidden ? make("button", { type: "button", class: "more", title: "folded: click to unfold", click: (event) => { event.stopPropagation(); this.fold(last); } }, `+${whole(this.below(last))}`) : null);
    made.style.cssText = `left:${x}px;top:${y}px;width:${this.wide}px;height:${CARD}px`;
    if (q !== null) made.style.setProperty("--rank", `${Math.round(100 * model.rank(q))}%`);
    else made.classList.add("none");
    return made;
  }

  below(node) {
    let count = 0;
    const stack = [node];
    while (stack.length) for (const child of this.model.children[stack.pop()]) if (this.shows(child)) { count += 1; stack.push(child); }
    return count;
  }

  edges(order) {
    const svg = element("edges"), { model } = this;
    svg.replaceChildren();
    for (const { first, last, up, x, y } of order) {
      if (up === null) continue;
      const path = document.createElementNS(svg.namespaceURI, "path"), from = up.x + this.wide, middle = y + CARD / 2, bend = (from + x) / 2;
      path.setAttribute("d", `M${from} ${up.y + CARD / 2}C${bend} ${up.y + CARD / 2} ${bend} ${middle} ${x} ${middle}`);
      path.setAttribute("stroke-width", (0.75 + 6 * Math.sqrt(model.N[first] / Math.max(model.N[0], 1))).toFixed(2));
      if (model.chosen.has(last) && model.done) path.setAttribute("class", "chosen");
      svg.append(path);
    }
    return svg;
  }

  mark() {
    element("tree").querySelector(".selected")?.classList.remove("selected");
    this.shown.get(this.selected)?.classList.add("selected");
    element("further")?.toggleAttribute("hidden", this.selected === 0);
  }

  // `go`: unfold what hides it, and bring it into view.
  select(node, go = false) {
    this.selected = node;
    if (go && !this.shown.has(node)) {
      this.reveal(node);
      if (this.model.path(node).some((one) => this.model.unvisited(one))) this.showUnvisited = true;
      this.draw();
    }
    this.mark();
    if (go) this.shown.get(node)?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.panel.show(node);
    element("panel").hidden = false;
  }

  fold(node) {
    if (!this.folded.delete(node)) this.folded.add(node);
    this.draw();
  }

  step(step) {
    const { model } = this;
    model.go(step);
    element("slider").value = String(model.at);
    element("step-said").textContent = `simulation ${whole(model.at)} / ${whole(model.steps)}`;
    this.draw();
    this.panel.show(this.selected);
  }

  scale(factor) {
    this.zoom = Math.max(0.1, Math.min(2, this.zoom * factor));
    element("tree").style.zoom = String(this.zoom);
  }

  fit() {
    const stage = element("stage");
    this.scale(Math.min(1, stage.clientWidth / this.across, stage.clientHeight / this.tall) / this.zoom);
    stage.scrollTo(0, 0);
  }

  // Whether the key was one of the tree's.
  key(name) {
    const { model, selected } = this, up = model.parent[selected];
    const shown = (node) => node !== undefined && this.shown.has(node);
    const siblings = up < 0 ? [] : this.cards(up).map(({ last }) => last), at = siblings.indexOf(selected);
    const to = { ArrowLeft: up, ArrowRight: this.cards(selected)[0]?.last, ArrowUp: siblings[at - 1], ArrowDown: siblings[at + 1] };
    if (name in to) { if (shown(to[name])) this.select(to[name], true); }
    else if (name === " ") this.fold(selected);
    else if (name === "[" || name === "]") this.step(model.at + (name === "]" ? 1 : -1));
    else if (["+", "-", "f", "u", "o", "v", "/"].includes(name)) {
      const id = { "+": "in", "-": "out", f: "fit", u: "unfold", o: "overview", v: "unvisited", "/": "find" }[name];
      if (id === "find") element(id).focus();
      else element(id).click();
    } else return false;
    return true;
  }
}
