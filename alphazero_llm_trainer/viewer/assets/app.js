// The page: which part of it is shown, light and dark, and the keys.

const facts = JSON.parse(element("facts").textContent);
const page = { view: null };

// #tree-3 is a question's tree, #tree-3/node-17 one of its nodes; a page of one tree needs no more than #node-17.
function route() {
  const [, tree = -1, node = 0] = /^#(?:tree-(\d+))?\/?(?:node-(\d+))?$/.exec(location.hash) ?? [];
  const index = facts.single ? 0 : Number(tree), holder = element(`tree-${index}`), row = facts.rows.find((one) => one.number === index);
  page.view = null;
  element("list").hidden = holder !== null || facts.asks === true;
  element("view").hidden = element("outcome").hidden = holder === null;
  element("back").hidden = holder === null || facts.single;
  element("title").textContent = element("title").title = (holder && row?.question) || facts.title;
  document.title = holder === null || facts.single ? facts.title : `${row.id} · ${facts.title}`;
  if (holder === null) return;
  element("outcome").className = `chip ${row.outcome}`;
  element("outcome").textContent = OUTCOMES[row.outcome];
  page.view = new TreeView(new Model(JSON.parse(holder.textContent), row), Number(node));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
theme(dark.matches ? "dark" : "light");
element("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
element("more").onclick = () => element("tools").classList.toggle("open");
element("back").onclick = () => { location.hash = ""; };
addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if ((event.key === " " || event.key === "Enter") && event.target.matches("button, summary, a")) return;
  if (event.key === "t") element("theme").click();
  else if (event.key === "Escape" && !element("back").hidden) element("back").click();
  else if (page.view === null || !page.view.key(event.key)) return;
  event.preventDefault();
});
element("tools").hidden = facts.asks === true;
if (!facts.single) page.list = new List(facts);
route();
window.viewer = page; // for tests and for the curious
