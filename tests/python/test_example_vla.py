# SPDX-License-Identifier: Apache-2.0
"""examples/train_vla.py, end to end: a robot dataset, training, kill -9, resume, the same losses to the last bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("av")
pytest.importorskip("pyarrow")

from robot_sets import make
from test_torch_loader import byte_tokenizer

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_vla.py"
STEPS, SAVE_EVERY = 10, 3


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make(folder / "arm", "--episodes", 3, "--codec", "h264")
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    return folder


def command(data: Path, out: Path, *more: str, ranks: int = 1) -> list[str]:
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sizes = {"steps": STEPS, "save-every": SAVE_EVERY, "batch-size": 4, "chunk": 4, "dim": 32, "layers": 2, "heads": 2}
    flags = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    files = [
        "--dataset",
        data / "arm",
        "--tokenizer",
        data / "tokenizer.json",
        "--out",
        out,
        "--log-file",
        f"{out}.log",
    ]
    return [sys.executable, *launch, str(EXAMPLE), *map(str, files), *flags, *more]


def run(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(out: Path) -> dict[int, str]:
    """By step; a step that was trained twice must have given the same bits."""
    found: dict[int, str] = {}
    log = Path(f"{out}.log")
    for line in log.read_text().splitlines() if log.exists() else []:
        step = json.loads(line)
        assert found.setdefault(step["step"], step["loss_hex"]) == step["loss_hex"], f"step {step['step']}"
    return found


@pytest.fixture(scope="module")
def uninterrupted(data) -> dict[int, str]:
    run(command(data, data / "run"))
    expected = losses(data / "run")
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert float.fromhex(expected[STEPS]) < float.fromhex(expected[1])  # it learns
    return expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_losses_after_a_stop_are_those_of_a_run_that_was_not_stopped(data, uninterrupted, tmp_path, number):
    arguments = command(data, tmp_path / "run")
    process = subprocess.Popen(arguments, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not any(step >= 5 for step in losses(tmp_path / "run")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        os.killpg(process.pid, number)
        assert process.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 75)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    run(arguments)
    assert losses(tmp_path / "run") == uninterrupted
    assert "nothing to do" in run(arguments)


def test_the_switches_train(data, tmp_path):
    run(command(data, tmp_path / "a", "--bf16", "--accumulate", "2", "--gradient-checkpointing", "--cudnn-benchmark"))
    assert len(losses(tmp_path / "a")) == STEPS
    run(command(data, tmp_path / "b", "--fsdp", ranks=2))
    assert len(losses(tmp_path / "b")) == STEPS


def test_gradient_checkpointing_changes_no_loss(data, uninterrupted, tmp_path):
    run(command(data, tmp_path / "a", "--gradient-checkpointing"))
    assert losses(tmp_path / "a") == uninterrupted


@pytest.mark.long
def test_compiled_it_learns_the_same(data, uninterrupted, tmp_path, monkeypatch):
    """torch.compile rounds otherwise. The C++ compiler takes a minute for the headers of torch."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which(os.environ.get("CXX", "g++")) is None or not header.exists():
        pytest.skip("no C++ compiler, or no headers of Python: torch.compile needs both")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    run(command(data, tmp_path / "run", "--compile"))
    found = losses(tmp_path / "run")
    assert found.keys() == uninterrupted.keys()
    for step, loss in found.items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(uninterrupted[step]), rel=1e-3)
    assert list((tmp_path / "compiled").rglob("*.so")), "something was compiled"


def test_compare_shows_both_ways(data, tmp_path):
    shown = run(command(data, tmp_path / "a", "--compare", "--workers", "1"))
    assert "before" in shown and "after" in shown and "wait for data" in shown
    assert all(float(number) >= 0 for line in shown.splitlines()[1:] for number in line.split()[-2:])
