# SPDX-License-Identifier: Apache-2.0
"""The command that the tests run: MILLRACE_BIN names it, else `millrace` on PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def binary() -> str:
    found = os.environ.get("MILLRACE_BIN") or shutil.which("millrace")
    if not found:
        pytest.skip("set MILLRACE_BIN, or put millrace on PATH")
    return str(Path(found).resolve())
