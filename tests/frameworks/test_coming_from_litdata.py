# SPDX-License-Identifier: Apache-2.0
"""Both sides of docs/coming-from/litdata.md, over chunks that LitData wrote. `./dev check frameworks` installs it."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = pathlib.Path(__file__).parents[2]
WRITE = """
import litdata

def sample(number):
    return {"number": number, "text": f"text {number}"}

if __name__ == "__main__":
    litdata.optimize(sample, list(range(64)), "optimized", chunk_size=10, num_workers=1)
"""


def test_both_sides_work(binary: str, tmp_path: pathlib.Path, monkeypatch):
    if os.environ.get("MILLRACE_TEST_FRAMEWORKS") is None or importlib.util.find_spec("litdata") is None:
        pytest.skip("litdata is not installed (./dev check frameworks)")
    monkeypatch.syspath_prepend(str(ROOT / "tests/docs"))
    from pages import DOCS, run_page

    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "write.py").write_text(WRITE)
    env = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "write.py"], cwd=folder, env=env, check=True, timeout=300)
    page = DOCS / "coming-from/litdata.md"
    assert run_page(page, folder, binary, names={"s3://bucket/optimized": "optimized"}) == 3
