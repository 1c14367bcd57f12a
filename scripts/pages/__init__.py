"""One function a page of docs/results: `results_pages.py` writes them."""
