// Drawing: what is on the screen and nothing else, in as much detail as the zoom leaves room for. Positions belong to cards
// (see layout.js); a card is named by its last node.

const SANS = '13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const SMALL = SANS.replace("13px", "11.5px");
const TEXT_ZOOM = 0.58; // below it, text is too small to read and nodes are bars
const LEAST_ZOOM = 0.001; // a screen of some ten thousand rows
const BELOW = 38; // pixels that the legend takes of a canvas' end
const FULL_TURN = 2 * Math.PI;

// Orange to blue through grey: told apart with any colour vision. Teachers' outlines: Tol's muted scheme.
const PALETTES = {
  light: {
    surface: "#ffffff", raised: "#f1f0ec", card: "#ffffff", ink: "#1c1d21", muted: "#5f626b", line: "#94918a", accent: "#0b63c5", now: "#007a5a",
    match: "#fff3b0", student: "#8b8e96", bad: "#c2570c", good: "#1f5fae", other: "#6f727a", onMark: "#ffffff",
    value: [[200, 86, 10], [226, 222, 212], [28, 96, 176]],
    teachers: ["#882255", "#117733", "#7a5ad6", "#8a7a00", "#2f8f86"],
  },
  dark: {
    surface: "#1b1e24", raised: "#262a32", card: "#23272f", ink: "#e9eaee", muted: "#a2a7b3", line: "#6d7482", accent: "#6cb0ff", now: "#2fd6a4",
    match: "#574a10", student: "#777d8a", bad: "#f0914a", good: "#6cb0ff", other: "#9aa0ac", onMark: "#14161a",
    value: [[240, 145, 74], [92, 97, 108], [88, 166, 255]],
    teachers: ["#e58ab5", "#5dcf86", "#b6a2ff", "#d8c94c", "#66d3c8"],
  },
};

function ramp(stops) {
  return Array.from({ length: 65 }, (_, i) => {
    const at = i / 32, low = Math.min(Math.floor(at), 1), part = at - low;
    const mixed = stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * part));
    return `rgb(${mixed.join(",")})`;
  });
}

class Painter {
  constructor(canvas, model, layout) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d", { alpha: false });
    this.model = model;
    this.layout = layout;
    this.camera = { x: 0, y: 0, zoom: 1 }; // the world's point at the canvas' corner, pixels a unit
    this.selected = 0; // a node
    this.matches = new Set(); // nodes
    this.now = null; // where the simulation that is shown ended, or the folded node above it
    this.labels = new Array(model.count);
    this.dirty = false;
    this.moved = false; // by hand, since the last overview
    this.teachers = model.sources().filter((source) => source !== "student");
    this.pen.font = SANS;
    layout.pen = document.createElement("canvas").getContext("2d");
    layout.pen.font = SANS;
    this.minimap = new Minimap(element("minimap"), this);
    this.theme();
  }

  theme() {
    this.colours = PALETTES[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
    this.values = ramp(this.colours.value);
    this.repaint();
  }

  // The colour of a value within the tree's own range.
  value(q) {
    return this.values[Math.round(this.model.rank(q) * 64)];
  }

  // A card's colour: of its value, or of what has none.
  colour(card) {
    const { model, colours } = this, face = this.face(card), q = model.q(face);
    return !model.exists(face) ? colours.raised : q === null ? colours.line : this.value(q);
  }

  // The node whose numbers a card shows: its last one, or while the simulations are replayed the last there is.
  face(card) {
    let node = card;
    while (node !== this.layout.first[card] && !this.model.exists(node)) node = this.model.parent[node];
    return node;
  }

  outline(source) {
    const index = this.teachers.indexOf(source);
    return index < 0 ? this.colours.student : this.colours.teachers[index % this.colours.teachers.length];
  }

  resize() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.wide = box.width;
    this.tall = box.height;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    if (this.layout.order) this.draw(); // at once: a canvas that changed its size is black
  }

  // Columns are few and rows many: zoomed out, the tree keeps its width as long as no text is drawn.
  get across() {
    return Math.max(this.camera.zoom, Math.min(this.wide / this.layout.wide, TEXT_ZOOM * 0.95));
  }

  // The minimap too: colours or places changed.
  repaint() {
    this.minimap.stale = true;
    this.ask();
  }

  // One frame at most for whatever changed.
  ask() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.dirty = false;
    const { pen, camera, layout, colours } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = colours.surface;
    pen.fillRect(0, 0, this.wide, this.tall);
    this.view = {
      left: camera.x, top: camera.y, right: camera.x + this.wide / this.across, bottom: camera.y + this.tall / camera.zoom,
    };
    const { cards, edges } = this.collect();
    this.selectedCard = layout.card[this.selected];
    this.nowCard = this.now === null ? -1 : layout.card[this.now];
    this.matchCards = new Set(Array.from(this.matches, (node) => (layout.shown[node] ? layout.card[node] : -1)));
    this.drawEdges(edges);
    if (camera.zoom >= TEXT_ZOOM) {
      this.enter();
      for (const card of cards) this.card(card);
    } else this.blocks(cards);
    this.drawn = cards.length;
    this.minimap.draw();
  }

  // The tree's coordinates, and the screen's.
  enter() {
    const x = this.ratio * this.across, y = this.ratio * this.camera.zoom;
    this.pen.setTransform(x, 0, 0, y, -this.camera.x * x, -this.camera.y * y);
  }

  leave() {
    this.pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
  }

  // Cards and edges that reach into the view; whole subtrees outside it are never looked at.
  collect() {
    const { layout, view } = this, cards = [], edges = new Map(), stack = [0];
    const half = ROW / 2;
    while (stack.length) {
      const card = stack.pop(), x = layout.x[card], y = layout.y[card];
      if (x > view.right) continue; // and so does all below it
      if (y + half >= view.top && y - half <= view.bottom && x + layout.width[card] + 40 >= view.left) cards.push(card);
      for (const child of layout.kids[card]) {
        const to = layout.y[child];
        const seen = Math.max(y, to) >= view.top && Math.min(y, to) <= view.bottom && layout.x[child] + half >= view.left;
        if (seen) {
          const key = this.edgeStyle(child);
          if (!edges.has(key)) edges.set(key, []);
          edges.get(key).push(child);
        }
        if (layout.bottom[child] + half >= view.top && layout.top[child] - half <= view.bottom) stack.push(child);
      }
    }
    return { cards, edges };
  }

  // "layer width": layers are drawn in order; widths are rounded, so that a frame has few strokes.
  edgeStyle(card) {
    const { model } = this, node = this.layout.first[card]; // where the edge arrives
    if (!model.exists(node)) return "0 0.5";
    const share = model.N[0] > 0 ? model.N[node] / model.N[0] : 0;
    const width = model.N[node] > 0 ? 1 + Math.round(12 * Math.sqrt(Math.min(share, 1))) / 2 : 0.75;
    const layer = model.current.has(node) ? 3 : model.chosen.has(node) && model.done ? 2 : 1;
    return `${layer} ${layer > 1 ? Math.max(width, 2.5) : width}`;
  }

  drawEdges(edges) {
    const { pen, colours, camera } = this;
    const styles = [colours.line, colours.line, colours.ink, colours.now];
    const path = this.layout.outline ? this.elbow : this.curve;
    for (const key of [...edges.keys()].sort()) {
      const [layer, width] = key.split(" ").map(Number);
      this.enter();
      pen.beginPath();
      for (const child of edges.get(key)) path.call(this, this.layout.up[child], child);
      // A line's width is the screen's, or wide lines would be wider across than along.
      this.leave();
      pen.strokeStyle = styles[layer];
      pen.lineWidth = Math.max(width * camera.zoom, layer > 1 ? 1.5 : 0.5);
      pen.globalAlpha = layer === 0 ? 0.35 : 1;
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  curve(up, child) {
    const { pen, layout } = this;
    const fromX = layout.x[up] + layout.width[up], fromY = layout.y[up], toX = layout.x[child], toY = layout.y[child];
    pen.moveTo(fromX, fromY);
    const bend = toX - Math.min(layout.gap, toX - fromX) / 2;
    pen.lineTo(toX - layout.gap, fromY);
    if (this.camera.zoom < 0.15) pen.lineTo(toX, toY);
    else pen.bezierCurveTo(bend, fromY, bend, toY, toX, toY);
  }

  elbow(up, child) {
    const { pen, layout } = this, x = layout.x[up] + 7;
    pen.moveTo(x, layout.y[up] + CARD / 2);
    if (layout.x[child] < x) pen.lineTo(x, layout.y[child] - CARD / 2);
    else {
      pen.lineTo(x, layout.y[child]);
      pen.lineTo(layout.x[child], layout.y[child]);
    }
  }

  // Cards without text: bars of their value's colour, framed where something is said of them.
  blocks(cards) {
    const { pen, layout, model, colours, camera, across } = this;
    const tall = Math.max(CARD * camera.zoom, 1);
    const bar = (card) => [
      (layout.x[card] - camera.x) * across, (layout.y[card] - camera.y) * camera.zoom - tall / 2, layout.width[card] * across,
    ];
    const byColour = new Map();
    for (const card of cards) {
      const colour = this.colour(card);
      if (!byColour.has(colour)) byColour.set(colour, []);
      byColour.get(colour).push(card);
    }
    for (const [colour, same] of byColour) {
      pen.fillStyle = colour;
      for (const card of same) {
        const [x, y, width] = bar(card);
        pen.fillRect(x, y, width, tall);
      }
    }
    const frame = (card, colour, thick, room) => {
      const [x, y, width] = bar(card);
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.strokeRect(x - room, y - room, width + 2 * room, tall + 2 * room);
    };
    for (const card of cards) {
      if (tall >= 4 && !this.isStudent(card) && model.exists(card)) frame(card, this.outline(model.source[card]), 1.25, 0);
      if (model.done && model.chosen.has(card)) frame(card, colours.ink, 1.5, 0.5);
      if (this.matchCards.has(card)) frame(card, colours.accent, 2, 1);
      if (card === this.nowCard) frame(card, colours.now, 2.5, 2);
      if (card === this.selectedCard) frame(card, colours.accent, 2.5, 2);
    }
  }

  isStudent(node) {
    return this.model.source[node] === "student";
  }

  box(x, y, width, height, radius) {
    this.pen.beginPath();
    this.pen.roundRect(x, y, width, height, radius);
  }

  card(card) {
    const { pen, layout, model, colours } = this;
    const x = layout.x[card], middle = layout.y[card], y = middle - CARD / 2, width = layout.width[card];
    const face = this.face(card), there = model.exists(face), q = there ? model.q(face) : null;
    pen.globalAlpha = there ? 1 : 0.3;
    if (card === this.selectedCard || card === this.nowCard) {
      this.box(x - 4, y - 4, width + 8, CARD + 8, 9);
      pen.strokeStyle = card === this.selectedCard ? colours.accent : colours.now;
      pen.lineWidth = 3;
      pen.stroke();
    }
    this.box(x, y, width, CARD, 6);
    pen.fillStyle = this.matchCards.has(card) ? colours.match : colours.card;
    pen.fill();
    pen.save();
    pen.clip();
    if (q !== null) {
      pen.fillStyle = this.value(q);
      pen.fillRect(x, y, 14, CARD);
      pen.globalAlpha = 0.16;
      pen.fillRect(x, y, width, CARD);
      pen.globalAlpha = 1;
    }
    pen.restore();
    this.box(x, y, width, CARD, 6);
    pen.strokeStyle = this.outline(model.source[card]);
    pen.lineWidth = this.isStudent(card) ? 1 : 2.25;
    if (model.rollout[card]) pen.setLineDash([4, 3]);
    pen.stroke();
    pen.setLineDash([]);
    if (there) this.contents(card, face, x, middle, width, q);
    this.chip(card, x + width + 6, middle);
    pen.globalAlpha = 1;
  }

  contents(card, face, x, middle, width, q) {
    const { pen, layout, model, colours } = this;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    let at = x + LEFT;
    if (model.direction[card] !== "none") {
      this.direction(model.direction[card], at + 4, middle);
      at += BADGE;
    }
    const onPath = model.chosen.has(face) && model.done;
    pen.font = onPath ? `600 ${SANS}` : SANS;
    pen.fillStyle = q === null && card > 0 ? colours.muted : colours.ink;
    const right = x + width;
    pen.fillText(this.short(card, face, right - layout.after(card) - at, onPath), at, middle + 0.5);
    pen.font = SMALL;
    pen.fillStyle = colours.muted;
    pen.textAlign = "right";
    const mark = face === card ? model.mark[card] : null;
    pen.fillText(q === null ? "–" : `${model.N[face]} · ${q.toFixed(2)}`, right - (model.mark[card] ? MARK + 2 : 7), middle + 0.5);
    if (mark) this.mark(mark, right - 12, middle);
    if (layout.phrase(card)) this.badge(layout.length(card), right - layout.after(card), middle, layout.badge(card) - 4);
  }

  // How many tokens a phrase has; a click there shows them one by one.
  badge(length, x, middle, width) {
    const { pen, colours } = this;
    this.box(x, middle - 7.5, width, 15, 4);
    pen.fillStyle = colours.raised;
    pen.fill();
    pen.strokeStyle = colours.line;
    pen.lineWidth = 0.75;
    pen.stroke();
    pen.fillStyle = colours.accent;
    pen.font = SMALL;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(`${length}`, x + width / 2, middle + 0.5);
  }

  direction(direction, x, middle) {
    const { pen, colours } = this, up = direction === "right" ? 1 : -1;
    pen.fillStyle = up > 0 ? colours.good : colours.bad;
    pen.beginPath();
    pen.moveTo(x - 5, middle + 4 * up);
    pen.lineTo(x + 5, middle + 4 * up);
    pen.lineTo(x, middle - 5 * up);
    pen.fill();
  }

  mark(mark, x, middle) {
    const { pen, colours } = this;
    pen.fillStyle = mark === "right" ? colours.good : mark === "wrong" || mark === "rejected" ? colours.bad : colours.other;
    pen.beginPath();
    if (mark === "right") pen.arc(x, middle, 8, 0, FULL_TURN);
    else pen.roundRect(x - 7.5, middle - 7.5, 15, 15, mark === "wrong" ? 2 : 5);
    pen.fill();
    pen.fillStyle = colours.onMark;
    pen.font = `700 ${SMALL}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText((VERDICTS[mark] || ["?"])[0], x, middle + 0.5);
  }

  // How many nodes a folded card hides.
  chip(card, x, middle) {
    const { pen, layout, colours } = this;
    if (!layout.folds(card)) return;
    const text = `+${layout.under[card]}`;
    pen.font = `600 ${SMALL}`;
    const wide = pen.measureText(text).width + 10;
    this.box(x, middle - 8, wide, 16, 8);
    pen.fillStyle = colours.card;
    pen.fill();
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.stroke();
    pen.fillStyle = colours.accent;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, x + 5, middle + 0.5);
  }

  // The card's text as far as there is room for it.
  short(card, face, room, bold) {
    const key = `${face} ${room} ${bold}`, known = this.labels[card];
    if (known && known[0] === key) return known[1];
    const { pen } = this;
    let text = this.model.label(face, this.layout.first[card]);
    if (pen.measureText(text).width > room) {
      let [low, high] = [0, text.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
        else high = middle - 1;
      }
      text = `${text.slice(0, low)}…`;
    }
    this.labels[card] = [key, text];
    return text;
  }

  // [card, "card", "phrase" or "fold": what is there] at a point of the canvas, or null.
  hit(px, py) {
    const { layout, camera } = this, x = camera.x + px / this.across, y = camera.y + py / camera.zoom;
    const half = Math.max(CARD / 2 + 2, 4 / camera.zoom);
    for (const card of layout.order) {
      if (Math.abs(layout.y[card] - y) > half) continue;
      const from = layout.x[card], to = from + layout.width[card];
      if (x >= from && x <= to) {
        const badge = to - layout.after(card);
        const phrase = camera.zoom >= TEXT_ZOOM && layout.phrase(card) && x >= badge - 4 && x <= badge + layout.badge(card);
        return [card, phrase ? "phrase" : "card"];
      }
      if (layout.folds(card) && x > to && x < to + FOLD) return [card, "fold"];
    }
    return null;
  }

  zoomBy(factor, px = this.wide / 2, py = this.tall / 2) {
    const { camera } = this, x = camera.x + px / this.across, y = camera.y + py / camera.zoom;
    this.moved = true;
    camera.zoom = Math.max(LEAST_ZOOM, Math.min(3, camera.zoom * factor));
    camera.x = x - px / this.across;
    camera.y = y - py / camera.zoom;
    this.ask();
  }

  panBy(dx, dy) {
    this.moved = true;
    this.camera.x += dx / this.across;
    this.camera.y += dy / this.camera.zoom;
    this.ask();
  }

  // The whole tree; with a zoom not to go below, as much of it as there is room for, from its start on.
  fit(least = LEAST_ZOOM) {
    const { layout, camera } = this;
    const room = this.tall - BELOW, high = room / layout.tall, along = this.wide / layout.wide;
    camera.zoom = Math.max(least, Math.min(high, along, layout.outline ? 0.95 : 1.15));
    const [wide, tall] = [this.wide / this.across, room / camera.zoom];
    camera.x = layout.wide <= wide + 1 && !layout.outline ? (layout.wide - wide) / 2 : 0;
    // The most visited branches are on top: as much of them as the root leaves room for.
    camera.y = layout.outline ? 0 : layout.tall <= tall + 1 ? (layout.tall - tall) / 2 : Math.max(0, layout.y[0] - tall * 0.8);
    this.ask();
  }

  // Move as little as brings the node's card into view.
  bring(node) {
    const { layout, camera } = this, card = layout.card[node], [wide, tall] = [this.wide / this.across, this.tall / camera.zoom];
    const edge = 40 / camera.zoom;
    const left = layout.x[card] - edge, right = layout.x[card] + layout.width[card] + edge;
    const top = layout.y[card] - ROW - edge, bottom = layout.y[card] + ROW + edge / 2;
    if (right > camera.x + wide) camera.x = right - wide;
    if (left < camera.x) camera.x = Math.max(left, Math.min(0, camera.x));
    if (bottom > camera.y + tall) camera.y = bottom - tall;
    if (top < camera.y) camera.y = Math.max(top, Math.min(0, camera.y));
    this.ask();
  }
}
