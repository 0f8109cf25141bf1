# SPDX-License-Identifier: Apache-2.0
"""millrace job on a real Slurm with accounting: slurmdbd and a MariaDB."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

# Names and limits of QOS, then of accounts.
QOS = {
    "short": "MaxWall=10",
    "lean": "MaxTRESPerUser=gres/gpu=2",
    "single": "MaxJobsPerUser=1",
    "shared": "GrpTRES=cpu=4",
    "big": "MinTRES=gres/gpu=2",
    "sized": "MaxTRES=gres/gpu=1",
    "team": "MaxTRESPA=gres/gpu=1",
}


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if not shutil.which("slurmdbd", path="/usr/sbin:/usr/bin") or not shutil.which("mariadbd", path="/usr/sbin"):
        pytest.skip("slurmdbd or mariadbd is not installed: no accounting to test with (./dev test installs them)")
    host = socket.gethostname().partition(".")[0]
    cluster = Slurm.start(
        tmp_path_factory.mktemp("accounted") / "c", "--accounting", "--conf=Licenses=solver:1",
        # A node that nobody starts. Slurm lists it only while it is powered up.
        f"--conf=NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port=9 CPUs=4 RealMemory=8000 State=CLOUD",
        "--conf=PartitionName=cloud Nodes=c1", "--conf=ResumeTimeout=6", "--conf=SuspendTimeout=2",
        "--conf=SuspendTime=36000", "--conf=ResumeProgram=/bin/true", "--conf=SuspendProgram=/bin/true",
        "--group=main:nodes=2,cpus=8,memory_mb=64000,gpus=4,type=h200", "--group=other:nodes=1,cpus=8,gpus=0",
    )  # fmt: skip
    user = cluster.run("id", "-un").strip()
    manager = ("sacctmgr", "-i", "-Q")
    for name, limit in QOS.items():
        cluster.run(*manager, "add", "qos", name, limit)
    cluster.run(*manager, "add", "account", "science", "GrpTRES=gres/gpu=2")
    cluster.run(*manager, "add", "account", "biology", "parent=science")
    cluster.run(*manager, "add", "account", "physics")
    cluster.run(*manager, "add", "user", user, "account=biology")
    cluster.run(*manager, "add", "user", user, "account=physics", "MaxJobs=1")
    cluster.run(*manager, "modify", "user", user, "set", "qos=" + ",".join(["normal", *QOS]))
    yield cluster
    cluster.destroy()


@pytest.fixture
def jobs(millrace: Millrace, accounted: Slurm, tmp_path: Path) -> Iterator[Millrace]:
    clean = {name: value for name, value in millrace.env.items() if not name.startswith("SBATCH")}
    millrace.env = clean | accounted.env | {"MILLRACE_LEDGER": str(tmp_path / "ledger"), "HOME": str(tmp_path)}
    yield millrace
    accounted.cancel_all()


def waits_with(slurm: Slurm, job: int, *reasons: str) -> None:
    until = time.monotonic() + 30
    while not slurm.job(job)["Reason"].startswith(reasons):
        assert time.monotonic() < until, slurm.job(job)
        time.sleep(0.2)


def why(millrace: Millrace, job: int) -> dict:
    return millrace("job", "why", job, "--json").object("job_why")


def sleeper(slurm: Slurm, *options: str) -> int:
    return slurm.submit("--output=/dev/null", "--time=5", *options, "--wrap=sleep 300")


# A job that is in the way (or none), the one that waits, Slurm's reason, the outlook, and what is said.
WAITING = [
    (None, ["--qos=short", "--time=20"], "QOSMaxWall", "never", "QOS short has MaxWall 00:10:00"),
    (["--qos=lean", "--gpus-per-node=2"], ["--qos=lean", "--gpus-per-node=1"], "QOSMaxGRESPerUser", "waits",
     "with QOS lean runs: 1 node, 1 CPUs, 2 GPUs"),
    (["--qos=single"], ["--qos=single"], "QOSMaxJobsPerUserLimit", "waits", "QOS single has MaxJobsPerUser 1"),
    (["--qos=shared", "-n4"], ["--qos=shared"], "QOSGrpCpuLimit", "waits", "QOS shared has GrpTRES cpu=4"),
    (None, ["--qos=big", "--gpus-per-node=1"], "QOSMinGRES", "never", "QOS big has MinTRES gres/gpu=2"),
    (None, ["--qos=sized", "--gpus-per-node=2"], "QOSMaxGRESPerJob", "never", "QOS sized has MaxTRES gres/gpu=1"),
    (["--account=physics"], ["--account=physics"], "AssocMaxJobsLimit", "waits", "physics has MaxJobs 1"),
    (["--account=biology", "--gpus-per-node=2"], ["--account=biology", "--gpus-per-node=1"], "AssocGrpGRES", "waits",
     "account science has GrpTRES gres/gpu=2"),
    (["--qos=team", "--gpus-per-node=1"], ["--qos=team", "--gpus-per-node=1"], "MaxGRESPerAccount", "waits",
     "QOS team has MaxTRESPerAccount gres/gpu=1"),
    (None, ["-N4"], "PartitionNodeLimit", "never", "it asks for 4"),
    (["--licenses=solver:1"], ["--licenses=solver:1"], "Licenses", "waits", ""),
    (None, ["--hold"], "JobHeldUser", "never", ""),
]  # fmt: skip


def test_why_jobs_wait_for_limits(jobs: Millrace, accounted: Slurm):
    """All at once: they do not stand in each other's way."""
    waiting = []
    for holder, options, *expected in WAITING:
        if holder:
            sleeper(accounted, *holder)
        waiting.append((sleeper(accounted, *options), *expected))
    for job, reason, outlook, said in waiting:
        waits_with(accounted, job, reason)
        answer = why(jobs, job)
        assert answer["reason"].startswith(reason) and answer["outlook"] == outlook, answer
        assert "does not know" not in answer["meaning"] and answer["fix"]
        assert not said or any(said in line for line in answer["evidence"]), answer
        # A limit of one job is not one of those that run beside it.
        assert outlook == "waits" or not any(" run" in line for line in answer["evidence"]), answer


def test_why_jobs_wait_for_other_things(jobs: Millrace, accounted: Slurm):
    first = sleeper(accounted)
    never = sleeper(accounted, f"--dependency=afterok:{first}")
    accounted.run("scancel", first)
    held = sleeper(accounted, "--begin=now+120")
    accounted.run("scontrol", "hold", held)
    accounted.run("scontrol", "update", "PartitionName=other", "State=DOWN")
    down = sleeper(accounted, "--partition=other")
    array = sleeper(accounted, "--array=1-3%1")
    expected = [
        (never, "DependencyNeverSatisfied", "never", "the job that it depends on"),
        (held, "JobHeld", "never", ""),
        (down, "PartitionDown", "waits", "the partition is down"),
        (array, "JobArrayTaskLimit", "waits", "as the array allows at once"),
    ]
    try:
        for job, reason, outlook, meaning in expected:
            if job == array:
                continue
            waits_with(accounted, job, reason)
            answer = why(jobs, job)
            assert answer["outlook"] == outlook and meaning in answer["meaning"].lower(), answer
        until = time.monotonic() + 30
        while "JobArrayTaskLimit" not in (said := jobs("job", "why", array).out):
            assert time.monotonic() < until, said
            time.sleep(0.2)
    finally:
        accounted.run("scontrol", "update", "PartitionName=other", "State=UP")


def test_a_reservation_in_the_way(jobs: Millrace, accounted: Slurm):
    user = accounted.run("id", "-un").strip()
    accounted.run("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+600", "Duration=60",
                  "Nodes=n1", f"Users={user}", "Flags=MAINT")  # fmt: skip
    try:
        early = sleeper(accounted, "-wn1", "--time=60")
        inside = sleeper(accounted, "--reservation=maint", "--time=10")
        waits_with(accounted, early, "ReqNodeNotAvail")
        said = " ".join(why(jobs, early)["evidence"])
        assert "reservation maint (maintenance) holds n1 from " in said and "its limit of 1:00:00 reaches into" in said
        waits_with(accounted, inside, "Reservation")
        assert "its reservation maint (maintenance) holds n1 from " in " ".join(why(jobs, inside)["evidence"])
        free = sleeper(accounted, "-wn1", "--time=1")
        assert accounted.job(free)["Reason"] != "Reservation"
    finally:
        accounted.cancel_all()
        accounted.run("scontrol", "delete", "ReservationName=maint")


def check(millrace: Millrace, path: Path, *more: object) -> tuple[dict[str, dict], str]:
    """Findings by rule, and what was answered about accounts."""
    objects = millrace("job", "check", path, "--json", "--fail-on=never", *more).objects()
    answers = [each["evidence"] for each in objects if each.get("subject") == "accounts"]
    return {each["rule"]: each for each in objects if each["type"] == "lint"}, "; ".join(answers)


def test_accounts_and_qos(jobs: Millrace, accounted: Slurm, tmp_path: Path):
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --time=5 --output=/dev/null --account=physics\ntrue\n")
    found, answer = check(jobs, path)
    assert "JC04" not in found and answer == "account physics is yours"
    # This controller enforces associations, so a wrong name is an error.
    other = check(jobs, path, "--sbatch=--account=chemistry")[0]["JC04"]
    assert "account chemistry is not yours" in other["message"] and other["severity"] == "error"
    assert "QOS none is not yours" in check(jobs, path, "--sbatch=--qos=none")[0]["JC04"]["message"]
    long = check(jobs, path, "--sbatch=--qos=short", "--sbatch=--time=20")[0]["JC04"]
    assert "QOS short has MaxWall=00:10:00, and the job asks for 00:20:00" in long["message"]
    gpus = check(jobs, path, "--sbatch=--qos=sized", "--sbatch=--gpus-per-node=2")[0]["JC04"]
    assert "QOS sized has MaxTRES gres/gpu=1, and the job asks for 2" in gpus["message"]
    assert "JC04" not in check(jobs, path, "--sbatch=--qos=sized", "--sbatch=--gpus-per-node=1")[0]


def test_who_cancelled_it_and_what_its_steps_held(jobs: Millrace, accounted: Slurm, tmp_path: Path):
    user = accounted.run("id", "-un").strip()
    cancelled = sleeper(accounted)
    while accounted.job(cancelled)["JobState"] == "PENDING":
        time.sleep(0.1)
    hungry = tmp_path / "hungry.sh"
    hungry.write_text("#!/bin/bash\nsrun python3 -c 'import time; held = bytearray(400 << 20); time.sleep(60)'\n")
    hungry.chmod(0o755)
    killed = accounted.submit("--output=/dev/null", "--mem=50", "--time=5", hungry)
    accounted.run("scancel", cancelled)
    accounted.wait(cancelled)
    accounted.wait(killed)
    until = time.monotonic() + 20
    while f"cancelled by {user}" not in why(jobs, cancelled)["evidence"]:  # slurmdbd is told a moment later
        assert time.monotonic() < until, why(jobs, cancelled)
        time.sleep(0.2)
    while not any(f"step {killed}.0 (python3) ended" in line for line in why(jobs, killed)["evidence"]):
        assert time.monotonic() < until, why(jobs, killed)
        time.sleep(0.2)
    assert any("a task of it was seen with" in line for line in why(jobs, killed)["evidence"])


def test_why_of_a_cloud_node_that_is_hidden(jobs: Millrace, accounted: Slurm):
    lost = accounted.submit("--output=/dev/null", "--no-requeue", "--partition=cloud", "--mem=500M", "--wrap=sleep 60")
    assert accounted.wait(lost) == "NODE_FAIL"
    nothing = "accounting has no step of it: nothing of it ran"
    until = time.monotonic() + 20
    while nothing not in (said := why(jobs, lost))["evidence"]:  # slurmdbd is told a moment later
        assert time.monotonic() < until, said
        time.sleep(0.2)
    assert said["meaning"].startswith("A node never booted")
    assert any(line.startswith("Slurm does not list c1 now") for line in said["evidence"]), said


def test_ends_that_only_accounting_remembers(jobs: Millrace, accounted: Slurm, tmp_path: Path):
    """And what is said when slurmdbd does not run. The last test: the controller forgets its jobs."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --time=5 --output=/dev/null\nexit 3\n")
    job = jobs("job", "submit", path, "--json", "--no-check").object("job_submitted")["job_id"]
    accounted.wait(int(job))
    assert accounted.folder
    until = time.monotonic() + 20
    while not accounted.run("sacct", "-n", "-X", "-j", job, "-o", "End").strip().startswith("20"):
        assert time.monotonic() < until
        time.sleep(0.2)
    for daemon, sign in (("slurmctld", signal.SIGKILL), ("slurmdbd", signal.SIGKILL)):
        os.kill(int((accounted.folder / "run" / f"{daemon}.pid").read_text()), sign)
    for state in (accounted.folder / "state").glob("job_state*"):
        state.unlink()
    Slurm.start(accounted.folder)
    state = jobs("job", "show", job, "--json").object("run")
    assert (state["state"], state["exit"], state["source"]) == ("FAILED", "3:0", "sacct")
    assert jobs("job", "why", job, "--json").object("job_why")["state"] == "FAILED"

    os.kill(int((accounted.folder / "run" / "slurmdbd.pid").read_text()), signal.SIGKILL)
    begin = time.monotonic()
    assert "refused" in check(jobs, path)[1]
    ended = jobs("job", "ls", "--json").objects("job")
    assert [each["state"] for each in ended if each["job_id"] == job] == ["FAILED"]  # the ledger knows it now
    waiting = sleeper(accounted, "--hold")
    assert why(jobs, waiting)["reason"] == "JobHeldUser"
    assert time.monotonic() - begin < 30
