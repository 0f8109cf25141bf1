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

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

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
    "groot-follow": [
        "--input",
        "/fsx/data",
        "--output",
        "/scratch/out",
        "--embodiment",
        "new_embodiment",
        "--modality-config",
        "/home/me/my robot.py",
        "--follow",
        "/scratch/out=s3://b/run",
    ],
}


def write(millrace: Millrace, kind: str, *more: object, log_dir: Path | str = "/fsx/logs") -> str:
    return millrace("job", "new", kind.removesuffix("-srun").removesuffix("-follow"), "--log-dir", log_dir, *more).out


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
    """Each script follows the scripts of one public project; each finding on it was read and found true."""
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
    # Slurm's signal before the limit.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=300) == "COMPLETED"
    seen = [json.loads(rank.read_text()) for rank in ranks]
    assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in seen] == [
        ("0", "0", "4"), ("1", "1", "4"), ("2", "0", "4"), ("3", "1", "4"),
    ]  # fmt: skip
    assert [each["starts"] for each in seen] == [2, 2, 2, 2] and all(each["step"] >= 20 for each in seen), seen
    assert seen[0]["MASTER_PORT"] == str(20000 + job % 10000)
    log = (tmp_path / f"logs/train-{job}.log").read_text()
    assert re.search(r"requeue after exit status \d+, start 0", log)
    assert (tmp_path / "staged/a.txt").read_text() == "text"
    assert json.loads((tmp_path / "saved/rank-3.json").read_text())["starts"] == 2
    # One monitor for each node and start.
    samples = list((tmp_path / "logs").glob(f"gpu-{job}-*-*.csv"))
    assert len(samples) == 4 and all(each.read_text().startswith("timestamp,index,") for each in samples)


# Isaac-GR00T's command line as far as a job sees it: flags, checkpoint folders, going on from the newest one. At the
# limit its node and the node's disk are lost.
FINETUNE = """
import argparse, json, os, pathlib, shutil, signal, time
parser = argparse.ArgumentParser()
for flag in ("base-model-path", "dataset-path", "embodiment-tag", "output-dir", "modality-config-path"):
    parser.add_argument("--" + flag)
for flag in ("num-gpus", "global-batch-size", "max-steps", "save-steps"):
    parser.add_argument("--" + flag, type=int, required=True)
args = parser.parse_args()
assert (pathlib.Path(args.dataset_path) / "meta/modality.json").exists()
out = pathlib.Path(args.output_dir)
out.mkdir(parents=True, exist_ok=True)
step = max((int(each.name.split("-")[1]) for each in out.glob("checkpoint-*")), default=0)
if step:
    assert json.loads((out / f"checkpoint-{step}/trainer_state.json").read_text())["global_step"] == step
print(f"from step {step}", flush=True)
def lost(*_):
    shutil.rmtree(out)
    os._exit(1)
signal.signal(signal.SIGTERM, lost)
while step < args.max_steps:
    time.sleep(1)
    step += args.save_steps
    folder = out / f"checkpoint-{step}"
    folder.mkdir()
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "optimizer.pt"):
        (folder / name).write_bytes(os.urandom(100_000))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    if step == 4 * args.save_steps:
        time.sleep(600)  # until the limit
"""


def test_fine_tuning_of_groot_goes_on_from_what_was_copied(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    checkout = tmp_path / "Isaac-GR00T"
    (checkout / "gr00t/experiment").mkdir(parents=True)
    (checkout / "gr00t/experiment/launch_finetune.py").write_text(FINETUNE)
    (tmp_path / "robot.py").write_text("")
    dataset, out, home = tmp_path / "arm", tmp_path / "scratch/out", tmp_path / "home"
    millrace("lerobot", "demo", dataset, "--version", "groot", "--episodes", 2, "--codec", "h264")
    script = tmp_path / "groot.sbatch"
    millrace(
        "job", "new", "groot", "--gpus", 1, "--cpus-per-gpu", 2, "--shared", "--time", 10, "--log-dir", tmp_path / "logs",
        "--out", script, "--input", dataset, "--output", out, "--embodiment", "new_embodiment",
        "--modality-config", tmp_path / "robot.py", "--max-steps", 60, "--save-steps", 10,
        "--follow", f"{out}={home}", "--follow-keep", 2,
    )  # fmt: skip
    # It looks more often than a fine-tuning needs.
    text = script.read_text().replace("--keep-last 2 &", "--keep-last 2 --every 0.1 --settle 0.2 &")
    script.write_text(text)
    job = submit(script, env, f"--chdir={checkout}")
    wait_for(lambda: (home / "checkpoint-40/trainer_state.json").exists(), timeout_s=120)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait(job, timeout_s=300) == "COMPLETED", (tmp_path / f"logs/groot-{job}.log").read_text()
    log = (tmp_path / f"logs/groot-{job}.log").read_text()
    assert "from step 0" in log and "from step 40" in log and "restore checkpoint-40" in log
    assert sorted(path.name for path in home.glob("checkpoint-*")) == ["checkpoint-50", "checkpoint-60"]
    for name in ("checkpoint-50", "checkpoint-60"):
        assert {path.name: path.read_bytes() for path in (home / name).iterdir()} == {
            path.name: path.read_bytes() for path in (out / name).iterdir()
        }
    # A dataset that GR00T would refuse costs no GPU.
    (dataset / "meta/modality.json").unlink()
    job = submit(script, env, f"--chdir={checkout}")
    assert slurm.wait(job) == "FAILED"
    log = (tmp_path / f"logs/groot-{job}.log").read_text()
    assert "modality.json" in log and "from step" not in log


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

# A torchrun that waits less than 30 seconds for remaining workers.
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
    # The node names of this Slurm do not resolve.
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
    """The default launcher ends workers 30 s after a signal or after the first exit; here it waits for 2 s."""
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


@pytest.mark.long
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


FAILING = """
import os, pathlib, sys, time
node, folder = os.environ["SLURMD_NODENAME"], pathlib.Path(sys.argv[1])
(folder / f"{os.environ.get('SLURM_RESTART_COUNT', '0')}-{node}").touch()
time.sleep(0.5)
sys.exit(3 if node == "n1" else 0)
"""


def test_a_slurm_that_refuses_to_leave_a_node_out(millrace: Millrace, tmp_path: Path):
    """The script says so, and goes on: the node may be given to it again."""
    script = tmp_path / "train.sbatch"
    millrace("job", "new", "train", "--nodes", 1, "--max-restarts", 2, "--out", script, "--", "train.py")
    text = script.read_text()
    start = text.index("leave_out_nodes() {")
    function = text[start : text.index("\n}\n", start) + 3]
    (tmp_path / "restarts.nodes").write_text("n1\nn2\nn1\n")
    for status, said in ((1, "nodes that failed twice could not be left out: n1\n"),
                         (0, "nodes that failed twice are left out: n1\n")):  # fmt: skip
        program = f"""set -euo pipefail
            scontrol() {{ echo "$*" >>asked; return {status}; }}
            sleep() {{ :; }}
            restarts=restarts SLURM_JOB_ID=7
            {function}
            leave_out_nodes"""
        done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == said and not done.stderr
    assert (tmp_path / "asked").read_text() == "update JobId=7 ExcNodeList=n1\n" * 11


def test_a_node_that_failed_twice_is_left_out(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    env = job_environment(millrace, tmp_path, slurm)
    (tmp_path / "fail.py").write_text(FAILING)
    (tmp_path / "state").mkdir()
    script = tmp_path / "train.sbatch"
    millrace(
        "job", "new", "train", "--launcher", "srun", "--nodes", 2, "--gpus", 1, "--cpus-per-gpu", 2, "--time", 10,
        "--monitor", 0, "--max-restarts", 2, "--log-dir", tmp_path / "logs", "--out", script, "--",
        "python3", tmp_path / "fail.py", tmp_path / "state",
    )  # fmt: skip
    job = submit(script, env, "--partition=main", "--hold")
    (tmp_path / f"logs/restarts-{job}.nodes").write_text("n1\n")  # of an earlier start: Slurm delays each requeue
    slurm.run("scontrol", "release", job)
    state = slurm.wait(job)
    log = (tmp_path / f"logs/train-{job}.log").read_text()
    assert state == "COMPLETED", log
    assert "nodes that failed twice are left out: n1" in log
    starts = [path.name for path in (tmp_path / "state").iterdir()]
    assert [name for name in starts if name.endswith("-n1")] == ["0-n1"]
    assert sum(name.startswith("1-") for name in starts) == 2
    assert not list((tmp_path / "logs").glob("restarts-*"))


@pytest.mark.parametrize(
    ("steps", "codes", "said"),
    [
        # Furthest step so far and starts without one more; the step that each start reaches.
        ((10, 10, 9, 10), (0, 0, 0, 1), "three starts came no step further than 10"),
        ((10, 11, 11, 11, 12, 12), (0, 0, 0, 0, 0, 0), ""),
        ((None, None, None, None, None), (0, 0, 0, 0, 0), ""),  # a program that does not say how far it is
    ],
    ids=["no progress", "some progress", "unknown"],
)
def test_a_crash_loop_ends_with_a_word(millrace: Millrace, tmp_path: Path, steps, codes, said: str):
    assert decisions(millrace, tmp_path, steps, failed=0, more=()) == (list(codes), said)


def test_failures_are_requeued_as_often_as_allowed(millrace: Millrace, tmp_path: Path):
    codes, said = decisions(millrace, tmp_path, (1, 2, 3), failed=1, more=("--max-restarts", 2))
    assert codes == [0, 0, 1] and said == "it failed 3 times (--max-restarts 2)"
    assert "--max-restarts" in millrace.fails("job", "new", "train", "--signal", 0, "--max-restarts", 1, "--", "a.py")


def decisions(millrace: Millrace, folder: Path, steps, failed: int, more: tuple) -> tuple[list[int], str]:
    """The exit status of may_requeue() of a written script after starts that reached these steps."""
    text = write(millrace, "train", *more, "--", "train.py", log_dir=folder)
    function = text[text.index("may_requeue() {") : text.index("# Nodes that failed twice")]
    limit = re.search(r"^max_restarts=(\d+)", text, re.M)
    assert limit
    codes, said = [], ""
    for step in steps:
        if step is not None:
            (folder / "restarts.step").write_text(f"{step}\n")
        lines = ["set -euo pipefail", f"restarts={folder}/restarts", "MILLRACE_PROGRESS=$restarts.step",
                 f"max_restarts={limit[1]} failed={failed}", function, "may_requeue || exit 1"]  # fmt: skip
        done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
        codes.append(done.returncode)
        said = done.stdout.strip().removeprefix("not requeued: ")
        assert done.stderr == ""
    return codes, said


@has_torchrun
def test_torchrun_by_itself_would_lose_the_checkpoint(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """Shows why the generated script is needed: the same program and torchrun, without it."""
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
    # A failure keeps the saved files, and is a failure.
    assert run(2, status=3) == 3
    assert (tmp_path / "bucket/node-0/part-0").read_text() == "2\n"
    # On other nodes it is there again before the program starts.
    new_nodes()
    assert run(3) == 0
    assert [(tmp_path / f"disk-{node}/run.seen").read_text() for node in (0, 1)] == ["1\n", "1\n"]
    # Files that a copy did not reach are not overwritten by those at the URL.
    (tmp_path / "disk-1/run/.millrace-part").write_text(f"{2**40} {tmp_path}/bucket/node-1\n")
    (tmp_path / "disk-1/run/latest").write_text("newer\n")
    (tmp_path / "bin/step").write_text('#!/bin/bash\ncat "$1/latest" >>"$1.seen"\n')
    assert run(4) == 0
    assert (tmp_path / "disk-1/run.seen").read_text() == "1\nnewer\n"
    # A URL that cannot be read is an error, not a first start.
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


def test_a_training_without_gpus_is_monitored_when_asked(millrace: Millrace):
    for flags, monitored in (([], False), (["--monitor", 5], True)):
        script = millrace("job", "new", "train", "--nodes", 2, "--gpus", 0, *flags, "--", "train.py").out
        assert ("millrace monitor --quiet --every 5s" in script) == monitored
        assert "nvidia-smi" not in script
