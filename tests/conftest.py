"""Fixtures that several test files share."""

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from tables import CHECKOUT

from alphazero_llm_trainer.config.cache import cache_folder

# One BLAS thread a process, before anything imports torch: xdist's workers and the commands they
# start share the cores.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# The user's own, before the session has one of its own; xdist's workers are told.
OWN_CACHE = Path(os.environ.setdefault("ALPHAZERO_TESTS_OWN_CACHE", str(cache_folder())))


def pytest_configure(config):
    """Nothing is kept in the user's own cache folder: the kernels are compiled once a session, for
    all its processes.
    """
    if "ALPHAZERO_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="alphazero-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["ALPHAZERO_CACHE_DIR"] = folder.name


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """What clicks through a real browser or asks a Ray cluster is slow."""
    for item in items:
        if not {"browser", "cluster"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def log_again():
    """`-q` and `merge` silence the log for their process; here that is all tests' own."""
    yield
    logging.disable(logging.NOTSET)
    logging.getLogger("alphazero_llm_trainer.engine").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def config():
    """The configuration of the shipped student."""
    from alphazero_llm_trainer.config.load import load_config

    return load_config(overrides=["student=embedded"])


@pytest.fixture(scope="module")
def student(config):
    from alphazero_llm_trainer.policy.student import load_student

    return load_student(config)


@pytest.fixture(scope="session")
def data_dir():
    """The folder with the real rows: ALPHAZERO_DATA_DIR, else `../shared/data` beside the checkout;
    else a skip.
    """
    named = os.environ.get("ALPHAZERO_DATA_DIR")
    folder = Path(named) if named else CHECKOUT.parent / "shared" / "data"
    if not (folder / "gsm8k" / "train.jsonl").is_file():
        pytest.skip(
            f"no real rows: {folder / 'gsm8k'} is missing; set ALPHAZERO_DATA_DIR to the folder "
            "that has it"
        )
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The folder of SmolLM2-135M that scripts/fetch_smollm2.py made; else a skip."""
    folder = OWN_CACHE / "models" / "HuggingFaceTB--SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        pytest.skip("SmolLM2-135M is not here: run scripts/fetch_smollm2.py")
    return folder


@pytest.fixture(scope="session")
def smollm2_cut(smollm2, tmp_path_factory):
    """SmolLM2-135M's first two layers, with its tokenizer and chat template: fast, and its texts
    mean nothing.
    """
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("smollm2-cut")
    for file in smollm2.iterdir():
        if file.name not in ("model.safetensors", "config.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((smollm2 / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    weights = load_file(smollm2 / "model.safetensors")
    kept = {
        name: w
        for name, w in weights.items()
        if "layers." not in name or int(name.split(".")[2]) < 2
    }
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def chromium():
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = shutil.which("chromedriver")
    if chromium() is None or driver is None:
        pytest.skip(
            "NOT TESTED in a browser: chromium or chromedriver is missing; apt-get install "
            "chromium chromium-driver"
        )
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium())
    flags = (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-sync", "--disable-background-networking", "--disable-component-update",
        "--window-size=1280,800", f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    )  # fmt: skip
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    one = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield one
    one.quit()
