# SPDX-License-Identifier: Apache-2.0
"""millrace.slurm on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_fixture import Slurm

import millrace as mr


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (slurm.env | {"MILLRACE_LEDGER": str(tmp_path / "ledger")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder: Path, body: str) -> Path:
    path = folder / "job.sbatch"
    path.write_text(f"#!/bin/bash\n{body}\n")
    return path


def test_a_job_from_submission_to_its_end(folder: Path):
    job = mr.slurm.submit(script(folder, 'echo "got $*"'), ["--lr", "1"], sbatch=["--job-name=first"])
    assert list(job.follow()) == ["got --lr 1"]
    assert job.wait()["state"] == "COMPLETED"
    assert job.logs() == ["got --lr 1"]
    assert job.status()["record"]["arguments"] == ["--lr", "1"]
    assert job.why()[0]["outlook"] == "done"
    assert job.job_id in [each["job_id"] for each in mr.slurm.ls()]
    assert mr.slurm.Job("first").status()["job_id"] == job.job_id


def test_failures_are_exceptions(folder: Path):
    failed = mr.slurm.submit(script(folder, "exit 3"))
    with pytest.raises(mr.slurm.JobFailed, match="ended FAILED") as caught:
        failed.wait()
    assert caught.value.status["exit"] == "3:0"
    waiting = mr.slurm.submit(script(folder, "true"), sbatch=["--hold"], after=[f"any:{failed.job_id}"])
    assert waiting.why()[0]["outlook"] in ("never", "waits")
    waiting.cancel()
    with pytest.raises(mr.slurm.JobFailed, match="CANCELLED"):
        waiting.wait()
    with pytest.raises(ValueError, match="invalid partition"):
        mr.slurm.submit(script(folder, "true"), sbatch=["--partition=none"])
    with pytest.raises(FileNotFoundError, match="no job 999999"):
        mr.slurm.Job("999999").status()


def test_a_script_is_checked_first(folder: Path):
    path = script(folder, "true")
    assert not [each for each in mr.slurm.check(path) if each["type"] == "lint"]
    found = mr.slurm.check(path, sbatch=["--output=none/log"])
    assert [each["rule"] for each in found if each["type"] == "lint"] == ["JC01"]
    with pytest.raises(ValueError, match=r"is missing .* \[JC01\]"):
        mr.slurm.submit(path, sbatch=["--output=none/log"])
    assert mr.slurm.submit(path, sbatch=["--output=none/log"], check=False).job_id
