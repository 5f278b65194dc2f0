"""Shared pytest configuration: the tier of every test, and how hypothesis runs."""

import os

import pytest
from hypothesis import HealthCheck, settings

TIERS = ("host", "native", "compile", "emulated", "cuda", "rocm")
PROPERTY_EXAMPLES = 60

settings.register_profile(
    "local",
    deadline=None,
    print_blob=True,
    max_examples=PROPERTY_EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
in_ci = any(os.environ.get(name) for name in ("CI", "MXGEMM_CI"))
settings.load_profile("ci" if in_ci else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.host)
