# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/frameworks: stopped and started again, each prints the losses of a run that never stopped.
`./dev check frameworks` installs the frameworks; elsewhere these skip."""

import importlib.util
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/frameworks"
# By script: the package, the ranks, more environment.
SCRIPTS = {
    "accelerate": ("accelerate_train.py", "accelerate", 2, {"ACCELERATE_USE_CPU": "true"}),
    "trainer": ("trainer_train.py", "accelerate", 2, {}),
    "lightning": ("lightning_train.py", "lightning", 1, {}),
    "lightning-fsdp": ("lightning_train.py", "lightning", 1, {"FSDP": "1"}),
    "fsdp2": ("fsdp2_train.py", "torch", 2, {}),
    "torchtitan": ("torchtitan_train.py", "torchtitan", 2, {}),
    "deepspeed": ("deepspeed_train.py", "deepspeed", 1, {"DS_ACCELERATOR": "cpu"}),
    "stateful-dataloader": ("stateful_dataloader_train.py", "torchdata", 1, {}),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    import millrace as mr

    sys.path.append(str(EXAMPLES.parents[1] / "tests/python"))
    from test_torch_loader import byte_tokenizer

    folder = tmp_path_factory.mktemp("examples")
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    (folder / "raw.txt").write_text("".join(f"document {i} says {'x' * (i % 23)}\n" for i in range(200)))
    mr.prepare(folder / "raw.txt", tokenizer=folder / "tokenizer.json", out=folder / "out")
    return str(folder / "out")


def losses(script: str, world: int, more: dict[str, str], *arguments: str) -> dict[int, str]:
    """By step, as rank 0 printed them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(world):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", **more}
        if world > 1 or script.startswith(("fsdp2", "deepspeed")):
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
            }
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, str(EXAMPLES / script), *arguments]
        processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    answers = [process.communicate(timeout=300) for process in processes]
    for process, (_, err) in zip(processes, answers, strict=True):
        assert process.returncode == 0, err[-3000:]
    return {int(step): loss for step, loss in re.findall(r"^(\d+) (\d\S*)$", answers[0][0], re.MULTILINE)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_continues_where_it_was(name, shards, tmp_path):
    script, package, world, more = SCRIPTS[name]
    if os.environ.get("MILLRACE_TEST_FRAMEWORKS") is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (./dev check frameworks)")
    whole = losses(script, world, more, shards, str(tmp_path / "whole"), "--steps", "6", "--every", "4")
    assert sorted(whole) == [1, 2, 3, 4, 5, 6]
    before = losses(script, world, more, shards, str(tmp_path / "cut"), "--steps", "5", "--every", "4")
    assert before == {step: whole[step] for step in range(1, 6)}
    after = losses(script, world, more, shards, str(tmp_path / "cut"), "--steps", "6", "--every", "4")
    assert after == {step: whole[step] for step in after}
    assert 6 in after and min(after) >= 5, "from the newest checkpoint on"
