# SPDX-License-Identifier: Apache-2.0
"""The README's first commands, as they stand. `./dev demo` makes demo-out/tokenizer.json; another file takes its place."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from conftest import REPOSITORY, Millrace, tokenizer_json


def commands() -> list[str]:
    """Those of the first block that call millrace."""
    block = (REPOSITORY / "README.md").read_text().split("## Try it\n")[1].split("    ./dev demo ")[1]
    lines = block.split("\n\n")[0].splitlines()[1:]
    return [line.strip() for line in lines if line.startswith("    millrace ")]


def test_the_numbers_of_rules_are_those_of_the_lists(millrace: Millrace):
    """`millrace VERB ...  # N rules`."""
    found = {}
    for line in (REPOSITORY / "README.md").read_text().splitlines():
        command, _, comment = line.strip().partition("#")
        if count := re.search(r"\b(\d+) rules", comment):
            verb = re.match(r"millrace ((?:doctor|env|job|cluster|lerobot)(?: lint| validate)?)", command)
            assert verb, line
            listed = millrace(*verb[1].split(), "--rules").out
            found[verb[1]] = (int(count[1]), len(re.findall(r"^- rule: ", listed, re.MULTILINE)))
    assert {"doctor", "cluster lint", "lerobot validate"} <= found.keys()
    assert all(said == listed for said, listed in found.values()), found


def test_the_first_commands_run_as_they_stand(millrace: Millrace, tmp_path: Path):
    found = commands()
    assert [command.split()[1] for command in found] == ["split", "prepare", "shards"]
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    (tmp_path / "demo-out").mkdir()
    (tmp_path / "demo-out/tokenizer.json").write_text(tokenizer_json())
    for _ in range(2):  # the second time finds the results of the first
        for command in found:
            line = f"{shlex.quote(str(millrace.binary))} {command.removeprefix('millrace ')}"
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, env=millrace.env, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stdout + done.stderr
        assert len(done.stdout.splitlines()) >= 2  # the samples that the last command prints
