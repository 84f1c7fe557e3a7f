"""Tests of the compiled engines are skipped where these are turned off."""

import pytest

from tunefree.models.enabled import VARIABLE, are_engines_enabled


def pytest_configure(config):
    text = f"compiled_engines: needs the compiled engines; skipped with {VARIABLE}=plain"
    config.addinivalue_line("markers", text)


def pytest_collection_modifyitems(items):
    if are_engines_enabled():
        return
    skip = pytest.mark.skip(reason=f"{VARIABLE}=plain turns the compiled engines off")
    for item in items:
        if item.get_closest_marker("compiled_engines") is not None:
            item.add_marker(skip)
