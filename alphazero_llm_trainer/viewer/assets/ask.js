// A question to this page's server, and its tree as it grows.

const ROLLOUT = ["node", "token_ids", "logprobs", "text", "verdict", "reward", "hre", "pre", "count", "samples", "outcome", "mask"];
const asked = { question: "", before: "", key: "", stop: null, began: 0, clock: 0, drawn: 0 };
const REPLAY = 2500; // milliseconds in which a tree that was there at once grows again

// Show a tree as far as it has grown, with the steps that are being drawn; what was selected stays so.
function grow(tree, about) {
  const rollouts = tree.rollouts.map((row) => Object.fromEntries(ROLLOUT.map((name, at) => [name, row[at] ?? null])));
  const record = { tree: { ...tree, rollouts }, question: asked.question + (asked.before && `\n\n${asked.before}`), begins: asked.before, ...about };
  const at = page.view?.selected ?? 0, hidden = element("panel").hidden || page.view === null;
  element("view").hidden = false;
  page.view = new TreeView(new Model(record, { outcome: "ungraded" }), at);
  page.view.showUnvisited = about.why === undefined;
  page.view.draw();
  element("panel").hidden = hidden;
}

// A search of few simulations ends before its growth can be seen. A selection ends the replay.
async function replay(view, selected) {
  for (let at = 0; at <= view.model.steps && page.view === view && view.selected === selected; at++) {
    view.step(at);
    await new Promise((go) => setTimeout(go, REPLAY / (view.model.steps + 1)));
  }
}

function said(text) {
  clearInterval(asked.clock);
  element("answer").textContent = text;
}

// How long the search takes so far.
function searching() {
  const grown = page.view ? `, ${whole(page.view.model.steps)} simulations, ${whole(page.view.model.count - 1)} steps` : "";
  element("answer").textContent = `searching: ${whole(Math.round((Date.now() - asked.began) / 1000))} s${grown}`;
}

// What came of a line of server-sent events.
function heard(line) {
  if (!line.startsWith("data: {")) return;
  const chunk = JSON.parse(line.slice(6));
  if (chunk.error) { said(chunk.error.message); return; }
  const about = chunk.alphazero;
  if (!about?.tree) return;
  const done = about.why !== undefined;
  grow(about.tree, { pieces: about.pieces, ...(done && { chosen: about.node, response: about.response, answer: about.answer, why: about.why }) });
  asked.drawn += 1;
  if (done && asked.drawn < 4 && !matchMedia("(prefers-reduced-motion: reduce)").matches) replay(page.view, page.view.selected);
  if (done) said(`${about.answer ?? "no answer"} — ${about.why}, ${whole(about.sampled_tokens)} tokens\n${asked.before}${about.response}`);
}

async function ask(before) {
  asked.stop?.abort();
  const stop = (asked.stop = new AbortController());
  clearInterval(asked.clock);
  element("question").value ||= element("question").placeholder;
  Object.assign(asked, { question: element("question").value, before, drawn: 0, began: Date.now(), clock: setInterval(searching, 500) });
  page.view = null;
  element("view").hidden = element("further").hidden = element("legend").hidden = true;
  searching();
  const messages = [{ role: "user", content: asked.question }];
  if (before) messages.push({ role: "assistant", content: before });
  const body = { model: element("method").value, messages, budget_tokens: Number(element("budget").value), stream: true, return_tree: true };
  const headers = { "Content-Type": "application/json", ...(asked.key && { Authorization: `Bearer ${asked.key}` }) };
  try {
    const answer = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(before ? { ...body, continue_final_message: true } : body), signal: stop.signal });
    if (answer.status === 401) {
      asked.key = prompt("This server wants an API key") ?? "";
      if (asked.key) return await ask(before);
    }
    if (!answer.ok) return said((await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(heard);
    }
  } catch (error) {
    if (!stop.signal.aborted) said(`the server can't be reached (${error.message})`);
  }
}

element("ask").onsubmit = (event) => { event.preventDefault(); ask(""); };
element("further").onclick = () => { if (page.view) ask(asked.before + page.view.model.phrase(page.view.selected, 0)); };
