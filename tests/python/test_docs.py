# SPDX-License-Identifier: Apache-2.0
"""Claims of the docs that a program can check."""

import pathlib
import re
import subprocess
import sys

import pytest

import millrace as mr

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_metrics_page_is_the_table():
    rows = re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\w+) \| (.+) \|$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    assert rows == [(m["name"], m["unit"], m["stability"], m["help"]) for m in mr.metric_table()]


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_readme_python_runs(dataset, tmp_path):
    """The first Python block of the README, with its paths put in place of the reader's."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    code = block.replace('"shards"', repr(str(dataset.shards))).replace(
        '"tokenizer.json"', repr(str(dataset.tokenizer))
    )
    code = code.replace('"checkpoints"', repr(str(tmp_path / "checkpoints")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_millrace_does_not_import_torch():
    code = "import sys, millrace; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
