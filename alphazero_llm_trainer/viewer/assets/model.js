// A tree as the page knows it: columns, rollouts as leaves of their own, and its state after any simulation.

const element = (id) => document.getElementById(id);
const LETTERS = 120; // of a node's label

// Fixed digits; what these would show as 0 and isn't, in powers of ten.
function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return Number(value).toExponential(1);
  return Number(value).toFixed(digits);
}

const whole = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));

// What became of a node that ends a response, gold's word first.
function verdictOf(verdict, hre) {
  if (verdict === null || verdict === undefined) return null;
  if (verdict === "rejected") return "rejected";
  if (hre === 1) return "right";
  if (hre === 0 && (verdict === "answer" || verdict === "checked")) return "wrong";
  return verdict;
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

class Model {
  constructor(record, row) {
    this.record = record;
    this.row = row;
    const tree = record.tree;
    this.nodes = tree.parent.length;
    const copy = (name) => tree[name].slice();
    this.parent = copy("parent");
    this.ids = copy("token_ids");
    this.logprobs = copy("logprobs");
    this.text = copy("text");
    this.source = copy("source");
    this.direction = copy("direction");
    this.finalN = copy("N");
    this.finalW = copy("W");
    for (const name of ["V", "prior", "prm", "samples", "verdict", "reward", "hre", "pre"]) this[name] = copy(name);
    this.rollout = new Array(this.nodes).fill(false);
    this.endings = new Map(); // node -> rollouts of no tokens: responses that ended in the node itself
    for (const one of tree.rollouts) this.addRollout(one);
    this.count = this.parent.length;
    this.children = Array.from({ length: this.count }, () => []);
    this.depth = new Array(this.count).fill(0);
    for (let node = 1; node < this.count; node++) this.children[this.parent[node]].push(node);
    for (let node = 1; node < this.count; node++) this.depth[node] = this.depth[this.parent[node]] + 1;
    this.mark = this.verdict.map((verdict, node) => this.markOf(node, verdict));
    this.pieces = new Map(Object.entries(record.pieces || {}));
    for (let node = 0; node < this.nodes; node++) {
      const id = String(this.ids[node][0]);
      if (this.ids[node].length === 1 && !this.pieces.has(id)) this.pieces.set(id, this.text[node]);
    }
    this.logLikelihood = this.logprobs.map((values) => values.reduce((sum, value) => sum + value, 0));
    this.totals = new Map(); // node -> its children's probabilities, summed
    this.tokens = this.ids.every((ids, node) => ids.length < 2 || this.rollout[node]); // nodes are tokens, not steps
    this.range = this.valueRange();
    this.chosen = this.chosenPath();
    this.readHistory(tree.history);
    this.go(this.steps);
  }

  addRollout(one) {
    if (!one.token_ids.length) {
      this.endings.set(one.node, [...(this.endings.get(one.node) || []), one]);
      return;
    }
    this.parent.push(one.node);
    this.ids.push(one.token_ids);
    this.logprobs.push(one.logprobs);
    this.text.push(one.text);
    this.source.push("student");
    this.direction.push("none");
    this.finalN.push(one.count);
    this.finalW.push(one.count * one.reward);
    this.V.push(null);
    this.prior.push(null);
    this.prm.push(null);
    this.samples.push(one.samples);
    this.verdict.push(one.verdict);
    this.reward.push(one.reward);
    this.hre.push(one.hre);
    this.pre.push(one.pre);
    this.rollout.push(true);
  }

  markOf(node, verdict) {
    const mark = verdictOf(verdict, this.hre[node]);
    if (mark !== null) return mark;
    const ending = (this.endings.get(node) || [])[0];
    return ending ? verdictOf(ending.verdict, ending.hre) : null;
  }

  // The least and the greatest Q of a visited node: what the colours span. `flat`: the numbers on the nodes are all alike.
  valueRange() {
    let [low, high] = [Infinity, -Infinity];
    for (let node = 0; node < this.count; node++) {
      if (this.finalN[node] === 0) continue;
      const q = this.finalW[node] / this.finalN[node];
      [low, high] = [Math.min(low, q), Math.max(high, q)];
    }
    return high < low ? null : { low, high, flat: high - low < 0.005 };
  }

  // Where a value stands in the tree's range, 0 to 1.
  rank(q) {
    if (this.range === null || this.range.flat) return 0.5;
    return Math.max(0, Math.min(1, (q - this.range.low) / (this.range.high - this.range.low)));
  }

  // A proposal that no simulation went to, and of which nothing else is known.
  unvisited(node) {
    return this.finalN[node] === 0 && this.mark[node] === null && !this.chosen.has(node);
  }

  // The chosen response's nodes; without a choice in the record, the most visited path.
  chosenPath() {
    const named = Number.isInteger(this.record.chosen) && this.record.chosen < this.nodes;
    let node = named ? this.record.chosen : 0;
    this.choiceRecorded = named;
    for (;;) {
      const onward = this.children[node].filter((child) => this.finalN[child] > 0 && (!named || this.rollout[child]));
      // A choice that goes on in a rollout is that rollout, if its text says so.
      const said = this.record.response;
      const next = named
        ? onward.find((child) => said !== undefined && said.endsWith(this.text[child]) && this.text[child] !== "")
        : onward.reduce((best, child) => (best === undefined || this.finalN[child] > this.finalN[best] ? child : best), undefined);
      if (next === undefined) break;
      node = next;
    }
    this.chosenEnd = node;
    const path = new Set();
    for (let up = node; up >= 0; up = this.parent[up]) path.add(up);
    return path;
  }

  // Simulations as they were recorded, if replaying them gives the tree's own visits; else creation order.
  readHistory(history) {
    const { simulations, backups } = history;
    this.simulations = simulations;
    this.backups = backups;
    this.steps = simulations.length;
    this.replays = this.steps > 0;
    if (this.replays) {
      this.N = new Array(this.count).fill(0);
      this.W = new Array(this.count).fill(0);
      this.backUp(0, backups.length);
      this.replays = this.finalN.every((visits, node) => this.rollout[node] || visits === this.N[node]);
    }
    if (!this.replays) this.steps = this.nodes - 1;
    this.at = 0;
    this.reset();
  }

  reset() {
    this.at = 0;
    this.N = new Array(this.count).fill(0);
    this.W = new Array(this.count).fill(0);
  }

  backUp(from, to) {
    for (let i = from; i < to; i++) {
      const [start, reward, above = -1] = this.backups[i];
      for (let node = start; node !== above && node >= 0; node = this.parent[node]) {
        this.N[node] += 1;
        this.W[node] += reward;
      }
    }
  }

  // The state after `step` simulations. The last one is the stored tree itself.
  go(step) {
    step = Math.max(0, Math.min(this.steps, step));
    this.done = step === this.steps;
    if (this.replays && !this.done) {
      const before = (at) => (at === 0 ? 0 : this.simulations[at - 1][2]);
      if (step < this.at || this.at === this.steps) this.reset();
      this.backUp(before(this.at), before(step));
      this.born = step === 0 ? 1 : this.simulations[step - 1][1];
    } else {
      this.N = this.finalN.slice();
      this.W = this.finalW.slice();
      this.born = this.replays ? this.nodes : step + 1;
    }
    this.at = step;
    this.current = new Set();
    this.leaf = null;
    if (!this.done && step > 0) {
      this.leaf = this.replays ? this.simulations[step - 1][0] : step;
      for (let up = this.leaf; up >= 0; up = this.parent[up]) this.current.add(up);
    }
  }

  // Rollouts are kept beside the tree without the simulation they came from: they are there at the end.
  exists(node) {
    return this.rollout[node] ? this.done : node < this.born;
  }

  // What the simulation that was just shown backed up.
  rewards() {
    if (!this.replays || this.at === 0) return [];
    const from = this.at === 1 ? 0 : this.simulations[this.at - 2][2];
    return this.backups.slice(from, this.simulations[this.at - 1][2]).map((backup) => backup[1]);
  }

  q(node) {
    return this.N[node] > 0 ? this.W[node] / this.N[node] : null;
  }

  // The probability of the node's tokens under the policy that sampled them.
  probability(node) {
    return this.ids[node].length ? Math.exp(this.logLikelihood[node]) : null;
  }

  // The rule's exploration term; Infinity where the rule takes an unvisited child first; null where there is none or it isn't known.
  exploration(node) {
    const search = this.record.search;
    const up = this.parent[node];
    if (!search || search.rule === "gumbel" || up < 0 || this.rollout[node]) return null;
    const [visits, above] = [this.N[node], this.N[up]];
    if (search.rule === "ucb1") {
      return visits === 0 ? Infinity : search.exploration * Math.sqrt(Math.log(Math.max(above, 1)) / visits);
    }
    return (search.exploration * this.share(node) * Math.sqrt(above)) / (1 + visits);
  }

  // P of PUCT: the stored prior, else the tokens' probability, shared out over the siblings but under a verifier.
  share(node) {
    if (this.prior[node] !== null) return this.prior[node];
    if (this.record.search.rule === "open_puct") return this.probability(node);
    const likelihood = (child) => Math.exp(Math.max(this.logLikelihood[child], -700)), up = this.parent[node];
    if (!this.totals.has(up)) {
      const siblings = this.children[up].filter((child) => !this.rollout[child]);
      this.totals.set(up, siblings.reduce((sum, child) => sum + likelihood(child), 0));
    }
    return likelihood(node) / this.totals.get(up);
  }

  path(node) {
    const path = [];
    for (let up = node; up > 0; up = this.parent[up]) path.push(up);
    return path.reverse();
  }

  response(node) {
    return this.path(node).map((step) => this.text[step]).join("");
  }

  // At least so many last characters of a response, where it has them.
  tail(node, characters) {
    let text = "";
    for (let up = node; up > 0 && text.length < characters; up = this.parent[up]) text = this.text[up] + text;
    return text;
  }

  // The text of the nodes from `first` down to `last`.
  phrase(first, last) {
    let text = this.text[last];
    for (let node = last; node !== first; ) {
      node = this.parent[node];
      text = this.text[node] + text;
    }
    return text;
  }

  // One line for a node, or for a phrase that begins at `first`. What can't be seen gets a sign that can.
  label(node, first = node) {
    if (node === 0) return "question";
    const text = this.phrase(first, node);
    if (!text) return this.ids[node].length ? "⟨end⟩" : "⟨empty⟩";
    if (!/[^\s\p{Cc}\p{Cf}]/u.test(text)) {
      return Array.from(text.slice(0, 8), (letter) => ({ "\n": "⏎", "\t": "⇥" })[letter] ?? "␣").join(" ");
    }
    return text.slice(0, LETTERS).replace(/\n+$/, "").replace(/\s*\n\s*/g, " ⏎ ").replace(/\p{Cc}/gu, "·");
  }

  sources() {
    return [...new Set(this.source.filter((_, node) => node > 0))].sort();
  }
}
