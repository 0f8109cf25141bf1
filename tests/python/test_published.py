# SPDX-License-Identifier: Apache-2.0
"""What loaders and checkpointers show while they run: millrace monitor and doctor read it from another process."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BINARY = os.environ.get("MILLRACE_BIN", "millrace")

# Takes a batch every 20 ms. Says each batch that it has taken.
TRAINING = """
import sys, time, millrace as mr
loader = mr.Loader(sys.argv[1].split(","), batch_size=2, seq_len=64, num_threads=1)
for step, batch in enumerate(loader):
    print(step + 1, flush=True)
    time.sleep(0.02)
"""

# Saves without an end, to two tiers.
SAVING = """
import sys, time, torch, millrace as mr
checkpointer = mr.torch.Checkpointer(sys.argv[1] + "/far", tiers=[sys.argv[1] + "/near"], keep_last=1, rank=0, world_size=1)
state = {"x": torch.zeros(1 << 20)}
for step in range(1, 1000):
    checkpointer.save(step, state).wait()
    print(step, flush=True)
"""


def start(folder: Path, program: str, *arguments: object) -> subprocess.Popen[str]:
    env = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder), "RANK": "1", "WORLD_SIZE": "2"}
    env = {name: value for name, value in env.items() if not name.startswith("SLURM_")}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= number:
            return
    raise AssertionError(f"it ended with {process.wait()}")


def monitor(folder: Path, *flags: object) -> list[dict]:
    with tempfile.NamedTemporaryFile("r") as samples:
        command = [BINARY, "monitor", "--jsonl", samples.name, "--nvml", "none.so", *map(str, flags)]
        env = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder)}
        subprocess.run(command, env=env, capture_output=True, timeout=60, check=True)
        return [json.loads(line)["values"] for line in samples]


def doctor(folder: Path, *words: object) -> tuple[dict[str, dict], dict]:
    command = [BINARY, "doctor", *map(str, words), "--no-stacks", "--json"]
    env = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    *verdicts, summary = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["rule"]: each for each in verdicts}, summary


def test_a_loader_is_seen_while_it_runs_and_after_a_kill(dataset, tmp_path: Path):
    folder = tmp_path / "run"
    training = start(folder, TRAINING, ",".join(map(str, dataset.tars)))
    try:
        wait_for(training, 10)
        first, second = monitor(folder, "--samples", 2, "--every", "500ms")
        assert first["millrace_training_processes"] == 1
        assert first["millrace_training_batches_total"] >= 10
        assert second["millrace_training_batches_total"] > first["millrace_training_batches_total"]
        assert second["millrace_training_samples_total"] == 2 * second["millrace_training_batches_total"]
        assert second["millrace_training_tokens_total"] > 0 and second["millrace_training_read_bytes_total"] > 0
        assert second["millrace_training_queue_batches"] >= 1, "it takes a batch every 20 ms, and one is ready"
        assert second["millrace_training_waiting_ratio"] < 0.9
        labels = f'{{rank="1",pid="{training.pid}"}}'
        assert second["millrace_process_batches_total" + labels] >= 10
        assert abs(second["millrace_process_last_batch_timestamp_seconds" + labels] - time.time()) < 60
        verdicts, summary = doctor(folder, "--pid", training.pid)
        assert "the loader and checkpointer of 1 process" in summary["looked_at"]
        assert not {"DR10", "DR18"} & set(verdicts)
    finally:
        training.send_signal(signal.SIGKILL)
        training.wait(20)
    (left,) = folder.iterdir()
    assert left.name.startswith(f"{training.pid}.")
    assert monitor(folder, "--samples", 1)[0]["millrace_training_processes"] == 0, "a dead process shows nothing"
    again = start(folder, TRAINING, ",".join(map(str, dataset.tars)))
    try:
        wait_for(again, 1)
        assert [path.name.split(".")[0] for path in folder.iterdir()] == [str(again.pid)], "it removed the dead one's"
    finally:
        again.terminate()
        again.wait(20)


# Its files of numbers are whole whenever it is killed, and the monitor beside it goes on.
def test_kills_at_any_moment_leave_readable_samples(dataset, tmp_path: Path):
    folder, samples, table = tmp_path / "run", tmp_path / "a.jsonl", tmp_path / "a.csv"
    watching = subprocess.Popen(
        [BINARY, "monitor", "--every", "20ms", "--nvml", "none.so", "--jsonl", str(samples), "--csv", str(table)],
        env=os.environ | {"MILLRACE_RUNTIME_DIR": str(folder)},
        stderr=subprocess.DEVNULL,
    )
    try:
        for kill in range(4):
            training = start(folder, TRAINING, ",".join(map(str, dataset.tars)))
            wait_for(training, 3 + 5 * kill)
            training.send_signal(signal.SIGKILL)
            training.wait(20)
    finally:
        watching.terminate()
        assert watching.wait(20) == 0
    batches = [
        json.loads(line)["values"]["millrace_training_batches_total"] for line in samples.read_text().splitlines()
    ]
    assert batches == sorted(batches), "the sum goes on over processes that end"
    assert batches[-1] >= 3 + 8 + 13 + 18 - 4 * 5, "each process was seen shortly before its end"
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert "millrace_training_batches_total" in rows[0] and not any("pid=" in name for name in rows[0])


# Without a pause between batches it waits nearly all the time.
EAGER = """
import sys, millrace as mr
loader = mr.Loader(sys.argv[1].split(","), batch_size=64, seq_len=8, num_threads=1)
for step, batch in enumerate(loader):
    print(step + 1, flush=True)
"""


def test_the_doctor_names_a_wait_by_the_pid(dataset, tmp_path: Path):
    folder = tmp_path / "run"
    training = start(folder, EAGER, ",".join(map(str, dataset.tars)))
    try:
        wait_for(training, 20)
        time.sleep(2.5)
        verdicts, _ = doctor(folder, "--pid", training.pid)
        assert "DR17" in verdicts
        assert verdicts["DR17"]["evidence"][0].startswith(f"rank 1, process {training.pid}: it waited ")
    finally:
        training.kill()
        training.wait(20)


def test_checkpoints_are_seen(tmp_path: Path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path / "run"
    saving = start(folder, SAVING, tmp_path)
    try:
        wait_for(saving, 3)
        values = monitor(folder, "--samples", 20, "--every", "10ms")
        last = values[-1]
        assert last["millrace_training_saves_total"] >= 3
        assert last["millrace_training_written_bytes_total"] >= 2 * 3 * (4 << 20), "in both tiers"
        assert last["millrace_training_stall_seconds_total"] > 0
        for each in values:
            assert 0 <= each["millrace_training_saves_under_way"] <= 1
            assert 0 <= each["millrace_training_unwritten_bytes"] <= 1.1 * (4 << 20)
        assert any(each["millrace_training_unwritten_bytes"] > 0 for each in values)
    finally:
        saving.kill()
        saving.wait(20)


# The file as docs/format/published.md has it, read without Millrace.
def test_the_format_is_as_documented(dataset, tmp_path: Path):
    folder = tmp_path / "run"
    training = start(folder, TRAINING, ",".join(map(str, dataset.tars)))
    try:
        wait_for(training, 5)
        (path,) = folder.iterdir()
        data = path.read_bytes()
    finally:
        training.kill()
        training.wait(20)
    assert len(data) == 4096
    magic, version, rows, pid, ticks, begun, rank, world = struct.unpack_from("<8sIIQQqii", data)
    assert (magic, version, pid, rank, world) == (b"MRPUBLSH", 1, training.pid, 1, 2)
    assert path.name == f"{pid}.{ticks}.0" and abs(begun / 1e9 - time.time()) < 60
    values = {}
    for row in range(rows):
        name, value = struct.unpack_from("<24sq", data, 64 + 32 * row)
        values[name.rstrip(b"\0").decode()] = value
    assert values["batches"] >= 5 and values["samples"] == 2 * values["batches"]
    page = (Path(__file__).resolve().parents[2] / "docs/format/published.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(values)
    table = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in table for name in monitor(folder, "--samples", 1)[0] if "training" in name)


def test_metrics_pass_promtool(dataset, tmp_path: Path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    folder, metrics = tmp_path / "run", tmp_path / "a.prom"
    training = start(folder, TRAINING, ",".join(map(str, dataset.tars)))
    try:
        wait_for(training, 3)
        monitor(folder, "--samples", 2, "--every", "50ms", "--prometheus", metrics)
    finally:
        training.kill()
        training.wait(20)
    text = metrics.read_text()
    assert "millrace_process_batches_total{" in text
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
