"""Hypothesis draws what users, disks and strangers may hand in: no traceback, and nothing that takes seconds."""

from __future__ import annotations

import os

import pytest
from fuzz import TARGETS, tried
from hypothesis import HealthCheck, given, settings

EXAMPLES = int(os.environ.get("ALPHAZERO_FUZZ_EXAMPLES", "60"))


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_handed_in(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="ALPHAZERO_FUZZ_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(target.draws())
    def run(drawn: object) -> None:
        tried(target, drawn)

    run()
