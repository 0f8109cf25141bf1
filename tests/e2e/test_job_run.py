# SPDX-License-Identifier: Apache-2.0
"""Preprocess arrays, storage tests and saved folders: what job new writes for them, run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from conftest import Millrace, tokenizer_json
from slurm_fixture import Slurm
from slurm_jobs import job_environment, submit, wait_for, write

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine


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
