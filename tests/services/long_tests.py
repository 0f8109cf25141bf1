# SPDX-License-Identifier: Apache-2.0
"""Tests marked `long` take a minute or more each; they run with MILLRACE_TEST_LONG (./dev release-check, ./dev soak)."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes a minute or more; runs with MILLRACE_TEST_LONG")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("MILLRACE_TEST_LONG"):
        return
    skipped = pytest.mark.skip(reason="MILLRACE_TEST_LONG is not set: this takes a minute or more")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skipped)
