// The list of a run's questions: what came of them all, and one row each, the most telling ones first.

const PAGE = 100;
const OUTCOMES = { mixed: "mixed", wrong: "all wrong", ungraded: "not graded", right: "all right", none: "no response", failed: "failed" };

class List {
  constructor(facts, embedded) {
    this.facts = facts;
    this.rows = facts.rows.map((row) => ({ ...row, index: row.number, has: embedded(row.number), words: `${row.question} ${row.answer ?? ""} ${row.key}`.toLowerCase() }));
    this.sort = { by: "Outcome", down: false };
    this.page = 0;
    this.outcome = "";
    const again = () => { this.page = 0; this.fill(); };
    element("list-find").oninput = again;
    element("list-earlier").onclick = () => { this.page -= 1; this.fill(); };
    element("list-later").onclick = () => { this.page += 1; this.fill(); };
    element("list-sort").replaceChildren(...this.columns().map(({ name }) => make("option", { value: name }, name === "#" ? "order of the journal" : name.toLowerCase())));
    element("list-sort").onchange = (event) => this.sortBy(event.target.value, true);
    if (facts.left_out) {
      const note = element("list-note");
      note.hidden = false;
      note.textContent = `${whole(facts.left_out)} of ${whole(facts.questions)} trees are left out of this file; `
        + (facts.questions > this.rows.length ? `the list has the ${whole(this.rows.length)} most telling questions, and its rows say whose tree is here. ` : "their rows say so. ")
        + "Write one with: alphazero-llm-trainer view RUN --question ID";
    }
    this.summary(again);
    this.heads();
    this.fill();
  }

  // How many questions came out how, each a filter, and what they took.
  summary(again) {
    const { questions, outcomes: counts, sums } = this.facts, count = (outcome) => counts[outcome] ?? 0;
    const outcomes = Object.keys(OUTCOMES).filter(count);
    element("shares").replaceChildren(...outcomes.map((outcome) => {
      const part = make("span", { class: outcome });
      part.style.flexGrow = count(outcome);
      return part;
    }));
    const tile = (outcome, number, name) => {
      const press = () => {
        this.outcome = this.outcome === outcome ? "" : outcome;
        for (const button of element("outcomes").children) button.setAttribute("aria-pressed", String(button.dataset.outcome === this.outcome));
        again();
      };
      return make("button", { type: "button", class: `tile ${outcome}`, "data-outcome": outcome, "aria-pressed": String(outcome === ""), on: { click: press } },
        make("strong", {}, whole(number)), ` ${name}`);
    };
    element("outcomes").replaceChildren(tile("", questions, questions === 1 ? "question" : "questions"), ...outcomes.map((outcome) => tile(outcome, count(outcome), OUTCOMES[outcome])));
    const total = (name, what) => (name in sums ? make("div", {}, make("dd", {}, whole(sums[name])), make("dt", {}, what)) : null);
    element("totals").replaceChildren(...[total("tokens", "sampled tokens"), total("simulations", "simulations"), total("nodes", "nodes")].filter(Boolean));
  }

  columns() {
    const share = (value) => (value === null ? "–" : `${Math.round(value * 100)}%`), ranks = Object.keys(OUTCOMES);
    return [
      { name: "#", title: "order in the journal", of: (row) => row.index, shown: (row) => whole(row.index + 1) },
      { name: "Question", title: "click to open its tree", words: true, of: (row) => row.question, cell: (row) => this.link(row) },
      { name: "Outcome", title: "of the sampled responses; mixed ones first", words: true, of: (row) => ranks.indexOf(row.outcome), cell: (row) => make("span", { class: `chip ${row.outcome}` }, OUTCOMES[row.outcome]) },
      { name: "Right", title: "share of the sampled responses that are right", of: (row) => (row.outcome === "ungraded" || !row.samples ? null : row.right / row.samples), cell: (row) => this.rightCell(row) },
      { name: "Best answer", title: "the answer that most samples state, and the share of them; a search without gold: its answer", words: true, of: (row) => row.answer, shown: (row) => (row.answer === null ? "–" : `${row.answer}${row.share === null ? "" : ` (${share(row.share)})`}${row.answer_right === null ? "" : row.answer_right ? " ✓" : " ✕"}`) },
      { name: "Reward", title: "mean reward of these samples without gold: PRE, where the search had it", of: (row) => row.reward, shown: (row) => number(row.reward) },
      { name: "Nodes", title: "nodes of the tree", of: (row) => row.nodes, shown: (row) => whole(row.nodes) },
      { name: "Simulations", title: "– where the journal is older than the history", of: (row) => row.simulations, shown: (row) => whole(row.simulations) },
      { name: "Tokens", title: "sampled tokens", of: (row) => row.tokens, shown: (row) => whole(row.tokens) },
    ].filter((column) => !["Reward", "Right"].includes(column.name) || this.rows.some((row) => column.of(row) !== null));
  }

  rightCell(row) {
    if (row.outcome === "ungraded" || !row.samples) return "–";
    const share = row.right / row.samples, part = make("span");
    part.style.width = `${100 * share}%`;
    const percent = row.right && share < 0.005 ? "<1" : Math.round(100 * share);
    return make("span", {}, make("span", { class: "meter", "aria-hidden": "true" }, part), `${percent}% of ${whole(row.samples)}`);
  }

  link(row) {
    if (row.has) return make("button", { type: "button", class: "clamp", "data-open": row.index, on: { click: () => { location.hash = `tree-${row.index}`; } } }, row.question || row.key);
    const hint = `not in this file: view RUN --question ${row.id === "question" ? row.key : row.id}`;
    return make("div", {}, make("span", { class: "clamp" }, row.question || row.key), make("p", { class: "small" }, hint));
  }

  // Numbers begin with the largest, words and the journal's order with the first; a second press turns it round.
  sortBy(name, anew = false) {
    const column = this.columns().find((one) => one.name === name);
    this.sort.down = !anew && this.sort.by === name ? !this.sort.down : !column.words && name !== "#";
    this.sort.by = name;
    this.page = 0;
    this.fill();
  }

  heads() {
    this.arrows = new Map();
    const cells = this.columns().map((column) => {
      const arrow = make("span", { "aria-hidden": "true" });
      const press = () => this.sortBy(column.name);
      const head = make("th", { scope: "col", class: column.words ? "words" : null }, make("button", { type: "button", title: column.title, on: { click: press } }, column.name, arrow));
      this.arrows.set(column.name, [head, arrow]);
      return head;
    });
    document.querySelector("#list-table thead").replaceChildren(make("tr", {}, ...cells));
  }

  fill() {
    const columns = this.columns(), column = columns.find((one) => one.name === this.sort.by);
    const wanted = element("list-find").value.trim().toLowerCase(), { outcome } = this;
    const rows = this.rows.filter((row) => (!outcome || row.outcome === outcome) && (!wanted || row.words.includes(wanted)));
    const flip = this.sort.down ? -1 : 1;
    rows.sort((a, b) => {
      const [one, other] = [column.of(a), column.of(b)];
      if (one === null || other === null) return (one === null) - (other === null) || a.index - b.index;
      return flip * (typeof one === "string" ? one.localeCompare(other) : one - other) || a.index - b.index;
    });
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const shown = rows.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const cell = (column, row) => make("td", { class: `${column.words ? "words" : ""} ${column.name === "Question" ? "question" : ""}`, "data-name": column.name }, column.cell ? column.cell(row) : column.shown(row));
    document.querySelector("#list-table tbody").replaceChildren(...shown.map((row) => make("tr", {}, ...columns.map((one) => cell(one, row)))));
    for (const [name, [head, arrow]] of this.arrows) {
      const active = name === this.sort.by;
      head.setAttribute("aria-sort", active ? (this.sort.down ? "descending" : "ascending") : "none");
      arrow.textContent = active ? (this.sort.down ? "↓" : "↑") : "";
    }
    element("list-sort").value = this.sort.by;
    element("list-count").textContent = rows.length === this.rows.length ? "" : `${whole(rows.length)} of ${whole(this.rows.length)} questions`;
    const paged = pages > 1;
    for (const id of ["list-earlier", "list-page", "list-later"]) element(id).hidden = !paged;
    element("list-page").textContent = `${this.page + 1} / ${pages}`;
    element("list-earlier").disabled = this.page === 0;
    element("list-later").disabled = this.page === pages - 1;
    for (const scroller of [element("list"), document.querySelector(".table-wrap")]) scroller.scrollTop = 0;
  }
}
