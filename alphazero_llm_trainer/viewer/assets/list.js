// The list of a run's questions: what came of them all, and one row each, the most telling ones first.

const PAGE = 100;
const OUTCOMES = { mixed: "mixed", wrong: "all wrong", ungraded: "not graded", right: "all right", none: "no response", failed: "failed" };
const percent = (share) => `${Math.round(share * 100)}%`;
// name: [key to sort by, what is shown, words are left-aligned and begin with the first]
const COLUMNS = {
  "#": [(row) => row.number, (row) => whole(row.number + 1)],
  Question: [(row) => row.question, null, true],
  Outcome: [(row) => Object.keys(OUTCOMES).indexOf(row.outcome), (row) => make("span", { class: `chip ${row.outcome}` }, OUTCOMES[row.outcome]), true],
  Right: [(row) => (row.outcome === "ungraded" || !row.samples ? null : row.right / row.samples), (row, key) => (key === null ? "–" : `${percent(key)} of ${whole(row.samples)}`)],
  "Most frequent answer": [(row) => row.answer, (row, key) => (key === null ? "–" : key + (row.share === null ? "" : ` (${percent(row.share)})`) + ({ true: " ✓", false: " ✕" }[row.answer_right] ?? "")), true],
  Reward: [(row) => row.reward, (row, key) => number(key)],
  Nodes: [(row) => row.nodes, (row, key) => whole(key)],
  Simulations: [(row) => row.simulations, (row, key) => whole(key)],
  Tokens: [(row) => row.tokens, (row, key) => whole(key)],
};

class List {
  constructor(facts) {
    this.facts = facts;
    this.names = Object.keys(COLUMNS).filter((name) => name === "Question" || facts.rows.some((row) => COLUMNS[name][0](row) !== null));
    Object.assign(this, { sort: "Outcome", down: false, page: 0, outcome: "" });
    element("list-find").oninput = () => this.fill(0);
    element("list-earlier").onclick = () => this.fill(this.page - 1);
    element("list-later").onclick = () => this.fill(this.page + 1);
    element("list-sort").replaceChildren(...this.names.map((name) => make("option", { value: name }, name)));
    element("list-sort").onchange = (event) => this.by(event.target.value);
    element("list-note").hidden = !facts.left_out;
    element("list-note").textContent = `${whole(facts.left_out)} of ${whole(facts.questions)} trees are left out of this file`
      + (facts.questions > facts.rows.length ? `, and the list has the ${whole(facts.rows.length)} most telling questions` : "")
      + ". Write one with: alphazero-llm-trainer view RUN --question ID";
    const sums = { tokens: "sampled tokens", simulations: "simulations", nodes: "nodes" };
    element("totals").textContent = Object.keys(sums).filter((name) => name in facts.sums).map((name) => `${whole(facts.sums[name])} ${sums[name]}`).join(" · ");
    this.fill(0);
  }

  by(name) {
    this.down = this.sort === name ? !this.down : !COLUMNS[name][2] && name !== "#";
    this.sort = name;
    this.fill(0);
  }

  tiles() {
    const { outcomes, questions } = this.facts;
    const tile = (outcome, count, name) => make("button", { type: "button", class: `tile ${outcome}`, "data-outcome": outcome, "aria-pressed": String(this.outcome === outcome), click: () => { this.outcome = outcome; this.fill(0); } }, make("strong", {}, whole(count)), ` ${name}`);
    element("outcomes").replaceChildren(tile("", questions, questions === 1 ? "question" : "questions"), ...Object.keys(OUTCOMES).filter((one) => outcomes[one]).map((one) => tile(one, outcomes[one], OUTCOMES[one])));
  }

  question(row) {
    const text = row.question || row.key;
    if (element(`tree-${row.number}`) !== null) return make("button", { type: "button", class: "clamp", "data-open": row.number, click: () => { location.hash = `tree-${row.number}`; } }, text);
    return make("div", {}, make("span", { class: "clamp" }, text), make("p", { class: "small" }, `not in this file: view RUN --question ${row.id === "question" ? row.key : row.id}`));
  }

  fill(page) {
    const wanted = element("list-find").value.trim().toLowerCase(), [key] = COLUMNS[this.sort], flip = this.down ? -1 : 1;
    const rows = this.facts.rows.filter((row) => (!this.outcome || row.outcome === this.outcome) && `${row.question} ${row.answer ?? ""} ${row.key}`.toLowerCase().includes(wanted));
    const away = (row) => (element(`tree-${row.number}`) === null); // of equal rows those whose tree can be opened come first
    rows.sort((a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === null || other === null) return (one === null) - (other === null) || away(a) - away(b) || a.number - b.number; // what isn't known comes last
      return flip * (typeof one === "string" ? one.localeCompare(other) : one - other) || away(a) - away(b) || a.number - b.number;
    });
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.max(0, Math.min(page, pages - 1));
    this.tiles();
    const heads = this.names.map((name) => make("th", { scope: "col", class: COLUMNS[name][2] ? "words" : null, "aria-sort": name !== this.sort ? "none" : this.down ? "descending" : "ascending" },
      make("button", { type: "button", click: () => this.by(name) }, `${name}${name !== this.sort ? "" : this.down ? " ↓" : " ↑"}`)));
    document.querySelector("#list-table thead").replaceChildren(make("tr", {}, ...heads));
    const cell = (name, row) => make("td", { class: `${COLUMNS[name][2] ? "words" : ""} ${name.toLowerCase()}`, "data-name": name }, name === "Question" ? this.question(row) : COLUMNS[name][1](row, COLUMNS[name][0](row)));
    document.querySelector("#list-table tbody").replaceChildren(...rows.slice(this.page * PAGE, (this.page + 1) * PAGE).map((row) => make("tr", {}, ...this.names.map((name) => cell(name, row)))));
    element("list-sort").value = this.sort;
    element("list-count").textContent = rows.length === this.facts.rows.length ? "" : `${whole(rows.length)} of ${whole(this.facts.rows.length)} questions`;
    element("list-pages").hidden = pages === 1;
    element("list-page").textContent = `${this.page + 1} / ${pages}`;
    element("list-earlier").disabled = this.page === 0;
    element("list-later").disabled = this.page === pages - 1;
  }
}
