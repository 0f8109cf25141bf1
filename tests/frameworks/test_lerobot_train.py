# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own training reads its frames through Millrace, and writes its checkpoint. MILLRACE_TEST_LEROBOT names the
interpreter of an environment with LeRobot 0.4.4, MILLRACE_TEST_LEROBOT_6 of one with 0.6.1 that Millrace is installed in
(./dev check frameworks)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BINARY = os.environ.get("MILLRACE_BIN") or str(pathlib.Path(sys.executable).with_name("millrace"))
HERE = pathlib.Path(__file__)


@pytest.fixture(params=["MILLRACE_TEST_LEROBOT", "MILLRACE_TEST_LEROBOT_6"], ids=["0.4", "0.6"])
def variable(request) -> str:
    if request.param not in os.environ:
        pytest.skip("lerobot is not installed (./dev check frameworks)")
    return request.param


def lerobot(variable: str, tmp_path: pathlib.Path, *args: object) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(tmp_path / "hf")}
    if variable == "MILLRACE_TEST_LEROBOT":
        env["PYTHONPATH"] = str(HERE.parents[2] / "python")
    command = [os.environ[variable], *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def test_act_trains_on_our_frames(tmp_path, variable):
    root, out, counts = tmp_path / "arm", tmp_path / "out", tmp_path / "counts"
    subprocess.run([BINARY, "lerobot", "demo", root, "--episodes", "2"], check=True, capture_output=True)
    flags = {
        "dataset.repo_id": "local/arm",
        "dataset.root": root,
        "output_dir": out,
        "policy.type": "act",
        "policy.device": "cpu",
        "policy.pretrained_backbone_weights": "null",
        "policy.push_to_hub": "false",
        "policy.chunk_size": 8,
        "policy.n_action_steps": 8,
        "policy.dim_model": 64,
        "policy.dim_feedforward": 128,
        "wandb.enable": "false",
        "num_workers": 0,
        "steps": 2,
        "batch_size": 4,
    }
    done = lerobot(
        variable, tmp_path, HERE.with_name("lerobot_feed.py"), counts, *(f"--{k}={v}" for k, v in flags.items())
    )
    assert done.returncode == 0, done.stderr
    asked = json.loads(counts.read_text())
    assert asked["ours"] >= 8 and asked["theirs"] == 2  # theirs: the two that are compared
    assert (out / "checkpoints/000002/pretrained_model/model.safetensors").exists()


def test_another_version_is_refused(tmp_path, variable):
    code = (
        "import importlib.metadata as m; m.version = lambda name: '0.5.0'\n"
        "from millrace.torch import lerobot_train; lerobot_train.main()"
    )
    done = lerobot(variable, tmp_path, "-c", code)
    assert done.returncode == 1 and "lerobot 0.5.0: only 0.4.4 and 0.6.1 are known" in done.stderr
