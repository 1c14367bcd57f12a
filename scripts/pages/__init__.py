"""One function a page of docs/results: `results_pages.py` writes them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # for `benchmarks`
