"""The viewer: what a page holds, that no text in it can act, the command's errors, and a real click-through in Chromium."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support import ScriptedAdvisor, ScriptedPolicy, ScriptedTokens, a_problem, hashed_reward, run, scripted_evaluate

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Judgement, TeacherProposal
from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.mcts.driver import Search, SearchResult
from alphazero_llm_trainer.mcts.select import step_priors
from alphazero_llm_trainer.mcts.tree import ROOT, Tree
from alphazero_llm_trainer.report.trees import TreeReader, find_source
from alphazero_llm_trainer.types import Direction, Problem, RewardParts, Step
from alphazero_llm_trainer.viewer import page as page_module
from alphazero_llm_trainer.viewer.page import run_page, tree_page
from alphazero_llm_trainer.viewer.record import row

ASSETS = Path(page_module.__file__).parent / "assets"
HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2">\u2028&amp;\ud83d'


async def graded(problem: Problem, steps: Any, directions: Any, verdict: str) -> RewardParts:
    """A reward with a correctness part, as in training."""
    text = "".join(step.text for step in steps)
    return RewardParts(hashed_reward(text), hre=float(verdict == "answer" and text.endswith("1")), pre=0.5)


def search(
    policy: Any, seed: int = 0, evaluate: Any = scripted_evaluate, tree: Tree | None = None, **more: Any
) -> SearchResult:
    advisor = more.pop("advisor", None)
    one = Search(policy, evaluate, SearchConfig(**{"max_tokens": 60, "max_depth": 6, **more}), advisor)
    return run(lambda: one.run(a_problem(), seed, tree))


def taught(seed: int = 3, iterations: int = 40) -> SearchResult:
    """A graded step tree with a teacher's right and wrong steps."""
    steps = [("w0\n", Direction.RIGHT), ("w9 is wrong\n", Direction.WRONG)]
    advisor = ScriptedAdvisor([TeacherProposal(text.strip(), "teacher:t", asked) for text, asked in steps])
    return search(ScriptedPolicy(seed), seed, graded, advisor=advisor, iterations=iterations, samples=3)


def record_of(result: SearchResult, key: str = "k1", **more: Any) -> dict[str, Any]:
    choice = result.choice
    assert choice is not None
    problem = {"id": f"q-{key}", "question": f"question {key}?", "source": "scripted"}
    return {
        "key": key,
        "problem": problem,
        "ended_by": result.ended_by,
        "cost": result.cost.as_dict(),
        "chosen": choice.node,
        "answer": choice.answer,
        "why": choice.why,
        "search": {"rule": "ucb1", "exploration": 2**0.5},
        "tree": json.loads(json.dumps(result.tree.to_dict())),
        **more,
    }


class Data(HTMLParser):
    """The page's data blocks, its script, and every attribute that could fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: dict[str, str] = {}
        self.fetching: list[str] = []
        self.scripts = 0
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.fetching += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.fetching += [tag] if tag in ("link", "iframe", "img", "object", "embed", "base") else []
        self._id = ""
        if tag == "script":
            self.scripts += named.get("type") != "application/json"
            self._id = named.get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self.blocks[self._id] = self.blocks.get(self._id, "") + data

    def tree(self, number: int = 0) -> dict[str, Any]:
        return json.loads(self.blocks[f"tree-{number}"])


# -- the history -------------------------------------------------------------------------------------------------------


def replay(tree: Tree, simulations: int | None = None) -> tuple[list[int], list[float]]:
    """N and W after so many simulations (None: all)."""
    visits, sums = [0] * len(tree), [0.0] * len(tree)
    upto = len(tree.backups) if simulations is None else ([0] + [end for *_, end in tree.simulations])[simulations]
    for start, reward, above in tree.backups[:upto]:
        node = start
        while node != above:
            visits[node] += 1
            sums[node] += reward
            node = tree.parent[node]
    return visits, sums


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kind", ["ucb1", "puct", "token"])
def test_a_trees_history_replays_to_its_visits_and_values_exactly(kind: str, width: int) -> None:
    if kind == "token":
        tree = search(ScriptedTokens(4), mode="token", iterations=50, width=width).tree
    else:
        tree = search(ScriptedPolicy(4), select=kind, iterations=50, samples=3, width=width).tree
    assert replay(tree) == (tree.N, tree.W)
    assert len(tree.simulations) == 50 and tree.simulations[-1][1:] == (len(tree), len(tree.backups))
    assert [nodes for _, nodes, _ in tree.simulations] == sorted(nodes for _, nodes, _ in tree.simulations)
    for number, (leaf, nodes, _) in enumerate(tree.simulations, 1):
        visits, _ = replay(tree, number)
        assert not any(visits[nodes:]) and leaf < nodes  # what isn't there yet isn't visited


def test_a_tree_that_is_searched_further_keeps_its_history_and_an_old_one_is_read_without() -> None:
    result = search(ScriptedPolicy(4), iterations=10)
    raw = json.loads(json.dumps(result.tree.to_dict()))
    again = search(ScriptedPolicy(4), 1, tree=Tree.from_dict(raw), iterations=10).tree
    assert len(again.simulations) == 20 and replay(again) == (again.N, again.W)
    del raw["history"]
    old = Tree.from_dict(raw)
    assert old.N == result.tree.N and not old.simulations and not old.backups


# -- pages -------------------------------------------------------------------------------------------------------------


def test_a_page_needs_nothing_else_and_no_text_in_it_can_act() -> None:
    record = record_of(taught())
    record["problem"] = {"id": HOSTILE, "question": HOSTILE, "source": HOSTILE}
    record["tree"]["text"][1] = record["tree"]["source"][1] = record["answer"] = HOSTILE
    text = tree_page(record, title=HOSTILE)
    page = Data(text)
    assert page.fetching == [] and page.scripts == 1 and "window.hacked=1</script>" not in text
    assert page.tree()["question"] == page.tree()["tree"]["text"][1] == HOSTILE
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\b", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    text.encode()  # a lone surrogate in a model's text is written all the same


def test_no_script_of_the_page_makes_markup_out_of_text() -> None:
    for name in page_module.SCRIPTS:
        script = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script), (
            name
        )
    assert {path.name for path in ASSETS.iterdir()} == {*page_module.SCRIPTS, "page.html", "page.css", "traces.html"}


def test_a_page_holds_the_trees_own_numbers() -> None:
    record = record_of(taught())
    drawn = Data(tree_page(record, title="t")).tree()["tree"]
    for name in (
        "parent",
        "N",
        "W",
        "V",
        "prior",
        "prm",
        "verdict",
        "reward",
        "hre",
        "source",
        "direction",
        "text",
        "history",
    ):
        assert drawn[name] == record["tree"][name], name
    for shown, stored in zip(drawn["logprobs"], record["tree"]["logprobs"], strict=True):
        assert shown == pytest.approx(stored, abs=1e-6)


def test_a_row_says_what_came_of_a_question() -> None:
    result = taught()
    record = record_of(result)
    one, tree = row(record), result.tree
    leaves = [leaf for leaf in tree.leaves() if tree.N[leaf]]
    assert (one.samples, one.right) == (
        sum(tree.samples),
        sum(tree.samples[leaf] for leaf in leaves if tree.hre[leaf] == 1),
    )
    assert one.outcome == "mixed" and 0 < one.right < one.samples and one.simulations == 40
    assert (one.nodes, one.tokens, one.reward) == (len(tree), result.cost.sampled_tokens, 0.5)
    counts: dict[str, int] = {}
    for leaf in leaves:
        if tree.verdict[leaf] == "answer":
            answer = tree.response(leaf).rsplit("#### ", 1)[1]
            counts[answer] = counts.get(answer, 0) + tree.samples[leaf]
    assert counts[one.answer] == max(counts.values())  # type: ignore[index]
    assert one.answer_right is (one.answer == "1")
    assert row(record_of(search(ScriptedPolicy(4), iterations=5))).outcome == "ungraded"
    assert row({"key": "f", "ended_by": "failed: too long", "tree": Tree().to_dict()}).outcome == "failed"
    assert row({"key": "n", "tree": Tree().to_dict()}).outcome == "none"


def many(count: int) -> Iterator[dict[str, Any]]:
    """Every third one has mixed outcomes, the others are failures."""
    mixed = record_of(taught(iterations=4))
    for i in range(count):
        failed = {"key": f"k{i}", "problem": {"id": f"q-k{i}"}, "ended_by": "failed: x", "tree": Tree().to_dict()}
        yield {**mixed, "key": f"k{i}"} if i % 3 == 0 else failed


def test_a_run_page_lists_everything_and_embeds_the_most_interesting_trees() -> None:
    page = Data(run_page(many(30), title="run", limit=4))
    facts = json.loads(page.blocks["facts"])
    assert len(facts["rows"]) == 30 and facts["left_out"] == 26
    assert [name for name in page.blocks if name != "facts"] == ["tree-0", "tree-3", "tree-6", "tree-9"]
    assert page.tree(3)["key"] == "k3"
    whole = Data(run_page(many(3), title="run", limit=200))
    assert json.loads(whole.blocks["facts"])["left_out"] == 0 and len(whole.blocks) == 4


def test_a_run_page_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(run_page(many(1), title="", limit=1)) - len(run_page([], title="", limit=1))
    monkeypatch.setattr(page_module, "MOST_BYTES", 3 * one)
    blocks = Data(run_page(many(90), title="run", limit=200)).blocks
    embedded = [len(text) for name, text in blocks.items() if name != "facts"]
    assert 2 * one < sum(embedded) <= 3 * one and json.loads(blocks["facts"])["left_out"] == 90 - len(embedded)


def test_a_long_list_is_bounded_and_its_totals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_ROWS", 8)
    page = Data(run_page(many(30), title="run", limit=200))
    facts = json.loads(page.blocks["facts"])
    assert [one["number"] for one in facts["rows"]] == [0, 3, 6, 9, 12, 15, 18, 21]  # the mixed ones, the first of them
    assert [name for name in page.blocks if name != "facts"] == [f"tree-{3 * i}" for i in range(8)]
    assert page.tree(21)["key"] == facts["rows"][-1]["key"] == "k21"
    assert facts["questions"] == 30 and facts["outcomes"] == {"mixed": 10, "failed": 20} and facts["left_out"] == 22
    alone = row(next(iter(many(1))))
    assert facts["sums"]["nodes"] == 10 * alone.nodes + 20


@pytest.mark.parametrize("broken", [{}, {"tree": {}}, {"tree": {**Tree().to_dict(), "N": []}}, {"tree": 3}])
def test_a_record_without_a_tree_is_a_sentence(broken: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="tree"):
        tree_page({"key": "k", **broken}, title="t")
    looped = Tree().to_dict()
    with pytest.raises(DataError, match="before its parent"):
        tree_page({"tree": {**looped, "parent": [0]}}, title="t")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real sample folder: the embedded student and its scripted teacher, harder problems, and a half-written line."""
    folder = tmp_path_factory.mktemp("view") / "sample"
    settings = ("problems.levels=[3,4]", "train.iterations=12", "search.temperature=1.3", "teachers.tier=embedded")
    more = [part for setting in settings for part in ("--set", setting)]
    assert main(["sample", "--student", "embedded", "--out", str(folder), "--num-examples", "6", *more]) == 0
    with (folder / "shard-00000.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


def view(*arguments: Any) -> int:
    return main(["view", *map(str, arguments)])


def test_a_run_is_a_list_and_a_question_is_a_tree(sampled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view(sampled) == 0
    assert "6 questions in" in capsys.readouterr().out
    assert [path.name for path in sampled.glob("*.html")] == ["trees.html"]
    page = Data((sampled / "trees.html").read_text(encoding="utf-8"))
    rows = json.loads(page.blocks["facts"])["rows"]
    assert len(rows) == 6 and len(page.blocks) == 7
    records = {record["key"]: record for record in find_source(sampled)}
    for number, one in enumerate(rows):
        record, drawn = records[one["key"]], page.tree(number)
        assert one["tokens"] == record["cost"]["sampled_tokens"] and one["nodes"] == len(record["tree"]["parent"])
        assert one["simulations"] == len(record["tree"]["history"]["simulations"])
        assert drawn["tree"]["N"] == record["tree"]["N"] and drawn["search"] == {"rule": "ucb1", "exploration": 2**0.5}
        # The student's tokens read as its text.
        for ids, text in zip(drawn["tree"]["token_ids"], drawn["tree"]["text"], strict=True):
            assert "".join(drawn["pieces"][str(token)] for token in ids).replace("<eos>", "") == text
    assert view(sampled, "--question", rows[2]["id"], "--out", sampled / "one.html") == 0
    single = Data((sampled / "one.html").read_text(encoding="utf-8"))
    assert single.tree()["key"] == rows[2]["key"] and json.loads(single.blocks["facts"])["single"]
    assert view(sampled / "shard-00000.jsonl", "--trees", "2") == 0
    assert json.loads(Data((sampled / "shard-00000.html").read_text(encoding="utf-8")).blocks["facts"])["left_out"] == 4


def test_a_search_printed_as_json_is_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--student", "embedded", "--mode", "token", "--iterations", "20", "--json"]) == 0
    (tmp_path / "one.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert view(tmp_path / "one.json") == 0
    drawn = Data((tmp_path / "one.html").read_text(encoding="utf-8")).tree()
    raw = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    assert drawn["chosen"] == raw["chosen"] and drawn["search"]["rule"] == "puct" and drawn["pieces"]
    # An older file names no choice: it is made again from the tree.
    for name in ("chosen", "search", "response"):
        raw.pop(name)
    (tmp_path / "old.json").write_text(json.dumps(raw), encoding="utf-8")
    source = find_source(tmp_path / "old.json")
    [record] = [TreeReader(source, None)(record) for record in source]
    assert record["chosen"] == drawn["chosen"] and "search" not in record


def test_mistakes_are_one_sentence(sampled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, text = tmp_path / "empty.jsonl", tmp_path / "text.json"
    empty.write_text('{"key": "half')
    text.write_text("[1]")
    (tmp_path / "alone").mkdir()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for arguments, said in (
        ([tmp_path / "nowhere"], "is not there"),
        ([tmp_path / "alone"], "name a run folder or a journal"),
        ([sampled.parent], "such as"),
        ([empty], "no finished tree"),
        ([text], "holds no tree"),
        ([sampled, "--question", "q-none"], "'q-none'"),
        ([sampled, "--trees", "0"], "--trees is 0"),
        ([sampled, "--out", tmp_path / "no" / "where.html"], "can't be written"),
        ([sampled, "--tokenizer", tmp_path], "no tokenizer.json"),
        ([sampled, "--tokenizer", tmp_path / "config.json"], "is not a tokenizer.json"),
    ):
        assert view(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and said in error, error


# -- in Chromium -------------------------------------------------------------------------------------------------------


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = shutil.which("chromedriver")
    if chromium() is None or driver is None:
        pytest.skip(
            "NOT TESTED in a browser: chromium or chromedriver is missing; apt-get install chromium chromium-driver"
        )
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium())
    flags = (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--window-size=1280,800",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    )  # fmt: skip
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    one = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield one
    one.quit()


class Screen:
    """A page in the browser, and what a person does with it."""

    def __init__(self, browser: Any, path: Path, text: str | None = None, size: tuple[int, int] = (1280, 800)) -> None:
        self.browser = browser
        if text is not None:
            path.write_text(text, encoding="utf-8")
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        file, _, place = str(path).partition("#")
        browser.get(Path(file).as_uri() + (f"#{place}" if place else ""))

    def js(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(f"const v = viewer.view; return {code}", *arguments)

    def one(self, css: str) -> Any:
        return self.browser.find_element("css selector", css)

    def all(self, css: str) -> list[Any]:
        return self.browser.find_elements("css selector", css)

    def keys(self, *keys: str) -> None:
        self.one("#canvas").send_keys(*keys)

    def click_node(self, node: int, double: bool = False) -> None:
        """A real mouse click on the node's card."""
        self.js("(v.painter.bring(arguments[0]), v.painter.draw())", node)
        self.click_at(*self.place(node, "30"), double)

    def place(self, card: int, offset: str) -> tuple[float, float]:
        """The point of the canvas so many units right of the card's left edge; `offset` may be an expression of `card`."""
        return self.js(
            f"((card) => [(v.layout.x[card] + ({offset}) - v.painter.camera.x) * v.painter.across,"
            " (v.layout.y[card] - v.painter.camera.y) * v.painter.camera.zoom])(arguments[0])",
            card,
        )

    def click_at(self, x: float, y: float, double: bool = False) -> None:
        """A real mouse click at a point of the tree's canvas."""
        self.click_on(self.one("#canvas"), x, y, double)

    def click_on(self, target: Any, x: float, y: float, double: bool = False) -> None:
        """A real mouse click at a point of an element."""
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.browser)
        chain.move_to_element_with_offset(target, int(x - target.size["width"] / 2), int(y - target.size["height"] / 2))
        (chain.double_click() if double else chain.click()).perform()

    def stat(self, name: str) -> str:
        found = self.all(f'[data-stat="{name}"]')
        return found[0].text if found else ""

    def choose(self, css: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.one(css)).select_by_value(value)

    def until(self, code: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 20).until(lambda _: self.js(code))

    def quiet(self) -> None:
        """Nothing was logged, nothing was fetched, no text acted."""
        assert [entry["message"] for entry in self.browser.get_log("browser")] == []
        assert self.browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert self.browser.execute_script("return window.hacked === undefined")


@pytest.fixture
def tree_screen(browser: Any, tmp_path: Path) -> Iterator[tuple[Screen, dict[str, Any]]]:
    record = record_of(taught())
    screen = Screen(browser, tmp_path / "tree.html", tree_page(record, title="one tree"))
    yield screen, record
    screen.quiet()


def fixed(value: float) -> str:
    return f"{value:.3f}"


def test_a_click_shows_the_nodes_own_numbers(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    tree = Tree.from_dict(record["tree"])
    shown = [node for node in screen.js("v.layout.order") if node > 0]
    assert len(shown) > 10
    for node in [*shown[:6], shown[-1]]:
        screen.click_node(node)
        assert screen.js("v.selected") == node and screen.one("#panel-title").text == f"Node {node}"
        assert screen.one("#panel-text").text == (tree.text[node].rstrip("\n") or "(no text)")
        assert (screen.stat("Visits N"), screen.stat("Mean value Q")) == (str(tree.N[node]), fixed(tree.q(node)))
        if tree.N[node]:
            bonus = 2**0.5 * math.sqrt(math.log(tree.N[tree.parent[node]]) / tree.N[node])
            assert screen.stat("U") == fixed(bonus)
        chips = screen.all("#tokens .token")
        assert len(chips) == len(tree.token_ids[node])
        for chip, nats in zip(chips, tree.logprobs[node], strict=True):
            assert f"{nats:.3f} nats, p = {math.exp(nats):.4f}" in chip.get_attribute("title")
        chips[0].click()
        assert "nats" in screen.one("#readout").text
        siblings = tree.children[tree.parent[node]]
        rows = screen.all("#siblings tbody tr")
        assert {int(one.get_attribute("data-node")) for one in rows} == set(siblings)
        assert screen.one("#siblings tr.current").get_attribute("data-node") == str(node)
        assert [int(one.find_elements("css selector", "td")[1].text) for one in rows] == sorted(
            (tree.N[sibling] for sibling in siblings), reverse=True
        )
    # Sort by another column, and go to a sibling by its name.
    screen.js("v.select(arguments[0], true)", next(node for node in shown if len(tree.children[tree.parent[node]]) > 1))
    by_q = next(button for button in screen.all("#siblings th button") if button.text == "Q")
    by_q.click()
    shown_q = [one.find_elements("css selector", "td")[2].text for one in screen.all("#siblings tbody tr")]
    assert shown_q == sorted(shown_q, reverse=True)
    other = next(one for one in screen.all("#siblings tbody tr") if one.get_attribute("class").strip() != "current")
    node = int(other.get_attribute("data-node"))
    other.find_element("css selector", "button").click()
    assert screen.js("v.selected") == node


def test_marks_colours_and_widths_say_what_the_tree_says(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    tree = Tree.from_dict(record["tree"])
    for node, mark in enumerate(screen.js("v.model.mark")):
        expected = tree.verdict[node]
        if expected == "answer":
            expected = "right" if tree.hre[node] == 1 else "wrong"
        assert mark == expected
    assert sorted(screen.js("[...v.model.chosen]")) == [ROOT, *tree.path(record["chosen"])]
    teachers = [node for node in range(len(tree)) if tree.source[node] == "teacher:t"]
    assert teachers and {tree.direction[node] for node in teachers} == {"right", "wrong"}
    outlines = {screen.js("v.painter.outline(v.model.source[arguments[0]])", node) for node in (teachers[0], 0)}
    assert len(outlines) == 2
    widths = {
        node: float(screen.js("v.painter.edgeStyle(arguments[0])", node).split()[1]) for node in range(1, len(tree))
    }
    off = [node for node in widths if node not in tree.path(record["chosen"])]
    order = sorted(off, key=lambda node: tree.N[node])
    assert [widths[node] for node in order] == sorted(widths[node] for node in order) and len(set(widths.values())) > 3
    screen.one("#legend summary").click()
    said = screen.one("#legend-body").text
    assert all(
        word in said for word in ("mean value Q", "visits", "chosen path", "teacher:t", "likely right", "right answer")
    )


def test_colours_span_the_trees_own_values_and_the_legend_says_which(browser: Any, tmp_path: Path) -> None:
    tree = Tree()
    for value in (0.41, 0.46, 0.52):
        tree.attach(ROOT, Step((1,), (-0.5,), f"worth {value}\n"))
        tree.backup(len(tree) - 1, value)
    screen = Screen(browser, tmp_path / "narrow.html", tree_page({"question": "?", "tree": tree.to_dict()}, title="n"))
    ends = screen.js("[v.painter.values[0], v.painter.values[64]]")
    assert [screen.js("v.painter.colour(arguments[0])", node) for node in (1, 3)] == ends
    assert screen.js("v.painter.colour(2)") not in ends
    assert screen.one("#legend summary").text.split() == ["Q", "0.41", "to", "0.52", "Legend"]
    assert screen.one("#ramp").is_displayed()
    screen.one("#legend summary").click()
    assert "least, 0.41, to its greatest, 0.52" in screen.one("#legend-body").text
    flat = Tree()
    for number in range(3):
        flat.attach(ROOT, Step((1,), (-0.5,), f"step {number}\n"))
        flat.backup(number + 1, 1.0)
    screen = Screen(browser, tmp_path / "flat.html", tree_page({"question": "?", "tree": flat.to_dict()}, title="f"))
    assert "Q 1.00 in all nodes" in screen.one("#legend summary").text and not screen.one("#ramp").is_displayed()
    screen.quiet()


def test_stepping_shows_the_simulations_as_they_happened(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    tree = Tree.from_dict(record["tree"])
    assert "simulation 40 / 40" in screen.one("#step-said").text

    def check(step: int) -> None:
        visits, sums = replay(tree, step)
        assert screen.js("v.model.at") == step
        assert screen.js("v.model.N") == visits and screen.js("v.model.W") == pytest.approx(sums)
        if 0 < step < 40:
            leaf, nodes, _ = tree.simulations[step - 1]
            assert screen.js("v.model.leaf") == leaf and screen.js("v.model.born") == nodes
            assert f"simulation {step} / 40 · leaf {leaf}" in screen.one("#step-said").text
        screen.js("v.select(0)")
        assert screen.stat("Visits N") == str(visits[0])

    screen.keys("{")
    check(0)
    screen.keys("]", "]", "]")
    check(3)
    screen.one("#next").click()
    check(4)
    screen.keys("[")
    check(3)
    for step in (25, 11, 39, 40, 7):
        screen.js("(v.steps.slider.value = arguments[0], v.steps.slider.dispatchEvent(new Event('input')))", step)
        check(step)
    screen.one("#follow").click()
    screen.one("#slider").send_keys("\ue014")  # the arrow key of the slider itself
    check(8)
    screen.choose("#speed", "60")
    screen.one("#play").click()
    screen.until("v.model.done")
    assert screen.one("#play").get_attribute("aria-label") == "Play"
    check(40)


def test_keys_fold_move_and_zoom(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    tree = Tree.from_dict(record["tree"])
    screen.one("#unfold").click()
    assert len(screen.js("v.layout.order")) == len(tree)
    screen.keys("\ue011")  # home
    before = len(tree)
    screen.keys(" ")
    assert screen.js("v.layout.order") == [0] and f"1 of {before} nodes" in screen.one("#shown").text
    assert "folded" in screen.one("#said").text
    screen.keys(" ")
    screen.keys("\ue014")  # right: the most visited child
    best = max(tree.children[0], key=lambda child: (tree.N[child], -child))
    assert screen.js("v.selected") == best
    screen.keys("\ue015")  # down
    assert screen.js("v.selected") != best and screen.js("v.model.depth[v.selected]") == 1
    screen.keys("\ue013", "\ue012")  # up, left
    assert screen.js("v.selected") == 0
    screen.keys("c")
    assert screen.js("v.selected") == record["chosen"]
    zoom = screen.js("v.painter.camera.zoom")
    screen.keys("+")
    assert screen.js("v.painter.camera.zoom") > zoom
    screen.keys("-", "-")
    assert screen.js("v.painter.camera.zoom") < zoom
    screen.keys("f")
    screen.js("v.painter.draw()")
    assert screen.js("v.painter.drawn") == len(tree)
    screen.click_node(best, double=True)
    assert screen.js("v.layout.folded.has(arguments[0])", best)
    screen.keys("?")
    assert screen.one("#keys").is_displayed() and "space" in screen.one("#keys").text
    screen.one("#keys button").click()
    assert not screen.one("#keys").is_displayed()


def test_the_mouse_pans_and_the_wheel_zooms_where_it_points(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    screen, _ = tree_screen
    canvas = screen.one("#canvas")
    before = screen.js("({...v.painter.camera})")
    ActionChains(screen.browser).move_to_element(canvas).click_and_hold().move_by_offset(-60, 25).release().perform()
    after = screen.js("({...v.painter.camera})")
    assert (after["x"] - before["x"]) * after["zoom"] == pytest.approx(60, abs=2)
    assert (after["y"] - before["y"]) * after["zoom"] == pytest.approx(-25, abs=2)
    under = "v.painter.camera.y + (v.painter.tall / 2) / v.painter.camera.zoom"
    point = screen.js(under)
    ActionChains(screen.browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -200).perform()
    assert screen.js("v.painter.camera.zoom") > after["zoom"] and screen.js(under) == pytest.approx(point, abs=1)


def test_search_and_filters_find_what_the_tree_holds(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    tree = Tree.from_dict(record["tree"])
    screen.keys("/")
    find = screen.one("#find")
    assert screen.browser.switch_to.active_element == find
    find.send_keys("IS WRONG")
    hits = [node for node in range(len(tree)) if "is wrong" in tree.text[node]]
    assert hits and screen.js("v.found") == hits and f"{len(hits)} found" in screen.one("#found").text
    find.send_keys("\ue007", "\ue007")  # enter twice
    assert screen.js("v.selected") == hits[1 % len(hits)]
    find.send_keys("\ue00c")  # escape
    assert screen.js("v.found") == []

    def shown() -> set[int]:
        return set(screen.js("v.layout.order"))

    def with_ancestors(nodes: list[int]) -> set[int]:
        return {ROOT, *(up for node in nodes for up in tree.path(node))}

    chosen = set(tree.path(record["chosen"]))
    screen.choose("#verdict", "right")
    assert shown() == with_ancestors([node for node in range(len(tree)) if tree.hre[node] == 1])
    assert "pass the filter" in screen.one("#shown").text
    screen.choose("#verdict", "")
    screen.choose("#source", "teacher:t")
    assert shown() == with_ancestors([node for node in range(len(tree)) if tree.source[node] == "teacher:t"])
    screen.choose("#source", "")
    screen.one("#visits").clear()
    screen.one("#visits").send_keys("5")
    assert shown() == {ROOT, *chosen, *(node for node in range(len(tree)) if tree.N[node] >= 5)}


def test_light_and_dark(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, _ = tree_screen

    def looks() -> list[str]:
        return screen.js("[v.painter.colours.surface, getComputedStyle(document.body).color]")

    system = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    light, dark = ["#ffffff", "rgb(28, 29, 33)"], ["#1b1e24", "rgb(233, 234, 238)"]
    assert looks() == light
    screen.one("#theme").click()
    assert looks() == dark
    screen.keys("t")
    assert looks() == light
    screen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", system)
    screen.until("document.documentElement.dataset.theme === 'dark'")
    assert looks() == dark
    screen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_hostile_text_stays_text(browser: Any, tmp_path: Path) -> None:
    record = record_of(taught(), "k", why=HOSTILE)
    record["problem"] = {"id": HOSTILE, "question": HOSTILE, "source": "s"}
    record["pieces"] = {str(token): HOSTILE for ids in record["tree"]["token_ids"] for token in ids}
    record["tree"]["text"] = [HOSTILE for _ in record["tree"]["text"]]
    record["tree"]["source"][1] = HOSTILE
    screen = Screen(browser, tmp_path / "hostile.html", tree_page(record, title=HOSTILE))
    screen.click_node(1)
    assert (
        screen.js("document.getElementById('panel-text').textContent === v.model.text[1]")
        and len(screen.all("#panel img, #panel script")) == 0
    )
    screen.quiet()
    listed = Screen(browser, tmp_path / "hostile-list.html", run_page([record, record], title=HOSTILE, limit=2))
    assert listed.js("document.getElementById('list-table').textContent.includes('onerror=')")
    listed.quiet()


def test_a_token_tree_shows_priors_and_rollouts(browser: Any, tmp_path: Path) -> None:
    result = search(ScriptedTokens(2), mode="token", iterations=60, max_tokens=20)
    record = record_of(result, search={"rule": "puct", "exploration": 2.0})
    screen = Screen(browser, tmp_path / "token.html", tree_page(record, title="tokens"))
    tree = result.tree
    tails = [rollout for rollout in tree.rollouts if rollout.token_ids]
    assert tails and screen.js("v.model.count") == len(tree) + len(tails)
    node = max(tree.children[ROOT], key=lambda child: (tree.N[child], -child))
    screen.js("v.select(arguments[0], true)", node)
    prior = tree.prior[node]
    assert prior is not None and screen.stat("Prior") == fixed(prior)
    assert screen.stat("U") == fixed(2.0 * prior * math.sqrt(tree.N[ROOT]) / (1 + tree.N[node]))
    first = len(tree)
    screen.js("v.select(arguments[0], true)", first)
    assert screen.one("#panel-title").text == f"Rollout from node {tails[0].node}"
    assert screen.stat("Visits N") == str(tails[0].count)
    screen.quiet()


def test_puct_over_steps_shares_probability_out_over_the_siblings(browser: Any, tmp_path: Path) -> None:
    result = search(ScriptedPolicy(4), select="puct", iterations=30, samples=3)
    record = record_of(result, search={"rule": "puct", "exploration": 2.0})
    screen = Screen(browser, tmp_path / "puct.html", tree_page(record, title="puct"))
    tree = result.tree
    for child, share in zip(tree.children[ROOT], step_priors(tree, tree.children[ROOT]), strict=True):
        screen.js("v.select(arguments[0], true)", child)
        assert screen.stat("U") == fixed(2.0 * share * math.sqrt(tree.N[ROOT]) / (1 + tree.N[child]))


def test_rejected_steps_are_marked_and_scores_shown(browser: Any, tmp_path: Path) -> None:
    class Rule:
        """FAKE verifier: refuses steps that say w2. A test tool."""

        name, scored_tokens, computes = "rule", 0, False

        async def __call__(self, problem: Problem, prompt_ids: tuple[int, ...], steps: Any) -> Judgement:
            scores = tuple(0.1 if "w2" in step.text else 0.9 for step in steps)
            return Judgement(scores, min(scores, default=1.0))

    policy = ScriptedPolicy(5)
    policy.prompt_ids = lambda problem: (1, 2, 3)  # type: ignore[attr-defined]
    settings = SearchConfig.model_validate({"iterations": 40, "verify": {"accept_above": 1.0}})
    result = run(lambda: Search(policy, scripted_evaluate, settings, verifier=Rule()).run(a_problem(), 3))
    tree = result.tree
    rejected = [node for node in tree.leaves() if tree.verdict[node] == "rejected"]
    assert rejected and replay(tree) == (tree.N, tree.W)
    record = record_of(result, search={"rule": "open_puct", "exploration": 2.0})
    screen = Screen(browser, tmp_path / "rejected.html", tree_page(record, title="rejected"))
    node = rejected[0]
    screen.js("v.select(arguments[0], true)", node)
    assert "rejected by the verifier" in screen.one("#panel .chips").text and screen.stat("PRM") == "0.100"
    likely = math.exp(sum(tree.logprobs[node]))
    bonus = 2.0 * likely * math.sqrt(tree.N[tree.parent[node]]) / (1 + tree.N[node])
    assert float(screen.stat("U")) == pytest.approx(bonus, rel=0.05)
    screen.choose("#verdict", "rejected")
    assert set(screen.js("v.layout.order")) == {ROOT, *(up for node in rejected for up in tree.path(node))}
    screen.quiet()


def test_an_old_journals_tree_steps_by_creation_and_says_so(browser: Any, tmp_path: Path) -> None:
    record = record_of(taught())
    del record["tree"]["history"], record["chosen"], record["search"]
    screen = Screen(browser, tmp_path / "old.html", tree_page(record, title="old"))
    nodes = len(record["tree"]["parent"])
    assert "no history in this journal" in screen.one("#step-said").text and screen.js("v.model.steps") == nodes - 1
    screen.keys("{", "]", "]")
    assert screen.js("v.model.born") == 3 and screen.js("v.model.N") == record["tree"]["N"]
    screen.keys("}", "c")
    assert "most visited path" in screen.one("#panel").text and screen.stat("U") == ""
    screen.quiet()


def test_a_long_list_says_what_it_left_out(
    browser: Any, sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MOST_ROWS", 3)
    (tmp_path / "long.html").write_text(
        run_page(map(TreeReader(find_source(sampled), None), find_source(sampled)), title="run", limit=2), "utf-8"
    )
    screen = Screen(browser, tmp_path / "long.html")
    assert len(screen.all("#list-table tbody tr")) == 3
    assert "4 of 6 trees are left out" in screen.one("#list-note").text
    assert "the list has the 3 most telling questions" in screen.one("#list-note").text
    assert "6 questions" in screen.one("#outcomes").text
    asked = screen.one("#list-table button[data-open]")
    question = asked.text
    asked.click()
    assert screen.one("#title").text == question and screen.js("v.model.N[0]") > 0
    screen.quiet()


def test_a_real_runs_list_opens_its_trees(browser: Any, sampled: Path, tmp_path: Path) -> None:
    assert view(sampled, "--out", tmp_path / "run.html", "--trees", "4") == 0
    screen = Screen(browser, tmp_path / "run.html")
    records = list(find_source(sampled))
    rows = screen.all("#list-table tbody tr")
    assert len(rows) == 6 and "2 of 6 trees are left out" in screen.one("#list-note").text
    assert sum("--question" in one.text for one in rows) == 2
    by_nodes = next(button for button in screen.all("#list-table th button") if button.text == "Nodes")
    by_nodes.click()
    heads = [head.text.rstrip("↓↑ \n") for head in screen.all("#list-table th")]
    column = heads.index("Nodes")
    shown = [int(one.find_elements("css selector", "td")[column].text) for one in screen.all("#list-table tbody tr")]
    assert shown == sorted((len(record["tree"]["parent"]) for record in records), reverse=True)
    screen.one("#list-find").send_keys(records[1]["key"])
    assert [one.text for one in screen.all("#list-count")] == ["1 of 6 questions"]
    screen.one("#list-find").clear()
    screen.one("#list-find").send_keys(" ")
    opener = screen.all("[data-open]")[0]
    number = int(opener.get_attribute("data-open"))
    opener.click()
    record = records[number]
    assert screen.one("#title").text.startswith(record["problem"]["question"][:40])
    assert screen.js("v.model.N.slice(0, v.model.nodes)") == record["tree"]["N"]
    assert screen.stat("Visits N") == f"{record['tree']['N'][0]:,}"
    facts = screen.one("#search-facts").text
    assert f"{record['cost']['sampled_tokens']:,}" in facts and record["key"] in facts
    screen.one("#back").click()
    assert screen.one("#list").is_displayed() and not screen.one("#view").is_displayed()
    screen.browser.back()
    assert screen.one("#view").is_displayed()
    screen.quiet()


@pytest.mark.parametrize("size", [(1280, 800), (800, 600), (390, 844)])
def test_everything_fits_and_has_a_name(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    texts = (tree_page(record_of(taught()), title="t"), run_page(many(120), title="list", limit=3))
    for number, text in enumerate(texts):
        screen = Screen(browser, tmp_path / f"{number}.html", text, size)
        if screen.one("#more").is_displayed():
            screen.one("#more").click()  # what a phone shows on request has to fit too
        wide, tall = screen.browser.execute_script("return [document.body.scrollWidth, document.body.scrollHeight]")
        assert (wide, tall) == size
        for control in screen.all("button, input, select, canvas"):
            if not control.is_displayed() or control.get_attribute("aria-hidden") == "true":
                continue
            box = control.rect
            inside = control.tag_name == "button" and screen.browser.execute_script(
                "return arguments[0].closest('#panel, .table-wrap') !== null", control
            )
            assert control.accessible_name, control.get_attribute("outerHTML")
            assert inside or (box["x"] >= 0 and box["x"] + box["width"] <= size[0]), control.get_attribute("outerHTML")
        if number == 0:
            canvas = screen.one("#canvas").rect
            assert canvas["width"] >= min(480, size[0]) and canvas["height"] >= 380
        else:
            assert len(screen.all("#list-table tbody tr")) == 100 and "1 / 2" in screen.one("#list-page").text
            screen.one("#list-later").click()
            assert len(screen.all("#list-table tbody tr")) == 20
        screen.quiet()


def fitted(screen: Screen) -> bool:
    """Everything that is unfolded is on the screen, large enough to read."""
    screen.js("(v.painter.draw(), 0)")
    view = screen.js("({...v.painter.view, wide: v.layout.wide, tall: v.layout.tall, zoom: v.painter.camera.zoom})")
    inside = view["left"] <= 1 and view["top"] <= 1 and view["right"] >= view["wide"] - 1
    return inside and view["bottom"] >= view["tall"] - 1 and view["zoom"] >= 0.7


@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_every_tree_opens_fitted(browser: Any, sampled: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    assert view(sampled, "--out", tmp_path / "run.html") == 0
    folded = 0
    for number, record in enumerate(find_source(sampled)):
        browser.get("about:blank")
        screen = Screen(browser, tmp_path / f"run.html#tree-{number}", None, size)
        assert fitted(screen), record["key"]
        assert not screen.one("#minimap").is_displayed()
        assert screen.js("v.layout.shown[v.model.chosenEnd]") or size[0] == 390
        folded += screen.one("#hint").is_displayed() if size[0] > 390 else 1
    assert folded  # some of these trees are larger than the screen
    screen.quiet()


def test_a_chosen_path_that_is_too_long_opens_as_an_outline(browser: Any, tmp_path: Path) -> None:
    tree, node = Tree(), ROOT
    for depth in range(14):
        for other in range(2):
            tree.attach(node, Step((other,), (-0.5,), f"step {depth} of the response, number {other}\n"))
        node = len(tree) - 2
        tree.backup(node, 0.5)
    page = tree_page({"question": "long", "tree": tree.to_dict(), "chosen": node}, title="long")
    screen = Screen(browser, tmp_path / "long.html", page)
    assert screen.one("#outline").get_attribute("aria-pressed") == "true"
    indents = screen.js("v.layout.order.slice(1).map((card) => v.layout.x[card] - v.layout.x[v.layout.up[card]])")
    assert set(indents) == {18}  # every step has siblings here
    rows = screen.js("v.layout.order.map((card) => v.layout.y[card])")
    assert rows == sorted(set(rows))  # a row each
    assert screen.js("v.painter.camera.x <= 0 && v.painter.camera.zoom > 0.9")
    screen.keys("\ue015", "\ue015")  # down: the next rows
    assert screen.js("v.selected === v.layout.order[2]")
    screen.keys("l")
    assert screen.one("#outline").get_attribute("aria-pressed") == "false" and fitted(screen)
    screen.quiet()


@pytest.fixture
def token_screen(browser: Any, tmp_path: Path) -> Iterator[tuple[Screen, Tree]]:
    result = search(ScriptedTokens(2), mode="token", iterations=60, max_tokens=20)
    record = record_of(result, search={"rule": "puct", "exploration": 2.0})
    screen = Screen(browser, tmp_path / "phrases.html", tree_page(record, title="tokens"), (1400, 900))
    yield screen, result.tree
    screen.quiet()


def test_unvisited_nodes_are_hidden_and_shown_by_a_button_that_says_so(token_screen: tuple[Screen, Tree]) -> None:
    screen, tree = token_screen
    chosen = set(screen.js("[...v.model.chosen]"))
    ended = {rollout.node for rollout in tree.rollouts if not rollout.token_ids}
    known = chosen | ended | {node for node in range(len(tree)) if tree.N[node] or tree.verdict[node]}
    idle = [node for node in range(1, len(tree)) if node not in known]
    assert len(idle) > len(tree) / 2
    button = screen.one("#unvisited")
    assert button.text == f"{len(idle)} unvisited hidden: show"
    screen.one("#unfold").click()
    proposals = [node for node in idle if not screen.js("v.model.children[arguments[0]]", node)]
    assert proposals and not any(screen.js("arguments[0].map((node) => v.layout.shown[node])", proposals))
    button.click()
    assert button.text == f"{len(idle)} unvisited shown: hide"
    screen.one("#unfold").click()
    assert all(screen.js("arguments[0].map((node) => v.layout.shown[node])", proposals))
    screen.keys("v")
    assert button.text.endswith("hidden: show")


def test_tokens_without_a_branch_read_as_phrases(token_screen: tuple[Screen, Tree]) -> None:
    screen, tree = token_screen
    screen.one("#unfold").click()
    cards = screen.js("v.layout.order.map((card) => [card, v.layout.first[card]])")
    phrases = [(card, first) for card, first in cards if card != first and card < len(tree)]
    assert phrases and len(cards) < sum(screen.js("v.layout.shown"))
    for card, first in phrases:
        run_of = [node for node in tree.path(card) if node >= first and node in [first, *tree.path(card)]]
        run_of = run_of[run_of.index(first) :]
        assert screen.js("v.model.phrase(...arguments)", first, card) == "".join(tree.text[node] for node in run_of)
        # Nothing that is shown leaves the phrase before its end.
        for node in run_of[:-1]:
            onward = [
                kid
                for kid in screen.js("v.model.children[arguments[0]]", node)
                if screen.js("v.layout.shown[arguments[0]]", kid)
            ]
            assert len(onward) == 1
    card, first = max(
        phrases, key=lambda phrase: tree.path(phrase[0]).index(phrase[0]) - tree.path(phrase[0]).index(phrase[1])
    )
    length = tree.path(card).index(card) - tree.path(card).index(first) + 1
    screen.js("(v.painter.zoomBy(1 / v.painter.camera.zoom), v.painter.bring(arguments[0]), v.painter.draw(), 0)", card)
    # The number on the card is a button: a click shows the tokens one by one.
    at = screen.place(card, "v.layout.width[card] - v.layout.after(card) + 6")
    assert screen.js("v.painter.hit(...arguments)", *at) == [card, "phrase"]
    screen.click_at(*at)
    assert (
        screen.js("v.layout.order.includes(arguments[0])", first)
        and screen.js("v.layout.first[arguments[0]]", card) == card
    )
    screen.keys("e")
    assert screen.js("v.layout.first[arguments[0]]", card) == first
    # In the panel each token is a node to go to.
    assert screen.one("#panel-text").text == screen.js("v.model.phrase(...arguments)", first, card).rstrip("\n")
    tokens = screen.all("#tokens .token")
    assert len(tokens) == length and tokens[-1].get_attribute("aria-current") == "true"
    tokens[0].click()
    assert screen.js("v.selected") == first and screen.stat("Visits N") == str(tree.N[first])
    screen.one("#split").click()
    assert screen.js("v.layout.first[arguments[0]]", card) == card
    screen.one("#phrases").click()
    assert not any(
        card != first for card, first in screen.js("v.layout.order.map((card) => [card, v.layout.first[card]])")
    )


def test_a_step_tree_has_no_phrases(tree_screen: tuple[Screen, dict[str, Any]]) -> None:
    screen, record = tree_screen
    assert not screen.one("#phrases").is_displayed() and not screen.one("#unvisited").is_displayed()
    screen.one("#unfold").click()
    assert sorted(screen.js("v.layout.order")) == list(range(len(record["tree"]["parent"])))


def test_the_minimap_is_there_when_the_tree_is_larger_than_the_screen(
    tree_screen: tuple[Screen, dict[str, Any]],
) -> None:
    screen, _ = tree_screen
    minimap = screen.one("#minimap")
    assert not minimap.is_displayed()
    screen.one("#unfold").click()
    screen.js("(v.painter.zoomBy(2 / v.painter.camera.zoom, 0, 0), v.painter.draw(), 0)")
    assert minimap.is_displayed() and minimap.accessible_name
    box = minimap.size
    screen.click_on(minimap, 0.75 * box["width"], 0.25 * box["height"])
    middle = screen.js(
        "[(v.painter.camera.x + v.painter.wide / v.painter.across / 2) / v.layout.wide,"
        " (v.painter.camera.y + v.painter.tall / v.painter.camera.zoom / 2) / v.layout.tall]"
    )
    assert middle == pytest.approx([0.75, 0.25], abs=0.03)
    screen.one("#fit").click()
    screen.js("(v.painter.draw(), 0)")
    assert not minimap.is_displayed()


def test_the_list_sums_up_and_begins_with_mixed_questions(browser: Any, tmp_path: Path) -> None:
    outcomes = ["right", "wrong", "mixed", "right", "none", "mixed"]
    records = []
    for number, outcome in enumerate(outcomes):
        tree = Tree()
        for leaf in range(0 if outcome == "none" else 2):
            right = outcome == "right" or (outcome == "mixed" and leaf == 0)
            node = tree.attach(ROOT, Step((leaf,), (-0.5,), f"#### {int(right)}"))
            tree.verdict[node], tree.samples[node], tree.hre[node], tree.reward[node] = "answer", 1, float(right), 0.5
            tree.backup(node, 0.5)
        records.append(
            {
                "key": f"k{number}",
                "question": f"question {number}",
                "tree": tree.to_dict(),
                "cost": {"sampled_tokens": 100 + number},
            }
        )
    screen = Screen(browser, tmp_path / "list.html", run_page(records, title="list", limit=9))

    def questions() -> list[int]:
        return [int(button.get_attribute("data-open")) for button in screen.all("[data-open]")]

    assert questions() == [2, 5, 1, 0, 3, 4]
    tiles = [tile.text for tile in screen.all("#outcomes button")]
    assert tiles == ["6 questions", "2 mixed", "1 all wrong", "2 all right", "1 no response"]
    assert "615\nsampled tokens" in screen.one("#totals").text and "simulations" not in screen.one("#totals").text
    for tile, shown in zip(screen.all("#outcomes button"), ([2, 5, 1, 0, 3, 4], [2, 5], [1], [0, 3], [4]), strict=True):
        tile.click()
        assert questions() == shown and tile.get_attribute("aria-pressed") == "true"
    assert screen.one("#list-count").text == "1 of 6 questions"
    screen.all("#outcomes button")[4].click()  # again: all of them
    assert len(questions()) == 6
    next(button for button in screen.all("#list-table th button") if button.text == "#").click()
    assert questions() == [0, 1, 2, 3, 4, 5]
    screen.quiet()


def test_an_address_names_a_tree_and_a_node(browser: Any, tmp_path: Path) -> None:
    records = [record_of(taught(seed), f"k{seed}") for seed in (3, 4)]
    (tmp_path / "linked.html").write_text(run_page(records, title="linked", limit=2), encoding="utf-8")
    screen = Screen(browser, tmp_path / "linked.html#tree-1/node-7")
    assert screen.one("#title").text == "question k4?" and screen.js("v.selected") == 7
    assert screen.one("#panel-title").text == "Node 7"
    screen.quiet()


def touch(screen: Screen, kind: str, *points: tuple[float, float]) -> None:
    box = screen.one("#canvas").rect
    where = [{"x": box["x"] + x, "y": box["y"] + y, "id": number} for number, (x, y) in enumerate(points)]
    screen.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})


def test_a_phone_reaches_list_tree_and_details(browser: Any, tmp_path: Path) -> None:
    records = [record_of(taught(seed), f"k{seed}") for seed in (3, 4)]
    screen = Screen(browser, tmp_path / "phone.html", run_page(records, title="phone", limit=2), (390, 844))
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        for row_ in screen.all("#list-table tbody tr"):
            for cell in row_.find_elements("css selector", "td"):
                assert cell.rect["x"] >= 0 and cell.rect["x"] + cell.rect["width"] <= 390
        screen.choose("#list-sort", "#")
        screen.all("[data-open]")[0].click()
        assert screen.js("v.layout.outline") and not screen.one("#panel").is_displayed()
        camera = screen.js("({...v.painter.camera})")
        touch(screen, "touchStart", (200, 300))
        touch(screen, "touchMove", (160, 260))
        touch(screen, "touchMove", (140, 240))
        touch(screen, "touchEnd")
        panned = screen.js("({...v.painter.camera})")
        assert (panned["x"] - camera["x"]) * camera["zoom"] == pytest.approx(60, abs=8)
        assert (panned["y"] - camera["y"]) * camera["zoom"] == pytest.approx(60, abs=8)
        touch(screen, "touchStart", (150, 200))
        touch(screen, "touchStart", (150, 200), (250, 200))
        touch(screen, "touchMove", (120, 200), (280, 200))
        touch(screen, "touchMove", (100, 200), (300, 200))
        touch(screen, "touchEnd")
        assert screen.js("v.painter.camera.zoom") == pytest.approx(2 * camera["zoom"], rel=0.15)
        screen.keys("o")
        touch(screen, "touchStart", screen.place(1, "20"))
        touch(screen, "touchEnd")
        assert screen.one("#panel").is_displayed() and screen.one("#panel-title").text == "Node 1"
        screen.until("v.painter.tall < 400")  # the tree is above the sheet, not under it
        panel, canvas = screen.one("#panel").rect, screen.one("#canvas").rect
        assert canvas["y"] + canvas["height"] <= panel["y"] + 1 and panel["width"] == 390 and canvas["height"] > 200
        for box in screen.all("#panel section"):
            assert box.rect["x"] >= 0 and box.rect["x"] + box.rect["width"] <= 390
        screen.one("#panel-close").click()
        assert not screen.one("#panel").is_displayed()
        assert not screen.one("#verdict").is_displayed()
        screen.one("#more").click()
        assert screen.one("#verdict").is_displayed()
        screen.one("#back").click()
        assert screen.one("#list").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    screen.quiet()


def test_blank_long_and_strange_texts_are_shown(browser: Any, tmp_path: Path) -> None:
    texts = ["", " ", "\n", "\t", "   \n", "\u200b", "x" * 50_000, "words and words " * 3000, "a\x07b", "two\nlines\n"]
    tree = Tree()
    for number, text in enumerate(texts):
        tree.attach(ROOT, Step((number, 3), (-0.5, -0.1), text))
        tree.backup(number + 1, 0.5)
    screen = Screen(browser, tmp_path / "odd.html", tree_page({"question": "odd", "tree": tree.to_dict()}, title="odd"))
    labels = [screen.js("v.model.label(arguments[0])", node) for node in range(1, len(tree))]
    assert labels[:6] == ["⟨end⟩", "␣", "⏎", "⇥", "␣ ␣ ␣ ⏎", "␣"] and labels[8:] == ["a·b", "two ⏎ lines"]
    assert all(len(label) <= 120 for label in labels) and fitted(screen)
    screen.click_node(7)
    text = screen.one("#panel-text")
    assert text.get_property("textContent") == texts[6] and text.rect["height"] <= 0.4 * 800 + 1
    assert text.rect["width"] <= 380
    screen.quiet()


def test_two_thousand_steps_deep(browser: Any, tmp_path: Path) -> None:
    tree = Tree()
    for node in range(2000):
        tree.attach(node, Step((node, 1), (-0.5, -0.1), f"step {node}\n"))
        tree.backup(node + 1, node / 2000)
    screen = Screen(
        browser, tmp_path / "deep.html", tree_page({"question": "deep", "tree": tree.to_dict()}, title="deep")
    )
    assert fitted(screen) and screen.one("#outline").get_attribute("aria-pressed") == "true"
    screen.keys("c")
    assert screen.js("v.selected") == 2000 and screen.one("#panel-title").text == "Node 2000"
    assert screen.js("v.painter.drawn") < 100 and screen.one("#minimap").is_displayed()
    screen.one("#find").send_keys("step 1234\ue007")
    assert screen.js("v.selected") == 1235
    screen.keys("l", "u", "f")
    screen.js("(v.painter.draw(), 0)")
    assert screen.js("v.painter.drawn") == 2001
    screen.quiet()


def test_five_thousand_nodes_are_culled(browser: Any, tmp_path: Path) -> None:
    tree = Tree()
    for node in range(5000):
        parent = node // 3
        tree.attach(parent, Step((node,), (-0.5,), f"step {node} says something\n"))
        tree.backup(node + 1, 0.5)
    screen = Screen(browser, tmp_path / "big.html", tree_page({"question": "big", "tree": tree.to_dict()}, title="big"))
    assert len(screen.js("v.layout.order")) < 60 and fitted(screen)  # the overview folds what doesn't fit
    screen.one("#unfold").click()
    assert len(screen.js("v.layout.order")) == 5001
    screen.js("(v.painter.draw(), 0)")
    assert screen.js("v.painter.drawn") == 5001
    screen.js("(v.painter.zoomBy(1 / v.painter.camera.zoom), v.painter.bring(4000), v.painter.draw(), 0)")
    assert 0 < screen.js("v.painter.drawn") < 200
    screen.quiet()
