# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need a Hugging Face Hub; pyproject.toml loads them for every folder of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Hub, running


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty Hub that no other test sees; starting it takes some milliseconds."""
    with running() as server:
        yield server


@pytest.fixture
def tls_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The same behind TLS, with a certificate of its own (Hub.ca_file)."""
    folder: Path = tmp_path_factory.mktemp("hub")
    with running(folder) as server:
        yield server
