// Where cards stand. A card is a node, or a phrase: tokens that follow each other without a branch, drawn as one.
// As a tree, children stand right of their parent, one row a leaf. As an outline every card has a row of its own, below
// its parent, indented where the tree branches.

const ROW = 30, CARD = 24, MARGIN = 24, INDENT = 18;
const TEXTS = [210, 150, 110, 80]; // room for text in a card that has children: the first one with which a tree fits
const LEFT = 22, BADGE = 14, MARK = 22, FOLD = 50;
const LONGEST = 340; // room for text in any card

class Layout {
  constructor(model) {
    this.model = model;
    this.folded = new Set();
    this.expanded = new Set(); // nodes of phrases that are shown token by token
    this.filter = { verdict: "", source: "", visits: 0, unvisited: true };
    this.phrases = model.tokens;
    this.outline = false;
    this.gap = model.tokens ? 32 : 44; // between a parent and its children
    this.text = TEXTS[0];
    this.room = 800; // the width to fit into
    const floats = () => new Float64Array(model.count), integers = () => new Int32Array(model.count);
    // By card, which is named by its last node.
    [this.x, this.y, this.width] = [floats(), floats(), floats()];
    [this.top, this.bottom] = [floats(), floats()]; // of the card's shown subtree
    [this.first, this.up, this.level] = [integers().map((_, node) => node), integers(), integers()];
    this.kids = new Array(model.count); // shown child cards, most visited first
    // By node.
    this.card = integers(); // the card it stands in
    this.shown = new Uint8Array(model.count);
    this.keeps = new Uint8Array(model.count);
    this.under = integers(); // nodes below that pass the filter
    [this.measured, this.measuredFrom] = [floats(), integers().fill(-1)];
    this.pen = null;
  }

  // Room of the direction's badge, and of the phrase's length, the numbers and the verdict's mark.
  before(card) { return this.model.direction[card] === "none" ? 0 : BADGE; }
  after(card) { return this.numbers(card) + (this.model.mark[card] ? MARK : 4) + this.badge(card); }
  numbers(card) { return 40 + 7 * String(this.model.finalN[this.first[card]]).length; }
  badge(card) { return this.phrase(card) ? 14 + 7 * String(this.length(card)).length : 0; }
  phrase(card) { return this.first[card] !== card; }
  length(card) { return this.model.depth[card] - this.model.depth[this.first[card]] + this.model.ids[card].length; } // in tokens

  // A card's width with so much room for its text; `pen` is a canvas context.
  fitted(card, room) {
    const { model, pen } = this, first = this.first[card];
    if (this.measuredFrom[card] !== first) {
      const bold = model.chosen.has(card) ? 1.15 : 1.01; // the chosen path is drawn in bold
      this.measured[card] = pen.measureText(model.label(card, first)).width * bold;
      this.measuredFrom[card] = first;
    }
    return LEFT + this.before(card) + Math.min(this.measured[card], room, LONGEST) + 6 + this.after(card);
  }

  // Where a card ends, with the chip that says what it hides.
  right(card) {
    return this.x[card] + this.width[card] + (this.folds(card) ? FOLD : MARGIN);
  }

  // Keep what passes the filter and what leads there.
  keep() {
    const { model, filter } = this;
    this.keeps.fill(0);
    this.under.fill(0);
    this.passing = 0;
    for (let node = model.count - 1; node >= 0; node--) {
      const passes =
        (!filter.verdict || model.mark[node] === filter.verdict) &&
        (!filter.source || model.source[node] === filter.source) &&
        (model.finalN[node] >= filter.visits || model.chosen.has(node)) &&
        (filter.unvisited || !model.unvisited(node)) &&
        (node > 0 || !(filter.verdict || filter.source));
      if (passes) this.passing += 1;
      if (passes || node === 0) this.keeps[node] = 1;
      if (this.keeps[node] && node > 0) {
        this.keeps[model.parent[node]] = 1;
        this.under[model.parent[node]] += this.under[node] + 1;
      }
    }
  }

  // Children that pass the filter, most visited first.
  kept(node) {
    const { finalN, children } = this.model;
    return children[node].filter((child) => this.keeps[child]).sort((a, b) => finalN[b] - finalN[a] || a - b);
  }

  // The node that stands in the same card as its parent, or null.
  joined(node) {
    const { model, expanded } = this;
    if (!this.phrases || node === 0 || model.rollout[node] || model.mark[node] !== null || expanded.has(node)) return null;
    const kids = this.kept(node), [next] = kids;
    if (kids.length !== 1 || expanded.has(next)) return null;
    // A rollout goes on from a token; it stands for both where the token has no other visits.
    return model.rollout[next] && model.finalN[node] > model.finalN[next] ? null : next;
  }

  // The last node of the card that begins here.
  end(node) {
    let next;
    while (!this.folded.has(node) && (next = this.joined(node)) !== null) node = next;
    return node;
  }

  run() {
    const { model } = this, order = [], stack = [0];
    this.keep();
    this.shown.fill(0);
    this.card.fill(0);
    while (stack.length) {
      const first = stack.pop(), card = this.end(first);
      for (let node = card; ; node = model.parent[node]) {
        this.shown[node] = 1;
        this.card[node] = card;
        if (node === first) break;
      }
      this.first[card] = first;
      this.up[card] = first === 0 ? -1 : this.card[model.parent[first]];
      this.level[card] = first === 0 ? 0 : this.level[this.up[card]] + 1;
      const kids = this.folded.has(card) ? [] : this.kept(card);
      this.kids[card] = kids.map((kid) => this.end(kid));
      for (let i = kids.length - 1; i >= 0; i--) stack.push(kids[i]);
      order.push(card);
    }
    this.order = order;
    if (this.outline) this.placeOutline();
    else this.placeTree();
    this.wide = order.reduce((wide, card) => Math.max(wide, this.right(card)), 0);
    this.tall = order.reduce((tall, card) => Math.max(tall, this.y[card]), 0) + CARD / 2 + MARGIN;
  }

  // Whether something is folded below it.
  folds(card) {
    return this.folded.has(card) && this.under[card] > 0;
  }

  placeTree() {
    const { order, level, kids } = this, columns = [], left = [MARGIN];
    for (const card of order) {
      this.width[card] = this.fitted(card, this.text);
      columns[level[card]] = Math.max(columns[level[card]] || 0, kids[card].length ? this.width[card] : 0);
    }
    columns.forEach((width, depth) => left.push(left[depth] + width + this.gap));
    let row = 0;
    for (const card of order) {
      // Steps stand in columns by depth; phrases differ so much in width that each begins where its parent ends.
      const up = this.up[card];
      this.x[card] = this.model.tokens && up >= 0 ? this.x[up] + this.width[up] + this.gap : left[level[card]];
      if (kids[card].length) continue;
      this.y[card] = this.top[card] = this.bottom[card] = MARGIN + CARD / 2 + ROW * row++;
      // A leaf has its row to itself: it may reach as far as there is room.
      const more = this.room - this.right(card);
      if (more > 0) this.width[card] = this.fitted(card, this.text + more);
    }
    for (let i = order.length - 1; i >= 0; i--) {
      const card = order[i], [highest, lowest] = [kids[card][0], kids[card].at(-1)];
      if (highest === undefined) continue;
      this.y[card] = (this.y[highest] + this.y[lowest]) / 2;
      [this.top[card], this.bottom[card]] = [this.top[highest], this.bottom[lowest]];
    }
  }

  placeOutline() {
    const { order, kids } = this;
    order.forEach((card, row) => {
      const up = this.up[card];
      this.x[card] = up < 0 ? MARGIN / 2 : this.x[up] + (kids[up].length > 1 ? INDENT : 0);
      this.y[card] = this.top[card] = this.bottom[card] = MARGIN + CARD / 2 + ROW * row;
      this.width[card] = this.fitted(card, LONGEST);
      const over = this.right(card) - this.room;
      if (over > 0) this.width[card] = this.fitted(card, Math.max(Math.min(this.measured[card], LONGEST) - over, 40));
    });
    for (let i = order.length - 1; i > 0; i--) {
      const up = this.up[order[i]];
      this.bottom[up] = Math.max(this.bottom[up], this.bottom[order[i]]);
    }
  }

  // Fold so that the rest fits into `wide` and `tall` units: the chosen path and the most visited branches are shown.
  overview(wide, tall) {
    this.room = wide;
    const rows = Math.floor((tall - 2 * MARGIN + ROW - CARD) / ROW), closed = new Set();
    for (this.text of this.outline ? [LONGEST] : TEXTS) {
      this.unfold(rows, closed);
      this.run();
      if (this.wide <= wide) return;
    }
    // Not even with the narrowest cards: what reaches too far right is folded, and other branches get its rows.
    for (let attempt = 0; attempt < 12 && this.wide > wide; attempt++) {
      for (const card of this.order) if (this.up[card] > 0 && this.right(card) > wide) closed.add(this.up[card]);
      this.unfold(rows, closed);
      this.run();
    }
  }

  // Unfold from the root on until about `rows` rows are shown, but nothing in `closed`.
  unfold(rows, closed) {
    const { model } = this, open = new Set(), waiting = [];
    this.keep();
    this.folded.clear();
    let shown = 1;
    const cost = (kids) => (this.outline ? kids.length : Math.max(kids.length - 1, 0));
    const openUp = (card) => {
      const kids = this.kept(card);
      open.add(card);
      shown += cost(kids);
      for (const kid of kids) {
        const end = this.end(kid);
        for (let node = end; node !== kid; ) open.add((node = model.parent[node]));
        if (!this.kept(end).length) continue;
        const at = waiting.findIndex((other) => model.finalN[other] < model.finalN[end]);
        waiting.splice(at < 0 ? waiting.length : at, 0, end);
      }
    };
    openUp(0);
    const fits = (card) => !open.has(card) && !closed.has(card) && shown + cost(this.kept(card)) <= rows;
    for (let card; (card = waiting.find((end) => model.chosen.has(end) && fits(end))) !== undefined; ) openUp(card);
    for (let card; (card = waiting.shift()) !== undefined; ) if (fits(card)) openUp(card);
    // A phrase is folded at its end alone, so that it is whole when it comes into sight.
    const ends = (node) => model.children[node].length > 0 && this.joined(node) === null;
    for (let node = 1; node < model.count; node++) if (!open.has(node) && ends(node)) this.folded.add(node);
  }

  reveal(node) {
    for (let up = this.model.parent[node]; up >= 0; up = this.model.parent[up]) this.folded.delete(up);
  }

  // Show a card's tokens one by one, or as a phrase again.
  split(card) {
    const { model } = this;
    if (this.phrase(card)) {
      for (let node = card; ; node = model.parent[node]) {
        this.expanded.add(node);
        if (node === this.first[card]) break;
      }
    } else if (this.expanded.has(card)) {
      let node = card;
      while (this.expanded.has(model.parent[node])) node = model.parent[node];
      for (; node !== undefined && this.expanded.delete(node); ) node = this.kept(node).find((kid) => this.expanded.has(kid));
    } else return false;
    return true;
  }
}
