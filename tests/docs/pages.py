# SPDX-License-Identifier: Apache-2.0
"""Does what a page of the docs tells its reader to do, in an empty folder, block after block.

| block | what happens |
|---|---|
| ```bash | its commands are run; a command that fails ends the test |
| ```python title="x.py" | is written as the file x.py |
| ```python | is run |
| ```text | is what the block before printed, or a part of it: line by line, `...` stands for anything |

`<!-- test: exit 137 -->` before a block is the status it must end with. `<!-- test: needs litdata -->` is for another
program's side of a comparison: the block is run where that package is installed. `<!-- test: not run -->` is for what
cannot be run. Blocks of other languages are for the eye.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r'^(?:<!-- test: (?P<mark>.*?) -->\n+)?```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    language: str
    title: str | None
    mark: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(m["language"], m["title"], m["mark"] or "", m["text"], text.count("\n", 0, m.start()) + 1)
        for m in BLOCK.finditer(text)
    ]


def environment(folder: Path, millrace: str) -> dict[str, str]:
    """`millrace` and `python` are those of the test, and nothing of the user's own is read or written."""
    tools = folder.parent / (folder.name + "-bin")
    tools.mkdir()
    (tools / "millrace").symlink_to(millrace)
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python").chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "AWS_", "MILLRACE_RUN"))}
    env["PATH"] = f"{tools}:{env['PATH']}"
    env["HOME"] = str(tools)
    env["MILLRACE_LEDGER"] = str(tools / "ledger")
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), *filter(None, [env.get("PYTHONPATH")])])
    return env


def expect(shown: str, output: str, where: str) -> None:
    """Every line of what a page shows is a line of the output, in this order."""
    lines = iter(output.splitlines())
    for wanted in filter(None, (line.strip() for line in shown.splitlines())):
        pattern = re.compile(
            r"\s*" + ".*".join(r"\s+".join(map(re.escape, part.split(" "))) for part in wanted.split("..."))
        )
        assert any(pattern.fullmatch(line.rstrip()) for line in lines), f"{where} shows {wanted!r}, not in:\n{output}"


def run_page(
    page: Path,
    folder: Path,
    millrace: str,
    more: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> int:
    """Returns how many blocks were run. `more` is added to the environment; `names` are names of the page and what stands
    for them here."""
    folder.mkdir(exist_ok=True)
    env = environment(folder, millrace) | dict(more or {})
    output, count = None, 0
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        for name, here in (names or {}).items():
            block.text = block.text.replace(name, here)
        needed = block.mark.removeprefix("needs ") if block.mark.startswith("needs ") else None
        if block.mark == "not run" or (needed and importlib.util.find_spec(needed) is None):
            output = None
            continue
        if block.language == "python" and block.title:
            (folder / block.title).write_text(block.text)
        elif block.language in ("bash", "python"):
            program = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
            done = subprocess.run(
                [*program, block.text], cwd=folder, env=env, text=True, timeout=300, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            output, count = done.stdout, count + 1
            wanted = int(block.mark.removeprefix("exit ")) if block.mark.startswith("exit ") else 0
            status = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as a shell says it
            assert status == wanted, f"{where} ended with {status}, not {wanted}:\n{output}"
            print(f"{where}\n{block.text}{output}")  # seen with pytest -s, and when a test fails
        elif block.language == "text" and output is not None:
            expect(block.text, output, where)
    shutil.rmtree(folder)
    return count
