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
import zlib
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace, tokenizer_json
from slurm_fixture import Slurm

CORPUS = Path(__file__).parent / "corpus"
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
    "groot": ["--input", "/fsx/data", "--output", "/fsx/out", "--embodiment", "libero_sim"],
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


SPEC = """\
region: us-east-2
instance: p5.48xlarge
count: 4
subnet: subnet-0aaaaaaaaaaaabbbb
head_subnet: subnet-0aaaaaaaaaaaacccc
storage: [{mount: /fsx, id: fs-0123456789abcdef0}]
"""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nccl"])  # pyxis is for the setup script to install
def test_what_is_written_for_a_cluster_that_was_written_passes(millrace: Millrace, tmp_path: Path, kind: str):
    (tmp_path / "spec.yaml").write_text(SPEC)
    cluster = tmp_path / "cluster.yaml"
    millrace("cluster", "new", tmp_path / "spec.yaml", "--out", cluster)
    script = tmp_path / "job.sbatch"
    script.write_text(write(millrace, kind, "--cluster", cluster, *KINDS[kind]))
    ran = millrace("job", "lint", script, "--cluster", cluster, "--fail-on", "warning")
    assert ran.out.startswith("1 file: 0 errors, 0 warnings, 0 notes"), ran.out
    assert "has 4 nodes" in millrace.fails("job", "new", "validate", "--nodes", 5, "--cluster", cluster)


def test_public_scripts_get_the_findings_that_are_true(millrace: Millrace):
    """Each script was written after what one public project's scripts do; each finding on it was read and found true."""
    scripts = sorted(path for path in CORPUS.iterdir() if path.name != "findings.txt")
    assert len(scripts) >= 30
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    ran = millrace("job", "lint", *scripts, "--json", "--fail-on", "never")
    found = [
        f"{Path(each['file']).name}:{each['line']} {each['rule']} {each['severity']}"
        for each in ran.objects("lint")
        if each["severity"] != "note"
    ]
    assert found == (CORPUS / "findings.txt").read_text().splitlines()


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


# Told to stop, rank 0 saves at once and the others need a while.
SAVING = """
import os, pathlib, signal, sys, time
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank = os.environ["RANK"]
saved = folder / f"saved-{rank}"
if saved.exists():
    (folder / f"resumed-{rank}").write_text(os.environ["WORLD_SIZE"])
    sys.exit(0)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
(folder / f"started-{rank}").touch()
while not told:
    time.sleep(0.05)
until = time.monotonic() + (0 if rank == "0" else seconds)
while time.monotonic() < until:
    time.sleep(0.05)
saved.touch()
sys.exit(75)
"""

# torchrun whose patience with workers that remain is no 30 seconds.
IMPATIENT = """
import sys
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import api
api.PContext.close.__defaults__ = (None, PATIENCE)
sys.exit(run.main())
"""

has_torchrun = pytest.mark.skipif(
    not (Path(sys.executable).parent / "torchrun").exists(), reason="torch is not installed"
)


def torchrun_environment(millrace: Millrace, folder: Path, slurm: Slurm) -> dict[str, str]:
    env = job_environment(millrace, folder, slurm)
    # The nodes of this Slurm are no hosts that a name stands for.
    scontrol = folder / "bin/scontrol"
    scontrol.write_text(
        f'#!/bin/bash\n[ "$2" = hostnames ] && echo localhost || exec {shutil.which("scontrol")} "$@"\n'
    )
    scontrol.chmod(0o755)
    return env | {"PATH": f"{folder}/bin:{Path(sys.executable).parent}:{env['PATH']}"}


def be_impatient(folder: Path, seconds: int) -> None:
    (folder / "impatient.py").write_text(IMPATIENT.replace("PATIENCE", str(seconds)))
    (folder / "bin/torchrun").write_text(f'#!/bin/bash\nexec {sys.executable} {folder}/impatient.py "$@"\n')
    (folder / "bin/torchrun").chmod(0o755)


def saving_job(millrace: Millrace, folder: Path, env: dict[str, str], *launcher: object, save_s: float) -> int:
    """A job of two nodes with two ranks each, of which all have started."""
    (folder / "save.py").write_text(SAVING)
    (folder / "state").mkdir()
    script = folder / "train.sbatch"
    command = [*(["python3"] if launcher else []), folder / "save.py", folder / "state", save_s]
    millrace(
        "job", "new", "train", *launcher, "--nodes", 2, "--gpus", 2, "--cpus-per-gpu", 2, "--time", 10, "--monitor", 0,
        "--signal", 120, "--log-dir", folder / "logs", "--out", script, "--", *command,
    )  # fmt: skip
    job = submit(script, env)
    wait_for(lambda: len(list((folder / "state").glob("started-*"))) == 4)
    return job


@pytest.mark.parametrize(
    "launcher", [pytest.param((), marks=has_torchrun), ("--launcher", "srun")], ids=["torchrun", "srun"]
)
def test_a_job_saves_at_its_limit_whatever_the_ranks_need(
    millrace: Millrace, slurm: Slurm, tmp_path: Path, launcher: tuple
):
    """The default launcher ends workers 30 s after a signal or after the first that has left; here it waits for 2."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    if long := bool(os.environ.get("MILLRACE_TEST_LONG")):
        save_s = 60.0
    else:
        be_impatient(tmp_path, 2)
        save_s = 6.0
    job = saving_job(millrace, tmp_path, env, *launcher, save_s=save_s)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=300) == "COMPLETED"
    log = (tmp_path / f"logs/train-{job}.log").read_text()
    state = tmp_path / "state"
    assert len(list(state.glob("saved-*"))) == 4, (long, log)
    assert [(state / f"resumed-{rank}").read_text() for rank in range(4)] == ["4"] * 4
    assert "requeue after exit status 75, start 0" in log
    assert "older checkpoint" not in log
    assert not list((tmp_path / "logs").glob("ranks-*"))


@has_torchrun
def test_the_example_is_told_by_the_job_and_goes_on(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """examples/pretrain_lm.py on two ranks: saved at the limit, status 75, requeued, trained to its last step."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    env["PYTHONPATH"] = str(REPOSITORY / "python")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    for part in range(2):
        (tmp_path / f"{part}.txt").write_text("the mill turns slowly over the river\n" * 2000)
    for task in range(2):
        millrace(
            "prepare", tmp_path / "0.txt", tmp_path / "1.txt", "--tokenizer", tmp_path / "tokenizer.json",
            "--out", tmp_path / "shards", "--task", f"{task}/2",
        )  # fmt: skip
    shards = sorted((tmp_path / "shards").glob("*.tar"))
    script, log = tmp_path / "train.sbatch", tmp_path / "steps.jsonl"
    steps = 400
    millrace(
        "job", "new", "train", "--nodes", 1, "--gpus", 2, "--cpus-per-gpu", 1, "--time", 10, "--monitor", 0,
        "--log-dir", tmp_path / "logs", "--out", script, "--", REPOSITORY / "examples/pretrain_lm.py",
        "--shards", *shards, "--valid", 1, "--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "run",
        "--log-file", log, "--steps", steps, "--save-every", steps, "--batch-size", 1, "--seq-len", 16, "--dim", 8,
        "--layers", 1, "--heads", 1,
    )  # fmt: skip
    job = submit(script, env)
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 1)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=180) == "COMPLETED", (tmp_path / f"logs/train-{job}.log").read_text()
    assert "requeue after exit status 75, start 0" in (tmp_path / f"logs/train-{job}.log").read_text()
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == list(range(1, steps + 1))


HANGING = """
import pathlib, signal, sys, time
started = pathlib.Path(sys.argv[1]) / "started"
if started.exists():
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: None)
started.touch()
time.sleep(600)
"""


def test_a_save_that_hangs_does_not_cost_the_requeue(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    (tmp_path / "hang.py").write_text(HANGING)
    script = tmp_path / "train.sbatch"
    millrace(
        "job", "new", "train", "--launcher", "srun", "--gpus", 1, "--cpus-per-gpu", 1, "--time", 10, "--monitor", 0,
        "--signal", 4, "--log-dir", tmp_path / "logs", "--out", script, "--", "python3", tmp_path / "hang.py", tmp_path,
    )  # fmt: skip
    job = submit(script, env)
    wait_for((tmp_path / "started").exists)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: slurm.job(job)["Restarts"] == "1")
    assert "requeued before all was saved" in (tmp_path / f"logs/train-{job}.log").read_text()


@has_torchrun
def test_torchrun_by_itself_would_lose_the_checkpoint(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """What the generated script is for: the same program and torchrun, without it."""
    env = torchrun_environment(millrace, tmp_path, slurm)
    be_impatient(tmp_path, 2)
    (tmp_path / "save.py").write_text(SAVING)
    script = tmp_path / "plain.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --time=10 --output={tmp_path}/log\n"
        f"torchrun --standalone --nproc_per_node=2 {tmp_path}/save.py {tmp_path} 6 &\n"
        f"until [ -e {tmp_path}/started-0 ] && [ -e {tmp_path}/started-1 ]; do sleep 0.1; done\n"
        "pkill -TERM -P $!\nwait $!\n"
    )
    job = submit(script, env)
    assert slurm.wait(job) == "FAILED"
    assert (tmp_path / "saved-0").exists()
    assert not (tmp_path / "saved-1").exists()
    assert slurm.job(job)["ExitCode"] == "1:0"


@has_torchrun
def test_torchrun_meets_over_all_nodes(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = torchrun_environment(millrace, tmp_path, slurm)
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


def test_a_storage_test_says_its_rates(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    script = tmp_path / "storage.sbatch"
    folder = tmp_path / "shared folder"
    folder.mkdir()
    millrace(
        "job", "new", "storage-test", "--nodes", 2, "--cpus-per-gpu", 1, "--folder", folder, "--file-mib", 8,
        "--files", 50, "--log-dir", tmp_path / "logs", "--out", script,
    )  # fmt: skip
    job = submit(script, env)
    assert slurm.wait(job) == "COMPLETED"
    log = (tmp_path / f"logs/storage-test-{job}.log").read_text()
    for what, amount in ("write", "16 MiB"), ("read", "16 MiB"), ("create", "100 files"), ("stat", "100 files"):
        assert re.search(rf"^{what} +{amount} in [\d.]+ s: [\d.]+ {amount.split()[1]}/s$", log, re.M), log
    assert re.search(r"^remove +100 files in ", log, re.M), log
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", ["/usr/bin:/bin", None], ids=["openssl", "urandom"])
def test_a_storage_test_writes_what_cannot_be_compressed(millrace: Millrace, tmp_path: Path, path: str | None):
    functions = re.search(
        r"^random_bytes\(\) \{.*?^export -f", write(millrace, "storage-test", "--folder", "/f"), re.M | re.S
    )
    assert functions
    script = functions[0].removesuffix("export -f") + f"storage_task write {tmp_path} '' 1 1\n"
    if path is None:  # where there is no openssl
        (tmp_path / "bin").mkdir()
        for tool in "cat", "dd", "date", "bash":
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
        path = str(tmp_path / "bin")
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": path, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    assert int(done.stdout) > 0
    written = (tmp_path / "0").read_bytes()
    assert len(written) == 4 << 20
    assert len(zlib.compress(written, 1)) > len(written) * 0.99


# Two nodes with a disk each, /disk, of which the batch shell sees the first.
TWO_NODES = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
status=0
for node in 0 1; do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_NTASKS=2 "${@//\\/disk\\//\\/disk-$node\\/}" || status=$?
done
exit $status
"""


def test_every_node_keeps_its_part(millrace: Millrace, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    tools = {
        "srun": TWO_NODES,
        "scontrol": "#!/bin/bash\necho n1\n",
        "step": '#!/bin/bash\nls "$1" | grep -c part- >>"$1.seen"\necho "$STEP" >"$1/part-$RANK"\necho "$STEP" >"$1/latest"\nexit "$STATUS"\n',
    }
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin/millrace").symlink_to(millrace.binary)
    script = tmp_path / "job.sbatch"
    script.write_text(
        write(
            millrace, "train", "--launcher", "srun", "--nodes", 2, "--gpus", 1, "--monitor", 0, "--signal", 0,
            "--save", f"{tmp_path}/disk/run={tmp_path}/bucket", "--", "step", tmp_path / "disk/run",
        )
    )  # fmt: skip

    def run(step: int, status: int = 0) -> int:
        env = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_NODELIST": "n[1-2]",
        }
        env |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "STEP": str(step), "STATUS": str(status)}
        return subprocess.run(["bash", script], env=env, timeout=60).returncode

    def new_nodes() -> None:
        for node in 0, 1:
            shutil.rmtree(tmp_path / f"disk-{node}", ignore_errors=True)
            (tmp_path / f"disk-{node}").mkdir()
        (tmp_path / "disk").unlink(missing_ok=True)
        (tmp_path / "disk").symlink_to("disk-0")

    new_nodes()
    assert run(1) == 0
    assert sorted(path.name for path in (tmp_path / "bucket").iterdir()) == ["node-0", "node-1"]
    assert (tmp_path / "bucket/node-1/part-1").read_text() == "1\n"
    assert not (tmp_path / "bucket/node-1/part-0").exists()
    # A failure keeps what there is, and is a failure.
    assert run(2, status=3) == 3
    assert (tmp_path / "bucket/node-0/part-0").read_text() == "2\n"
    # On other nodes it is there again before the program starts.
    new_nodes()
    assert run(3) == 0
    assert [(tmp_path / f"disk-{node}/run.seen").read_text() for node in (0, 1)] == ["1\n", "1\n"]
    # What a copy did not reach is not overwritten by what lies at the URL.
    (tmp_path / "disk-1/run/.millrace-part").write_text(f"{2**40} {tmp_path}/bucket/node-1\n")
    (tmp_path / "disk-1/run/latest").write_text("newer\n")
    (tmp_path / "bin/step").write_text('#!/bin/bash\ncat "$1/latest" >>"$1.seen"\n')
    assert run(4) == 0
    assert (tmp_path / "disk-1/run.seen").read_text() == "1\nnewer\n"
    # A URL that cannot be read is no first start.
    (tmp_path / "bucket/node-1/.millrace-part").unlink()
    (tmp_path / "bucket/node-1/.millrace-part").mkdir()
    new_nodes()
    assert run(5) != 0


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
