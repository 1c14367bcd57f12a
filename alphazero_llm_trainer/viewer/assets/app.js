// The page: which part of it is shown, light and dark, and the keys that work everywhere.

const facts = JSON.parse(element("facts").textContent);
const page = { view: null, list: null, index: -1 };

function show(index, node) {
  const holder = element(`tree-${index}`);
  page.index = index;
  page.view?.close();
  page.view = null;
  element("list").hidden = holder !== null;
  element("view").hidden = holder === null;
  element("back").hidden = holder === null || (facts.single && !facts.home);
  const row = facts.rows.find((one) => one.number === index), chip = element("outcome");
  chip.hidden = holder === null;
  element("title").textContent = holder === null ? facts.title : row.question || facts.title;
  element("title").title = element("title").textContent;
  document.title = holder === null || facts.single ? facts.title : `${row.id} · ${facts.title}`;
  if (holder === null) return;
  chip.className = `chip ${row.outcome}`;
  chip.textContent = OUTCOMES[row.outcome];
  page.view = new TreeView(new Model(JSON.parse(holder.textContent), row), node);
}

// #tree-3 is a question's tree, #tree-3/node-17 one of its nodes; a page of one tree needs no more than #node-17.
function route() {
  const [, tree = -1, node = 0] = /^#(?:tree-(\d+))?\/?(?:node-(\d+))?$/.exec(location.hash) ?? [];
  show(facts.single ? 0 : Number(tree), Number(node));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (page.view === null) return;
  page.view.painter.theme();
  page.view.panel.show(page.view.selected);
  legend(page.view.painter, page.view.model);
}

function keys() {
  element("keys-list").replaceChildren(...KEYS.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]));
  element("keys").showModal();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => theme(prefersDark.matches ? "dark" : "light"));
theme(prefersDark.matches ? "dark" : "light");
element("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
element("help").onclick = keys;
element("back").onclick = () => { if (facts.home) location.href = facts.home; else location.hash = ""; };
if (facts.home) element("back-to").textContent = "All traces";
addEventListener("hashchange", () => { route(); if (page.view !== null) element("canvas").focus({ preventScroll: true }); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || element("keys").open) return;
  const target = event.target;
  if (target.matches("input, select, textarea")) return;
  // A focused control keeps its own keys.
  if ((event.key === " " || event.key === "Enter") && target.matches("button, summary, a")) return;
  if (event.key.startsWith("Arrow") && target !== element("canvas") && target !== document.body) return;
  if (event.key === "t") element("theme").click();
  else if (event.key === "?") keys();
  else if (event.key === "Escape" && !element("view").hidden && !element("back").hidden) element("back").click();
  else if (page.view === null || !page.view.key(event)) return;
  event.preventDefault();
});
if (!facts.single) page.list = new List(facts, (index) => element(`tree-${index}`) !== null);
route();
// For tests and for the curious: everything that is on the screen.
window.viewer = page;
