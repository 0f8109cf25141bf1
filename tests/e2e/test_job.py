# SPDX-License-Identifier: Apache-2.0
"""millrace job new, job lint and env lint, as their users run them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace
from slurm_fixture import Slurm
from slurm_jobs import write

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
    printed = millrace(verb, "lint", "--rules").out
    section = (REPOSITORY / "docs/rules.md").read_text().split(f"## millrace {verb} lint\n")[1].split("\n## ")[0]
    assert printed.strip() in section


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


@pytest.mark.parametrize(
    "flags",
    [
        ["--name", "a/b"],
        ["--signal", 70000],
        ["--gpu-type", "h200:8"],
        ["--log-dir", "/fsx/%j"],
        ["--mount", "/a:/b"],
        ["--mem", "-5G"],
        ["--mem", "much"],
        ["--mem", 0],
    ],
)
def test_what_sbatch_would_refuse_is_wrong_usage(millrace: Millrace, flags: list):
    assert flags[0] in millrace.fails("job", "new", "train", "--shared", *flags, "--", "train.py", status=2)


def test_more_tasks_than_arrays_have_are_noted(millrace: Millrace):
    shards = ("job", "new", "preprocess", "--input", "a", "--tokenizer", "t", "--output", "o", "--tasks")
    assert "more than the 1001" in millrace(*shards, 2000).err
    assert "1001" not in millrace(*shards, 1001).err


def test_a_training_without_gpus_is_monitored_when_asked(millrace: Millrace):
    for flags, monitored in (([], False), (["--monitor", 5], True)):
        script = millrace("job", "new", "train", "--nodes", 2, "--gpus", 0, *flags, "--", "train.py").out
        assert ("millrace monitor --quiet --every 5s" in script) == monitored
        assert "nvidia-smi" not in script
