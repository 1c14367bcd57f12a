// The panel: everything that is known about one node.

const FORMULAS = { ucb1: "c·√(ln N(parent)/N)", puct: "c·P·√N(parent)/(1+N)" };

class Panel {
  constructor(holder, model, select) {
    Object.assign(this, { holder, model, select, open: { children: false, response: false, search: true } });
  }

  show(node) {
    const { model } = this, children = model.children[node];
    const parts = [this.heading(node), make("p", { class: "text", id: "panel-text", tabindex: "0" }, node === 0 ? model.record.question || "(the record has no question)" : model.text[node] || "(no text)"), this.numbers(node)];
    const [, seen, calls, errors] = model.seen[node] ?? [0, "", [], []];
    if (calls.length) parts.push(make("div", { class: "chips", id: "calls" }, ...calls.map((name) => make("span", { class: "chip call" }, `calls ${name}`)), ...errors.map((name) => make("span", { class: "chip wrong" }, `error of ${name}`))));
    if (seen) parts.push(make("section", {}, make("h2", {}, "The world answers"), make("p", { class: "text given", id: "observation" }, seen)));
    if (model.token_ids[node].length) parts.push(this.tokens(node));
    if (node > 0) parts.push(make("section", { id: "siblings" }, make("h2", {}, `Siblings (${model.children[model.parent[node]].length})`), this.family(model.children[model.parent[node]], node)));
    if (children.length) parts.push(this.folding("children", `Children (${children.length})`, this.family(children, -1)));
    if (node > 0) parts.push(this.folding("response", "Response down to here", make("p", { class: "text" }, model.phrase(node, 0))));
    this.holder.replaceChildren(...parts, this.folding("search", "The search", this.search()));
  }

  folding(name, title, inside) {
    return make("details", { class: "fold", open: this.open[name], toggle: (event) => { this.open[name] = event.target.open; } }, make("summary", {}, title), inside);
  }

  heading(node) {
    const { model } = this, mark = model.mark[node];
    const title = node === 0 ? "The question (root)" : model.rollout(node) ? `Rollout from node ${model.parent[node]}` : `Node ${node}`;
    const chips = [`depth ${model.depth[node]}`, node > 0 ? model.source[node] : "", model.direction[node] === "none" ? "" : `asked for: ${model.direction[node]}`, model.chosen.has(node) ? (model.choiceRecorded ? "chosen path" : "most visited path") : ""];
    const rejected = model.children[node].filter((child) => child < model.born && model.verdict[child] === "rejected").length;
    if (model.unread[node]) chips.push("couldn't be checked");
    if (rejected) chips.push(`${rejected} rejected below: each counts in Q as the state before it`);
    const made = chips.filter(Boolean).map((text) => make("span", { class: "chip" }, text));
    if (mark) made.push(make("span", { class: `chip ${mark}` }, `${VERDICTS[mark]?.[0] ?? ""} ${VERDICTS[mark]?.[1] ?? mark}`));
    const close = make("button", { id: "panel-close", type: "button", "aria-label": "Close the details", click: () => { this.holder.hidden = true; } }, "✕");
    return make("section", {}, make("div", { class: "title" }, make("h2", { id: "panel-title" }, title), close), make("div", { class: "chips" }, ...made));
  }

  // The name of what judged the steps.
  get verifier() {
    return this.model.record.search?.verifier ?? "verifier";
  }

  numbers(node) {
    const { model } = this, U = model.exploration(node), search = model.record.search;
    const why = search ? `exploration term of ${search.rule}: ${FORMULAS[search.rule.replace("open_", "")] ?? "none"}, c = ${number(search.exploration, 2)}` : "";
    const stats = [
      ["Visits N", whole(model.N[node]), "simulations through this node"],
      ["Mean value Q", number(model.q(node)), "W / N"],
      ["Sum W", number(model.W[node]), "sum of backed-up rewards"],
      ["Own value V", number(model.V[node]), "the value network's estimate"],
      [this.verifier, number(model.prm[node]), "what the verifier says of this step"],
      ["Prior", number(model.prior[node]), "P(step | prefix) that the search used"],
      ["p(tokens)", model.token_ids[node].length ? number(Math.exp(model.likelihood[node])) : "–", "probability of its tokens under the policy"],
      ["U", U === Infinity ? "∞ (first)" : number(U), why],
      ["Reward", number(model.reward[node]), "of the response that ends here"],
      ["Correct (HRE)", number(model.hre[node], 1), "1 when the answer is right"],
      ["PRE", number(model.pre[node]), "the reward's perplexity part"],
      ["Samples", model.samples[node] ? whole(model.samples[node]) : "–", "responses that were drawn and end here"],
    ].filter(([, shown], i) => i < 2 || shown !== "–");
    return make("dl", { class: "stats" }, ...stats.map(([name, shown, title]) => make("div", { title }, make("dt", {}, name), make("dd", { "data-stat": name }, shown))));
  }

  // Each token with its probability; the less likely, the stronger its colour.
  tokens(node) {
    const { model } = this, ids = model.token_ids[node];
    const piece = (id) => (model.pieces[id] ?? (ids.length === 1 ? model.text[node] : `⟨${id}⟩`)).replace(/\n/g, "⏎").replace(/^ | $/g, "␣") || "⟨end⟩";
    const chips = ids.map((id, i) => {
      const nats = model.logprobs[node][i], given = model.given(node, i);
      const chip = make("span", { class: given ? "token given" : "token", title: given ? `given by the world, id ${id}` : `${number(nats)} nats, p = ${number(Math.exp(nats), 4)}, id ${id}` }, piece(id));
      chip.style.setProperty("--strength", `${Math.round(Math.min(1, -nats / 3) * 62)}%`);
      return chip;
    });
    return make("section", {}, make("h2", {}, `${ids.length} ${ids.length === 1 ? "token" : "tokens"}, ${number(model.likelihood[node])} nats`), make("div", { class: "tokens", id: "tokens" }, ...chips));
  }

  // A table of nodes, the most visited first.
  family(members, current) {
    const { model } = this;
    const columns = { Step: null, N: (node) => whole(model.N[node]), Q: (node) => number(model.q(node)), P: (node) => number(model.prior[node] ?? Math.exp(model.likelihood[node])), [this.verifier]: (node) => number(model.prm[node]), V: (node) => number(model.V[node]), End: (node) => VERDICTS[model.mark[node]]?.[0] ?? "–" };
    const names = Object.keys(columns).filter((name) => columns[name] === null || members.some((node) => columns[name](node) !== "–"));
    const rows = [...members].sort((a, b) => model.finalN[b] - model.finalN[a]).slice(0, 200).map((node) =>
      make("tr", { class: node === current ? "current" : null, "data-node": node }, ...names.map((name) => (columns[name] === null
        ? make("td", { class: "words" }, make("button", { type: "button", title: model.text[node], click: () => this.select(node) }, model.label(node)))
        : make("td", {}, columns[name](node))))));
    return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { class: columns[name] === null ? "words" : null }, name)))), make("tbody", {}, ...rows)));
  }

  search() {
    const { record, row } = this.model, cost = record.cost || {};
    const lines = {
      Answer: record.answer ?? row.answer ?? "–", Why: record.why, "Ended by": record.ended_by,
      "Right samples": row.outcome === "ungraded" ? null : `${row.right} of ${row.samples}`,
      Simulations: row.simulations, Nodes: row.nodes, "Sampled tokens": cost.sampled_tokens, "Prompt tokens": cost.prompt_tokens,
      "Cached tokens": cost.cached_tokens, "Scored tokens": cost.scored_tokens || null, "Engine calls": cost.calls,
      Seconds: cost.seconds === undefined ? null : number(cost.seconds, 2), Dollars: cost.dollars ? number(cost.dollars, 4) : null,
      "Policy version": record.policy_version, Key: record.key,
    };
    const known = Object.entries(lines).filter(([, shown]) => shown !== null && shown !== undefined && shown !== "");
    const cells = known.map(([name, shown]) => make("tr", {}, make("th", { scope: "row", class: "words" }, name), make("td", { class: "words" }, typeof shown === "number" ? whole(shown) : String(shown))));
    const graded = this.model.hre.some((value) => value !== null);
    return make("div", {}, make("table", { id: "search-facts" }, make("tbody", {}, ...cells)), graded ? make("p", { class: "small" }, "A training tree: its rewards know the gold answer.") : null);
  }
}
