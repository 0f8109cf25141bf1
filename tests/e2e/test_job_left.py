# SPDX-License-Identifier: Apache-2.0
"""Jobs that a real Slurm without accounting has forgotten are known by what they left themselves; and `job why` of ends
that the shared cluster of the tests cannot bring about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm = Slurm.start(
        tmp_path_factory.mktemp("left") / "c", "--group=main:nodes=2,cpus=8,memory_mb=64000,gpus=0",
        "--conf=SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1",
    )  # fmt: skip
    yield slurm
    slurm.destroy()


@pytest.fixture
def jobs(millrace: Millrace, cluster: Slurm, tmp_path: Path) -> Iterator[Millrace]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "millrace").symlink_to(millrace.binary)
    millrace.env = clean | cluster.env | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "python"),
        "MILLRACE_LEDGER": str(tmp_path / "ledger"),
    }  # fmt: skip
    yield millrace
    cluster.cancel_all()


def kill(slurm: Slurm, daemon: str) -> None:
    assert slurm.folder
    os.kill(int((slurm.folder / "run" / f"{daemon}.pid").read_text()), signal.SIGKILL)


def forget(slurm: Slurm) -> None:
    """The controller loses its jobs, as it does with each after MinJobAge."""
    assert slurm.folder
    kill(slurm, "slurmctld")
    for state in (slurm.folder / "state").glob("job_state*"):
        state.unlink()
    Slurm.start(slurm.folder)


PROGRAM = """
import os, sys, time
open(os.environ["MILLRACE_PROGRESS"], "w").write("41\\n")
if sys.argv[1] == "wait":
    open(sys.argv[2], "w").close()
    time.sleep(300)
sys.exit(int(sys.argv[1]))
"""


def submit(millrace: Millrace, path: Path) -> str:
    return millrace("job", "submit", path, "--no-check", "--json").object("job_submitted")["job_id"]


def test_an_end_that_nobody_but_the_job_knows(jobs: Millrace, cluster: Slurm, tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)

    def trained(name: str, *arguments: object) -> str:
        path = tmp_path / f"{name}.sbatch"
        jobs(
            "job", "new", "train", "--name", name, "--launcher", "srun", "--gpus", 0, "--cpus-per-gpu", 1, "--shared",
            "--mem", "500M", "--time", 10, "--log-dir", tmp_path / "logs", "--out", path, "--", sys.executable,
            tmp_path / "train.py", *arguments,
        )  # fmt: skip
        return submit(jobs, path)

    def recorded(name: str, body: str) -> str:
        program = tmp_path / f"{name}.py"
        program.write_text(
            f"import millrace as mr\nwith mr.Run({str(tmp_path / name)!r}) as run:\n    run.log(7, loss=1.0)\n    {body}\n"
        )
        path = tmp_path / f"{name}.sbatch"
        path.write_text(
            f"#!/bin/bash\n#SBATCH --time=5 --mem=500M --output=/dev/null\n{sys.executable} {program} || true\n"
        )
        return submit(jobs, path)

    done, failed, stopped = trained("done", 0), trained("failed", 3), trained("stopped", "wait", tmp_path / "runs")
    well, badly, killed = (
        recorded("well", "pass"),
        recorded("badly", "raise OSError('x')"),
        recorded("killed", "import os; os.kill(os.getpid(), 9)"),
    )
    until = time.monotonic() + 60
    while not (tmp_path / "runs").exists():
        assert time.monotonic() < until, cluster.job(int(stopped))
        time.sleep(0.1)
    cluster.run("scancel", stopped)
    for job in (done, failed, stopped, well, badly, killed):
        cluster.wait(int(job))
    forget(cluster)

    states = {each["job_id"]: each for each in jobs("job", "ls", "--json").objects("job")}
    known = {job: (states[job]["state"], states[job]["exit"], states[job]["last_step"]) for job in states}
    assert known == {
        done: ("COMPLETED", "0:0", 41),
        failed: ("FAILED", "3:0", 41),
        stopped: ("CANCELLED", known[stopped][1], 41),
        well: ("COMPLETED", None, 7),
        badly: ("FAILED", None, 7),
        killed: (None, None, None),  # it left no end
    }
    assert {states[job]["source"] for job in (done, failed, stopped, well, badly)} == {"job"}
    assert states[done]["node_list"] in ("n1", "n2") and states[done]["elapsed_s"] is not None
    # The ledger keeps it, also where the job's own file is gone later.
    for left in (tmp_path / "logs").glob("ended-*.json"):
        left.unlink()
    shown = jobs("job", "show", failed, "--json").object("run")
    assert (shown["state"], shown["exit"], shown["last_step"], shown["source"]) == ("FAILED", "3:0", 41, "ledger")
    assert "last step   41\n" in jobs("job", "show", failed).out
    jobs("job", "wait", done)
    assert "ended FAILED, exit status 3" in jobs("job", "wait", failed, status=1).err
    assert "forgotten how job" in jobs.fails("job", "wait", killed)
    why = jobs("job", "why", failed, "--json").object("job_why")
    assert why["outlook"] == "failed" and "exit status and signal: 3:0" in why["evidence"]


def test_a_job_that_runs_again_has_not_ended(jobs: Millrace, cluster: Slurm, tmp_path: Path):
    """Its script leaves no end before a requeue, and takes away that of a start before."""
    (tmp_path / "train.py").write_text(
        "import os, sys\nfirst = os.environ.get('SLURM_RESTART_COUNT', '0') == '0'\nsys.exit(75 if first else 5)\n"
    )
    path = tmp_path / "again.sbatch"
    jobs(
        "job", "new", "train", "--launcher", "srun", "--gpus", 0, "--cpus-per-gpu", 1, "--shared", "--mem", "500M",
        "--time", 10, "--log-dir", tmp_path / "logs", "--out", path, "--", sys.executable, tmp_path / "train.py",
    )  # fmt: skip
    job = submit(jobs, path)
    left = tmp_path / f"logs/ended-{job}.json"
    until = time.monotonic() + 60
    while int(cluster.job(int(job))["Restarts"]) == 0:
        assert time.monotonic() < until, cluster.job(int(job))
        # Only that of the second start, if Slurm was faster than this test.
        assert not left.exists() or json.loads(left.read_text())["restarts"] == 1
        time.sleep(0.1)
    assert cluster.wait(int(job)) == "FAILED"
    forget(cluster)
    assert jobs("job", "show", job, "--json").object("run")["exit"] == "5:0"


def test_a_script_that_a_signal_kills_leaves_no_end(jobs: Millrace, tmp_path: Path):
    """bash runs the trap with status 0 then, which would look like a success."""
    text = jobs("job", "new", "train", "--gpus", 0, "--log-dir", tmp_path, "--", "train.py").out
    begin = text[text.index("# How the job ended") : text.index("EXIT\n") + 5]
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}

    def left(*lines: str) -> dict | None:
        script = "\n".join(["set -euo pipefail", begin, *lines])
        subprocess.run(["bash", "-c", script], env=env, timeout=60)
        path = tmp_path / "ended-7.json"
        return json.loads(path.read_text()) if path.exists() else None

    assert left("kill -USR1 $$; sleep 10") is None
    assert left("false") is not None
    assert left("kill -USR1 $$; sleep 10") is None, "that of the start before is gone"
    done = left("last_step=12", "reached=1", "exit 3")
    assert done and (done["exit"], done["stopped"], done["step"], done["nodes"]) == (3, False, 12, "n[1-2]")
    stopped = left("ended=1", "exit 1")
    assert stopped and (stopped["exit"], stopped["stopped"], stopped["step"]) == (1, True, None)


def sleeper(slurm: Slurm, *options: str) -> int:
    return slurm.submit("--output=/dev/null", "--mem=500M", *options, "--wrap=sleep 300")


def until_state(slurm: Slurm, job: int, state: str, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while slurm.job(job)["JobState"] != state:
        assert time.monotonic() < until, slurm.job(job)
        time.sleep(0.1)


def why(millrace: Millrace, job: int) -> dict:
    return millrace("job", "why", job, "--json").object("job_why")


def test_why_of_a_preempted_job_and_who_took_its_node(jobs: Millrace, cluster: Slurm):
    poor = sleeper(cluster, "--partition=spare", "--no-requeue", "--nodelist=n1", "--exclusive")
    again = sleeper(cluster, "--partition=spare", "--requeue", "--nodelist=n2", "--exclusive")
    for job in (poor, again):
        until_state(cluster, job, "RUNNING")
    urgent = sleeper(cluster, "--partition=main", "--nodes=2", "--exclusive")
    until_state(cluster, urgent, "RUNNING")
    until_state(cluster, poor, "PREEMPTED")
    said = why(jobs, poor)
    assert said["meaning"] == "A job of higher priority took its nodes." and said["outlook"] == "failed"
    evidence = " | ".join(said["evidence"])
    assert "it was preempted at 20" in evidence and f"job {urgent} (" in evidence, evidence
    assert "partition main) then started on n[1-2]" in evidence
    until_state(cluster, again, "PENDING")
    assert "restarts" not in said["fix"] and why(jobs, again)["outlook"] == "waits"


def test_why_of_a_node_that_failed_and_of_a_drained_one(jobs: Millrace, cluster: Slurm):
    lost = sleeper(cluster, "--no-requeue", "--nodes=2", "--exclusive")
    until_state(cluster, lost, "RUNNING")
    kill(cluster, "n2")  # else it answers, and is up again at once
    try:
        cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=the fuse blew")
        until_state(cluster, lost, "NODE_FAIL")
        said = why(jobs, lost)
        assert said["meaning"] == "A node died or stopped answering." and "--exclude leaves the node out" in said["fix"]
        assert any(line.startswith("n2 is DOWN") and "(the fuse blew) now" in line for line in said["evidence"]), said
        assert not any(line.startswith("n1 is") for line in said["evidence"])

        cluster.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=bad link")
        named, wide = sleeper(cluster, "--nodelist=n1"), sleeper(cluster, "--nodes=2")
        for job in (named, wide):
            until = time.monotonic() + 30
            while cluster.job(job)["Reason"] in ("None", "Priority", "Resources"):
                assert time.monotonic() < until, cluster.job(job)
                time.sleep(0.2)
            said = why(jobs, job)
            assert "down, drained or reserved" in said["meaning"] and said["outlook"] == "waits", said
            assert any("n1 is" in line and "DRAIN (bad link)" in line for line in said["evidence"]), said
    finally:
        cluster.cancel_all()
        assert cluster.folder
        Slurm.start(cluster.folder)
        cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")


# How a script ends, Slurm's status, and a part of what is said.
STATUSES = [
    ("exit 75", "75:0", "wants to run again"),
    ("/etc/passwd", "126:0", "not executable"),
    ("bash -c 'kill -KILL $$'", "137:0", "killed by SIGKILL"),
    ("bash -c 'kill -SEGV $$'", "139:0", "crashed (SIGSEGV)"),
    ("bash -c 'kill -TERM $$'", "143:0", "stopped by SIGTERM"),
    ("kill -KILL $$", "0:9", "killed by SIGKILL"),
    ("exit 77", "77:0", "ended with an error"),
]


def test_why_of_each_exit_status(jobs: Millrace, cluster: Slurm, tmp_path: Path):
    ended = []
    for number, (body, status, meaning) in enumerate(STATUSES):
        path = tmp_path / f"{number}.sbatch"
        path.write_text(f"#!/bin/bash\n#SBATCH --time=5 --mem=500M --output=/dev/null\nulimit -c 0\n{body}\n")
        ended.append((cluster.submit(path), status, meaning))
    for job, status, meaning in ended:
        assert cluster.wait(job) == "FAILED"
        said = why(jobs, job)
        assert meaning in said["meaning"] and said["fix"], (status, said)
        assert f"exit status and signal: {status}" in said["evidence"], said


@pytest.mark.long
def test_why_of_a_limit_and_of_a_deadline(jobs: Millrace, cluster: Slurm):
    """Slurm looks at limits every 30 s."""
    limited = sleeper(cluster, "--time=5", "--exclusive", "--nodes=2")
    until_state(cluster, limited, "RUNNING")
    late = sleeper(cluster, "--time=1", "--deadline=now+63", "--exclusive")
    cluster.run("scontrol", "update", f"JobId={limited}", "EndTime=now+2")
    until_state(cluster, late, "DEADLINE", 90)
    said = why(jobs, late)
    assert "before its --deadline" in said["meaning"]
    assert any(line.startswith("its deadline was 20") for line in said["evidence"]), said
    until_state(cluster, limited, "TIMEOUT", 90)
    said = why(jobs, limited)
    assert "still running at its time limit" in said["meaning"] and "Raise --time" in said["fix"]
    assert any(line.startswith("its limit was 00:0") for line in said["evidence"]), said
