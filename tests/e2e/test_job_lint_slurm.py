# SPDX-License-Identifier: Apache-2.0
"""Rules SB34 and SB38 to SB47: what a real Slurm makes of each wrong script, and what `job lint` says of it before."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm


@dataclass
class Trial:
    """A job that was run, or that sbatch refused."""

    rules: set[str]
    refused: str = ""
    state: str = ""
    status: str = ""
    log: str = ""
    seconds: int = 0


@pytest.fixture
def attempt(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    def run(*lines: str, name: str = "job") -> Trial:
        script = tmp_path / f"{name}.sbatch"
        script.write_text("\n".join(["#!/bin/bash", "#SBATCH --time=5", *lines, ""]))
        found = millrace("job", "lint", script, "--json", "--fail-on", "never").objects("lint")
        trial = Trial({one["rule"] for one in found if one["severity"] != "note"})
        log = tmp_path / f"{name}.log"
        command = ["sbatch", "--parsable", f"--output={log}", script]
        done = subprocess.run(command, env=clean_env(slurm), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        if done.returncode:
            trial.refused = done.stderr
            return trial
        job = int(done.stdout.split(";")[0])
        trial.state = slurm.wait(job)
        trial.status = slurm.job(job)["ExitCode"]
        trial.log = log.read_text() if log.exists() else ""
        return trial

    return run


def clean_env(slurm: Slurm) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "MASTER"))} | slurm.env


REFUSED = {
    "words of a name": ["--job-name=Big simulation"],
    "no option": ["nodes=2"],
    "an option of srun": ["--kill-on-bad-exit=1"],
    "two kinds of memory": ["--mem=1G", "--mem-per-cpu=1G"],
    "memory by GPU": ["--mem=1G", "--mem-per-gpu=1G", "--gpus=1"],
    "memory by CPU and GPU": ["--mem-per-cpu=1G", "--mem-per-gpu=1G", "--gpus=1"],
    "GPUs by task and tasks by GPU": ["--ntasks-per-gpu=1", "--gpus-per-task=1", "--gpus=2"],
    "tasks by node and by GPU": ["--ntasks-per-gpu=1", "--ntasks-per-node=2", "--gpus=2"],
    "CPUs by GPU and by task": ["--cpus-per-gpu=1", "--cpus-per-task=2", "--gpus=1"],
    "cores and threads": ["--core-spec=1", "--thread-spec=1"],
    "GPUs by socket alone": ["--gpus-per-socket=1"],
    "GPUs by task alone": ["--gpus-per-task=1"],
    "tasks by GPU alone": ["--ntasks-per-gpu=1"],
    "GPUs of the nodes": ["--nodes=2", "--gpus=4", "--gpus-per-node=4"],
    "GPUs of the tasks": ["--ntasks=4", "--gpus=4", "--gpus-per-task=2"],
    "tasks of the nodes": ["--nodes=2", "--ntasks=16", "--ntasks-per-node=4"],
    "at most before at least": ["--nodes=2-1"],
    "the shortest time": ["--time-min=20"],
    "asked for and excluded": ["--nodelist=n1", "--exclude=n1"],
}
OF_LINES = {"words of a name", "no option", "an option of srun"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_sbatch_refuses_is_said_before(attempt, case: str):
    trial = attempt(*(f"#SBATCH {option}" for option in REFUSED[case]), "srun hostname")
    assert trial.refused, "this Slurm takes it"
    assert ("SB34" if case in OF_LINES else "SB43") in trial.rules


WRONG_VALUES = [
    "--mem=4GiB", "--mem=1.5G", "--mem=x", "--mem-per-cpu=1.5G", "--mem-per-gpu=1GiB", "--tmp=10GiB",
    "--gres=gpu=2", "--gpus=2x", "--gpus=h200:x", "--gpus-per-node=2x", "--array=5-1", "--array=abc", "--array=1-5:0",
    "--signal=FOO@60", "--signal=USR1@70000", "--signal=@60", "--signal=USR1@x", "--signal=WINCH@60", "--exclusive=yes",
    "--nodes=1,2", "--nodes=x", "--nodes=1-2-3", "--cpus-per-task=0", "--ntasks=0", "--dependency=foo:1",
    "--dependency=afterok", "--dependency=afterok:x", "--kill-on-invalid-dep=true", "--wait-all-nodes=2",
    "--distribution=foo", "--distribution=plane", "--distribution=block:foo", "--hint=foo", "--begin=xx",
    "--begin=now+1x", "--deadline=foo", "--mail-type=FOO", "--partition=",
]  # fmt: skip
RIGHT_VALUES = [
    "--mem=4GB", "--mem=4g", "--mem=0", "--mem=100", "--tmp=0", "--gres=gpu:h200:2", "--gres=none", "--gres=gres:gpu:1",
    "--gpus=h200:2", "--gpus-per-node=h200", "--array=1,3,5-9:2%2", "--array=[1-4]", "--signal=RB:SIGUSR1@60",
    "--signal=10@60", "--signal=usr1", "--signal=USR1@0", "--exclusive", "--exclusive=USER", "--nodes=1-2",
    "--dependency=singleton", "--dependency=after:1+5", "--dependency=afterok:1?afterany:2", "--dependency=AFTEROK:1",
    "--dependency=afternotok:1_2", "--kill-on-invalid-dep=Yes", "--wait-all-nodes=1", "--distribution=plane=4",
    "--distribution=*:block", "--distribution=block:block:fcyclic", "--distribution=Block,NoPack",
    "--hint=compute_bound,nomultithread", "--begin=now+1hour", "--begin=16:00", "--begin=teatime", "--begin=010130",
    "--begin=2030-01-01T00:00:00", "--deadline=now+2hours", "--mail-type=end,FAIL", "--mail-type=TIME_LIMIT_80",
]  # fmt: skip


def test_values_are_judged_as_sbatch_judges_them(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.sbatch"
    for value in WRONG_VALUES + RIGHT_VALUES:
        script.write_text(f"#!/bin/bash\n#SBATCH --time=5\n#SBATCH {value}\nsrun hostname\n")
        command = ["sbatch", "--test-only", script]
        done = subprocess.run(command, env=clean_env(slurm), capture_output=True, text=True, timeout=60)
        found = millrace("job", "lint", script, "--json", "--fail-on", "never").objects("lint")
        said = [each for each in found if each["rule"] == "SB34" and each["severity"] == "error"]
        assert bool(done.returncode) == bool(said) == (value in WRONG_VALUES), (value, done.stderr, found)


def test_scripts_that_are_none(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    script = tmp_path / "job.sbatch"
    for text in ("", "\n \n", "\ufeff#!/bin/bash\n#SBATCH --time=5\nsrun hostname\n"):
        script.write_text(text)
        done = subprocess.run(
            ["sbatch", "--test-only", script], env=clean_env(slurm), capture_output=True, text=True, timeout=60
        )
        found = millrace("job", "lint", script, "--json", "--fail-on", "never").objects("lint")
        assert done.returncode and ("SB32", 1, "error") in {(f["rule"], f["line"], f["severity"]) for f in found}, text


TAKEN = ["--tasks-per-node=2", "--power=level", "--context=x", "--nodes=2 --ntasks=8 --ntasks-per-node=4", "--mem=1G"]


@pytest.mark.parametrize("options", TAKEN)
def test_what_sbatch_takes_is_no_error(attempt, options: str):
    trial = attempt(f"#SBATCH {options}", "srun --cpus-per-task=1 hostname")
    assert not trial.refused
    assert not trial.rules & {"SB34", "SB43", "SB44"}


def test_srun_refuses_pairs_too(attempt):
    for options in ("--exact --whole", "--exclusive --overlap", "--mem=10 --mem-per-cpu=10"):
        trial = attempt(f"srun {options} hostname")
        assert trial.state == "FAILED" and "exclusive" in trial.log
        assert "SB43" in trial.rules
    trial = attempt("#SBATCH --gpus=2 --ntasks=2 --ntasks-per-node=2", "srun --ntasks-per-gpu=1 hostname")
    assert trial.state == "FAILED" and "SB43" in trial.rules


def test_the_later_option_counts(attempt):
    trial = attempt("#SBATCH --time=7", "scontrol show job $SLURM_JOB_ID | grep -o TimeLimit=00:0.")
    assert trial.log == "TimeLimit=00:07\n" and "SB44" in trial.rules
    show = "scontrol -o show job $SLURM_JOB_ID | grep -oE '(Requeue|OverSubscribe)=[0-9A-Z]+' | sort | xargs"
    trial = attempt("#SBATCH --requeue --no-requeue --exclusive --oversubscribe", show)
    assert "Requeue=0" in trial.log and "OverSubscribe=YES" in trial.log and "SB44" in trial.rules


def test_tasks_take_nodes_away_and_leave_the_number_of_a_node_aside(attempt):
    trial = attempt("#SBATCH --nodes=2 --ntasks=1", "echo $SLURM_JOB_NUM_NODES")
    assert trial.log.endswith("1\n") and "SB44" in trial.rules
    trial = attempt("#SBATCH --nodes=2 --ntasks=9 --ntasks-per-node=8", "srun bash -c 'echo $SLURM_NODEID' | grep -c 0")
    assert int(trial.log.split()[-1]) < 8 and "SB44" in trial.rules


# As torchrun's launcher sees the nodes: the number that it was told, else one.
TORCHRUN = """\
import os, sys
told = [word.split("=")[1] for word in sys.argv if word.startswith("--nnodes=")]
nodes = int(told[0]) if told else 1
print("a training of", nodes, "from", os.environ["SLURMD_NODENAME"])
"""


def test_torchrun_without_the_number_of_nodes_trains_twice(attempt, tmp_path: Path):
    tool = tmp_path / "torchrun"
    tool.write_text(f"#!/usr/bin/env python3\n{TORCHRUN}")
    tool.chmod(0o755)
    of_two = ["#SBATCH --nodes=2 --ntasks-per-node=1", f"export PATH={tmp_path}:$PATH"]
    trial = attempt(*of_two, "srun torchrun --nproc_per_node=8 train.py")
    assert trial.state == "COMPLETED"
    assert sorted(trial.log.splitlines()) == ["a training of 1 from n1", "a training of 1 from n2"]
    assert "SB38" in trial.rules
    right = (
        "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):$((20000 + SLURM_JOB_ID)) train.py"
    )
    trial = attempt(*of_two, right)
    assert "a training of 2 from n1" in trial.log and "SB38" not in trial.rules


def test_a_step_that_nothing_waits_for_is_lost(attempt, tmp_path: Path):
    # Long, since a busy Slurm needs seconds to end the steps of a job that is over.
    trial = attempt(f"srun bash -c 'sleep 60 && touch {tmp_path}/done' &")  # a sleep that is killed fails
    assert (trial.state, trial.status) == ("COMPLETED", "0:0")
    assert not (tmp_path / "done").exists() and "SB39" in trial.rules
    trial = attempt(f"srun bash -c 'sleep 2; touch {tmp_path}/done' &", "wait $!")
    assert (tmp_path / "done").exists() and "SB39" not in trial.rules


def second_step(options: str, seconds: int) -> list[str]:
    """The first step ends when a file is there, and only the second makes it."""
    look = f"for i in $(seq {seconds * 10}); do [ -e seen ] && exit; sleep 0.1; done; exit 3"
    runs = "until squeue --steps --noheader --jobs=$SLURM_JOB_ID --format=%i | grep -q '[.]0$'; do sleep 0.1; done"
    return [f"srun {options} bash -c '{look}' &", runs, f"srun {options} touch seen", "wait $!"]


def test_a_second_step_waits_for_the_first(attempt, tmp_path: Path):
    trial = attempt("#SBATCH --ntasks=1 --mem=100", *second_step("", 5))
    assert trial.status == "3:0" and "step creation temporarily disabled" in trial.log
    assert "SB40" in trial.rules
    (tmp_path / "seen").unlink(missing_ok=True)
    trial = attempt("#SBATCH --ntasks=1 --mem=100", *second_step("--overlap --mem=0", 60))
    assert trial.status == "0:0" and "SB40" not in trial.rules


def test_the_environment_reaches_the_tasks_only_with_all(attempt):
    set_address = "export MASTER_ADDR=n1"
    show = "/bin/bash -c 'echo [$MASTER_ADDR] [$A]'"
    for lines in (
        [set_address, f"srun --export=A=1 {show}", "srun --export=A=1 hostname"],
        ["#SBATCH --export=NONE", set_address, f"srun {show}", "srun hostname"],
        ["#SBATCH --export=A=1", set_address, f"srun {show}", "srun hostname"],
    ):
        trial = attempt(*lines)
        assert "[] " in trial.log and "execve(): hostname: No such file" in trial.log, trial.log
        assert trial.state == "FAILED" and "SB41" in trial.rules
    for lines in (
        [set_address, f"srun --export=ALL,A=1 {show}"],
        [set_address, f"srun --export=A=1,all {show}"],
        ["#SBATCH --export=NONE", set_address, "unset SLURM_EXPORT_ENV", f"srun {show}"],
        ["#SBATCH --export=ALL,A=1", set_address, f"srun {show}"],
    ):
        trial = attempt(*lines)
        assert "[n1]" in trial.log and "SB41" not in trial.rules


def test_sbatch_expands_no_variable(attempt, tmp_path: Path):
    trial = attempt("#SBATCH --chdir=$WORK", "pwd")
    assert "couldn't chdir" in trial.log and trial.log.endswith("/tmp\n") and "SB42" in trial.rules
    trial = attempt("#SBATCH --error=$USER-%j.err", "echo x >&2")
    assert [path.name for path in tmp_path.glob("$USER-*.err")] and "SB42" in trial.rules
    trial = attempt("#SBATCH --chdir=~", "pwd")
    assert "couldn't chdir" in trial.log and "SB42" in trial.rules
    trial = attempt("#SBATCH --error=%u-%j.err", "echo x >&2")
    assert "SB42" not in trial.rules


def test_the_status_is_lost_in_a_pipe_and_in_a_bare_wait(attempt, tmp_path: Path):
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    train = f"srun --cpus-per-task=1 python3 {tmp_path}/train.py"
    for lines, rule in (
        ([f"{train} | tee out"], "SB45"),
        (["set -e", f"{train} | tee out", "touch next"], "SB45"),
        ([f"{train} &", "wait"], "SB46"),
    ):
        trial = attempt(*lines)
        assert (trial.state, trial.status) == ("COMPLETED", "0:0") and rule in trial.rules
    for lines, rule in (
        (["set -o pipefail", f"{train} | tee out"], "SB45"),
        ([f"{train} &", "pid=$!", "wait $pid"], "SB46"),
    ):
        trial = attempt(*lines)
        assert (trial.state, trial.status) == ("FAILED", "7:0") and rule not in trial.rules


# How the address is derived, and whether each of two tasks on two nodes then has the name of the first node.
ADDRESSES = {
    "scontrol": ("$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)", True),
    "sed": ("$(scontrol show hostnames | sed -n 1p)", True),
    "the batch shell's node": ("$SLURMD_NODENAME", True),
    "the list": ("$SLURM_JOB_NODELIST", False),
    "the list up to a comma": ("${SLURM_NODELIST%%,*}", False),
    "the list, cut": ("$(echo $SLURM_NODELIST | cut -d, -f1)", False),
    "the host of sbatch": ("$SLURM_SUBMIT_HOST", False),
    "an address that only tasks have": ("$SLURM_LAUNCH_NODE_IPADDR", False),
    "all names": ("$(scontrol show hostnames)", False),
}


@pytest.mark.parametrize("how", ADDRESSES)
def test_the_master_address(attempt, how: str):
    value, right = ADDRESSES[how]
    of_two = "#SBATCH --nodes=2 --ntasks-per-node=1"
    trial = attempt(of_two, f'export MASTER_ADDR="{value}"', "srun bash -c 'echo \"=$MASTER_ADDR=\"'")
    assert (trial.log == "=n1=\n=n1=\n") == right, trial.log
    assert ("SB47" in trial.rules) != right


def test_a_master_address_that_every_task_takes_itself(attempt):
    trial = attempt(
        "#SBATCH --nodes=2 --ntasks-per-node=1",
        "srun bash -c 'export MASTER_ADDR=$SLURMD_NODENAME; echo =$MASTER_ADDR='",
    )
    assert sorted(trial.log.split()) == ["=n1=", "=n2="] and "SB47" in trial.rules
