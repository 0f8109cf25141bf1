# SPDX-License-Identifier: Apache-2.0
"""The cluster of tests/services/slurm_cluster is a real one: jobs run, share nodes, are requeued; dead daemons come back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from slurm_fixture import Slurm


def script(folder: Path, body: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{body}\n")
    return path


def test_a_job_sees_its_own_gpus(slurm: Slurm, tmp_path: Path):
    job = script(tmp_path, "srun bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'")
    flags = ["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:h200:8", f"--output={tmp_path}/out"]
    assert slurm.wait(slurm.submit(*flags, job, cwd=tmp_path)) == "COMPLETED"
    assert sorted((tmp_path / "out").read_text().split("\n"))[1:] == ["0 0,1,2,3,4,5,6,7", "1 0,1,2,3,4,5,6,7"]


def test_jobs_share_a_node_by_gpu_and_memory(slurm: Slurm, tmp_path: Path):
    job = script(tmp_path, "sleep 30")
    flags = ["--nodelist=n1", "--cpus-per-task=16", "--gres=gpu:h200:4", "--mem=250000"]
    first, second, third = (slurm.submit(*flags, job, cwd=tmp_path) for _ in range(3))
    until = time.monotonic() + 20
    while [slurm.job(each)["JobState"] for each in (first, second)] != ["RUNNING"] * 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert slurm.job(third)["JobState"] == "PENDING"


def test_a_requeued_job_runs_again(slurm: Slurm, tmp_path: Path):
    job = script(
        tmp_path, 'echo run $SLURM_RESTART_COUNT\n[ -n "$SLURM_RESTART_COUNT" ] || scontrol requeue $SLURM_JOB_ID'
    )
    number = slurm.submit("--requeue", "--open-mode=append", f"--output={tmp_path}/out", job, cwd=tmp_path)
    assert slurm.wait(number) == "COMPLETED"
    assert "run 1" in (tmp_path / "out").read_text()


def test_start_brings_back_what_died(tmp_path: Path):
    cluster = Slurm.start(tmp_path / "c", "--group=main:nodes=2,cpus=2,memory_mb=1000,gpus=0")
    try:
        pid = int(cluster.facts["SLURM_PID_n2"])
        os.kill(pid, signal.SIGKILL)
        again = Slurm.start(tmp_path / "c")
        assert int(again.facts["SLURM_PID_n2"]) != pid
        assert again.facts["SLURM_PID_n1"] == cluster.facts["SLURM_PID_n1"]
        assert again.run("srun", "-N2", "-l", "echo", "here").splitlines() == ["0: here", "1: here"]
    finally:
        cluster.destroy()
    assert not (tmp_path / "c").exists()
