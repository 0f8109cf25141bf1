# SPDX-License-Identifier: Apache-2.0
"""Every command of the tutorials works as it stands there, and prints what is shown."""

from pathlib import Path

import pytest
from pages import DOCS, blocks, run_page

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(page.stem for page in (DOCS / "tutorial").glob("*.md")))
def test_a_tutorial_does_what_it_says(name: str, binary: str, tmp_path: Path):
    page = DOCS / "tutorial" / f"{name}.md"
    assert all(block.mark != "not run" for block in blocks(page))
    assert run_page(page, tmp_path / "folder", binary) >= 6
