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
from alphazero_llm_trainer.report.trees import Reader, find_source
from alphazero_llm_trainer.search.driver import Search, SearchResult
from alphazero_llm_trainer.search.select import step_priors
from alphazero_llm_trainer.search.tree import ROOT, Tree
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
    assert {path.name for path in ASSETS.iterdir()} == {*page_module.SCRIPTS, "page.html", "page.css"}


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
    page = Data((sampled / "view.html").read_text(encoding="utf-8"))
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
    [record] = [Reader(source, None)(record) for record in source]
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
        browser.get(path.as_uri())

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
        from selenium.webdriver import ActionChains

        canvas = self.one("#canvas")
        self.js("(v.painter.bring(arguments[0]), v.painter.draw())", node)
        x, y = self.js(
            "[(v.layout.x[arguments[0]] + 30 - v.painter.camera.x) * v.painter.across,"
            " (v.layout.y[arguments[0]] - v.painter.camera.y) * v.painter.camera.zoom]",
            node,
        )
        chain = ActionChains(self.browser)
        chain.move_to_element_with_offset(canvas, int(x - canvas.size["width"] / 2), int(y - canvas.size["height"] / 2))
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
    assert screen.js("v.layout.filter.visits") == 1 and "hidden" in screen.one("#shown").text
    node = max(tree.children[ROOT], key=lambda child: (tree.N[child], -child))
    screen.click_node(node)
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

        async def __call__(self, problem: Problem, steps: Any) -> Judgement:
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


@pytest.mark.parametrize("size", [(1280, 800), (800, 600)])
def test_everything_fits_and_has_a_name(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    texts = (tree_page(record_of(taught()), title="t"), run_page(many(120), title="list", limit=3))
    for number, text in enumerate(texts):
        screen = Screen(browser, tmp_path / f"{number}.html", text, size)
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
            assert canvas["width"] >= 480 and canvas["height"] >= 380
        else:
            assert len(screen.all("#list-table tbody tr")) == 100 and "1 / 2" in screen.one("#list-page").text
            screen.one("#list-later").click()
            assert len(screen.all("#list-table tbody tr")) == 20
        screen.quiet()


def test_five_thousand_nodes_are_culled(browser: Any, tmp_path: Path) -> None:
    tree = Tree()
    for node in range(5000):
        parent = node // 3
        tree.attach(parent, Step((node,), (-0.5,), f"step {node} says something\n"))
        tree.backup(node + 1, 0.5)
    screen = Screen(browser, tmp_path / "big.html", tree_page({"question": "big", "tree": tree.to_dict()}, title="big"))
    assert len(screen.js("v.layout.order")) < 60  # the overview folds what doesn't fit
    screen.one("#unfold").click()
    assert len(screen.js("v.layout.order")) == 5001
    screen.js("(v.painter.draw(), 0)")
    assert screen.js("v.painter.drawn") == 5001
    screen.js("(v.painter.zoomBy(1 / v.painter.camera.zoom), v.painter.bring(4000), v.painter.draw(), 0)")
    assert 0 < screen.js("v.painter.drawn") < 200
    screen.quiet()
