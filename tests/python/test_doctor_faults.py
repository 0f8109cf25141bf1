# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in real trainings, one after the other, and found by `millrace doctor` from the outside."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bad_line import Line


def doctor(runtime: Path, *words: object) -> dict[str, dict]:
    """Verdicts by rule."""
    command = [os.environ.get("MILLRACE_BIN", "millrace"), "doctor", *map(str, words), "--json"]
    env = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime), "MILLRACE_LEDGER": str(runtime / "ledger")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and lines[-1]["type"] == "doctor", done
    return {line["rule"]: line for line in lines[:-1]}


def until_found(rule: str, runtime: Path, *words: object) -> dict:
    """It is found when there is enough of it, however slow the machine is."""
    end = time.monotonic() + 60
    while rule not in (verdicts := doctor(runtime, *words, "--no-stacks")):
        assert time.monotonic() < end, verdicts
        time.sleep(0.5)
    return verdicts[rule]


@contextmanager
def running(program: str, folder: Path, *arguments: object, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    script = folder / "train.py"
    script.write_text(program)
    unwanted = ("SLURM_", "RANK", "WORLD_SIZE", "AWS_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    env |= {"MILLRACE_RUNTIME_DIR": str(folder / "run"), "MILLRACE_LEDGER": str(folder / "run/ledger")} | variables
    command = [sys.executable, str(script), *map(str, arguments)]
    with (folder / "train.out").open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait(20)


@pytest.fixture
def slow_line(s3) -> Iterator[Line]:
    """To the S3 server; each piece of what comes from there, or of what goes there, takes a while."""
    line = Line(s3.endpoint)
    yield line
    line.server.shutdown()
    line.server.server_close()


def slow_down(line: Line, seconds: float, upward: bool) -> None:
    def bend(piece: bytes, up: bool) -> bytes:
        if up == upward and len(piece) > 4096:  # content, and no heads
            time.sleep(seconds)
        return piece

    line.bend = bend


def uploaded(s3, bucket: str, dataset) -> str:
    for tar in dataset.tars:
        for path in map(pathlib.Path, (tar, f"{tar}.index")):
            s3.client.put_object(Bucket=bucket, Key=path.name, Body=path.read_bytes())
    return ",".join(f"s3://{bucket}/{os.path.basename(tar)}" for tar in dataset.tars)


LOADING = """
import sys, time, millrace as mr
with (
    mr.Loader(sys.argv[1].split(","), batch_size=64, seq_len=64, num_threads=1) as loader,
    mr.Run(sys.argv[2], config={"num_threads": 1}, loader=loader, counters_seconds=0.2, flush_seconds=0.1) as run,
):
    for step, batch in enumerate(loader):
        time.sleep(0.005)
        run.log(step, loss=1.0)
"""


def test_a_slow_storage_is_why_training_waits(s3, bucket, dataset, slow_line: Line, tmp_path: Path):
    slow_down(slow_line, 0.1, upward=False)
    shards = uploaded(s3, bucket, dataset)
    variables = s3.env | {"AWS_ENDPOINT_URL": slow_line.endpoint}
    with running(LOADING, tmp_path, shards, tmp_path / "record", **variables):
        found = until_found("DR17", tmp_path / "run", tmp_path / "record") if wait_for_record(tmp_path) else {}
    assert "training waited " in found["evidence"][0] and " batches, up to 20" in found["evidence"][0]
    assert found["advice"].startswith("The limit is read: "), found


def wait_for_record(folder: Path) -> bool:
    end = time.monotonic() + 60
    while not list((folder / "record").glob("*.run.jsonl")):
        assert time.monotonic() < end, (folder / "train.out").read_text()
        time.sleep(0.05)
    return True


# Ranks that take their steps together, as in data-parallel training; the storage of rank 1 is slow.
TOGETHER = """
import multiprocessing, os, sys, time

def train(rank, together, shards, slow):
    os.environ["RANK"] = str(rank)
    if rank == 1:
        os.environ["AWS_ENDPOINT_URL"] = slow
    import millrace as mr
    with mr.Loader(shards.split(","), batch_size=64, seq_len=64, num_threads=1) as loader:
        for step, batch in enumerate(loader):
            together.wait()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(3)
    ranks = [context.Process(target=train, args=(rank, together, *sys.argv[1:])) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


def test_the_rank_whose_storage_is_slow_sets_the_pace(s3, bucket, dataset, slow_line: Line, tmp_path: Path):
    slow_down(slow_line, 0.3, upward=False)
    shards = uploaded(s3, bucket, dataset)
    with running(TOGETHER, tmp_path, shards, slow_line.endpoint, **s3.env) as parent:
        found = until_found("DR22", tmp_path / "run", "--pid", parent.pid)
    assert found["evidence"][0].startswith("rank 1, process "), found
    assert " it waited for data in " in found["evidence"][0] and "(median of 2)" in found["evidence"][0]
    assert "compare its node's mount" in found["advice"]


# The clock of this record is two minutes late, so that the test need not wait for as long.
STANDING = """
import sys, threading, time
now = time.time
time.time = lambda: now() - 120
import millrace as mr
def the_call_that_never_returns():
    threading.Event().wait()
with mr.Run(sys.argv[1], flush_seconds=0.1) as run:
    for step in range(20):
        time.sleep(0.02)
        run.log(step, loss=1.0)
    run.flush()
    open(sys.argv[2], "w").close()
    the_call_that_never_returns()
"""


def test_a_training_that_stands_still(tmp_path: Path):
    with running(STANDING, tmp_path, tmp_path / "record", tmp_path / "stands", RANK="0") as training:
        end = time.monotonic() + 60
        while not (tmp_path / "stands").exists():
            assert time.monotonic() < end, (tmp_path / "train.out").read_text()
            time.sleep(0.05)
        verdicts = doctor(tmp_path / "run", tmp_path / "record")
    assert set(verdicts) == {"DR10"}, verdicts
    first, *others = verdicts["DR10"]["evidence"]
    assert first.startswith("the last step was 19 at 20") and "2m 0" in first, first
    assert any(f"rank 0, process {training.pid}: state SSSSS" in line for line in others), others
    assert any("the_call_that_never_returns (" in line for line in others), others


# clone(CLONE_VFORK): the parent sleeps in the kernel until its child has ended, and only SIGKILL wakes it.
IN_THE_KERNEL = """
import ctypes, os, sys, time
CLONE_VFORK, SIGCHLD = 0x4000, 17
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
    open(sys.argv[1], "w").close()
    time.sleep(300)
    os._exit(0)
"""


def test_a_rank_that_hangs_in_the_kernel(tmp_path: Path):
    with running(IN_THE_KERNEL, tmp_path, tmp_path / "hangs", RANK="2") as rank:
        end = time.monotonic() + 60
        while not (tmp_path / "hangs").exists():
            assert time.monotonic() < end, (tmp_path / "train.out").read_text()
            time.sleep(0.05)
        verdicts = doctor(tmp_path / "run", "--pid", rank.pid, "--no-stacks")
    assert set(verdicts) == {"DR09"}, verdicts
    # Its environment and command are not read: that may hang, too.
    assert f"process {rank.pid}: in the kernel in each of 5 looks" in verdicts["DR09"]["evidence"][0], verdicts


SAVING = """
import sys, torch, millrace as mr
with (
    mr.torch.Checkpointer(sys.argv[1], keep_last=1, rank=0, world_size=1) as checkpointer,
    mr.Run(sys.argv[2], checkpointer=checkpointer, counters_seconds=0.2, flush_seconds=0.1) as run,
):
    state = {"x": torch.zeros(1 << 18)}
    for step in range(10_000):
        checkpointer.save(step, state)  # which waits for the one before
        run.log(step, loss=1.0)
"""


def test_checkpoints_to_a_slow_storage_keep_training(s3, bucket, slow_line: Line, tmp_path: Path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    slow_down(slow_line, 0.05, upward=True)
    variables = s3.env | {"AWS_ENDPOINT_URL": slow_line.endpoint}
    with running(SAVING, tmp_path, f"s3://{bucket}/checkpoints", tmp_path / "record", **variables):
        wait_for_record(tmp_path)
        found = until_found("DR18", tmp_path / "run", tmp_path / "record")
    assert "each kept training for " in found["evidence"][0] and " of the time" in found["evidence"][0], found
    assert "By Daly's formula one every " in found["advice"], found


def pressure(folder: Path, seconds: float) -> None:
    """What the kernel writes: the time since the start in which tasks waited for I/O, in microseconds."""
    averages = "avg10=0.00 avg60=0.00 avg300=0.00"
    text = "".join(f"{kind} {averages} total={round(seconds * 1e6)}\n" for kind in ("some", "full"))
    new = folder / "new"
    new.write_text(text)
    new.replace(folder / "io")


def span(samples: list[str]) -> float:
    """Seconds from the first to the last; the doctor wants 2."""
    first, last = json.loads(samples[0]), json.loads(samples[-1])
    return (last["time_ns"] - first["time_ns"]) / 1e9


@pytest.mark.parametrize(("share", "rules"), [(0.6, {"DR25"}), (0.02, set())])
def test_a_disk_that_stalls_holds_the_node_back(share: float, rules: set[str], tmp_path: Path):
    """The kernel's figures in a folder: to make the disk of the tests so slow would hold up all other tests."""
    proc, samples = tmp_path / "proc", tmp_path / "samples.jsonl"
    (proc / "pressure").mkdir(parents=True)
    (tmp_path / "sys").mkdir()
    for calm in ("cpu", "memory"):
        (proc / "pressure" / calm).touch()
    pressure(proc / "pressure", 0)
    program = os.environ.get("MILLRACE_BIN", "millrace")
    command = [program, "monitor", "--every", "100ms", "--jsonl", samples, "--proc", proc, "--sys", tmp_path / "sys"]
    start = time.monotonic()
    with subprocess.Popen([*map(str, command), "--nvml", "libmillrace-none.so", "--quiet"]) as monitor:
        try:
            while not samples.exists() or len(lines := samples.read_text().split("\n")[:-1]) < 20 or span(lines) < 3:
                assert time.monotonic() - start < 60
                time.sleep(0.01)
                pressure(proc / "pressure", share * (time.monotonic() - start))
        finally:
            monitor.terminate()
    found = doctor(tmp_path / "run", "--samples", samples)
    assert set(found) == rules
    if rules:
        (evidence,) = found["DR25"]["evidence"]
        assert re.search(r": all tasks waited for I/O in [\d.]+ % of the time$", evidence), evidence
