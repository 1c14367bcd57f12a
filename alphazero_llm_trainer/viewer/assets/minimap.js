// The whole tree in a corner, and which part of it is on the screen. Shown where the tree is larger than the screen.

class Minimap {
  constructor(canvas, painter) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.picture = document.createElement("canvas"); // the tree, painted when it changes and copied at every frame
    this.painter = painter;
    this.stale = true;
    const go = (event) => { if (event.buttons) this.centre(event.offsetX, event.offsetY); };
    canvas.onpointerdown = (event) => { canvas.setPointerCapture(event.pointerId); go(event); };
    canvas.onpointermove = go;
  }

  draw() {
    const { painter, canvas, pen, picture } = this, { layout, view } = painter;
    canvas.hidden = view.left <= 1 && view.top <= 1 && view.right >= layout.wide - 1 && view.bottom >= layout.tall - 1;
    if (canvas.hidden) return;
    if (this.stale || picture.width !== this.pixels(canvas.clientWidth)) this.paint();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture, 0, 0);
    pen.scale(painter.ratio, painter.ratio);
    const clip = (value, most) => Math.max(0, Math.min(most, value));
    const [left, right] = [view.left, view.right].map((x) => clip(x * this.across, this.wide));
    const [top, bottom] = [view.top, view.bottom].map((y) => clip(y * this.down, this.tall));
    pen.strokeStyle = painter.colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + 0.75, top + 0.75, Math.max(right - left - 1.5, 3), Math.max(bottom - top - 1.5, 3));
  }

  pixels(length) {
    return Math.max(1, Math.round(length * this.painter.ratio));
  }

  paint() {
    const { painter, canvas, picture } = this, { layout, model, colours } = painter;
    this.stale = false;
    [this.wide, this.tall] = [canvas.clientWidth, canvas.clientHeight];
    for (const one of [canvas, picture]) [one.width, one.height] = [this.pixels(this.wide), this.pixels(this.tall)];
    [this.across, this.down] = [this.wide / layout.wide, this.tall / layout.tall];
    const pen = picture.getContext("2d");
    pen.scale(painter.ratio, painter.ratio);
    const high = Math.max(1, Math.min(5, CARD * this.down));
    const bar = (card) => pen.fillRect(layout.x[card] * this.across, layout.y[card] * this.down - high / 2, Math.max(1, layout.width[card] * this.across), high);
    for (const card of layout.order) {
      pen.fillStyle = painter.colour(card);
      bar(card);
    }
    pen.fillStyle = colours.ink;
    for (const card of layout.order) if (model.done && model.chosen.has(card)) bar(card);
  }

  // Move the screen's middle there.
  centre(x, y) {
    const { painter } = this, { camera, view } = painter;
    camera.x = x / this.across - (view.right - view.left) / 2;
    camera.y = y / this.down - (view.bottom - view.top) / 2;
    painter.ask();
  }
}
