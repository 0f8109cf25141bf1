# SPDX-License-Identifier: Apache-2.0
"""`millrace job new groot` for N1.5 and N1.6."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Millrace

# N1.5's command line, which stops at --resume where no checkpoint is, as its Trainer does.
FINETUNE_15 = """
import argparse, pathlib
parser = argparse.ArgumentParser()
for flag in ("base-model-path", "dataset-path", "data-config", "embodiment-tag", "output-dir"):
    parser.add_argument("--" + flag, required=True)
for flag in ("num-gpus", "batch-size", "max-steps", "save-steps"):
    parser.add_argument("--" + flag, type=int, required=True)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
found = sorted(each.name for each in pathlib.Path(args.output_dir).glob("checkpoint-*"))
assert found or not args.resume, "no valid checkpoint"
print(args.data_config, args.batch_size, args.dataset_path, "from", found if args.resume else "nothing")
"""


def test_n15_goes_on_where_a_checkpoint_is(millrace: Millrace, tmp_path: Path):
    """The command of the script, with a stub in place of its fine-tuning."""
    (tmp_path / "checkout/scripts").mkdir(parents=True)
    (tmp_path / "checkout/scripts/gr00t_finetune.py").write_text(FINETUNE_15)
    text = millrace(
        "job", "new", "groot", "--groot-version", "1.5", "--gpus", 4, "--log-dir", "/fsx/logs", "--input", "my data",
        "--output", tmp_path / "my out", "--embodiment", "new_embodiment", "--data-config", "so100",
    ).out  # fmt: skip
    (command,) = re.findall(r"^ +(python3 -c .*) &$", text, re.M)

    def run() -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path / "checkout", capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert run() == "so100 16 my data from nothing"
    (tmp_path / "my out").mkdir()
    assert run() == "so100 16 my data from nothing"
    (tmp_path / "my out/checkpoint-10").mkdir()
    assert run() == "so100 16 my data from ['checkpoint-10']"


@pytest.mark.parametrize(
    "flags",
    [
        ("--groot-version", "1.5", "--data-config", "so100", "--embodiment", "new_embodiment"),
        ("--groot-version", "1.6", "--embodiment", "libero_sim"),
    ],
    ids=["1.5", "1.6"],
)
def test_scripts_of_older_versions_pass_the_linters(millrace: Millrace, tmp_path: Path, flags: tuple):
    (tmp_path / "logs").mkdir()
    common = ("--log-dir", tmp_path / "logs", "--input", "/fsx/my data", "--output", "/fsx/out")
    script = tmp_path / "job.sbatch"
    script.write_text(millrace("job", "new", "groot", *common, *flags).out)
    millrace("job", "lint", script, "--fail-on", "warning")
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
