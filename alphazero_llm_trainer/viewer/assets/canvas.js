// Drawing: what is on the screen and nothing else, in as much detail as the zoom leaves room for.

const SANS = '13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const SMALL = SANS.replace("13px", "11.5px");
const TEXT_ZOOM = 0.58; // below it, text is too small to read and nodes are bars
const LEAST_ZOOM = 0.004; // a screen of some thousand rows
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
    this.selected = 0;
    this.matches = new Set();
    this.now = null; // where the simulation that is shown ended, or the folded node above it
    this.labels = new Array(model.count);
    this.dirty = false;
    this.teachers = model.sources().filter((source) => source !== "student");
    this.pen.font = SANS;
    layout.measure(this.pen);
    this.theme();
  }

  theme() {
    this.colours = PALETTES[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
    this.values = ramp(this.colours.value);
    this.ask();
  }

  value(q) {
    return this.values[Math.round(Math.max(0, Math.min(1, q)) * 64)];
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
    this.ask();
  }

  // Columns are few and rows many: zoomed out, the tree keeps its width as long as no text is drawn.
  get across() {
    return Math.max(this.camera.zoom, Math.min(this.wide / this.layout.wide, TEXT_ZOOM * 0.95));
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
    const cards = this.collect();
    this.drawEdges(cards.edges);
    if (camera.zoom >= TEXT_ZOOM) {
      this.enter();
      for (const node of cards.nodes) this.card(node);
    } else this.blocks(cards.nodes);
    this.drawn = cards.nodes.length;
  }

  // The tree's coordinates, and the screen's.
  enter() {
    const x = this.ratio * this.across, y = this.ratio * this.camera.zoom;
    this.pen.setTransform(x, 0, 0, y, -this.camera.x * x, -this.camera.y * y);
  }

  leave() {
    this.pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
  }

  // Nodes and edges that reach into the view; whole subtrees outside it are never looked at.
  collect() {
    const { layout, view } = this, nodes = [], edges = new Map(), stack = [0];
    const half = ROW / 2;
    while (stack.length) {
      const node = stack.pop(), x = layout.x[node], y = layout.y[node];
      const right = x + layout.width[node];
      if (y + half >= view.top && y - half <= view.bottom && right + 40 >= view.left && x <= view.right) nodes.push(node);
      if (right > view.right) continue;
      for (const child of layout.kids[node]) {
        const to = layout.y[child];
        const seen = Math.max(y, to) >= view.top && Math.min(y, to) <= view.bottom && layout.x[child] >= view.left;
        if (seen) {
          const key = this.edgeStyle(child);
          if (!edges.has(key)) edges.set(key, []);
          edges.get(key).push(child);
        }
        if (layout.bottom[child] + half >= view.top && layout.top[child] - half <= view.bottom) stack.push(child);
      }
    }
    return { nodes, edges };
  }

  // "layer width": layers are drawn in order; widths are rounded, so that a frame has few strokes.
  edgeStyle(child) {
    const { model } = this;
    if (!model.exists(child)) return "0 0.5";
    const share = model.N[0] > 0 ? model.N[child] / model.N[0] : 0;
    const width = model.N[child] > 0 ? 1 + Math.round(12 * Math.sqrt(Math.min(share, 1))) / 2 : 0.75;
    const layer = model.current.has(child) ? 3 : model.chosen.has(child) && model.done ? 2 : 1;
    return `${layer} ${layer > 1 ? Math.max(width, 2.5) : width}`;
  }

  drawEdges(edges) {
    const { pen, layout, model, colours, camera } = this;
    const styles = [colours.line, colours.line, colours.ink, colours.now];
    for (const key of [...edges.keys()].sort()) {
      const [layer, width] = key.split(" ").map(Number);
      this.enter();
      pen.beginPath();
      for (const child of edges.get(key)) {
        const up = model.parent[child];
        const fromX = layout.x[up] + layout.width[up], fromY = layout.y[up], toX = layout.x[child], toY = layout.y[child];
        pen.moveTo(fromX, fromY);
        const bend = toX - Math.min(GAP, toX - fromX) / 2;
        pen.lineTo(toX - GAP, fromY);
        if (camera.zoom < 0.15) pen.lineTo(toX, toY);
        else pen.bezierCurveTo(bend, fromY, bend, toY, toX, toY);
      }
      // A line's width is the screen's, or wide lines would be wider across than along.
      this.leave();
      pen.strokeStyle = styles[layer];
      pen.lineWidth = Math.max(width * camera.zoom, layer > 1 ? 1.5 : 0.5);
      pen.globalAlpha = layer === 0 ? 0.35 : 1;
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  // Nodes without text: bars of their value's colour, framed where something is said of them.
  blocks(nodes) {
    const { pen, layout, model, colours, camera, across } = this;
    const tall = Math.max(CARD * camera.zoom, 1);
    const bar = (node) => [
      (layout.x[node] - camera.x) * across, (layout.y[node] - camera.y) * camera.zoom - tall / 2, layout.width[node] * across,
    ];
    const byColour = new Map();
    for (const node of nodes) {
      const q = model.exists(node) ? model.q(node) : null;
      const colour = model.exists(node) ? (q === null ? colours.line : this.value(q)) : colours.raised;
      if (!byColour.has(colour)) byColour.set(colour, []);
      byColour.get(colour).push(node);
    }
    for (const [colour, same] of byColour) {
      pen.fillStyle = colour;
      for (const node of same) {
        const [x, y, width] = bar(node);
        pen.fillRect(x, y, width, tall);
      }
    }
    const frame = (node, colour, thick, room) => {
      const [x, y, width] = bar(node);
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.strokeRect(x - room, y - room, width + 2 * room, tall + 2 * room);
    };
    for (const node of nodes) {
      if (tall >= 4 && !this.isStudent(node) && model.exists(node)) frame(node, this.outline(model.source[node]), 1.25, 0);
      if (model.done && model.chosen.has(node)) frame(node, colours.ink, 1.5, 0.5);
      if (this.matches.has(node)) frame(node, colours.accent, 2, 1);
      if (node === this.now) frame(node, colours.now, 2.5, 2);
      if (node === this.selected) frame(node, colours.accent, 2.5, 2);
    }
  }

  isStudent(node) {
    return this.model.source[node] === "student";
  }

  box(x, y, width, height, radius) {
    this.pen.beginPath();
    this.pen.roundRect(x, y, width, height, radius);
  }

  card(node) {
    const { pen, layout, model, colours } = this;
    const x = layout.x[node], middle = layout.y[node], y = middle - CARD / 2, width = layout.width[node];
    const there = model.exists(node), q = there ? model.q(node) : null;
    pen.globalAlpha = there ? 1 : 0.3;
    if (node === this.selected || node === this.now) {
      this.box(x - 4, y - 4, width + 8, CARD + 8, 9);
      pen.strokeStyle = node === this.selected ? colours.accent : colours.now;
      pen.lineWidth = 3;
      pen.stroke();
    }
    this.box(x, y, width, CARD, 6);
    pen.fillStyle = this.matches.has(node) ? colours.match : colours.card;
    pen.fill();
    pen.save();
    pen.clip();
    if (q !== null) {
      pen.fillStyle = this.value(q);
      pen.fillRect(x, y, 14, CARD);
      pen.globalAlpha = 0.13;
      pen.fillRect(x, y, width, CARD);
      pen.globalAlpha = 1;
    }
    pen.restore();
    this.box(x, y, width, CARD, 6);
    pen.strokeStyle = this.outline(model.source[node]);
    pen.lineWidth = this.isStudent(node) ? 1 : 2.25;
    if (model.rollout[node]) pen.setLineDash([4, 3]);
    pen.stroke();
    pen.setLineDash([]);
    if (there) this.contents(node, x, middle, width, q);
    this.chip(node, x + width + 6, middle);
    pen.globalAlpha = 1;
  }

  contents(node, x, middle, width, q) {
    const { pen, layout, model, colours } = this;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    let at = x + LEFT;
    if (model.direction[node] !== "none") {
      this.direction(model.direction[node], at + 4, middle);
      at += BADGE;
    }
    const onPath = model.chosen.has(node) && model.done;
    pen.font = onPath ? `600 ${SANS}` : SANS;
    pen.fillStyle = q === null && node > 0 ? colours.muted : colours.ink;
    const room = x + width - layout.after(node) - at;
    pen.fillText(this.short(node, room, onPath), at, middle + 0.5);
    pen.font = SMALL;
    pen.fillStyle = colours.muted;
    pen.textAlign = "right";
    const mark = model.mark[node];
    pen.fillText(q === null ? "–" : `${model.N[node]} · ${q.toFixed(2)}`, x + width - (mark ? MARK + 2 : 7), middle + 0.5);
    if (mark) this.mark(mark, x + width - 12, middle);
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

  // How many nodes a folded node hides.
  chip(node, x, middle) {
    const { pen, layout, colours } = this;
    if (!layout.folded.has(node) || !layout.under[node]) return;
    const text = `+${layout.under[node]}`;
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
    pen.fillText(text, x + 5, middle + 0.5);
  }

  short(node, room, bold) {
    const key = bold ? -room : room, known = this.labels[node];
    if (known && known[0] === key) return known[1];
    const { pen } = this;
    let text = this.model.label(node);
    if (pen.measureText(text).width > room) {
      let [low, high] = [0, text.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
        else high = middle - 1;
      }
      text = `${text.slice(0, low)}…`;
    }
    this.labels[node] = [key, text];
    return text;
  }

  // [node, on its fold chip] at a point of the canvas, or null.
  hit(px, py) {
    const { layout, camera } = this, x = camera.x + px / this.across, y = camera.y + py / camera.zoom;
    const half = Math.max(CARD / 2, 4 / camera.zoom);
    for (const node of layout.order) {
      if (Math.abs(layout.y[node] - y) > half) continue;
      const from = layout.x[node], to = from + layout.width[node];
      if (x >= from && x <= to) return [node, false];
      if (layout.folded.has(node) && layout.under[node] && x > to && x < to + 44) return [node, true];
    }
    return null;
  }

  zoomBy(factor, px = this.wide / 2, py = this.tall / 2) {
    const { camera } = this, x = camera.x + px / this.across, y = camera.y + py / camera.zoom;
    camera.zoom = Math.max(LEAST_ZOOM, Math.min(3, camera.zoom * factor));
    camera.x = x - px / this.across;
    camera.y = y - py / camera.zoom;
    this.ask();
  }

  panBy(dx, dy) {
    this.camera.x += dx / this.across;
    this.camera.y += dy / this.camera.zoom;
    this.ask();
  }

  // The whole tree; with a zoom not to go below, its height if that will do, from the root on.
  fit(least = LEAST_ZOOM) {
    const { layout, camera } = this;
    const reading = least >= TEXT_ZOOM, high = this.tall / layout.tall;
    camera.zoom = Math.max(least, Math.min(high, reading ? 1 : Math.min(this.wide / layout.wide, 1.15)));
    const [wide, tall] = [this.wide / this.across, this.tall / camera.zoom];
    camera.x = layout.wide <= wide + 1 ? (layout.wide - wide) / 2 : 0;
    if (reading && camera.x < 0) camera.x = Math.max(camera.x, -40 / camera.zoom);
    // The most visited branches are on top: as much of them as the root leaves room for.
    camera.y = layout.tall <= tall ? (layout.tall - tall) / 2 : Math.max(0, layout.y[0] - tall * 0.8);
    this.ask();
  }

  // Move as little as brings the node into view.
  bring(node) {
    const { layout, camera } = this, [wide, tall] = [this.wide / this.across, this.tall / camera.zoom];
    const edge = 40 / camera.zoom;
    const left = layout.x[node] - edge, right = layout.x[node] + layout.width[node] + edge;
    const top = layout.y[node] - ROW - edge, bottom = layout.y[node] + ROW + edge / 2;
    if (right > camera.x + wide) camera.x = right - wide;
    if (left < camera.x) camera.x = left;
    if (bottom > camera.y + tall) camera.y = bottom - tall;
    if (top < camera.y) camera.y = top;
    this.ask();
  }
}
