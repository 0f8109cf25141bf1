# SPDX-License-Identifier: Apache-2.0
"""Training jobs of job new on a real Slurm: told before the limit, requeued, failing, cancelled."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm
from slurm_jobs import job_environment, submit, wait_for, write

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


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
