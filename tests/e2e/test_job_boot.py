# SPDX-License-Identifier: Apache-2.0
"""`job why` of jobs whose cloud nodes never booted, on a real Slurm that powers its nodes up and down. Nobody starts them
unless the test does."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

NEVER_BOOTED = "A node never booted: the cloud gave none, or it was not up in time."
RESUME_TIMEOUT_S = 6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    host = socket.gethostname().partition(".")[0]
    node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 State=CLOUD"
    slurm = Slurm.start(
        tmp_path_factory.mktemp("boot") / "c", "--group=main:nodes=1,cpus=8,memory_mb=64000,gpus=0",
        *(f"--conf=NodeName=c{number} Port={free_port()} {node}" for number in (1, 2, 3, 4)),
        "--conf=PartitionName=cloud Nodes=c[1-2]", "--conf=PartitionName=slow Nodes=c[3-4] ResumeTimeout=30",
        "--conf=PrivateData=cloud", f"--conf=ResumeTimeout={RESUME_TIMEOUT_S}", "--conf=SuspendTimeout=2",
        "--conf=SuspendTime=36000", "--conf=ResumeProgram=/bin/true", "--conf=SuspendProgram=/bin/true",
    )  # fmt: skip
    yield slurm
    slurm.destroy()


@pytest.fixture
def jobs(millrace: Millrace, cluster: Slurm, tmp_path: Path) -> Iterator[Millrace]:
    millrace.env = dict(cluster.env) | {"MILLRACE_LEDGER": str(tmp_path / "ledger")}
    yield millrace
    cluster.cancel_all()


def sleeper(slurm: Slurm, *options: str, first: str = "true") -> int:
    return slurm.submit("--output=/dev/null", "--mem=500M", "--no-requeue", *options, f"--wrap={first}; sleep 300")


def until_state(slurm: Slurm, job: int | str, state: str, timeout_s: float = 90) -> None:
    until = time.monotonic() + timeout_s
    while f"JobState={state} " not in (said := slurm.run("scontrol", "-o", "show", "job", job)):
        assert time.monotonic() < until, said
        time.sleep(0.1)


def why(millrace: Millrace, job: int) -> list[dict]:
    return millrace("job", "why", job, "--json").objects("job_why")


def test_why_of_a_node_that_was_not_up_in_time(jobs: Millrace, cluster: Slurm):
    lost = sleeper(cluster, "--partition=cloud", "--nodelist=c1")
    until_state(cluster, lost, "NODE_FAIL")
    (said,) = why(jobs, lost)
    assert said["meaning"] == NEVER_BOOTED and said["outlook"] == "failed"
    assert "slurm_resume.log" in said["fix"] and "longer ResumeTimeout" in said["fix"]
    evidence = said["evidence"]
    assert any(line.startswith("c1 is DOWN") and "(ResumeTimeout reached) now, since 20" in line for line in evidence)
    assert f"a node has 0:00:{RESUME_TIMEOUT_S:02} to boot (ResumeTimeout)" in evidence
    assert "the program that starts nodes is /bin/true (ResumeProgram)" in evidence
    assert any(line.startswith("it held its nodes for") for line in evidence)


def test_why_of_a_node_that_the_cloud_did_not_give(jobs: Millrace, cluster: Slurm):
    """As ResumeProgram of ParallelCluster does it when EC2 has no capacity."""
    lost = sleeper(cluster, "--partition=cloud", "--nodelist=c2")
    until_state(cluster, lost, "CONFIGURING")
    reason = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes"
    cluster.run("scontrol", "update", "NodeName=c2", "State=DOWN", f"Reason={reason}")
    until_state(cluster, lost, "NODE_FAIL")
    (said,) = why(jobs, lost)
    assert said["meaning"] == NEVER_BOOTED
    assert any(f"({reason}) now, since 20" in line for line in said["evidence"]), said


def test_a_cloud_node_that_ran_and_died_is_told_from_one_that_never_booted(jobs: Millrace, cluster: Slurm):
    """Two elements of one array, to whose ends Slurm gives the same state and reason. One node is booted, and dies."""
    assert cluster.folder
    began = cluster.folder / "began"
    array = sleeper(cluster, "--partition=slow", "--array=0-1", "--exclusive", first=f"touch {began}")
    until_state(cluster, f"{array}_0", "CONFIGURING")
    booted = cluster.run("squeue", "-h", "-j", f"{array}_0", "-o", "%N").strip()
    (cluster.folder / "spool" / booted).mkdir()
    daemon = subprocess.Popen(["slurmd", "-D", "-N", booted, "-f", cluster.conf], stderr=subprocess.DEVNULL)
    try:
        until_state(cluster, f"{array}_0", "RUNNING")
        until = time.monotonic() + 90
        while not began.exists():  # before that, Slurm puts the job back into the queue, as one that was not launched
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        daemon.kill()
        daemon.wait()
    cluster.run("scontrol", "update", f"NodeName={booted}", "State=DOWN", "Reason=it was taken away")
    for element in (0, 1):
        until_state(cluster, f"{array}_{element}", "NODE_FAIL")
    died, unbooted = sorted(why(jobs, array), key=lambda said: said["job_id"])
    assert (died["state"], died["reason"]) == (unbooted["state"], unbooted["reason"]) == ("NODE_FAIL", "NodeDown")
    assert died["meaning"] == "A node died or stopped answering." and not died["same"]
    assert any(line.startswith(f"{booted} is DOWN") and "(it was taken away)" in line for line in died["evidence"])
    assert not any("boot" in line for line in died["evidence"])
    assert unbooted["meaning"] == NEVER_BOOTED
    assert "a node has 0:00:30 to boot (ResumeTimeout)" in unbooted["evidence"]
