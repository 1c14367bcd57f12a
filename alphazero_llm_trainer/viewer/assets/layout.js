// Where nodes stand: columns by depth, one row a shown leaf, parents beside the middle of their children.

const ROW = 30, CARD = 24, GAP = 54, MARGIN = 24;
const WIDEST = 290, LEFT = 22, BADGE = 14, STATS = 62, MARK = 22;

class Layout {
  constructor(model) {
    this.model = model;
    this.folded = new Set();
    this.filter = { verdict: "", source: "", visits: 0 };
    this.x = new Float64Array(model.count);
    this.y = new Float64Array(model.count);
    this.width = new Float64Array(model.count);
    this.top = new Float64Array(model.count); // of the node's shown subtree
    this.bottom = new Float64Array(model.count);
    this.shown = new Uint8Array(model.count);
    this.kept = new Uint8Array(model.count);
    this.kids = new Array(model.count); // shown children, most visited first
    this.under = new Int32Array(model.count); // nodes below that pass the filter
    this.measure(null);
  }

  // Text widths; `pen` is a canvas context, or null before there is one.
  measure(pen) {
    for (let node = 0; node < this.model.count; node++) {
      const label = this.model.label(node);
      const bold = this.model.chosen.has(node) ? 1.15 : 1.01; // the chosen path is drawn in bold
      const wide = pen ? pen.measureText(label).width * bold : label.length * 7;
      this.width[node] = Math.min(WIDEST, LEFT + this.before(node) + wide + 6 + this.after(node));
    }
  }

  // Room of the direction's badge, and of the numbers and the verdict's mark.
  before(node) { return this.model.direction[node] === "none" ? 0 : BADGE; }
  after(node) { return STATS + (this.model.mark[node] ? MARK : 4); }

  // Keep what passes the filter and what leads there.
  keep() {
    const { model, filter } = this;
    this.kept.fill(0);
    this.under.fill(0);
    this.passing = 0;
    for (let node = model.count - 1; node >= 0; node--) {
      const passes =
        (!filter.verdict || model.mark[node] === filter.verdict) &&
        (!filter.source || model.source[node] === filter.source) &&
        (model.finalN[node] >= filter.visits || model.chosen.has(node)) &&
        (node > 0 || !(filter.verdict || filter.source));
      if (passes) this.passing += 1;
      if (passes || node === 0) this.kept[node] = 1;
      if (this.kept[node] && node > 0) {
        this.kept[model.parent[node]] = 1;
        this.under[model.parent[node]] += this.under[node] + 1;
      }
    }
  }

  run() {
    const { model } = this;
    this.keep();
    this.shown.fill(0);
    const order = [], columns = [];
    const stack = [0];
    while (stack.length) {
      const node = stack.pop();
      this.shown[node] = 1;
      order.push(node);
      const kids = this.folded.has(node) ? [] : model.children[node].filter((child) => this.kept[child]);
      kids.sort((a, b) => model.finalN[b] - model.finalN[a] || a - b);
      this.kids[node] = kids;
      // A leaf has its row to itself: it may reach over the next column.
      columns[model.depth[node]] = Math.max(columns[model.depth[node]] || 0, kids.length ? this.width[node] : 0);
      for (let i = kids.length - 1; i >= 0; i--) stack.push(kids[i]);
    }
    const left = [MARGIN];
    for (let depth = 0; depth < columns.length; depth++) left.push(left[depth] + columns[depth] + GAP);
    let row = 0;
    for (const node of order) {
      this.x[node] = left[model.depth[node]];
      if (!this.kids[node].length) {
        this.y[node] = this.top[node] = this.bottom[node] = MARGIN + CARD / 2 + ROW * row;
        row += 1;
      }
    }
    for (let i = order.length - 1; i >= 0; i--) {
      const node = order[i], kids = this.kids[node];
      if (!kids.length) continue;
      this.y[node] = (this.y[kids[0]] + this.y[kids[kids.length - 1]]) / 2;
      this.top[node] = this.top[kids[0]];
      this.bottom[node] = this.bottom[kids[kids.length - 1]];
    }
    this.order = order;
    this.wide = order.reduce((wide, node) => Math.max(wide, this.x[node] + this.width[node]), 0) + MARGIN + 30;
    this.tall = MARGIN * 2 + CARD + ROW * (row - 1);
  }

  // Unfold the most visited branches until about `rows` rows are shown; the chosen path always.
  overview(rows) {
    const { model } = this;
    this.keep();
    this.folded.clear();
    const open = new Set();
    let shown = 1;
    const kept = (node) => model.children[node].filter((child) => this.kept[child]);
    const unfold = (node) => {
      if (open.has(node)) return;
      open.add(node);
      shown += Math.max(kept(node).length - 1, 0);
    };
    const waiting = [];
    const offer = (node) => { for (const child of kept(node)) if (kept(child).length) waiting.push(child); };
    for (const node of model.chosen) { unfold(node); offer(node); }
    offer(0);
    waiting.sort((a, b) => model.finalN[b] - model.finalN[a]);
    while (waiting.length && shown < rows) {
      const node = waiting.shift();
      if (open.has(node) || shown + kept(node).length - 1 > rows) continue;
      unfold(node);
      for (const child of kept(node)) {
        if (!kept(child).length) continue;
        const at = waiting.findIndex((other) => model.finalN[other] < model.finalN[child]);
        waiting.splice(at < 0 ? waiting.length : at, 0, child);
      }
    }
    for (let node = 0; node < model.count; node++) if (!open.has(node) && model.children[node].length) this.folded.add(node);
    this.folded.delete(0);
  }

  reveal(node) {
    for (let up = this.model.parent[node]; up >= 0; up = this.model.parent[up]) this.folded.delete(up);
  }
}
