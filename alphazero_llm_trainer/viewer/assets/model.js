// A tree as the page knows it: columns, rollouts as leaves of their own, and its visits after any simulation.

const element = (id) => document.getElementById(id);
const whole = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));

// Fixed digits; what these would show as 0 and isn't, in powers of ten.
function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return Number(value).toExponential(1);
  return Number(value).toFixed(digits);
}

// An element; text is always set as text.
function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.filter((one) => one !== null));
  return made;
}

const VERDICTS = {
  right: ["✓", "right answer"],
  wrong: ["✕", "wrong answer"],
  answer: ["#", "answer, not graded"],
  checked: ["#", "called finished by a checker, not graded"],
  ended: ["■", "ended without an answer"],
  depth: ["↧", "too many steps"],
  length: ["…", "out of tokens"],
  rejected: ["⊘", "rejected by the verifier"],
};

// What became of a node that ends a response, gold's word first.
function verdictOf(verdict, hre) {
  if (verdict === null || verdict === undefined || verdict === "rejected") return verdict ?? null;
  if (hre === 1) return "right";
  if (hre === 0 && (verdict === "answer" || verdict === "checked")) return "wrong";
  return verdict;
}

class Model {
  constructor(record, row) {
    Object.assign(this, { record, row });
    const { tree } = record;
    this.nodes = tree.parent.length;
    for (const name of ["parent", "token_ids", "logprobs", "text", "source", "direction", "V", "prior", "prm", "samples", "verdict", "reward", "hre", "pre"]) {
      this[name] = tree[name].slice();
    }
    this.unread = tree.unread ?? []; // steps that the verifier could not check
    // What a world answered to a node's turn: [tokens at its end, text, calls, errors].
    this.seen = (tree.seen ?? []).slice();
    this.mask = []; // of a rollout's tokens: false for those that a world gave
    this.finalN = tree.N.slice();
    this.finalW = tree.W.slice();
    const ended = new Map(); // node -> a rollout of no tokens: a response that ended in the node itself
    for (const one of tree.rollouts) {
      if (one.token_ids.length) this.addRollout(one);
      else ended.set(one.node, one);
    }
    this.count = this.parent.length;
    this.children = this.parent.map(() => []);
    this.depth = this.parent.map(() => 0);
    for (let node = 1; node < this.count; node++) {
      this.children[this.parent[node]].push(node);
      this.depth[node] = this.depth[this.parent[node]] + 1;
    }
    this.mark = this.verdict.map((verdict, node) => verdictOf(verdict, this.hre[node]) ?? (ended.has(node) ? verdictOf(ended.get(node).verdict, ended.get(node).hre) : null));
    this.pieces = record.pieces || {};
    this.likelihood = this.logprobs.map((values) => values.reduce((sum, value) => sum + value, 0)); // nats
    this.tokens = this.token_ids.every((ids, node) => ids.length < 2 || this.rollout(node)); // nodes are tokens, not steps
    const means = this.finalN.flatMap((visits, node) => (visits ? [this.finalW[node] / visits] : []));
    this.range = means.reduce(([low, high], q) => [Math.min(low, q), Math.max(high, q)], [Infinity, -Infinity]);
    this.chosen = this.chosenPath();
    this.reached = this.finalN.map((visits, node) => visits > 0 || this.mark[node] !== null || this.chosen.has(node));
    for (let node = this.count - 1; node > 0; node--) if (this.reached[node]) this.reached[this.parent[node]] = true;
    this.steps = tree.history.simulations.length;
    this.go(this.steps);
  }

  addRollout(one) {
    const more = { parent: one.node, source: "student", direction: "none", V: null, prior: null, prm: null, finalN: one.count, finalW: one.count * one.reward };
    for (const name of ["token_ids", "logprobs", "text", "samples", "verdict", "reward", "hre", "pre"]) more[name] = one[name];
    for (const [name, value] of Object.entries(more)) this[name].push(value);
    this.mask[this.parent.length - 1] = one.mask;
  }

  rollout(node) {
    return node >= this.nodes;
  }

  // Whether a node's token was given by a world, and not drawn.
  given(node, at) {
    const [tokens] = this.seen[node] ?? [0];
    return this.mask[node]?.[at] === false || at >= this.token_ids[node].length - tokens;
  }

  // What a world answered to a node's turn, in a line; "" where none did.
  answered(node) {
    const [, text, , errors] = this.seen[node] ?? [0, "", [], []];
    return text ? `${errors.length ? "⚠" : "→"} ${this.line(text, [])}` : "";
  }

  // The chosen response's nodes; without a choice in the record, the most visited path.
  chosenPath() {
    const { record } = this;
    this.choiceRecorded = Number.isInteger(record.chosen) && record.chosen < this.nodes;
    let node = this.choiceRecorded ? record.chosen : 0;
    for (;;) {
      const onward = this.children[node].filter((child) => this.finalN[child] > 0);
      // A choice that goes on in a rollout is that rollout, if its text says so.
      const next = this.choiceRecorded
        ? onward.find((child) => this.rollout(child) && this.text[child] !== "" && (record.response ?? "").endsWith(this.text[child]))
        : onward.reduce((best, child) => (best === undefined || this.finalN[child] > this.finalN[best] ? child : best), undefined);
      if (next === undefined) break;
      node = next;
    }
    return new Set(this.path(node));
  }

  // The state after so many simulations, by what each backed up. The last one is the stored tree itself.
  go(step) {
    const { simulations, backups } = this.record.tree.history;
    this.at = Math.max(0, Math.min(this.steps, step));
    this.done = this.at === this.steps;
    this.leaf = this.done || !this.at ? null : simulations[this.at - 1][0];
    this.born = this.done ? this.count : this.at ? simulations[this.at - 1][1] : 1;
    this.N = this.done ? this.finalN : this.parent.map(() => 0);
    this.W = this.done ? this.finalW : this.parent.map(() => 0);
    if (this.done) return;
    const discount = this.record.tree.discount ?? 1;
    for (const [start, reward, above = -1] of backups.slice(0, this.at ? simulations[this.at - 1][2] : 0)) {
      for (let node = start, worth = reward; node !== above && node >= 0; node = this.parent[node], worth *= discount) {
        this.N[node] += 1;
        this.W[node] += worth;
      }
    }
  }

  q(node) {
    return this.N[node] > 0 ? this.W[node] / this.N[node] : null;
  }

  // Where a value stands in the tree's own range, 0 to 1.
  rank(q) {
    const [low, high] = this.range;
    return high - low < 0.005 ? 0.5 : Math.max(0, Math.min(1, (q - low) / (high - low)));
  }

  // A proposal that no simulation and no rollout went to, and of which nothing else is known.
  unvisited(node) {
    return !this.reached[node];
  }

  // The rule's exploration term; Infinity where the rule takes an unvisited child first; null where it isn't known.
  exploration(node) {
    const { search } = this.record, up = this.parent[node];
    if (!search || !/(ucb1|puct)$/.test(search.rule) || up < 0 || this.rollout(node)) return null;
    const [visits, above] = [this.N[node], this.N[up]];
    if (search.rule.endsWith("ucb1")) return visits === 0 ? Infinity : search.exploration * Math.sqrt(Math.log(Math.max(above, 1)) / visits);
    return (search.exploration * this.share(node) * Math.sqrt(above)) / (1 + visits);
  }

  // P of PUCT: the stored prior, else the tokens' probability, shared out over the siblings. Under a verifier there is one more
  // step, not drawn yet, with what the siblings leave, and no sibling has less (mcts/select.py, open_puct).
  share(node) {
    if (this.prior[node] !== null) return this.prior[node];
    const siblings = this.children[this.parent[node]].filter((child) => !this.rollout(child));
    const most = Math.max(...siblings.map((child) => this.likelihood[child])), of = (child) => Math.exp(this.likelihood[child] - most);
    if (this.record.search.rule === "open_puct") {
      const drawn = siblings.filter((child) => child < this.born);
      const left = 1 - drawn.reduce((sum, child) => sum + Math.exp(this.likelihood[child]), 0);
      return Math.max(Math.exp(this.likelihood[node]), left);
    }
    return of(node) / siblings.reduce((sum, child) => sum + of(child), 0);
  }

  // The nodes from the root's child down to a node.
  path(node) {
    const path = [];
    for (let up = node; up >= 0; up = this.parent[up]) path.push(up);
    return path.reverse();
  }

  // The text of the nodes below `above` down to `node`.
  phrase(node, above) {
    const path = this.path(node);
    return path.slice(path.indexOf(above) + 1).map((one) => this.text[one]).join("");
  }

  // One line for a text. What can't be seen gets a sign that can.
  line(text, ids) {
    if (!text) return ids.length ? "⟨end⟩" : "⟨empty⟩";
    if (!/[^\s\p{Cc}\p{Cf}]/u.test(text)) return Array.from(text.slice(0, 8), (letter) => ({ "\n": "⏎", "\t": "⇥" })[letter] ?? "␣").join(" ");
    return text.slice(0, 120).replace(/\n+$/, "").replace(/\s*\n\s*/g, " ⏎ ").replace(/\p{Cc}/gu, "·");
  }

  label(node, above = this.parent[node]) {
    if (node === 0) return this.record.begins ? `… ${this.line(this.record.begins.trimEnd().split("\n").pop(), [])}` : "question";
    return this.line(this.phrase(node, above), this.token_ids[node]);
  }
}
