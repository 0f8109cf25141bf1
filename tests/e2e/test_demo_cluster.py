# SPDX-License-Identifier: Apache-2.0
"""The smaller version of `./dev demo --cluster`: text to a model over S3 and a Slurm that loses a node."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from s3_fixture import S3

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="torch is not installed")


DEMO = REPOSITORY / "tools/demo_cluster.py"


@pytest.fixture
def services() -> Iterator[Path]:
    """Where the demo's services lie; Slurm's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    yield folder
    left = [path.name for path in folder.glob("millrace-demo-*")]
    shutil.rmtree(folder)  # torch leaves folders of workers that are killed
    assert left == []


@pytest.fixture
def env(s3: S3, services: Path) -> dict[str, str]:
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/bin:/usr/sbin"):
        pytest.skip("slurmctld is not installed: no Slurm to test with (./dev test installs it)")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "AWS_"))}
    return clean | s3.env | {"TMPDIR": str(services)}


def processes_of(folder: Path) -> list[str]:
    """Command lines of what runs there or names it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if bytes(folder) in words:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.long
def test_the_whole_path(env: dict[str, str], bucket: str, services: Path, tmp_path: Path):
    out = tmp_path / "demo"
    command = [sys.executable, DEMO, "--small", "--keep", "--json", "--out", out, "--s3", f"s3://{bucket}/d"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    told, kept = done.stdout.split("\nThe services are up.")
    result = json.loads(told.splitlines()[-1])
    assert result["exact"] == {"lm": True}
    assert result["generated"].startswith("It is a truth") and len(result["generated"]) > 60
    assert "Time line" in (out / "report.html").read_text()
    assert result["kill"]["node"] not in result["kill"]["ended_on"]
    # Each step prints the command that did it.
    assert done.stdout.count("\n$ millrace ") > 20
    # What --keep leaves works as it says, and ends as it says.
    assert f"source {out}/env.sh" in kept and str(out / "end") in kept
    nodes = subprocess.run(["bash", "-c", f"source {out}/env.sh; sinfo -h -N -o %N"], env=env, capture_output=True)
    assert nodes.returncode == 0 and len(set(nodes.stdout.split())) == 5, nodes
    subprocess.run([out / "end"], check=True, env=env)
    assert processes_of(services) == []


def test_ctrl_c_ends_all_that_was_started(env: dict[str, str], bucket: str, services: Path, tmp_path: Path):
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, DEMO, "--small", "--keep", "--out", out, "--s3", f"s3://{bucket}/d"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    for line in process.stdout:  # an array job is about to start, the link runs
        if "$ millrace job submit" in line:
            break
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and errors.strip() == "demo: stopped", errors
    assert processes_of(services) == [] and processes_of(out) == []


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    spec = importlib.util.spec_from_file_location("demo_cluster", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.shutil, "which", lambda name, path=None: None if name in ("radosgw", "munged") else name)
    with pytest.raises(module.DemoError, match=r"not installed: radosgw, munged; .*installs them with apt"):
        module.Services(tmp_path).start(with_s3=True)
