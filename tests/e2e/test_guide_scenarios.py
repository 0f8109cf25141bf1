# SPDX-License-Identifier: Apache-2.0
"""The guides' scenarios in examples/: their scripts write the files that lie beside them, these lint clean, and what needs
no GPU runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace, tokenizer_json
from s3_fixture import S3
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

EXAMPLES = REPOSITORY / "examples"
FOLDERS = ["llm-80-nodes", "groot-university", "robot-data-hyperpod", "vla-slurm"]


def run(
    millrace: Millrace, script: Path, *arguments: object, env: dict[str, str] | None = None, status: int = 0
) -> str:
    """A script of an example, with the binary under test on its PATH."""
    tools = millrace.cwd / "tools"
    tools.mkdir(exist_ok=True)
    if not (tools / "millrace").exists():
        (tools / "millrace").symlink_to(millrace.binary)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [script, *map(str, arguments)],
        env=millrace.env | {"PATH": path} | (env or {}),
        cwd=millrace.cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(params=FOLDERS)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    return tmp_path / request.param


def test_the_files_are_those_that_the_script_writes(millrace: Millrace, example: Path):
    before = {path.name: path.read_bytes() for path in example.iterdir() if path.is_file()}
    for name in before:
        if name.endswith((".sbatch", "plan.json", "cluster.yaml")):
            (example / name).unlink()
    run(millrace, example / "make.sh")
    assert {path.name: path.read_bytes() for path in example.iterdir() if path.is_file()} == before


def test_they_lint_clean(millrace: Millrace, example: Path):
    options = ["--cluster", example / "cluster.yaml"] if (example / "cluster.yaml").exists() else []
    plan = ["--plan", example / "plan.json"] if (example / "plan.json").exists() else []
    scripts = sorted(example.glob("*.sbatch"))
    assert scripts
    linted = millrace("job", "lint", *scripts, *options, *plan, "--fail-on", "warning", "--json").object("lint_summary")
    assert (linted["errors"], linted["warnings"]) == (0, 0)
    for script in scripts:
        millrace("env", "lint", script, "--fail-on", "warning")
    if options:
        arguments = [word for script in scripts for word in ("--script", script)]
        millrace("cluster", "lint", example / "cluster.yaml", *arguments, "--fail-on", "warning")


def test_every_file_is_named_on_the_page(example: Path):
    page = (example / "README.md").read_text()
    for path in example.iterdir():
        assert path.name == "README.md" or path.name in page or path.name.startswith("model"), path


def test_the_preprocessing_of_the_80_nodes_runs(millrace: Millrace, slurm: Slurm, tmp_path: Path):
    """The array job that make.sh writes for other mounts, on a Slurm, with a tokenizer and text made here."""
    shutil.copytree(EXAMPLES / "llm-80-nodes", tmp_path / "llm")
    fsx = tmp_path / "cluster"
    for folder in ("fsx1/incoming", "fsx3/logs"):
        (fsx / folder).mkdir(parents=True)
    (fsx / "fsx1/tokenizer.json").write_text(tokenizer_json())
    (fsx / "fsx1/incoming/mill.txt").write_text("the mill turns slowly\n\nover the river\n\n" * 500)
    run(millrace, tmp_path / "llm/make.sh", env={"FSX": str(fsx)})
    millrace(
        "split", fsx / "fsx1/incoming/mill.txt", "--documents", "paragraph", "--out", fsx / "fsx1/raw", "--parts", 10
    )
    partition = slurm.run("sinfo", "-h", "-o", "%R").split()[0]
    script = tmp_path / "llm/preprocess.sbatch"
    script.write_text(script.read_text().replace("--partition=train", f"--partition={partition}"))
    env = slurm.env | {
        "PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}",
        "MILLRACE_LEDGER": str(tmp_path / "ledger"),
    }
    millrace("job", "submit", script, "--watch", env=env)
    made = millrace("prepare", "--finish", fsx / "fsx1/shards", "--json").object("manifest")
    assert (made["tasks"], made["documents"]) == (10, 1000)
    checked = millrace("shards", "check", fsx / "fsx1/shards", "--json").object("check_summary")
    assert (checked["damaged"], checked["samples"]) == (0, 1000)


def test_robot_data_is_prepared(millrace: Millrace, s3: S3, bucket: str, tmp_path: Path):
    """A set of v3.0 comes to the directory as GR00T reads it, also when the script is run again."""
    millrace.env |= s3.env | {"MILLRACE_LINKS": str(tmp_path / "links")}
    millrace("lerobot", "demo", "arm", "--episodes", 2, "--fps", 10, "--codec", "h264")
    arguments = [EXAMPLES / "robot-data-hyperpod/prepare.sh", "arm", f"s3://{bucket}/datasets", tmp_path / "fsx"]
    run(millrace, *arguments)
    run(millrace, *arguments)
    validated = millrace("lerobot", "validate", tmp_path / "fsx/arm", "--groot", "--json").object("lerobot_validate")
    assert (validated["version"], validated["episodes"]) == ("v2.1", 2)
    assert (tmp_path / "fsx/arm/meta/modality.json").exists()
    # A file that the directory lost is not passed over.
    (tmp_path / "fsx/arm/meta/modality.json").unlink()
    run(millrace, *arguments, status=3)
