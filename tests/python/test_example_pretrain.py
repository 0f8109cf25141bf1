# SPDX-License-Identifier: Apache-2.0
"""examples/pretrain_lm.py, end to end: text to shards, training, kill -9, resume, the same losses to the last bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import millrace as mr

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain_lm.py"
STEPS, SAVE_EVERY = 12, 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tokenizer.json and three shards of prose made here."""
    folder = tmp_path_factory.mktemp("data")
    words = ["the", "a", "mill", "river", "turns", "wheel", "grain", "stone", "slowly", "water", "over", "flour"]
    for part in range(3):
        lines = (" ".join(words[(i * k + part) % len(words)] for k in range(3, 20)) for i in range(300))
        (folder / f"part-{part}.txt").write_text("\n".join(lines) + "\n")
    inputs = sorted(str(path) for path in folder.glob("part-*.txt"))
    write_tokenizer(folder / "tokenizer.json", inputs)
    for task in range(3):
        mr.prepare(inputs, tokenizer=str(folder / "tokenizer.json"), out=str(folder / "shards"), task=(task, 3))
    return folder


def write_tokenizer(path: Path, inputs: list[str]) -> None:
    """A byte-level BPE trained on `inputs`; without the package `tokenizers`, one that has bytes only."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        from test_torch_loader import byte_tokenizer

        path.write_text(byte_tokenizer())
        return
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train(inputs, vocab_size=300, show_progress=False)
    tokenizer.save(str(path))


def command(data: Path, out: Path, log: Path, ranks: int = 1, *more: str) -> list[str]:
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sizes = {"steps": STEPS, "save-every": SAVE_EVERY, "batch-size": 2, "seq-len": 32, "dim": 16, "layers": 2,
             "heads": 2, "warmup": 4}  # fmt: skip
    flags = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    shards = sorted(str(path) for path in (data / "shards").glob("*.tar"))
    files = ["--shards", *shards, "--valid", "1", "--tokenizer", str(data / "tokenizer.json")]
    return [sys.executable, *launch, str(EXAMPLE), *files, "--out", str(out), "--log-file", str(log), *flags, *more]


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def losses(log: Path) -> dict[int, tuple]:
    """Training and validation loss by step; a step that was trained twice must have given the same bits."""
    found: dict[int, tuple] = {}
    for line in lines(log):
        values = (line["loss_hex"], line.get("valid_loss"))
        assert line["loss"] == float.fromhex(line["loss_hex"])
        assert found.setdefault(line["step"], values) == values, f"step {line['step']}"
    return found


def start_and_signal(arguments: list[str], log: Path, step: int, number: int) -> int:
    """Runs until `step` is in the log, then sends the signal to the process and all it started."""
    process = subprocess.Popen(arguments, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not any(line["step"] >= step for line in lines(log)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        os.killpg(process.pid, number)
        return process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def uninterrupted(data):
    subprocess.run(command(data, data / "run", data / "run.log"), check=True)
    expected = losses(data / "run.log")
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert expected[SAVE_EVERY][1] is not None and expected[1][1] is None
    first, last = (float.fromhex(expected[step][0]) for step in (1, STEPS))
    assert last < first  # it learns
    return expected


def test_losses_after_kill_are_those_of_a_run_that_was_not_killed(data, uninterrupted, tmp_path):
    log = tmp_path / "log"
    arguments = command(data, tmp_path / "run", log)
    assert start_and_signal(arguments, log, 7, signal.SIGKILL) == -signal.SIGKILL
    assert lines(log)[-1]["step"] < STEPS
    subprocess.run(arguments, check=True)
    assert losses(log) == uninterrupted
    assert len(lines(log)) < 2 * STEPS  # it went on from a checkpoint, not from the start


def test_sigterm_saves_and_asks_to_be_run_again(data, uninterrupted, tmp_path):
    log = tmp_path / "log"
    arguments = command(data, tmp_path / "run", log)
    assert start_and_signal(arguments, log, 4, signal.SIGTERM) == mr.EXIT_REQUEUE == 75
    stopped = lines(log)[-1]["step"]
    with mr.torch.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.latest_step() == stopped
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert f"steps {stopped + 1} to {STEPS}" in output
    assert [line["step"] for line in lines(log)] == list(range(1, STEPS + 1))  # no step was trained twice
    assert {step: loss for step, (loss, _) in losses(log).items()} == {
        step: loss for step, (loss, _) in uninterrupted.items()
    }


def test_two_ranks(data, tmp_path):
    arguments = command(data, tmp_path / "a", tmp_path / "a.log", 2)
    subprocess.run(arguments, check=True, capture_output=True)
    expected = losses(tmp_path / "a.log")
    assert len(lines(tmp_path / "a.log")) == STEPS == len(expected)
    arguments = command(data, tmp_path / "b", tmp_path / "b.log", 2)
    start_and_signal(arguments, tmp_path / "b.log", 5, signal.SIGKILL)
    subprocess.run(arguments, check=True, capture_output=True)
    assert losses(tmp_path / "b.log") == expected


def test_fsdp_is_killed_resumed_and_exported(data, uninterrupted, tmp_path):
    """Shares of two ranks: the losses of a run that was not killed; whole tensors in the export."""
    files = tmp_path / "files"
    more = ["--fsdp", "--model-files", str(files)]
    subprocess.run(command(data, tmp_path / "a", tmp_path / "a.log", 2, *more), check=True, capture_output=True)
    expected = losses(tmp_path / "a.log")
    assert len(expected) == STEPS
    arguments = command(data, tmp_path / "b", tmp_path / "b.log", 2, *more)
    start_and_signal(arguments, tmp_path / "b.log", 5, signal.SIGKILL)
    subprocess.run(arguments, check=True, capture_output=True)
    assert losses(tmp_path / "b.log") == expected
    with mr.torch.Checkpointer(tmp_path / "b") as checkpointer:
        assert checkpointer.latest_step() == STEPS
    millrace = os.environ.get("MILLRACE_BIN", "millrace")
    export = [millrace, "ckpt", "export", tmp_path / "b", tmp_path / "hf", "--like", files, "--quiet"]
    subprocess.run(export, check=True)
    weights = mr.torch.safetensors.load_file(tmp_path / "hf" / "model.safetensors")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert list(weights["model.embed_tokens.weight"].shape) == [config["vocab_size"], config["hidden_size"]]
    assert len([name for name in weights if name.endswith("q_proj.weight")]) == config["num_hidden_layers"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
