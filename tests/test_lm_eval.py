"""The real lm-evaluation-harness, in an environment of its own, against `serve`: log-likelihoods
and generation.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import served, url
from support import library_logprobs
from tables import read_jsonl, write_jsonl

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks

CHOICES = """\
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}\\n"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ANSWERS = """\
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}\\n"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 40, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory):
    """The command that LM_EVAL names, else of an environment that is made for it; a skip where that
    can't be had.
    """
    named = os.environ.get("LM_EVAL")
    if named:
        return Path(named)
    folder = tmp_path_factory.mktemp("lm-eval") / "venv"
    commands = [[*f"uv venv {folder} -p".split(), sys.executable]]
    commands.append(f"uv pip install --no-config --python {folder / 'bin' / 'python'}".split())
    commands[1] += ["lm-eval[api]>=0.4.9", "torch", "transformers"]
    for command in commands:
        if (
            shutil.which("uv") is None
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("lm-eval can't be installed here: set LM_EVAL to its command")
    return folder / "bin" / "lm_eval"


@pytest.mark.slow
def test_lm_eval_measures_what_the_model_says(lm_eval, tmp_path):
    student = load_student(load_config(overrides=["student=embedded"]))
    student.tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = []
    for task in load_tasks("embedded", "test", 5):
        first = (task.solution or "").split("\n")[0]
        rows.append({"question": task.problem.question, "choices": [first, "1 + 1 = 2", "2 * 3"]})
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "choices.yaml").write_text(CHOICES)
    (tmp_path / "tasks" / "answers.yaml").write_text(ANSWERS)
    server = served(tmp_path / "server", "--model", "embedded")
    try:
        settings = f"model=student,base_url={url(server)}/v1/completions,tokenizer=tokenizer,max_length=1024"
        command = f"""
            {lm_eval} --model local-completions --model_args {settings} --tasks choices,answers
        """.split()
        command += "--include_path tasks --batch_size 2 --output_path out --log_samples".split()
        offline = {
            "NO_PROXY": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "home"),
        }
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | offline,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        server.kill()

    def samples(name):
        [file] = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        return read_jsonl(file)

    for sample in samples("choices"):
        row = rows[sample["doc_id"]]
        prompt = student.encode(row["question"] + "\n")
        for choice, found in zip(row["choices"], sample["filtered_resps"], strict=True):
            told, greedy = float(found[0]), str(found[1]) == "True"
            ids = student.encode(f"{row['question']}\n{choice}")
            table = library_logprobs(student.model, ids)
            own = [float(table[at - 1, ids[at]]) for at in range(len(prompt), len(ids))]
            assert told == pytest.approx(sum(own), abs=1e-3)
            assert greedy == all(
                int(table[at - 1].argmax()) == ids[at] for at in range(len(prompt), len(ids))
            )
    assert any(sample["exact_match"] == 1.0 for sample in samples("answers"))
