"""The viewer: what a page holds, that no text in it can act, the command's errors, and a real
click-through in Chromium.
"""

import json
import math
import re
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
import scripted
from scripted import ScriptedAdvisor, ScriptedPolicy, ScriptedTokens, hashed_reward
from tables import read_json

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.engine.protocol import TeacherProposal
from alphazero_llm_trainer.report.trees import TreeReader, records_of
from alphazero_llm_trainer.tree.arena import Rollout, Tree
from alphazero_llm_trainer.types import Direction, Observation, RewardParts, Step
from alphazero_llm_trainer.viewer import page as page_module
from alphazero_llm_trainer.viewer.page import run_page, tree_page
from alphazero_llm_trainer.viewer.record import record_row

ASSETS = Path(page_module.__file__).parent / "assets"
HOSTILE = (
    '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2">'
    "\u2028&amp;\ud83d"
)


async def graded(problem, steps, directions, verdict):
    """A reward with a correctness part, as in training."""
    text = "".join(step.text for step in steps)
    return RewardParts(
        hashed_reward(text), hre=float(verdict == "answer" and text.endswith("1")), pre=0.5
    )


search = partial(scripted.search, max_tokens=60, max_depth=6)


def taught(seed=3, iterations=40):
    """A graded step tree with a teacher's right and wrong steps."""
    steps = [("w0", Direction.RIGHT), ("w9 is wrong", Direction.WRONG)]
    advisor = ScriptedAdvisor([TeacherProposal(text, "teacher:t", asked) for text, asked in steps])
    asked = {"evaluate": graded, "advisor": advisor, "simulations": iterations, "samples": 3}
    return search(ScriptedPolicy(seed), seed=seed, **asked)


def record_of(result):
    choice = result.choice
    return {
        "key": "k1", "problem": {"id": "q-k1", "question": "question k1?", "source": "scripted"},
        "ended_by": result.ended_by, "cost": result.cost.as_dict(), "chosen": choice.node,
        "answer": choice.answer, "why": choice.why,
        "search": {"rule": "ucb1", "exploration": 2**0.5},
        "tree": json.loads(json.dumps(result.tree.to_dict())),
    }  # fmt: skip


class Data(HTMLParser):
    """The page's data blocks, its script, and every attribute that could fetch something."""

    def __init__(self, text):
        super().__init__()
        self.blocks, self.fetching, self.scripts, self._id = {}, [], 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.fetching += {"src", "href", "srcset", "data"} & named.keys()
        self.fetching += {tag} & {"link", "iframe", "img", "object", "embed", "base"}
        self._id = ""
        if tag == "script":
            self.scripts += named.get("type") != "application/json"
            self._id = named.get("id") or ""

    def handle_data(self, data):
        if self._id:
            self.blocks[self._id] = self.blocks.get(self._id, "") + data

    def tree(self, number=0):
        return json.loads(self.blocks[f"tree-{number}"])

    def facts(self):
        return json.loads(self.blocks["facts"])


# -- the history -----------------------------------------------------------------------------------


def replay(tree, simulations=None):
    """N and W after so many simulations (None: all)."""
    visits, sums = [0] * len(tree), [0.0] * len(tree)
    ends = [0, *(end for *_, end in tree.simulations)]
    for start, reward, above in tree.backups[: ends[-1 if simulations is None else simulations]]:
        node = start
        while node != above:
            visits[node] += 1
            sums[node] += reward
            node = tree.parent[node]
    return visits, sums


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("mode", ["step", "token"])
def test_a_trees_history_replays_to_its_visits_and_values_exactly(mode, width):
    policy = ScriptedTokens(4) if mode == "token" else ScriptedPolicy(4)
    tree = search(policy, mode=mode, simulations=50, samples=3, width=width).tree
    assert replay(tree) == (tree.N, tree.W) and len(tree.simulations) == 50
    for number, (leaf, nodes, _) in enumerate(tree.simulations, 1):
        visits, _ = replay(tree, number)
        assert not any(visits[nodes:]) and leaf < nodes  # what isn't there yet isn't visited


# -- pages -----------------------------------------------------------------------------------------


def test_a_page_needs_nothing_else_and_no_text_in_it_can_act():
    record = record_of(taught())
    record["problem"] = {"id": HOSTILE, "question": HOSTILE, "source": HOSTILE}
    record["tree"]["text"][1] = record["tree"]["source"][1] = record["answer"] = HOSTILE
    text = tree_page(record, title=HOSTILE)
    page = Data(text)
    assert page.fetching == [] and page.scripts == 1 and "window.hacked=1</script>" not in text
    assert page.tree()["question"] == page.tree()["tree"]["text"][1] == HOSTILE
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\b", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    text.encode()  # a lone surrogate in a model's text is written all the same


def test_no_script_of_the_page_makes_markup_out_of_text():
    for name in page_module.ASKING:
        script = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script
        ), name
    assert {path.name for path in ASSETS.iterdir()} == {
        *page_module.ASKING,
        "page.html",
        "page.css",
    }


def test_a_row_says_what_came_of_a_question():
    result = taught()
    one, tree = record_row(record_of(result)), result.tree
    leaves = [leaf for leaf in tree.leaves() if tree.N[leaf]]
    right = sum(tree.samples[leaf] for leaf in leaves if tree.hre[leaf] == 1)
    assert (one.samples, one.right, one.outcome) == (sum(tree.samples), right, "mixed")
    assert (one.tokens, one.reward) == (result.cost.sampled_tokens, 0.5)
    counts = Counter()
    for leaf in leaves:
        counts[tree.response(leaf).rpartition("#### ")[2]] += tree.samples[leaf]
    assert counts[str(one.answer)] == max(counts[answer] for answer in "012")
    assert one.answer_right is (one.answer == "1")
    assert record_row(record_of(search(ScriptedPolicy(4), simulations=5))).outcome == "ungraded"
    nothing = {"key": "f", "tree": Tree().to_dict()}
    assert record_row(nothing).outcome == "none"
    assert record_row(nothing | {"ended_by": "failed: too long"}).outcome == "failed"


def many(count):
    """Every third one has mixed outcomes, the others are failures."""
    mixed, none = record_of(taught(iterations=4)), Tree().to_dict()
    for i in range(count):
        failed = {"problem": {"id": f"q-k{i}"}, "ended_by": "failed: x", "tree": none}
        yield (failed if i % 3 else mixed) | {"key": f"k{i}"}


def test_a_run_page_is_bounded_and_its_totals_are_not(monkeypatch):
    few = Data(run_page(many(30), title="run", limit=2))
    assert [name for name in few.blocks if name != "facts"] == ["tree-0", "tree-3"]
    trees = [len(block) for name, block in few.blocks.items() if name != "facts"]
    monkeypatch.setattr(page_module, "PAGE_BYTES", 3 * max(trees) + 100)
    monkeypatch.setattr(page_module, "MOST_ROWS", 8)
    page = Data(run_page(many(30), title="run", limit=200))
    facts = page.facts()
    assert facts["left_out"] == 27 and len(page.blocks) == 4
    # The mixed ones, the first of them.
    assert [one["number"] for one in facts["rows"]] == list(range(0, 24, 3))
    assert facts["questions"] == 30 and facts["outcomes"] == {"mixed": 10, "failed": 20}
    assert facts["sums"]["nodes"] == 10 * record_row(next(iter(many(1)))).nodes + 20


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A real sample folder: the embedded student and its scripted teacher, harder problems, and a
    half-written line.
    """
    folder = tmp_path_factory.mktemp("view") / "sample"
    flags = """
        --set problems.levels=[3,4] --set search.simulations=12 --set search.temperature=1.3
        --set teachers.tier=embedded
    """
    assert main(f"sample --model embedded --out {folder} --num 6 {flags}".split()) == 0
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


def view(*arguments):
    return main(["view", *map(str, arguments)])


def test_a_run_is_a_list_and_a_question_is_a_tree(sampled, capsys):
    def page(*arguments, name="trees.html"):
        assert view(*arguments) == 0
        return Data((sampled / name).read_text(encoding="utf-8"))

    whole = page(sampled)
    assert "6 questions in" in capsys.readouterr().out
    rows = whole.facts()["rows"]
    assert len(rows) == 6 and len(whole.blocks) == 7
    records = {record["key"]: record for record in records_of(sampled / "journal.jsonl")}
    for number, one in enumerate(rows):
        record, drawn = records[one["key"]], whole.tree(number)
        assert one["tokens"] == record["cost"]["sampled_tokens"]
        assert one["simulations"] == len(record["tree"]["history"]["simulations"])
        assert drawn["tree"]["N"] == record["tree"]["N"]
        assert drawn["search"] == {"rule": "ucb1", "exploration": 2**0.5}
        # The student's tokens read as its text.
        for ids, text in zip(drawn["tree"]["token_ids"], drawn["tree"]["text"], strict=True):
            pieces = "".join(drawn["pieces"][str(token)] for token in ids)
            assert pieces.replace("<eos>", "") == text
    out = ("--out", sampled / "one.html")
    for named in (rows[2]["id"], str(rows[2]["number"] + 1)):  # the page counts from 1
        single = page(sampled, "--question", named, *out, name="one.html")
        assert single.tree()["key"] == rows[2]["key"]
        assert single.facts()["single"]
    few = page(sampled, "--trees", "2", *out, name="one.html")
    assert few.facts()["left_out"] == 4
    assert view(sampled, "--question", "7") == 2 and "number of its page" in capsys.readouterr().err


def test_scores_have_the_name_of_the_verifier_that_gave_them(tmp_path, capsys):
    small = (
        "--set train.preflight=0 --set train.validation_size=0 --set train.questions_per_round=4"
    )
    command = f"train -n 4 --model embedded --eval-size 0 --out {tmp_path} {small}"
    assert main(command.split()) == 0
    run = tmp_path / "run-001"  # which evaluated nothing
    assert "nan" not in capsys.readouterr().out and "NaN" not in (run / "run.json").read_text()
    journal = run / "journal.jsonl"
    reader = TreeReader(journal)
    records = [reader(record) for record in records_of(journal)]
    assert [record["search"]["verifier"] for record in records] == ["calculator"] * 4
    page = tree_page(records[0], title="x")
    assert '"PRM"' not in page and "PRM:" not in page and '"verifier":"calculator"' in page


def test_a_search_printed_as_json_is_a_tree(tmp_path, capsys):
    assert main("search --model embedded --mode token --json".split()) == 0
    (tmp_path / "one.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert view(tmp_path / "one.json") == 0
    drawn = Data((tmp_path / "one.html").read_text(encoding="utf-8")).tree()
    raw = read_json(tmp_path / "one.json")
    assert drawn["chosen"] == raw["chosen"] and drawn["search"]["rule"] == "puct"
    assert drawn["pieces"]


# -- in Chromium -----------------------------------------------------------------------------------


class Screen:
    """A page in the browser, and what a person does with it."""

    def __init__(self, browser, path):
        self.browser = browser
        metrics = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(path.as_uri())

    def js(self, code, *arguments):
        return self.browser.execute_script(f"const v = viewer.view; return {code}", *arguments)

    def one(self, css):
        return self.browser.find_element("css selector", css)

    def all(self, css):
        return self.browser.find_elements("css selector", css)

    def quiet(self):
        """Nothing was logged, nothing was fetched, no text acted."""
        assert [entry["message"] for entry in self.browser.get_log("browser")] == []
        assert self.js("performance.getEntriesByType('resource').length") == 0
        assert self.js("window.hacked === undefined")


def test_a_click_and_the_slider_show_the_nodes_own_numbers(browser, tmp_path):
    record = record_of(taught())
    record["problem"]["question"] = record["why"] = HOSTILE
    (tmp_path / "tree.html").write_text(tree_page(record, title=HOSTILE), encoding="utf-8")
    screen = Screen(browser, tmp_path / "tree.html")
    screen.one("#unfold").click()
    tree, known = record["tree"], Tree.from_dict(record["tree"])
    # At first those that a simulation went to, or that ended a response.
    drawn = {node for node in range(len(known)) if known.N[node] or known.verdict[node] is not None}
    assert {int(card.get_attribute("data-node")) for card in screen.all(".card")} == drawn
    most = max(range(1, len(known)), key=lambda node: known.N[node])
    for node in (1, most, record["chosen"]):
        screen.one(f'.card[data-node="{node}"] .label').click()
        assert screen.one("#panel-title").text == f"Node {node}"
        assert screen.one("#panel-text").get_attribute("textContent") == tree["text"][node]
        bonus = 2**0.5 * math.sqrt(math.log(known.N[known.parent[node]]) / known.N[node])
        for name, value in {
            "Visits N": f"{known.N[node]:,}", "Mean value Q": f"{known.q(node):.3f}",
            "U": f"{bonus:.3f}"
        }.items():  # fmt: skip
            assert screen.one(f'[data-stat="{name}"]').text == value
    for step in (0, 7, 40):
        screen.js("v.step(arguments[0])", step)
        visits, sums = replay(known, step)
        assert screen.js("v.model.N.slice(0, v.model.nodes)") == visits
        assert screen.js("v.model.W.slice(0, v.model.nodes)") == pytest.approx(sums)
    screen.quiet()


def turns_record():
    """A tree of two turns, and a rollout beside it: what a world answered stands in both."""
    tree = Tree()
    seen = Observation(2, "7 <b>apples</b>", ("calculate",))
    failed = Observation(1, "error: no expression", ("calculate",), ("calculate",))
    turn = tree.attach(
        0, Step((10, 11, 90, 91), (-0.5, -0.5, 0.0, 0.0), "calculate: 3 + 4\n", seen)
    )
    wrong = tree.attach(0, Step((13, 92), (-1.0, 0.0), "calculate: x\n", failed))
    last = tree.attach(turn, Step((12,), (-0.25,), "#### 7\n", Observation(0, "")))
    for node, reward in ((last, 1.0), (wrong, 0.0)):
        tree.finish(node, "ended", RewardParts(reward))
        tree.backup(node, reward)
    rest = ((10, 90, 12), (-0.5, 0.0, -0.25), "calculate: 1\n#### 7\n", "ended", 0.0, None, None)
    tree.rollouts.append(Rollout(0, *rest, mask=(True, False, True)))
    problem = {"id": "q", "question": "3 and 4?", "source": "calc"}
    return {"problem": problem, "chosen": last, "tree": json.loads(json.dumps(tree.to_dict()))}


def test_what_a_world_answered_is_drawn_apart(browser, tmp_path):
    file = tmp_path / "turns.html"
    file.write_text(tree_page(turns_record(), title="turns"), encoding="utf-8")
    screen = Screen(browser, file)
    given = [card.text for card in screen.all(".card .given")]
    assert sorted(given) == ["→ 7 <b>apples</b>", "⚠ error: no expression"]
    screen.js("v.select(1)")
    assert screen.one("#observation").text == "7 <b>apples</b>"
    assert screen.one("#calls").text == "calls calculate"
    drawn = [chip.get_attribute("class") for chip in screen.all("#tokens .token")]
    assert drawn == ["token", "token", "token given", "token given"]
    screen.js("v.select(2)")
    assert "error of calculate" in screen.one("#calls").text
    rollout = screen.js("v.model.count - 1")
    screen.js(f"v.select({rollout})")
    drawn = [chip.get_attribute("class") for chip in screen.all("#tokens .token")]
    assert drawn == ["token", "token given", "token"]
    screen.quiet()


def test_a_list_filters_sorts_and_opens_its_trees(browser, sampled, tmp_path):
    file = tmp_path / "run.html"
    assert view(sampled, "--out", file) == 0
    screen, rows = Screen(browser, file), Data(file.read_text(encoding="utf-8")).facts()["rows"]

    def shown():
        return [int(cell.text) for cell in screen.all("#list-table td.nodes")]

    assert len(shown()) == 6
    heads = screen.all("#list-table th button")
    next(head for head in heads if head.text.startswith("Nodes")).click()
    assert shown() == sorted((one["nodes"] for one in rows), reverse=True)
    screen.one("#list-find").send_keys(rows[4]["key"])
    assert shown() == [rows[4]["nodes"]]
    screen.one("[data-open='4']").click()
    assert screen.one("#title").text.startswith(rows[4]["question"][:40])
    screen.one("#back").click()
    assert screen.one("#list").is_displayed()
    screen.one("#list-find").clear()
    screen.js("(document.getElementById('list-find').value = '', viewer.list.fill(0))")
    outcome = rows[0]["outcome"]
    screen.one(f".tile[data-outcome='{outcome}']").click()
    assert len(shown()) == sum(one["outcome"] == outcome for one in rows)
    screen.quiet()
