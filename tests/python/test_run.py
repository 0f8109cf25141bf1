# SPDX-License-Identifier: Apache-2.0
"""mr.Run, and what `millrace runs` makes of its records."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millrace as mr

TOKEN = "hf_PLANTEDabcdefghijklmnop"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_LEDGER", str(tmp_path / "ledger"))
    for name in ("RANK", "SLURM_PROCID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "ledger"


def runs(*words: object) -> list[dict]:
    program = os.environ.get("MILLRACE_BIN", "millrace")
    done = subprocess.run([program, "runs", *map(str, words), "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob("*.run.jsonl")) for line in path.read_text().splitlines()]


class Counts:
    """Counters as a loader and a checkpointer have them."""

    def __init__(self, **counts: float):
        self.counts = counts

    def stats(self) -> dict[str, float]:
        return self.counts


def test_a_run_from_its_settings_to_its_end(tmp_path: Path):
    loader, saver = Counts(tokens=800, wait_seconds=0.5), Counts(saves=2, stall_seconds=0.25, write_bytes=10)
    config = {
        "lr": 3e-4,
        "batch_size": 8,
        "hf_token": "abcdefgh",
        "url": f"https://x:{TOKEN}@host/",
        "path": Path("/a"),
    }
    with mr.Run(tmp_path / "a", config=config, loader=loader, checkpointer=saver) as run:
        run.log(1, loss=2.5, grad_norm=1)
        run.log(2, {"valid/loss": 2.25}, loss=math.nan)
        run.log(3, loss=1.5, lr=0.1)
    text = "".join(path.read_text() for path in (tmp_path / "a").iterdir())
    assert TOKEN not in text and "abcdefgh" not in text.replace("abcdefghij", "")
    start, *_, end = lines_of(tmp_path / "a")
    assert (
        start["config"]["lr"] == 3e-4 and start["config"]["hf_token"] == "<removed>" and start["config"]["path"] == "/a"
    )
    assert (end["type"], end["status"]) == ("end", "completed")

    (shown,) = runs("show", tmp_path / "a", "--price", 2)
    assert (shown["steps"], shown["final_loss"], shown["batch"], shown["restarts"]) == (3, 1.5, "8", 0)
    assert (shown["checkpoints"], shown["save_stall_s"], shown["data_wait_s"]) == (2, 0.25, 0.5)
    assert shown["last"]["train/step"] == 3 and shown["last"]["train/grad_norm"] == 1
    assert shown["last"]["valid/loss"] == 2.25 and 0 < shown["last"]["system/cpu_mem_%"] < 100
    assert [each["name"] for each in runs("ls")] == ["a"]  # the ledger knows the folder
    assert [each["name"] for each in runs("ls", tmp_path)] == ["a"]
    runs("note", "a", "a first try")
    assert runs("show", "a")[0]["notes"][0]["text"] == "a first try"


def test_the_ends_of_runs(tmp_path: Path):
    for number, (raised, status, error) in enumerate(
        [
            (SystemExit(75), "requeue", ""),
            (SystemExit(0), "completed", ""),
            (SystemExit(3), "failed", "SystemExit"),
            (ValueError("hf_secret"), "failed", "ValueError"),
        ]
    ):
        with pytest.raises(type(raised)), mr.Run(tmp_path / str(number)):
            raise raised
        end = lines_of(tmp_path / str(number))[-1]
        assert (end["status"], end["error"]) == (status, error)
    run = mr.Run(tmp_path / "closed")
    run.close()
    run.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.log(1, loss=1)
    with pytest.raises(TypeError):
        mr.Run(tmp_path / "typed").log(1, loss=[])


def test_other_ranks_write_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    with mr.Run(tmp_path / "a") as run:
        run.log(1, loss=1)
    assert not (tmp_path / "a").exists()


KILLED = """
import sys, time
import millrace as mr
run = mr.Run(sys.argv[1], flush_seconds=0.05)
for step in range(100_000):
    run.log(step, loss=float(step))
    if step % 500 == 0:
        time.sleep(0.01)
        print(step, flush=True)
"""


def test_what_was_logged_is_whole_after_a_kill(tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    for line in child.stdout:
        if int(line) >= 5000:
            break
    time.sleep(0.2)  # more than flush_seconds after that step
    child.send_signal(signal.SIGKILL)
    child.wait()
    (path,) = (tmp_path / "a").glob("*.run.jsonl")
    (shown,) = runs("show", tmp_path / "a")
    assert shown["status"] is None and shown["steps"] >= 5000
    text = path.read_text()
    steps = [json.loads(line)["step"] for line in text[: text.rindex("\n")].splitlines() if '"step"' in line]
    assert steps == sorted(steps) and set(range(5001)) <= set(steps)


def test_a_start_after_a_kill_goes_on(tmp_path: Path):
    first = mr.Run(tmp_path / "a", config={"lr": 1})
    for step in (1, 2, 3):
        first.log(step, loss=step)
    first.flush()
    with mr.Run(tmp_path / "a", config={"lr": 1}) as second:
        for step in (3, 4):
            second.log(step, loss=step * 10)
    (shown,) = runs("show", tmp_path / "a")
    assert (shown["restarts"], shown["steps"], shown["final_loss"]) == (1, 4, 40)
    first.close()


def test_two_runs_are_compared(tmp_path: Path):
    for name, lr in (("a", 1), ("b", 2)):
        with mr.Run(tmp_path / name, config={"lr": lr, "seed": 7}) as run:
            run.log(1, loss=3.0)
            run.log(2, loss=2.0 * lr)
    found = {each["what"]: each for each in runs("diff", tmp_path / "a", tmp_path / "b")}
    assert (found["config/lr"]["left"], found["config/lr"]["right"]) == ("1", "2")
    assert found["train/loss"]["left"].startswith("2 at step 2 (from step 2 on)")
    assert "config/seed" not in found and "name" not in found


@pytest.fixture
def exported(tmp_path: Path) -> list[Path]:
    """Folders of event files: of the export, and of the sink."""
    with mr.Run(tmp_path / "a", sinks=["tensorboard"]) as run:
        run.log(1, loss=3.0)
        run.log(300, {"valid/loss": 1.5}, loss=2.0)
    runs("export", tmp_path / "a", "--to", "tensorboard", "--out", tmp_path / "events")
    return [tmp_path / "events", tmp_path / "a/tensorboard"]


def test_values_as_csv(exported: list[Path], tmp_path: Path):
    program = os.environ.get("MILLRACE_BIN", "millrace")
    csv = subprocess.run([program, "runs", "export", tmp_path / "a"], capture_output=True, text=True, check=True).stdout
    head, *rows = csv.splitlines()
    columns = head.split(",")
    assert columns[0] == "step" and [row.split(",")[columns.index("train/loss")] for row in rows] == ["3", "2"]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_event_files_are_whole_records(exported: list[Path]):
    for folder in exported:
        (path,) = folder.iterdir()
        data, events = path.read_bytes(), []
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            for part, stored in ((data[:8], data[8:12]), (data[12 : 12 + size], data[12 + size : 16 + size])):
                crc = crc32c(part)
                assert struct.unpack("<I", stored)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            events.append(data[12 : 12 + size])
            data = data[16 + size :]
        assert b"brain.Event:2" in events[0]
        losses = [struct.unpack("<f", each[-4:])[0] for each in events if b"\ntrain/loss" in each]
        assert losses == [3.0, 2.0]


def test_tensorboard_reads_the_event_files(exported: list[Path]):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    for folder in exported:
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(1, 3.0), (300, 2.0)]
        assert [each.value for each in events.Scalars("valid/loss")] == [1.5]


def test_a_sink_that_fails_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    from millrace import _sinks

    class Broken(_sinks.Sink):
        name = "broken"

        def put(self, step: int, moment: float, values: dict[str, float]) -> None:
            raise OSError("no network")

    run = mr.Run(tmp_path / "a")
    run._sinks = [Broken()]
    run.log(1, loss=1)
    run.flush()
    run.log(2, loss=1)
    with pytest.raises(ValueError, match="step is -1"):
        run.log(-1, loss=1)
    run.close()
    assert [each.message for each in caplog.records] == ["no more values go to broken: OSError: no network"]
    with pytest.raises(ValueError, match="tensorboard, wandb or mlflow"):
        mr.Run(tmp_path / "b", sinks=["paper"])


def test_the_cost_of_a_call(tmp_path: Path):
    """Printed, and never a verdict."""
    with mr.Run(tmp_path / "a") as run:
        begin = time.perf_counter()
        for step in range(20_000):
            run.log(step, loss=1.5, lr=1e-3, grad_norm=0.25)
        print(f"{(time.perf_counter() - begin) / 20_000 * 1e6:.1f} us a call")
    assert sum(1 for line in lines_of(tmp_path / "a") if "train/loss" in line) == 20_000


def test_no_secret_is_kept_or_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Planted in the environment, the settings, an address and the text of an error."""
    secrets = [
        f"hf_{'a1B2' * 8}",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY00",
        "pa55word-planted",
    ]
    monkeypatch.setenv("HF_TOKEN", secrets[0])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", secrets[1])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets[2])
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    config = {
        "hf_token": secrets[0],
        "database": {"password": secrets[3], "user": "me"},
        "proxy": f"https://me:{secrets[3]}@proxy.example/",
        "command": ["train", "--api-key", secrets[3]],
    }
    program = os.environ.get("MILLRACE_BIN", "millrace")
    for name in ("a", "b"):
        with (
            pytest.raises(ValueError, match="planted"),
            mr.Run(tmp_path / name, config=config, sinks=["tensorboard"]) as run,
        ):
            run.log(1, loss=3.0)
            raise ValueError(f"refused: {secrets[0]} {secrets[3]}")
    outputs = []
    for words in (
        ("show", tmp_path / "a"), ("show", tmp_path / "a", "--json"), ("ls", tmp_path), ("ls", tmp_path, "--json"),
        ("diff", tmp_path / "a", tmp_path / "b", "--json"), ("export", tmp_path / "a"),
        ("export", tmp_path / "a", "--to", "tensorboard", "--out", tmp_path / "events"),
    ):  # fmt: skip
        done = subprocess.run([program, "runs", *words], capture_output=True, check=True)
        outputs.append(done.stdout + done.stderr)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"NCCL_DEBUG" in each for each in kept)
    for secret in secrets:
        assert not any(secret.encode() in each for each in [*outputs, *kept]), secret
