// The list of a run's questions.

const PAGE = 100;

class List {
  constructor(facts, embedded) {
    this.rows = facts.rows.map((row, index) => ({ ...row, index, has: embedded(index), words: `${row.question} ${row.answer ?? ""} ${row.key}`.toLowerCase() }));
    this.sort = { by: "#", down: false };
    this.page = 0;
    const outcomes = [...new Set(this.rows.map((row) => row.outcome))].sort();
    const counted = outcomes.map((outcome) => make("option", { value: outcome }, `${outcome} (${whole(this.rows.filter((row) => row.outcome === outcome).length)})`));
    element("list-outcome").replaceChildren(make("option", { value: "" }, "all"), ...counted);
    const again = () => { this.page = 0; this.fill(); };
    element("list-outcome").onchange = again;
    element("list-find").oninput = again;
    element("list-earlier").onclick = () => { this.page -= 1; this.fill(); };
    element("list-later").onclick = () => { this.page += 1; this.fill(); };
    if (facts.left_out) {
      const note = element("list-note");
      note.hidden = false;
      note.textContent = `${whole(facts.left_out)} of ${whole(this.rows.length)} trees are left out of this file; `
        + "their rows say so. Write one with: alphazero-llm-trainer view RUN --question ID";
    }
    this.heads();
    this.fill();
  }

  columns() {
    const share = (value) => (value === null ? "–" : `${Math.round(value * 100)}%`);
    return [
      { name: "#", title: "order in the journal", of: (row) => row.index, shown: (row) => whole(row.index + 1) },
      { name: "Question", title: "click to open its tree", words: true, of: (row) => row.question, cell: (row) => this.link(row) },
      { name: "Outcome", title: "of the sampled responses", words: true, of: (row) => row.outcome, cell: (row) => make("span", { class: `chip ${row.outcome}` }, row.outcome) },
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

  heads() {
    this.arrows = new Map();
    const cells = this.columns().map((column) => {
      const arrow = make("span", { "aria-hidden": "true" });
      const press = () => {
        this.sort.down = this.sort.by === column.name ? !this.sort.down : !column.words && column.name !== "#";
        this.sort.by = column.name;
        this.page = 0;
        this.fill();
      };
      const head = make("th", { scope: "col", class: column.words ? "words" : null }, make("button", { type: "button", title: column.title, on: { click: press } }, column.name, arrow));
      this.arrows.set(column.name, [head, arrow]);
      return head;
    });
    document.querySelector("#list-table thead").replaceChildren(make("tr", {}, ...cells));
  }

  fill() {
    const columns = this.columns(), column = columns.find((one) => one.name === this.sort.by);
    const wanted = element("list-find").value.trim().toLowerCase(), outcome = element("list-outcome").value;
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
    document.querySelector("#list-table tbody").replaceChildren(...shown.map((row) =>
      make("tr", {}, ...columns.map((one) => make("td", { class: one.words ? `words ${one.name === "Question" ? "question" : ""}` : null }, one.cell ? one.cell(row) : one.shown(row))))));
    for (const [name, [head, arrow]] of this.arrows) {
      const active = name === this.sort.by;
      head.setAttribute("aria-sort", active ? (this.sort.down ? "descending" : "ascending") : "none");
      arrow.textContent = active ? (this.sort.down ? "↓" : "↑") : "";
    }
    element("list-count").textContent = rows.length === this.rows.length ? `${whole(rows.length)} questions` : `${whole(rows.length)} of ${whole(this.rows.length)} questions`;
    const paged = pages > 1;
    for (const id of ["list-earlier", "list-page", "list-later"]) element(id).hidden = !paged;
    element("list-page").textContent = `${this.page + 1} / ${pages}`;
    element("list-earlier").disabled = this.page === 0;
    element("list-later").disabled = this.page === pages - 1;
    document.querySelector(".table-wrap").scrollTop = 0;
  }
}
