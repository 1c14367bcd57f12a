// The panel: everything that is known about one node. Text is always set as text.

function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.filter((one) => one !== null).map((one) => (typeof one === "number" ? String(one) : one)));
  return made;
}

const MOST_ROWS = 200; // of a table

// A table whose columns sort: `columns` are {name, title, of(row), shown(row), words, cell(row)}.
function sortable(caption, columns, rows, decorate, sort) {
  const body = make("tbody"), left = make("p", { class: "small" });
  const heads = columns.map((column) => {
    const arrow = make("span", { "aria-hidden": "true" });
    const press = () => {
      sort.down = sort.by === column.name ? !sort.down : !column.words;
      sort.by = column.name;
      fill();
    };
    const button = make("button", { type: "button", title: column.title, on: { click: press } }, column.name, arrow);
    return { column, arrow, head: make("th", { scope: "col", class: column.words ? "words" : null }, button) };
  });
  function fill() {
    const column = columns.find((one) => one.name === sort.by) || columns[0];
    const order = rows.map((row, index) => ({ row, index, key: column.of(row) }));
    order.sort((a, b) => {
      const [one, other] = sort.down ? [b, a] : [a, b];
      const missing = (a.key === null) - (b.key === null); // what isn't known comes last either way
      if (missing || a.key === null) return missing || a.index - b.index;
      return (typeof one.key === "string" ? one.key.localeCompare(other.key) : one.key - other.key) || a.index - b.index;
    });
    for (const { column: one, arrow, head } of heads) {
      const active = one === column;
      head.setAttribute("aria-sort", active ? (sort.down ? "descending" : "ascending") : "none");
      arrow.textContent = active ? (sort.down ? "↓" : "↑") : "";
    }
    left.textContent = order.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${whole(order.length)}; sort for others.` : "";
    body.replaceChildren(...order.slice(0, MOST_ROWS).map(({ row }) => {
      const cells = columns.map((one) =>
        make("td", { class: one.words ? "words" : null }, one.cell ? one.cell(row) : one.shown(row)));
      return make("tr", decorate(row), ...cells);
    }));
  }
  fill();
  const head = make("thead", {}, make("tr", {}, ...heads.map((one) => one.head)));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, make("table", {}, head, body), left);
}

class Panel {
  // actions: select(node), split(card), close().
  constructor(holder, model, painter, actions) {
    Object.assign(this, { holder, model, painter, layout: painter.layout, actions });
    this.sort = { by: "N", down: true };
    this.open = { children: false, response: false, search: true };
  }

  show(node) {
    const { model, layout } = this;
    const card = layout.shown[node] ? layout.card[node] : node;
    const phrase = layout.shown[node] && layout.phrase(card);
    const parts = [this.heading(node), this.textOf(...(phrase ? [layout.first[card], card] : [node, node])), this.numbers(node)];
    if (phrase) parts.push(this.phrase(card, node));
    else if (model.ids[node].length) parts.push(this.tokens(node));
    if (node > 0) parts.push(this.family("Siblings", model.children[model.parent[node]], node));
    if (model.children[node].length) {
      parts.push(this.folding("children", `Children (${model.children[node].length})`, () => this.family("Children", model.children[node], -1)));
    }
    if (node > 0) {
      parts.push(this.folding("response", "Response down to here", () => make("p", { class: "text" }, model.response(node))));
    }
    parts.push(this.folding("search", "The search", () => this.search()));
    const scroll = this.node === node ? this.holder.scrollTop : 0;
    this.node = node;
    this.holder.replaceChildren(...parts);
    this.holder.scrollTop = scroll;
  }

  // What is folded is made when it is opened.
  folding(name, title, inside) {
    const made = make("details", { class: "fold", open: this.open[name] }, make("summary", {}, title));
    const fill = () => { if (made.open && made.children.length === 1) made.append(inside()); };
    made.addEventListener("toggle", () => { this.open[name] = made.open; fill(); });
    fill();
    return made;
  }

  heading(node) {
    const { model } = this;
    const title = node === 0 ? "The question (root)" : model.rollout[node] ? `Rollout from node ${model.parent[node]}` : `Node ${node}`;
    const chips = [make("span", { class: "chip" }, `depth ${model.depth[node]}`)];
    if (node > 0) chips.push(make("span", { class: "chip" }, model.source[node]));
    if (model.direction[node] !== "none") chips.push(make("span", { class: "chip" }, `asked for: ${model.direction[node]}`));
    if (model.chosen.has(node)) chips.push(make("span", { class: "chip" }, model.choiceRecorded ? "chosen path" : "most visited path"));
    const mark = model.mark[node];
    if (mark) chips.push(make("span", { class: `chip ${mark === "right" || mark === "wrong" ? mark : ""}` }, `${VERDICTS[mark]?.[0] ?? ""} ${VERDICTS[mark]?.[1] ?? mark}`));
    if (!model.exists(node)) chips.push(make("span", { class: "chip" }, "not made yet"));
    const close = make("button", { id: "panel-close", type: "button", "aria-label": "Close the details", on: { click: this.actions.close } }, "✕");
    return make("section", {}, make("div", { class: "title" }, make("h2", { id: "panel-title" }, title), close), make("div", { class: "chips" }, ...chips));
  }

  // The text of a node, or of a phrase from `first` to `last`.
  textOf(first, last) {
    const text = last === 0 ? this.model.record.question || "(the record has no question)" : this.model.phrase(first, last) || "(no text)";
    return make("section", {}, make("p", { class: "text", id: "panel-text", tabindex: "0" }, text));
  }

  numbers(node) {
    const { model } = this;
    const exploration = model.exploration(node);
    const stats = [
      ["Visits N", whole(model.N[node]), "simulations through this node"],
      ["Mean value Q", number(model.q(node)), "W / N"],
      ["Sum W", number(model.W[node]), "sum of backed-up rewards"],
      ["Own value V", number(model.V[node]), "the value network's estimate"],
      ["PRM", number(model.prm[node]), "process reward"],
      ["Prior", number(model.prior[node]), "P(step | prefix) that the search used"],
      ["p(tokens)", number(model.probability(node)), "probability of its tokens under the policy"],
      ["U", exploration === Infinity ? "∞ (first)" : number(exploration), this.why()],
      ["Reward", number(model.reward[node]), "of the response that ends here"],
      ["Correct (HRE)", number(model.hre[node], 1), "1 when the answer is right"],
      ["PRE", number(model.pre[node]), "the reward's perplexity part"],
      ["Samples", model.samples[node] ? whole(model.samples[node]) : "–", "responses that were drawn and end here"],
    ];
    const cells = stats
      .filter(([, shown], i) => i < 2 || shown !== "–")
      .map(([name, shown, title]) => make("div", { title }, make("dt", {}, name), make("dd", { "data-stat": name }, shown)));
    return make("section", {}, make("dl", { class: "stats" }, ...cells));
  }

  why() {
    const search = this.model.record.search;
    if (!search) return "the exploration term; the record doesn't say which rule searched";
    if (search.rule === "gumbel") return "gumbel: visits follow the improved policy, there is no exploration term";
    const formula = { ucb1: "c·√(ln N(parent)/N)", puct: "c·P·√N(parent)/(1+N)", open_puct: "c·p·√N(parent)/(1+N)" }[search.rule];
    return `exploration term of ${search.rule}: ${formula}, c = ${number(search.exploration, 2)}`;
  }

  piece(id) {
    const text = this.model.pieces.get(String(id));
    return text === undefined ? `⟨${id}⟩` : text === "" ? "⟨end⟩" : text.replace(/\n/g, "⏎");
  }

  // One token as a button; a press does `press`, or says its probability.
  token(id, nats, readout, press = null) {
    const said = `${JSON.stringify(this.piece(id))}  ${number(nats)} nats, p = ${number(Math.exp(nats), 4)}, id ${id}`;
    const tell = () => { readout.textContent = said; };
    const chip = make("button", { type: "button", class: "token", title: said, on: { mouseenter: tell, focus: tell, click: press ?? tell } }, this.piece(id).replace(/^ | $/g, "␣"));
    // The less likely, the stronger: certain tokens stay plain.
    const strength = Math.round(Math.min(1, -nats / 3) * 62);
    chip.style.background = `color-mix(in srgb, ${this.painter.colours.bad} ${strength}%, transparent)`;
    return chip;
  }

  tokens(node) {
    const { model, layout } = this, ids = model.ids[node];
    const readout = make("p", { class: "readout muted", id: "readout" }, "Point at a token for its probability.");
    const chips = ids.map((id, i) => this.token(id, model.logprobs[node][i], readout));
    const title = `${ids.length} ${ids.length === 1 ? "token" : "tokens"}, ${number(model.logLikelihood[node])} nats`;
    const parts = [make("h2", {}, title), make("div", { class: "tokens", id: "tokens" }, ...chips), readout];
    if (layout.expanded.has(node)) parts.push(this.splitter(node, "Merge into a phrase again (e)"));
    return make("section", {}, ...parts);
  }

  // A phrase's tokens, each of which is a node to go to, but those of a rollout at its end.
  phrase(card, current) {
    const { model, layout } = this, rest = model.rollout[card] ? "; the rest is a rollout" : "";
    const readout = make("p", { class: "readout muted", id: "readout" }, `Each token is a node${rest}: click one for its numbers.`);
    const members = [];
    for (let node = card; members.push(node) && node !== layout.first[card]; ) node = model.parent[node];
    const chips = members.reverse().flatMap((node) => model.ids[node].map((id, i) => {
      const own = !model.rollout[node];
      const chip = this.token(id, model.logprobs[node][i], readout, own ? () => this.actions.select(node) : null);
      if (own && node === current) chip.setAttribute("aria-current", "true");
      return chip;
    }));
    const sum = members.reduce((total, node) => total + model.logLikelihood[node], 0);
    return make("section", {}, make("h2", {}, `Phrase of ${layout.length(card)} tokens, ${number(sum)} nats`),
      make("div", { class: "tokens", id: "tokens" }, ...chips), readout, this.splitter(card, "Show them one by one in the tree (e)"));
  }

  splitter(card, text) {
    return make("button", { type: "button", id: "split", on: { click: () => this.actions.split(card) } }, text);
  }

  family(title, members, current) {
    const { model } = this;
    const cell = (node) => make("button", { type: "button", title: model.text[node], on: { click: () => this.actions.select(node) } }, model.label(node));
    const U = (node) => model.exploration(node);
    const columns = [
      { name: "Step", title: "text", words: true, of: (node) => model.label(node), cell },
      { name: "N", title: "visits", of: (node) => model.N[node], shown: (node) => whole(model.N[node]) },
      { name: "Q", title: "mean value", of: (node) => model.q(node), shown: (node) => number(model.q(node)) },
      { name: "P", title: "prior that the search used; probability of the tokens where it used none", of: (node) => model.prior[node] ?? model.probability(node), shown: (node) => number(model.prior[node] ?? model.probability(node)) },
      { name: "U", title: this.why(), of: U, shown: (node) => (U(node) === Infinity ? "∞" : number(U(node))) },
      { name: "PRM", title: "process reward", of: (node) => model.prm[node], shown: (node) => number(model.prm[node]) },
      { name: "V", title: "own value", of: (node) => model.V[node], shown: (node) => number(model.V[node]) },
      { name: "End", title: "what became of it", words: true, of: (node) => model.mark[node], shown: (node) => VERDICTS[model.mark[node]]?.[0] ?? "" },
    ].filter((column) => !["PRM", "V", "U", "End"].includes(column.name) || members.some((node) => column.of(node) !== null));
    const decorate = (node) => ({ class: `${node === current ? "current" : ""} ${model.exists(node) ? "" : "ahead"}`, "data-node": node });
    const table = sortable(title, columns, members, decorate, this.sort);
    if (current < 0) return table;
    return make("section", { id: "siblings" }, make("h2", {}, `${title} (${members.length})`), table);
  }

  search() {
    const { record, row } = this.model;
    const cost = record.cost || {};
    const lines = [
      ["Answer", record.answer ?? row.answer ?? "–"],
      ["Why", record.why],
      ["Ended by", record.ended_by],
      ["Right samples", row.outcome === "ungraded" ? null : `${row.right} of ${row.samples}`],
      ["Simulations", row.simulations === null ? "not recorded" : whole(row.simulations)],
      ["Nodes", whole(row.nodes)],
      ["Sampled tokens", cost.sampled_tokens],
      ["Prompt tokens", cost.prompt_tokens],
      ["Cached tokens", cost.cached_tokens],
      ["Scored tokens", cost.scored_tokens || null],
      ["Engine calls", cost.calls],
      ["Seconds", cost.seconds === undefined ? null : number(cost.seconds, 2)],
      ["Dollars", cost.dollars ? number(cost.dollars, 4) : null],
      ["Policy version", record.policy_version],
      ["Key", record.key],
    ].filter(([, shown]) => shown !== null && shown !== undefined && shown !== "");
    const cells = lines.map(([name, shown]) =>
      make("tr", {}, make("th", { scope: "row", class: "words" }, name), make("td", { class: "words" }, typeof shown === "number" ? whole(shown) : String(shown))));
    const parts = [make("table", { id: "search-facts" }, make("tbody", {}, ...cells))];
    if (record.prompt_ids && record.prompt_ids.length && this.model.pieces.size) {
      parts.push(make("p", { class: "small" }, `Prompt, ${record.prompt_ids.length} tokens`));
      parts.push(make("p", { class: "text" }, record.prompt_ids.map((id) => this.model.pieces.get(String(id)) ?? `⟨${id}⟩`).join("")));
    }
    if (this.model.hre.some((value) => value !== null)) {
      parts.push(make("p", { class: "small" }, "A training tree: its rewards know the gold answer."));
    }
    return make("div", {}, ...parts);
  }
}
