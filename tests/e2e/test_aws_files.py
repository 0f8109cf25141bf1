# SPDX-License-Identifier: Apache-2.0
"""Profile files and commands in them as we read them beside botocore and shlex, through a C++ test that reads both."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
from pathlib import Path

import pytest
from botocore.configloader import raw_config_parse
from botocore.exceptions import ConfigParseError
from conftest import REPOSITORY

TESTS = REPOSITORY / "build/dev/src/millrace/aws/millrace_aws_tests"
PARTS = [
    "a",
    "Key",
    "x y",
    "=",
    ":",
    " = ",
    "#",
    " # c",
    ";",
    "[",
    "]",
    "http://h:1/?a=b",
    "ö",
    "\\",
    "'",
    '"',
    "%(x)s",
]


def random_file(rng: random.Random) -> str:
    lines = [] if rng.random() < 0.1 else [f"[{rng.choice(['default', 'profile p', 'services s'])}]"]
    for number in range(rng.randrange(12)):
        value = "".join(rng.choices(PARTS, k=rng.randrange(4))).strip()
        delimiter = rng.choice(["=", " = ", "  =", " : ", ":"])
        indent = rng.choice(["", "", "", " ", "  ", "\t", "    "])
        lines.append(
            rng.choice(
                [
                    f"{indent}Option_{number}{delimiter}{value}",
                    f"{indent}Option_{number}{delimiter}",
                    f"{indent}inner_{number} = {value}",
                    f"[section {number}]",
                    f"{indent}# {value}",
                    f"{indent};{value}",
                    indent,
                ]
            )
        )
        if rng.random() < 0.03:
            lines.append(f"{indent}just words")
    return rng.choice(["\n", "\r\n"]).join(lines) + rng.choice(["", "\n"])


def read_by_botocore(text: str, path: Path) -> dict | None:
    path.write_bytes(text.encode())
    try:
        sections = raw_config_parse(str(path))
    except ConfigParseError:
        return None
    # We leave out empty lines inside a value of several lines, and no other part.
    return {
        name: {
            option: "\n".join(line for line in value.split("\n") if line) if isinstance(value, str) else value
            for option, value in section.items()
        }
        for name, section in sections.items()
    }


def split_by_shlex(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None


@pytest.mark.skipif(not TESTS.exists(), reason="the C++ tests are not built: ./dev build")
def test_files_and_commands_are_read_as_botocore_reads_them(seeded: random.Random, tmp_path: Path) -> None:
    files = [random_file(seeded) for _ in range(3000)]
    commands = ["".join(seeded.choices("ab \t\n'\"\\$#;|", k=seeded.randrange(14))) for _ in range(5000)]
    vectors = {
        "files": [{"text": text, "read": read_by_botocore(text, tmp_path / "config")} for text in files],
        "commands": [{"text": text, "words": split_by_shlex(text)} for text in commands],
    }
    assert sum(each["read"] is not None for each in vectors["files"]) > len(files) / 4
    (tmp_path / "vectors.json").write_text(json.dumps(vectors))
    done = subprocess.run(
        [TESTS, "--gtest_filter=ProfileFile.AsBotocoreReads"],
        env=os.environ | {"MILLRACE_AWS_FILE_VECTORS": str(tmp_path / "vectors.json")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout[-3000:]
