// What colours, lines and signs mean. The tree's own range of values stands beside it, always in sight.

function legend(painter, model) {
  const body = element("legend-body"), ratio = window.devicePixelRatio || 1;
  const item = (paint, text, wide = 44) => {
    const small = make("canvas", { width: wide * ratio, height: 20 * ratio, "aria-hidden": "true" });
    small.style.width = `${wide}px`;
    small.style.height = "20px";
    const pen = small.getContext("2d");
    pen.scale(ratio, ratio);
    const own = Object.assign(Object.create(Painter.prototype), { pen, colours: painter.colours });
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
  const { colours } = painter, { range } = model;
  const [low, high] = range === null ? ["–", "–"] : [range.low, range.high].map((q) => q.toFixed(2));
  const flat = range === null ? "no visits" : `Q ${low} in all nodes`;
  element("ramp").hidden = range === null || range.flat;
  element("ramp").style.background = `linear-gradient(to right, ${painter.values.filter((_, i) => i % 16 === 0).join(", ")})`;
  element("ramp-low").textContent = element("ramp").hidden ? flat : `Q ${low}`;
  element("ramp-high").textContent = element("ramp").hidden ? "" : high;
  const items = [
    item((own, pen) => painter.values.forEach((colour, i) => { pen.fillStyle = colour; pen.fillRect(2 + i * 0.6, 3, 1, 14); }),
      element("ramp").hidden ? `mean value Q: ${flat}` : `mean value Q: the tree's least, ${low}, to its greatest, ${high}`),
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
  if (model.tokens) items.push(item((own) => own.badge(8, 12, 10, 20), "a phrase of so many tokens: click to see each"));
  if (model.rollout.some(Boolean)) items.push(item(outlined(colours.student, 1, [4, 3]), "rollout: a response beyond the tree; N counts how often"));
  for (const mark of [...new Set(model.mark.filter((one) => one !== null))].sort()) {
    items.push(item((own) => own.mark(mark, 22, 10), VERDICTS[mark]?.[1] ?? mark));
  }
  items.push(item((own, pen) => { pen.fillStyle = colours.accent; pen.font = `600 ${SMALL}`; pen.fillText("+12", 10, 14); }, "so many nodes are folded: click to unfold"));
  items.push([make("span", { class: "muted" }, "12 · 0.62"), make("span", {}, "visits N and mean value Q")]);
  body.replaceChildren(...items.flat());
}
