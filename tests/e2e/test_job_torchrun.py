# SPDX-License-Identifier: Apache-2.0
"""Ranks that save at the limit, by torchrun and by srun, on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace, tokenizer_json
from slurm_fixture import Slurm
from slurm_jobs import job_environment, submit, wait_for

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


GLOO = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
with open(f"{sys.argv[1]}/rank-{dist.get_rank()}", "w") as out:
    out.write(f"{total.item()} of {dist.get_world_size()}, local {os.environ['LOCAL_RANK']}")
dist.destroy_process_group()
"""


# Told to stop, rank 0 saves at once and the others need a while.
SAVING = """
import os, pathlib, signal, sys, time
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank = os.environ["RANK"]
saved = folder / f"saved-{rank}"
if saved.exists():
    (folder / f"resumed-{rank}").write_text(os.environ["WORLD_SIZE"])
    sys.exit(0)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
(folder / f"started-{rank}").touch()
while not told:
    time.sleep(0.05)
until = time.monotonic() + (0 if rank == "0" else seconds)
while time.monotonic() < until:
    time.sleep(0.05)
saved.touch()
sys.exit(75)
"""

# A torchrun that waits less than 30 seconds for remaining workers.
IMPATIENT = """
import sys
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import api
api.PContext.close.__defaults__ = (None, PATIENCE)
sys.exit(run.main())
"""

has_torchrun = pytest.mark.skipif(
    not (Path(sys.executable).parent / "torchrun").exists(), reason="torch is not installed"
)


def torchrun_environment(millrace: Millrace, folder: Path, slurm: Slurm) -> dict[str, str]:
    env = job_environment(millrace, folder, slurm)
    # The node names of this Slurm do not resolve.
    scontrol = folder / "bin/scontrol"
    scontrol.write_text(
        f'#!/bin/bash\n[ "$2" = hostnames ] && echo localhost || exec {shutil.which("scontrol")} "$@"\n'
    )
    scontrol.chmod(0o755)
    return env | {"PATH": f"{folder}/bin:{Path(sys.executable).parent}:{env['PATH']}"}


def be_impatient(folder: Path, seconds: int) -> None:
    (folder / "impatient.py").write_text(IMPATIENT.replace("PATIENCE", str(seconds)))
    (folder / "bin/torchrun").write_text(f'#!/bin/bash\nexec {sys.executable} {folder}/impatient.py "$@"\n')
    (folder / "bin/torchrun").chmod(0o755)


def saving_job(millrace: Millrace, folder: Path, env: dict[str, str], *launcher: object, save_s: float) -> int:
    """A job of two nodes with two ranks each, of which all have started."""
    (folder / "save.py").write_text(SAVING)
    (folder / "state").mkdir()
    script = folder / "train.sbatch"
    command = [*(["python3"] if launcher else []), folder / "save.py", folder / "state", save_s]
    millrace(
        "job", "new", "train", *launcher, "--nodes", 2, "--gpus", 2, "--cpus-per-gpu", 2, "--time", 10, "--monitor", 0,
        "--signal", 120, "--log-dir", folder / "logs", "--out", script, "--", *command,
    )  # fmt: skip
    job = submit(script, env)
    wait_for(lambda: len(list((folder / "state").glob("started-*"))) == 4)
    return job


@pytest.mark.parametrize(
    "launcher", [pytest.param((), marks=has_torchrun), ("--launcher", "srun")], ids=["torchrun", "srun"]
)
def test_a_job_saves_at_its_limit_whatever_the_ranks_need(
    millrace: Millrace, slurm: Slurm, tmp_path: Path, launcher: tuple
):
    """The default launcher ends workers 30 s after a signal or after the first exit; here it waits for 2 s."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    if long := bool(os.environ.get("MILLRACE_TEST_LONG")):
        save_s = 60.0
    else:
        be_impatient(tmp_path, 2)
        save_s = 6.0
    job = saving_job(millrace, tmp_path, env, *launcher, save_s=save_s)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=300) == "COMPLETED"
    log = (tmp_path / f"logs/train-{job}.log").read_text()
    state = tmp_path / "state"
    assert len(list(state.glob("saved-*"))) == 4, (long, log)
    assert [(state / f"resumed-{rank}").read_text() for rank in range(4)] == ["4"] * 4
    assert "requeue after exit status 75, start 0" in log
    assert "older checkpoint" not in log
    assert not list((tmp_path / "logs").glob("ranks-*"))


@pytest.mark.long
@has_torchrun
def test_the_example_is_told_by_the_job_and_goes_on(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """examples/pretrain_lm.py on two ranks: saved at the limit, status 75, requeued, trained to its last step."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    env["PYTHONPATH"] = str(REPOSITORY / "python")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    for part in range(2):
        (tmp_path / f"{part}.txt").write_text("the mill turns slowly over the river\n" * 2000)
    for task in range(2):
        millrace(
            "prepare", tmp_path / "0.txt", tmp_path / "1.txt", "--tokenizer", tmp_path / "tokenizer.json",
            "--out", tmp_path / "shards", "--task", f"{task}/2",
        )  # fmt: skip
    shards = sorted((tmp_path / "shards").glob("*.tar"))
    script, log = tmp_path / "train.sbatch", tmp_path / "steps.jsonl"
    steps = 400
    millrace(
        "job", "new", "train", "--nodes", 1, "--gpus", 2, "--cpus-per-gpu", 1, "--time", 10, "--monitor", 0,
        "--log-dir", tmp_path / "logs", "--out", script, "--", REPOSITORY / "examples/pretrain_lm.py",
        "--shards", *shards, "--valid", 1, "--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "run",
        "--log-file", log, "--steps", steps, "--save-every", steps, "--batch-size", 1, "--seq-len", 16, "--dim", 8,
        "--layers", 1, "--heads", 1,
    )  # fmt: skip
    job = submit(script, env)
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 1)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=180) == "COMPLETED", (tmp_path / f"logs/train-{job}.log").read_text()
    assert "requeue after exit status 75, start 0" in (tmp_path / f"logs/train-{job}.log").read_text()
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == list(range(1, steps + 1))


@has_torchrun
def test_torchrun_by_itself_would_lose_the_checkpoint(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """Shows why the generated script is needed: the same program and torchrun, without it."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    be_impatient(tmp_path, 2)
    (tmp_path / "save.py").write_text(SAVING)
    script = tmp_path / "plain.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --time=10 --output={tmp_path}/log\n"
        f"torchrun --standalone --nproc_per_node=2 {tmp_path}/save.py {tmp_path} 6 &\n"
        f"until [ -e {tmp_path}/started-0 ] && [ -e {tmp_path}/started-1 ]; do sleep 0.1; done\n"
        "pkill -TERM -P $!\nwait $!\n"
    )
    job = submit(script, env)
    assert slurm.wait(job) == "FAILED"
    assert (tmp_path / "saved-0").exists()
    assert not (tmp_path / "saved-1").exists()
    assert slurm.job(job)["ExitCode"] == "1:0"


@has_torchrun
def test_torchrun_meets_over_all_nodes(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = torchrun_environment(millrace, tmp_path, slurm)
    (tmp_path / "train.py").write_text(GLOO)
    (tmp_path / "ranks").mkdir()
    script = tmp_path / "train.sbatch"
    millrace(
        "job", "new", "train", "--nodes", 2, "--gpus", 2, "--cpus-per-gpu", 2, "--time", 10, "--monitor", 0,
        "--log-dir", tmp_path / "logs", "--out", script, "--", tmp_path / "train.py", tmp_path / "ranks",
    )  # fmt: skip
    job = submit(script, env)
    assert slurm.wait(job, timeout_s=180) == "COMPLETED", (tmp_path / f"logs/train-{job}.log").read_text()
    assert sorted(rank.read_text() for rank in (tmp_path / "ranks").iterdir()) == [
        "6 of 4, local 0", "6 of 4, local 0", "6 of 4, local 1", "6 of 4, local 1",
    ]  # fmt: skip
