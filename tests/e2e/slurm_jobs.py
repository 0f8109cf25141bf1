# SPDX-License-Identifier: Apache-2.0
"""Batch scripts that job new writes, and jobs of them on a real Slurm."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from conftest import Millrace
from slurm_fixture import Slurm


def write(millrace: Millrace, kind: str, *more: object, log_dir: Path | str = "/fsx/logs") -> str:
    return millrace("job", "new", kind.removesuffix("-srun").removesuffix("-follow"), "--log-dir", log_dir, *more).out


def job_environment(millrace: Millrace, folder: Path, slurm: Slurm) -> dict[str, str]:
    """The environment of a job that finds this millrace and a stand-in for nvidia-smi."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "millrace").symlink_to(millrace.binary)
    (tools / "nvidia-smi").write_text('#!/bin/bash\necho "$*"\nexec sleep 600\n')
    (tools / "nvidia-smi").chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    return clean | slurm.env | {"PATH": f"{tools}:{os.environ['PATH']}"}


def submit(script: Path, env: dict[str, str], *options: str) -> int:
    done = subprocess.run(
        ["sbatch", "--parsable", *options, script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split(";")[0])


def wait_for(what, timeout_s: float = 60):
    until = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found
