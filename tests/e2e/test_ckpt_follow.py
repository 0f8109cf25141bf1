# SPDX-License-Identifier: Apache-2.0
"""`millrace ckpt follow`: the folders checkpoint-N of another program, copied while it writes, pruned and brought back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Millrace, visible_files


def write_checkpoint(out: Path, step: int, *, complete: bool = True, deepspeed: bool = False) -> None:
    """As the Hugging Face Trainer writes it: weights first, trainer_state.json last."""
    folder = out / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(200_000))
    if deepspeed:
        (folder / f"global_step{step}").mkdir()
        (folder / f"global_step{step}/zero_pp_rank_0_optim_states.pt").write_bytes(os.urandom(50_000))
        (folder / "latest").write_text(f"global_step{step}")
    else:
        (folder / "optimizer.pt").write_bytes(os.urandom(50_000))
    if complete:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def test_a_folder_without_checkpoints_gets_a_warning(millrace: Millrace):
    ran = millrace("ckpt", "follow", "typo", "home", "--once", "--settle", "0")
    assert "typo holds no checkpoint-N" in ran.err and "copied 0" in ran.out


def test_what_is_complete_is_copied_and_pruned(millrace: Millrace):
    out, target = millrace.cwd / "out", millrace.cwd / "home"
    for step in (10, 20, 30):
        write_checkpoint(out, step, deepspeed=step == 20)
    write_checkpoint(out, 40, complete=False)
    (out / "runs").mkdir()
    (out / "runs/events").write_text("not a checkpoint")
    (out / "checkpoint-best").mkdir()
    (out / "checkpoint-best/model").write_text("no number")
    flags = ("--once", "--settle", "0", "--json")
    ran = millrace("ckpt", "follow", "out", "home", *flags)
    assert [(each["action"], each["step"]) for each in ran.objects("followed")] == [
        ("copy", 10),
        ("copy", 20),
        ("copy", 30),
    ]
    assert ran.object("ckpt_follow")["copied"] == 3
    assert steps(target) == [10, 20, 30] and not (target / "runs").exists()
    for step in (10, 20, 30):
        name = f"checkpoint-{step}"
        assert visible_files(target / name) == visible_files(out / name)
    assert millrace("ckpt", "follow", "out", "home", *flags).object("ckpt_follow")["copied"] == 0
    shutil.rmtree(out / "checkpoint-10")  # by the program's own retention
    (out / "checkpoint-40/trainer_state.json").write_text("{}")
    ran = millrace("ckpt", "follow", "out", "home", *flags, "--keep-last", "2")
    actions = [(each["action"], each["step"]) for each in ran.objects("followed")]
    assert actions == [("copy", 40), ("remove", 10), ("remove", 20)]
    assert steps(target) == [30, 40]


def test_deepspeeds_folder_must_be_there(millrace: Millrace):
    write_checkpoint(millrace.cwd / "out", 5, deepspeed=True)
    shutil.rmtree(millrace.cwd / "out/checkpoint-5/global_step5")
    ran = millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0", "--json")
    assert ran.object("ckpt_follow")["copied"] == 0 and not (millrace.cwd / "home").exists()


def test_one_that_still_changes_waits(millrace: Millrace):
    out = millrace.cwd / "out"
    write_checkpoint(out, 5)
    late = out / "checkpoint-5/rng_state_1.pth"
    process = subprocess.Popen(
        [millrace.binary, "ckpt", "follow", "out", "home", "--once", "--settle", "1.5", "--every", "0.1"],
        cwd=millrace.cwd,
    )
    for byte in range(8):  # another rank is slower
        time.sleep(0.2)
        late.write_bytes(bytes([byte]) * (byte + 1))
        assert not (millrace.cwd / "home").exists()
    assert process.wait(60) == 0
    assert (millrace.cwd / "home/checkpoint-5/rng_state_1.pth").read_bytes() == b"\x07" * 8


def test_a_copy_without_its_last_file_is_done_again(millrace: Millrace):
    """As a kill in the middle of a copy leaves it."""
    out, target = millrace.cwd / "out", millrace.cwd / "home"
    write_checkpoint(out, 5)
    (target / "checkpoint-5").mkdir(parents=True)
    (target / "checkpoint-5/model.safetensors").write_bytes(b"half")
    assert (
        millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0", "--json").object("ckpt_follow")["copied"]
        == 1
    )
    assert visible_files(target / "checkpoint-5") == visible_files(out / "checkpoint-5")


def test_restore_after_a_kill(millrace: Millrace):
    out, target = millrace.cwd / "out", millrace.cwd / "home"
    assert millrace("ckpt", "follow", "out", "home", "--restore", "--json").object("ckpt_follow")["found"] is None
    write_checkpoint(out, 10)
    write_checkpoint(out, 20)
    millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0")
    before = visible_files(target)
    shutil.rmtree(out / "checkpoint-20")
    write_checkpoint(out, 30, complete=False)  # what a kill left; the Trainer would resume from it
    ran = millrace("ckpt", "follow", "out", "home", "--restore", "--json")
    assert [(each["action"], each["step"]) for each in ran.objects("followed")] == [("remove", 30), ("restore", 20)]
    assert ran.object("ckpt_follow")["found"] == 20 and steps(out) == [10, 20]
    assert visible_files(out / "checkpoint-20") == visible_files(target / "checkpoint-20")
    assert visible_files(target) == before
    ran = millrace("ckpt", "follow", "out", "home", "--restore", "--json")
    assert ran.objects("followed") == [] and ran.object("ckpt_follow")["found"] == 20


def test_a_step_that_was_written_again_replaces_its_copy(millrace: Millrace):
    out, home = millrace.cwd / "out", millrace.cwd / "home"
    for step in (300, 400):
        write_checkpoint(out, step)
    flags = ("--once", "--settle", "0", "--json")
    millrace("ckpt", "follow", "out", "home", *flags)
    shutil.rmtree(out / "checkpoint-400")  # the run went back
    write_checkpoint(out, 400)
    ran = millrace("ckpt", "follow", "out", "home", *flags)
    assert [(each["action"], each["step"]) for each in ran.objects("followed")] == [("remove", 400), ("copy", 400)]
    assert visible_files(home / "checkpoint-400") == visible_files(out / "checkpoint-400")
    for path in (out / "checkpoint-400").iterdir():
        os.utime(path)  # newer, with the same content
    assert millrace("ckpt", "follow", "out", "home", *flags).object("ckpt_follow")["copied"] == 0


def test_a_run_that_went_back_is_told(millrace: Millrace):
    home = millrace.cwd / "home"
    for step in (300, 400, 500):
        write_checkpoint(home, step)
    write_checkpoint(millrace.cwd / "out", 100)
    ran = millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0", "--keep-last", "3")
    assert "checkpoint-100 is not copied" in ran.err and "went back" in ran.err
    assert steps(home) == [300, 400, 500]


@pytest.mark.parametrize("flag", ["--restore", "--once"])
def test_folders_of_accelerate_are_refused(millrace: Millrace, flag: str):
    folder = millrace.cwd / "out/checkpoint-10"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.bin", "random_states_0.pkl"):
        (folder / name).write_bytes(b"x")
    ran = millrace("ckpt", "follow", "out", "home", flag, status=1)
    assert "Accelerate" in ran.err
    assert len(list(folder.iterdir())) == 3


def test_a_folder_without_a_file_goes(millrace: Millrace):
    """As a kill at the end of a removal leaves it; the Trainer would resume from it."""
    out, target = millrace.cwd / "out", millrace.cwd / "home"
    write_checkpoint(out, 20)
    for empty in (target / "checkpoint-10", target / "checkpoint-best", target / "other", out / "checkpoint-30"):
        empty.mkdir(parents=True)
    millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0")
    assert sorted(path.name for path in target.iterdir()) == ["checkpoint-20", "checkpoint-best", "other"]
    ran = millrace("ckpt", "follow", "out", "home", "--restore", "--json")
    assert ran.object("ckpt_follow")["found"] == 20 and steps(out) == [20]


TRAINER = """
import json, os, pathlib, sys, time
out, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
found = [int(path.name.split("-")[1]) for path in out.glob("checkpoint-*")]
step = max(found, default=0)
if step:
    assert json.loads((out / f"checkpoint-{step}/trainer_state.json").read_text())["global_step"] == step
while step < last:
    step += 10
    folder = out / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for part in range(4):
        (folder / f"model-{part}.safetensors").write_bytes(os.urandom(50_000))
        time.sleep(0.02)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    print(step, flush=True)
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_beside_a_program_that_is_killed_and_comes_back(millrace: Millrace, number):
    """The scratch folder of the first run is lost; the second one goes on from what was copied."""
    out, target = millrace.cwd / "out", millrace.cwd / "home"
    flags = ["ckpt", "follow", "out", "home", "--settle", "0.1", "--every", "0.05"]
    follower = subprocess.Popen([millrace.binary, *flags, "--keep-last", "2"], cwd=millrace.cwd)
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, out, "1000"], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    while int(trainer.stdout.readline()) < 60:
        pass
    deadline = time.monotonic() + 60
    while not any((target / f"checkpoint-{step}/trainer_state.json").exists() for step in range(30, 1000, 10)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trainer.kill()
    trainer.wait()
    follower.send_signal(number)
    status = follower.wait(60)
    assert status in ((-number,) if number == signal.SIGKILL else (0, 143, 130))
    shutil.rmtree(out)
    found = millrace("ckpt", "follow", "out", "home", "--restore", "--json").object("ckpt_follow")["found"]
    assert found >= 30 and steps(out) == [found]
    subprocess.run([sys.executable, "-c", TRAINER, out, str(found + 20)], check=True, capture_output=True)
    millrace("ckpt", "follow", "out", "home", "--once", "--settle", "0", "--keep-last", "2")
    assert steps(target) == [found + 10, found + 20]
    for step in steps(target):
        assert visible_files(target / f"checkpoint-{step}") == visible_files(out / f"checkpoint-{step}")
