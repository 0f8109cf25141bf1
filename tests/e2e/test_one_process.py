# SPDX-License-Identifier: Apache-2.0
"""A loader, a checkpoint and a copy at once in one process, all of them in S3: memory, requests/s and bytes/s are one
budget for the three, and each result is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Millrace

mr = pytest.importorskip("millrace")
LOADING = dict(batch_size=32, seq_len=64, collate="pack", epochs=1)  # as three_at_once.py does
MIB = 1 << 20
# Memory outside of the budget: code that is loaded on first use, threads, libcurl's buffers of 128 connections.
OVERHEAD_MIB = 32


@pytest.fixture
def cloud(millrace: Millrace, s3) -> Millrace:
    kept = {name: value for name, value in millrace.env.items() if not name.startswith(("AWS_", "MILLRACE_S3"))}
    millrace.env = kept | s3.env
    return millrace


class Three:
    """The work of three_at_once.py."""

    def __init__(self, cloud: Millrace, bucket: str, tokenizer: Path, *, lines: int, files: int, file_bytes: int):
        self.cloud, self.url = cloud, f"s3://{bucket}"
        (cloud.cwd / "in.txt").write_text("\n".join(f"line {i} of some text that is long enough" for i in range(lines)))
        cloud("prepare", "in.txt", "--tokenizer", str(tokenizer), "--out", f"{self.url}/shards")
        (cloud.cwd / "src").mkdir()
        for i in range(files):
            (cloud.cwd / "src" / str(i)).write_bytes(os.urandom(file_bytes))

    def run(self, tensor_mib: int, loader_mib: int, **env: str) -> subprocess.CompletedProcess:
        places = (f"{self.url}/shards/00000.tar", f"{self.url}/run", str(self.cloud.cwd / "src"), f"{self.url}/copy")
        return subprocess.run(
            [
                sys.executable,
                Path(__file__).with_name("three_at_once.py"),
                *places,
                str(tensor_mib),
                str(loader_mib),
            ],
            env=self.cloud.env | env,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def check(self, tokens: list[int]) -> None:
        self.cloud("cp", "--recursive", f"{self.url}/shards", "shards")
        with mr.Loader(str(self.cloud.cwd / "shards/00000.tar"), **LOADING) as loader:
            assert set(tokens) == {sum(int(batch["input_ids"].sum()) for batch in loader)}
        self.cloud("verify", "src", f"{self.url}/copy")
        self.cloud("ckpt", "verify", f"{self.url}/run")


def test_memory_is_one_budget(cloud: Millrace, bucket: str, tokenizer: Path) -> None:
    # The copy alone moves more than the whole budget, and the shard is twice what its loader may hold.
    three = Three(cloud, bucket, tokenizer, lines=40_000, files=12, file_bytes=16 * MIB)
    budget_mib = 32 + 49 + 40  # the loader's, the checkpoint's tensor and what stands before it, what transfers take
    done = three.run(48, 32, MILLRACE_MEMORY=f"{budget_mib}MiB")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    three.check(told["tokens"])
    assert told["after"] - told["before"] <= budget_mib + OVERHEAD_MIB


@pytest.mark.parametrize(
    ("limit", "counted", "per_second", "in_one_request", "files", "file_bytes"),
    [
        ("MILLRACE_S3_BYTES_PER_SECOND", "bytes", 16_000_000, 16 * MIB, 4, 10 * MIB),
        ("MILLRACE_S3_REQUESTS_PER_SECOND", "requests", 25, 1, 75, 1000),
    ],
    ids=["bytes", "requests"],
)
def test_limits_are_shared(
    cloud: Millrace,
    bucket: str,
    tokenizer: Path,
    limit: str,
    counted: str,
    per_second: int,
    in_one_request: int,
    files: int,
    file_bytes: int,
) -> None:
    three = Three(cloud, bucket, tokenizer, lines=10_000, files=files, file_bytes=file_bytes)
    done = three.run(40, 32, **{limit: str(per_second)})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    three.check(told["tokens"])
    # With a limit for each, the three would take about half of this. A request begins once those before it have had
    # their time, after a burst of a tenth of a second.
    assert told["seconds"] >= (told[counted] - in_one_request) / per_second - 0.1
