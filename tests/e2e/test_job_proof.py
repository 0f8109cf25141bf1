# SPDX-License-Identifier: Apache-2.0
"""examples/pretrain_lm.py on two nodes of a real Slurm, submitted by `job submit`: a node dies, the job is preempted, or
it meets its limit, and the losses are those of a run that nobody disturbed, to the last bit.

Each takes some twenty seconds or more: Slurm needs seconds to find out that a node is dead, and delays each requeue.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace, tokenizer_json
from slurm_fixture import CLUSTER, Slurm

pytestmark = [
    pytest.mark.skipif(not (Path(sys.executable).parent / "torchrun").exists(), reason="torch is not installed"),
    pytest.mark.long,
    pytest.mark.timeout(600),  # many processes: minutes on a busy machine
]
STEPS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes, of which tests kill one; a dead node is noticed after five seconds."""
    slurm = Slurm.start(
        tmp_path_factory.mktemp("proof") / "c",
        "--group",
        "main:nodes=3,cpus=8,memory_mb=64000,gpus=0",
        "--conf",
        "SlurmdTimeout=5",
    )
    yield slurm
    slurm.destroy()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "tokenizer.json").write_text(tokenizer_json())
    for part in range(2):
        (folder / f"{part}.txt").write_text("the mill turns slowly over the river\n" * 2000)
    for task in range(2):
        command = [os.environ.get("MILLRACE_BIN", "millrace"), "prepare", folder / "0.txt", folder / "1.txt", "--tokenizer",
                   folder / "tokenizer.json", "--out", folder / "shards", "--task", f"{task}/2", "--quiet"]  # fmt: skip
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def trainer(millrace: Millrace, cluster: Slurm, tmp_path: Path) -> Millrace:
    """The binary with an environment in which jobs find it, torchrun and the package."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "millrace").symlink_to(millrace.binary)
    # The node names of this Slurm do not resolve.
    (tools / "scontrol").write_text(
        f'#!/bin/bash\n[ "$2" = hostnames ] && echo localhost || exec {shutil.which("scontrol")} "$@"\n'
    )
    (tools / "scontrol").chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
    millrace.env = clean | cluster.env | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "python"),
        "MILLRACE_LEDGER": str(tmp_path / "ledger"),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    return millrace


SHARED = ("--shared", "--mem", "4G")


def submit(
    millrace: Millrace, data: Path, folder: Path, *options: object, steps: int = STEPS, nodes: tuple[str, ...] = SHARED
) -> int:
    folder.mkdir(exist_ok=True)
    shards = sorted((data / "shards").glob("*.tar"))
    millrace(
        "job", "new", "train", "--nodes", 2, "--gpus", 0, "--cpus-per-gpu", 2, "--time", 10, "--monitor", 0, *nodes,
        "--max-restarts", 3, "--log-dir", folder / "logs", "--out", folder / "train.sbatch", "--",
        REPOSITORY / "examples/pretrain_lm.py", "--shards", *shards, "--valid", 1, "--tokenizer", data / "tokenizer.json",
        "--out", folder / "checkpoints", "--log-file", folder / "steps.jsonl", "--record", folder / "record",
        "--steps", steps, "--save-every", 5, "--batch-size", 1, "--seq-len", 16, "--dim", 8, "--layers", 1, "--heads", 1,
    )  # fmt: skip
    submitted = millrace("job", "submit", folder / "train.sbatch", "--json", *options).object("job_submitted")
    return int(submitted["job_id"])


def lines(folder: Path) -> list[dict]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path) -> dict[int, str]:
    """By step; a step that was trained twice must have given the same bits."""
    found: dict[int, str] = {}
    for line in lines(folder):
        assert found.setdefault(line["step"], line["loss_hex"]) == line["loss_hex"], line
    return found


def reached(folder: Path, step: int, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not any(line["step"] >= step for line in lines(folder)):
        assert time.monotonic() < until, (folder / "logs").exists() and [
            p.read_text() for p in (folder / "logs").glob("*.log")
        ]
        time.sleep(0.05)


def end_of(slurm: Slurm, job: int, folder: Path) -> str:
    state = slurm.wait(job, timeout_s=180)
    assert state == "COMPLETED", [path.read_text()[-3000:] for path in (folder / "logs").glob("*.log")]
    return (folder / f"logs/train-{job}.log").read_text()


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    return {}


def compare(trainer: Millrace, slurm: Slurm, data: Path, folder: Path, undisturbed: dict[int, str]) -> None:
    if not undisturbed:
        end_of(slurm, submit(trainer, data, folder / "quiet"), folder / "quiet")
        undisturbed |= losses(folder / "quiet")
    assert list(undisturbed) == list(range(1, STEPS + 1))
    assert dict(sorted(losses(folder).items())) == undisturbed


def processes(test: Callable[[Path], bool]) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if test(process):
                found.append(int(process.name))
    return found


def kill_node(slurm: Slurm, node: str) -> None:
    """SIGKILL to a node's daemon and all that runs there, as a power cut does."""
    assert slurm.folder
    spool = f"{slurm.folder}/spool/{node}"

    def of_node(process: Path) -> bool:
        variables = (process / "environ").read_bytes().split(b"\0")
        if f"SLURMD_NODENAME={node}".encode() in variables and f"SLURM_CONF={slurm.conf}".encode() in variables:
            return True
        step = (process / "comm").read_text() == "slurmstepd\n"
        return step and any(os.readlink(link).startswith(spool) for link in (process / "fd").iterdir())

    os.kill(int(slurm.facts[f"SLURM_PID_{node}"]), signal.SIGKILL)
    for pid in processes(of_node):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def revive(slurm: Slurm) -> None:
    """Nodes that a test before has killed."""
    assert slurm.folder
    done = subprocess.run([CLUSTER, "start", slurm.folder], check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    slurm.facts |= dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("nodes", [SHARED, pytest.param((), marks=pytest.mark.long)], ids=["shared", "whole"])
def test_a_job_that_loses_a_node(
    trainer: Millrace, cluster: Slurm, data: Path, tmp_path: Path, undisturbed: dict[int, str], nodes: tuple[str, ...]
):
    """Also one with whole nodes, which Slurm 22.05 would never start again were it requeued before the node is down."""
    revive(cluster)
    job = submit(trainer, data, tmp_path, nodes=nodes)
    reached(tmp_path, 12)
    _, second = cluster.run("scontrol", "show", "hostnames", cluster.job(job)["NodeList"]).split()
    kill_node(cluster, second)
    log = end_of(cluster, job, tmp_path)
    assert int(cluster.job(job)["Restarts"]) >= 1, log
    used = cluster.job(job)["NodeList"]
    assert second not in cluster.run("scontrol", "show", "hostnames", used).split()
    shown = trainer("runs", "show", tmp_path / "record", "--json").object("training_run")
    assert shown["steps"] == STEPS and shown["restarts"] >= 1 and shown["status"] == "completed"
    compare(trainer, cluster, data, tmp_path, undisturbed)


@pytest.mark.long
def test_a_job_that_is_preempted(
    trainer: Millrace, cluster: Slurm, data: Path, tmp_path: Path, undisturbed: dict[int, str]
):
    job = submit(trainer, data, tmp_path, "--sbatch=--partition=spare")
    reached(tmp_path, 7)
    urgent = tmp_path / "urgent.sbatch"
    urgent.write_text("#!/bin/bash\nsleep 1\n")
    up = len(cluster.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle,mix,alloc", "-o", "%N").split())
    other = cluster.submit("-p", "main", f"--nodes={up}", "--exclusive", "--mem=1000", "--output=/dev/null", urgent)
    assert cluster.wait(other) == "COMPLETED"
    end_of(cluster, job, tmp_path)
    assert int(cluster.job(job)["Restarts"]) == 1
    compare(trainer, cluster, data, tmp_path, undisturbed)


@pytest.mark.long
def test_a_job_that_meets_its_limit(trainer: Millrace, cluster: Slurm, data: Path, tmp_path: Path):
    """Slurm looks at limits every 30 s, so its signal comes 30 to 60 s after the start, and the training is longer."""
    steps = 12_000
    quiet = submit(trainer, data, tmp_path / "quiet", steps=steps)
    end_of(cluster, quiet, tmp_path / "quiet")
    job = submit(trainer, data, tmp_path / "short", "--sbatch=--time=2", "--sbatch=--signal=B:USR1@90", steps=steps)
    assert "requeue after exit status 75, start 0" in end_of(cluster, job, tmp_path / "short")
    assert dict(sorted(losses(tmp_path / "short").items())) == losses(tmp_path / "quiet")
