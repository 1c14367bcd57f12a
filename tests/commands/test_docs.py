"""README and the site's generated pages: short, complete, and equal to the files they are made
from.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from tables import CHECKOUT, read_json

from alphazero_llm_trainer.cli.main import build_parser
from alphazero_llm_trainer.tree.arena import COLUMNS, Rollout

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
CONTRACT = (
    "uv run vf-eval alphazero-llm-trainer",
    "uv run vf-eval alphazero-llm-trainer --tier free --use-student-model",
    "vf-eval alphazero-llm-trainer -s",
    "vf-eval alphazero-llm-trainer -s -- --num-examples 100 --checkpoint-dir ./checkpoints "
    "--save-every 25 --use-grpo",
    "command -v uv >/dev/null || python3 -m pip install uv; uv run vf-eval alphazero-llm-trainer",
    "command -v uv >/dev/null || python3 -m pip install uv; uv run pytest",
)


def script(name):
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parser():
    return build_parser()


def shell_lines(text):
    """The lines of the shell blocks of a Markdown text, continued ones joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_readme_is_short_and_has_the_contract_lines_as_written():
    assert len(README.splitlines()) <= 150
    assert len(README.encode()) <= 9_216
    for line in CONTRACT:
        assert line in shell_lines(README)


def test_links_into_the_repository_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (CHECKOUT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            assert (CHECKOUT / target).exists(), f"{name} links to {target}"
    picture = re.search(
        r"!\[[^]]*\]\(https://raw\.githubusercontent\.com/[^/]+/[^/]+/main/([^)]+)\)", README
    )
    assert (CHECKOUT / picture[1]).exists()


@pytest.mark.parametrize(
    "path",
    ["README.md", *sorted(str(p.relative_to(CHECKOUT)) for p in (CHECKOUT / "docs").rglob("*.md"))],
)
def test_every_command_line_of_the_documentation_parses(path, parser):
    """Options that are gone, renamed or misspelt fail here; nothing is run."""
    for line in shell_lines((CHECKOUT / path).read_text(encoding="utf-8")):
        words = re.split(r"\s+#\s", line)[0].replace('"', "'").split("'")
        # Quoted text is one word, whatever is in it.
        words = [
            word for i, part in enumerate(words) for word in ([part] if i % 2 else part.split())
        ]
        if "alphazero-llm-trainer" in words[:3] and "vf-eval" not in words:
            words = words[words.index("alphazero-llm-trainer") + 1 :]
        elif "train_vllm.py" in words:
            words = ["train", *words[words.index("train_vllm.py") + 1 :]]
        elif "-s" in words and "vf-eval" in words:
            words = ["train", *(words[words.index("--") + 1 :] if "--" in words else [])]
        else:
            continue
        try:
            parser.parse_args(words)
        except SystemExit as stop:
            assert stop.code in (0, None), f"{path}: {line}"


def test_result_pages_and_readme_equal_their_json_and_the_check_sees_what_differs(tmp_path):
    for folder in ("benchmarks/results", "docs/results"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    parts = ["README.md", "CHANGELOG.md", "scripts/results_pages.py", "scripts/results_pages.yaml"]
    parts += [
        f"alphazero_llm_trainer/{name}"
        for name in ("assets/student/manifest.json", "cli/sft.py", "cli/train.py")
    ]
    for folder in ("benchmarks", "scripts"):
        parts += [f"{folder}/{path.name}" for path in (CHECKOUT / folder).glob("*.py")]
    for name in parts:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)

    def check(*flags):
        command = [sys.executable, str(tmp_path / "scripts" / "results_pages.py"), *flags]
        done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
        return done.returncode, done.stderr

    assert check("--check") == (0, "")
    # A command that is gone is said to be of the commit.
    text = "".join(page.read_text() for page in (tmp_path / "docs/results").iterdir())
    commands = re.findall(r"(:|, there by) `uv run python ([\w/.]+)", text)
    assert {how for how, _ in commands} == {":", ", there by"}
    assert all((how == ":") == (CHECKOUT / name).exists() for how, name in commands)
    data = tmp_path / "benchmarks/results/reliability.json"
    data.write_text(data.read_text().replace('"failures": 0', '"failures": 3'))
    (tmp_path / "docs/results/gone.md").write_text("# Gone\n")
    (tmp_path / "benchmarks/results/new.json").write_text("{}")
    code, said = check("--check")
    assert code == 1
    assert "docs/results/reliability.md differs" in said
    assert "docs/results/gone.md is no page" in said
    assert "benchmarks/results/new.json is on no page" in said
    # A bullet that is older than the last release says so.
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("\n## ", "\n## 9.0.0 - 9999-01-01\n\n## ", 1))
    check()
    bullets = [
        line
        for line in (tmp_path / "README.md").read_text().splitlines()
        if line.startswith("- ") and " seeds" in line
    ]
    assert bullets and all(re.search(r" \(\d{4}-\S+, after \d\S+\)$", one) for one in bullets)


def test_every_figure_names_its_commit(tmp_path):
    from benchmarks import provenance

    for file in (CHECKOUT / "benchmarks" / "results").glob("*.json"):
        found = read_json(file)
        assert {"commit", "clean", "date"} <= found.keys(), file.name
    provenance.write(tmp_path / "new" / "a.json", {"command": "uv run a", "rows": [1]})
    found = read_json(tmp_path / "new" / "a.json")
    assert found["command"] == "uv run a"
    assert provenance.git("cat-file", "-t", found["commit"]) == "commit"


def test_reference_pages_have_every_command_option_and_key(parser):
    pages = script("reference_pages")
    text = pages.commands()
    [children] = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for name, child in children.choices.items():
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        told = [
            action
            for action in child._actions
            if action.help != argparse.SUPPRESS and action.dest != "help"
        ]
        assert all(flag in part for action in told for flag in action.option_strings), name
    assert "%(" not in text
    text = pages.configuration()
    source = (CHECKOUT / "config" / "training.yaml").read_text(encoding="utf-8")
    for key in pages.flat(yaml.safe_load(source)):
        section, _, name = key.rpartition(".")
        part = text.partition(f"\n## {section or 'Top level'}\n")[2].partition("\n## ")[0]
        assert f"| `{name}` |" in part, key
    silent = [
        f"{section}.{name}"
        for section, _, rows in pages.sections(source)
        for name, _, text in rows
        if not text
    ]
    assert silent == [], "say in training.yaml what they mean"


def test_the_journal_page_names_every_column():
    text = (CHECKOUT / "docs" / "reference" / "journal.md").read_text(encoding="utf-8")
    for name in (*COLUMNS, *Rollout.__slots__):
        assert re.search(rf"\b{name}\b", text), name


def test_no_comment_hangs_behind_a_closing_bracket():
    """The formatter puts it there where statement and comment don't fit in a line: it reads better
    above the statement.
    """
    hanging = re.compile(r"\s*[])}]+[,:]?  # (?!fmt: skip|type: ignore|noqa)")
    lines = []
    for folder in ("alphazero_llm_trainer", "benchmarks", "examples", "scripts", "tests"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if hanging.match(line):
                    lines.append(f"{path.relative_to(CHECKOUT)}:{number}")
    assert lines == [], "put these comments above their statements"
