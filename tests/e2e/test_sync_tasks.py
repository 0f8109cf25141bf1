# SPDX-License-Identifier: Apache-2.0
"""Several processes share one sync by key ranges: on one machine, under a real Slurm, with one that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Millrace, kill
from s3_fixture import S3
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


def make_tree(root: Path, count: int, size: int = 1000) -> dict[str, bytes]:
    """Most files lie in one folder, as they do."""
    content = {}
    for number in range(count):
        folder = "many" if number % 10 else f"few/{number % 70}"
        path = f"{folder}/shard-{number:06}"
        content[path] = (b"%06d " % number) * (size // 7)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content[path])
    return content


def objects(s3: S3, bucket: str, prefix: str) -> dict[str, int]:
    pages = s3.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = [(each["Key"], each["Size"]) for page in pages for each in page.get("Contents", [])]
    return {key.removeprefix(prefix): size for key, size in found if ".millrace" not in key}


def copied(out: str) -> list[str]:
    lines = [json.loads(line) for line in out.splitlines()]
    return [each["path"] for each in lines if each["type"] == "transfer" and each["action"] == "copy"]


@pytest.mark.long
def test_tasks_share_a_sync_and_one_that_dies_is_taken_over(millrace: Millrace, s3: S3, tmp_path: Path):
    content = make_tree(tmp_path / "src", 600)
    bucket = s3.bucket()
    # Slow enough that all tasks meet: some hundred requests a second for all of them together.
    millrace.env = millrace.env | s3.env | {"MILLRACE_S3_REQUESTS_PER_SECOND": "120"}
    command = ["sync", tmp_path / "src", f"s3://{bucket}/to", "--job=one", "--dead-after=10s", "--json"]
    tasks = [millrace.start(*command, "--task", f"{index}/4") for index in range(4)]
    try:
        until = time.monotonic() + 60
        while len(objects(s3, bucket, "to/")) < 60:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert kill(tasks[0])
        # All at once: a task whose lines nobody reads waits, and the others wait for its range.
        with ThreadPoolExecutor() as pool:
            ended = list(pool.map(lambda task: task.communicate(timeout=300), tasks[1:]))
        assert [task.returncode for task in tasks[1:]] == [0, 0, 0], ended
    finally:
        for task in tasks:
            if task.poll() is None:
                kill(task)
    assert objects(s3, bucket, "to/") == {path: len(data) for path, data in content.items()}
    parts = [copied(out) for out, _ in ended]
    assert all(parts), [len(part) for part in parts]
    # A task that comes late finds nothing to do; another job begins anew and finds all equal.
    late = millrace(*command, "--task=3/4")
    assert copied(late.out) == [] and "another sync needs another name" in late.err
    again = millrace("sync", tmp_path / "src", f"s3://{bucket}/to", "--job=two", "--task=0/1", "--json")
    assert copied(again.out) == [] and again.object("transfer_summary")["skipped_files"] == 600


def test_tasks_of_slurm_share_a_download(millrace: Millrace, s3: S3, slurm: Slurm, tmp_path: Path):
    content = make_tree(tmp_path / "src", 300)
    bucket = s3.bucket()
    millrace.env = millrace.env | s3.env
    millrace("sync", tmp_path / "src", f"s3://{bucket}/from")
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/bash\nsrun -n 4 -o {tmp_path}/task-%t.out -e {tmp_path}/task-%t.err {millrace.binary} sync s3://{bucket}/from {tmp_path}/to "
        "--task slurm --json\n"
    )
    environment = ",".join(f"{name}={value}" for name, value in s3.env.items())
    environment += ",MILLRACE_S3_REQUESTS_PER_SECOND=100"
    job = slurm.submit(
        "-N", 2, "-n", 4, f"--export=ALL,{environment}", "-o", tmp_path / "job.out", script, cwd=tmp_path
    )
    assert slurm.wait(job, 120) == "COMPLETED", (tmp_path / "job.out").read_text()
    found = {str(path.relative_to(tmp_path / "to")): path.read_bytes() for path in (tmp_path / "to").rglob("shard-*")}
    assert found == content
    parts = [copied((tmp_path / f"task-{rank}.out").read_text()) for rank in range(4)]
    assert sum(map(bool, parts)) >= 2, [len(part) for part in parts]


def test_a_task_that_is_stopped_leaves_its_part_to_others(millrace: Millrace, s3: S3, tmp_path: Path):
    content = make_tree(tmp_path / "src", 200)
    bucket = s3.bucket()
    millrace.env = millrace.env | s3.env
    command = ["sync", tmp_path / "src", f"s3://{bucket}/to", "--job=one", "--dead-after=1s", "--json"]
    slow = millrace.env | {"MILLRACE_S3_REQUESTS_PER_SECOND": "20"}
    with subprocess.Popen([millrace.binary, *map(str, command), "--task=0/2"], cwd=tmp_path, env=slow,
                          stdout=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as first:  # fmt: skip
        until = time.monotonic() + 60
        while len(objects(s3, bucket, "to/")) < 5:
            assert time.monotonic() < until
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
        assert first.returncode == 130
    millrace(*command, "--task=1/2")
    assert objects(s3, bucket, "to/") == {path: len(data) for path, data in content.items()}


def test_mistakes_with_tasks_are_told(millrace: Millrace, tmp_path: Path):
    (tmp_path / "src").mkdir()
    command = ["sync", tmp_path / "src", tmp_path / "to"]
    assert "--job" in millrace(*command, "--task=0/2", status=2).err
    assert "counted from 0" in millrace(*command, "--task=2/2", "--job=x", status=2).err
    assert "not set" in millrace(*command, "--task=slurm", "--job=x", status=2).err
    assert "excludes --delete" in millrace(*command, "--task=0/2", "--job=x", "--delete", status=2).err
    assert "no name of a job" in millrace(*command, "--task=0/2", "--job=a/b", status=1).err
    assert "no files below" in millrace(*command, "--task=0/2", "--job=x", status=1).err
