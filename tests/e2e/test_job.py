# SPDX-License-Identifier: Apache-2.0
"""millrace job new, job lint and env lint, as their users run them; what is written runs on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace, tokenizer_json
from slurm_fixture import Slurm

CORRECT = sorted((Path(__file__).parent / "jobs").iterdir())
KINDS = {
    "train": [
        "--nodes",
        2,
        "--efa",
        "--stage",
        "s3://b/d=/nvme/d",
        "--save",
        "/fsx/out=s3://b/o",
        "--",
        "train.py",
        "--resume",
        "it's there",
    ],
    "train-srun": ["--launcher", "srun", "--wait-all-nodes", "--", "python", "train.py", "--resume", "x"],
    "preprocess": ["--input", "/fsx/raw/*.txt", "--tokenizer", "t.json", "--output", "s3://b/s", "--tasks", 4],
    "validate": ["--nodes", 2, "--efa"],
    "nccl": ["--nodes", 2, "--efa", "--image", "nvcr.io#nvidia/pytorch:24.10-py3", "--mount", "/fsx:/fsx"],
    "storage-test": ["--folder", "/fsx/my bench", "--nodes", 2],
    "groot": ["--input", "/fsx/data", "--output", "/fsx/out"],
}


def write(millrace: Millrace, kind: str, *more: object, log_dir: Path | str = "/fsx/logs") -> str:
    return millrace("job", "new", kind.split("-srun")[0], "--log-dir", log_dir, *more).out


@pytest.mark.parametrize("script", CORRECT, ids=lambda path: path.name)
def test_correct_scripts_stay_silent(millrace: Millrace, script: Path):
    ran = millrace("job", "lint", script, "--fail-on", "warning")
    assert ran.out == "1 file: 0 errors, 0 warnings, 0 notes\n"
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_all_checkers(millrace: Millrace, tmp_path: Path, kind: str):
    script = tmp_path / "job.sbatch"
    script.write_text(write(millrace, kind, *KINDS[kind]))
    assert millrace("job", "lint", script, "--fail-on", "warning").out.startswith(
        "1 file: 0 errors, 0 warnings, 0 notes"
    )
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_lint_prints_text_json_and_sarif(millrace: Millrace, tmp_path: Path):
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --time=30\nsrun x \\  # why\n  -b\n")
    text = millrace("job", "lint", "a.sbatch", status=3).out
    assert text.startswith(
        "a.sbatch:3:8: error: the command ends here, and line 4 is run as another one [SB04]\n    why: "
    )
    assert text.endswith("1 file: 1 error, 0 warnings, 0 notes\n")
    ran = millrace("job", "lint", "a.sbatch", "--json", status=3)
    assert ran.object("lint")["rule"] == "SB04"
    assert ran.object("lint_summary")["errors"] == 1
    sarif = json.loads(millrace("job", "lint", "a.sbatch", "--sarif", "--fail-on", "never").out)
    assert sarif["version"] == "2.1.0"
    assert sarif["runs"][0]["results"][0]["ruleId"] == "SB04"
    assert millrace("job", "lint", "--explain", "sb04", "--json").object("rule")["id"] == "SB04"
    assert "SB99" in millrace.fails("job", "lint", "--explain", "SB99")
    assert "no such file" in millrace.fails("job", "lint", "none.sbatch").lower()


def test_env_lint_reads_a_running_environment(millrace: Millrace):
    done = subprocess.run(
        [millrace.binary, "env", "lint", "-"], input="A=1\nNCCL_IFNAME=eth0\n", capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "<stdin>" not in done.stdout
    assert "-:2:1: error: nothing reads NCCL_IFNAME [EN01]" in done.stdout
    assert "Write NCCL_SOCKET_IFNAME" in done.stdout
    own = millrace("env", "lint", "--json", status=3, env={"RDMAV_FORK_SAFE": "1"}).object("lint")
    assert (own["file"], own["line"], own["rule"]) == ("environment", None, "EN08")


@pytest.mark.parametrize("verb", ["job", "env", "cluster"])
def test_the_docs_hold_every_rule(millrace: Millrace, verb: str):
    table = millrace(verb, "lint", "--rules").out
    section = (REPOSITORY / "docs/rules.md").read_text().split(f"## millrace {verb} lint\n")[1].split("\n## ")[0]
    assert table.strip() in section


def job_environment(millrace: Millrace, folder: Path, slurm: Slurm) -> dict[str, str]:
    """Of a job that finds this millrace, and something that looks like nvidia-smi."""
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


TRAINING = """
import json, os, pathlib, signal, sys, time
state = pathlib.Path(sys.argv[1]) / f"rank-{os.environ['RANK']}.json"
seen = json.loads(state.read_text()) if state.exists() else {"step": 0, "starts": 0}
seen["starts"] += 1
seen |= {key: os.environ[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
def save():
    temporary = state.with_suffix(".new")
    temporary.write_text(json.dumps(seen))
    temporary.rename(state)
def stop(*_):
    save()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
while seen["step"] < 20 or seen["starts"] == 1:
    time.sleep(0.05)
    seen["step"] += 1
    save()
"""


def test_a_training_job_is_told_requeued_and_goes_on(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("text")
    script = tmp_path / "train.sbatch"
    millrace(
        "job", "new", "train", "--launcher", "srun", "--nodes", 2, "--gpus", 2, "--cpus-per-gpu", 2, "--time", 10,
        "--log-dir", tmp_path / "logs", "--out", script, "--stage", f"{tmp_path}/data={tmp_path}/staged",
        "--save", f"{tmp_path}/state={tmp_path}/saved", "--", "python3", tmp_path / "train.py", tmp_path / "state",
    )  # fmt: skip
    (tmp_path / "state").mkdir()
    job = submit(script, env)
    ranks = [tmp_path / f"state/rank-{rank}.json" for rank in range(4)]
    wait_for(lambda: all(rank.exists() for rank in ranks))
    # What Slurm sends before the limit.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=300) == "COMPLETED"
    seen = [json.loads(rank.read_text()) for rank in ranks]
    assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in seen] == [
        ("0", "0", "4"), ("1", "1", "4"), ("2", "0", "4"), ("3", "1", "4"),
    ]  # fmt: skip
    assert all(each["starts"] == 2 and each["step"] >= 20 for each in seen)
    assert seen[0]["MASTER_PORT"] == str(20000 + job % 10000)
    log = (tmp_path / f"logs/train-{job}.log").read_text()
    assert re.search(r"requeue after exit status \d+, start 0", log)
    assert (tmp_path / "staged/a.txt").read_text() == "text"
    assert json.loads((tmp_path / "saved/rank-3.json").read_text())["starts"] == 2
    # One monitor for each node and start.
    assert len(list((tmp_path / "logs").glob(f"gpu-{job}-*-*.csv"))) == 4


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


@pytest.mark.skipif(not (Path(sys.executable).parent / "torchrun").exists(), reason="torch is not installed")
def test_torchrun_meets_over_all_nodes(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    # The nodes of this Slurm are no hosts that a name stands for.
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text(
        f'#!/bin/bash\n[ "$2" = hostnames ] && echo localhost || exec {shutil.which("scontrol")} "$@"\n'
    )
    scontrol.chmod(0o755)
    env["PATH"] = f"{tmp_path}/bin:{Path(sys.executable).parent}:{env['PATH']}"
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


def test_a_training_job_that_is_cancelled_stays_so(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "state").mkdir()
    script = tmp_path / "train.sbatch"
    millrace(
        "job", "new", "train", "--launcher", "srun", "--gpus", 1, "--cpus-per-gpu", 1, "--time", 10, "--shared",
        "--log-dir", tmp_path / "logs", "--out", script, "--", "python3", tmp_path / "train.py", tmp_path / "state",
    )  # fmt: skip
    job = submit(script, env)
    wait_for((tmp_path / "state/rank-0.json").exists)
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"
    time.sleep(2)
    assert slurm.job(job)["JobState"] == "CANCELLED"
    assert slurm.job(job)["Restarts"] == "0"
    assert json.loads((tmp_path / "state/rank-0.json").read_text())["starts"] == 1


def test_a_preprocess_array_prepares_all(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    (tmp_path / "raw").mkdir()
    for number in range(4):
        (tmp_path / f"raw/{number}.txt").write_text("the cat\n" * 100)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    script = tmp_path / "prepare.sbatch"
    millrace(
        "job", "new", "preprocess", "--tasks", 3, "--cpus-per-gpu", 1, "--log-dir", tmp_path / "logs", "--out", script,
        "--input", tmp_path / "raw", "--tokenizer", tmp_path / "tokenizer.json", "--output", tmp_path / "shards",
    )  # fmt: skip
    job = submit(script, env)
    wait_for(lambda: not slurm.run("squeue", "-h", "-j", job).strip(), 120)
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert logs == [f"preprocess-{job}_{task}.log" for task in range(3)]
    assert millrace("prepare", "--finish", tmp_path / "shards", "--json").object("manifest")["documents"] == 400
    # One task alone, submitted again.
    (tmp_path / "shards/part-00002-of-00003.json").unlink()
    again = submit(script, env, "--array=2")
    wait_for(lambda: not slurm.run("squeue", "-h", "-j", again).strip(), 120)
    assert millrace("prepare", "--finish", tmp_path / "shards", "--json").object("manifest")["documents"] == 400


def test_a_storage_test_says_two_rates(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    script = tmp_path / "storage.sbatch"
    folder = tmp_path / "shared folder"
    folder.mkdir()
    millrace(
        "job", "new", "storage-test", "--nodes", 2, "--cpus-per-gpu", 1, "--folder", folder, "--file-mib", 8,
        "--log-dir", tmp_path / "logs", "--out", script,
    )  # fmt: skip
    job = submit(script, env)
    assert slurm.wait(job) == "COMPLETED"
    log = (tmp_path / f"logs/storage-test-{job}.log").read_text()
    assert re.search(r"^write 16 MiB in [\d.]+ s: [\d.]+ MiB/s$", log, re.M), log
    assert re.search(r"^read +16 MiB in [\d.]+ s: [\d.]+ MiB/s$", log, re.M), log
    assert list(folder.iterdir()) == []


def test_the_reproduced_failures_happen_and_are_found(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """Three of the rules against the Slurm that they speak of: no log, a rank of 0 everywhere, a command cut in two."""
    script = tmp_path / "wrong.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --time=5 --nodes=1 --ntasks=2\n#SBATCH --output={tmp_path}/made/%j.out\nmkdir -p {tmp_path}/made\n"
    )
    found = millrace("job", "lint", script, "--json", status=3).object("lint")
    assert (found["rule"], found["line"]) == ("SB01", 3)
    assert slurm.wait(slurm.submit(script, cwd=tmp_path)) == "FAILED"
    assert not (tmp_path / "made").exists()

    script.write_text(
        "#!/bin/bash\n#SBATCH --time=5 --ntasks=2\n"
        "export RANK=$SLURM_PROCID\nsrun bash -c 'echo rank $RANK of $SLURM_PROCID'\nsrun echo one \\  # two\n  three\n"
    )
    rules = {each["rule"] for each in millrace("job", "lint", script, "--json", status=3).objects("lint")}
    assert {"SB02", "EN14", "SB04"} <= rules
    job = slurm.submit(f"--output={tmp_path}/out", script, cwd=tmp_path)
    assert slurm.wait(job) == "FAILED"
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(line for line in lines if line.startswith("rank")) == ["rank 0 of 0", "rank 0 of 1"]
    assert slurm.job(job)["ExitCode"] == "127:0"
