# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need a Slurm; pyproject.toml loads them for every folder of tests.

MILLRACE_TEST_SLURM names the slurm.conf of a cluster that runs already, as `./dev test` starts one; without it one is
started for the session. A test that needs other nodes, or kills some, starts its own: `Slurm.start(folder, ...)`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CLUSTER = Path(__file__).with_name("slurm_cluster")
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "CANCELLED", "BOOT_FAIL"}


@dataclass
class Slurm:
    conf: str
    folder: Path | None = None  # of a cluster that this session started
    facts: dict[str, str] = field(default_factory=dict)  # what slurm_cluster printed

    @classmethod
    def start(cls, folder: Path, *options: str) -> Slurm:
        """Starts a separate cluster; `destroy` ends it. Takes about five seconds."""
        if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/bin:/usr/sbin"):
            pytest.skip("slurmctld is not installed: no Slurm to test with (./dev test installs it)")
        command = [CLUSTER, "start", *options, folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
        facts = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return cls(facts["SLURM_CONF"], folder, facts)

    def destroy(self) -> None:
        subprocess.run([CLUSTER, "destroy", self.folder], check=True, timeout=60)

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a program reaches this cluster."""
        return {"SLURM_CONF": self.conf}

    def run(self, *command: object, cwd: Path | None = None) -> str:
        """The output of one of Slurm's commands."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
        done = subprocess.run(
            list(map(str, command)), env=clean | self.env, cwd=cwd, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, (command, done)
        return done.stdout

    def submit(self, *arguments: object, cwd: Path | None = None) -> int:
        """sbatch; the job's id."""
        return int(self.run("sbatch", "--parsable", *arguments, cwd=cwd).split(";")[0])

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol show job`, also for an hour after the job's end."""
        words = self.run("scontrol", "-o", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job_id: int, timeout_s: float = 60) -> str:
        """The state in which the job ended."""
        until = time.monotonic() + timeout_s
        while (state := self.job(job_id)["JobState"]) not in ENDED:
            assert time.monotonic() < until, self.job(job_id)
            time.sleep(0.1)
        return state

    def cancel_all(self) -> None:
        """And wait until what they held is free."""
        until = time.monotonic() + 30
        while (jobs := self.run("squeue", "-h", "-o", "%A").split()) and time.monotonic() < until:
            self.run("scancel", "--quiet", *sorted(set(jobs)))
            time.sleep(0.2)


@pytest.fixture(scope="session")
def slurm_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if conf := os.environ.get("MILLRACE_TEST_SLURM"):
        yield Slurm(conf)
        return
    cluster = Slurm.start(tmp_path_factory.mktemp("slurm") / "c")
    yield cluster
    cluster.destroy()


@pytest.fixture
def slurm(slurm_session: Slurm) -> Iterator[Slurm]:
    """The session's cluster, left without jobs. One test at a time has it, whichever of pytest's processes runs it."""
    with open(f"{slurm_session.conf}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield slurm_session
        slurm_session.cancel_all()
