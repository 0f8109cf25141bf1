# SPDX-License-Identifier: Apache-2.0
"""Training in a framework that is saved, ended and resumed sees exactly the rows of a run that never stopped: on one rank
and on two, over the end of an epoch. `./dev check frameworks` installs the frameworks; elsewhere these skip."""

import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import millrace as mr

SCRIPT = pathlib.Path(__file__).with_name("exact.py")
PACKAGES = {
    "accelerate": "accelerate",
    "accelerate-checkpointer": "accelerate",
    "lightning": "lightning",
    "lightning-io": "lightning",
    "trainer": "accelerate",
    "trainer-checkpointer": "accelerate",
    "stateful-dataloader": "torchdata",
    "titan": "torchtitan",
    "deepspeed": "deepspeed",
    "lightning-fsdp": "lightning",
}
GLOBAL_BATCH, SEQ_LEN = 32, 16


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    """200 documents: an epoch is 6 steps of 32, so that 8 steps cross its end."""
    sys.path.append(str(SCRIPT.parents[1] / "python"))
    from test_torch_loader import byte_tokenizer

    folder = tmp_path_factory.mktemp("frameworks")
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    (folder / "raw.txt").write_text("".join(f"document {i} says {'x' * (i % 23)}\n" for i in range(200)))
    mr.prepare(folder / "raw.txt", tokenizer=folder / "tokenizer.json", out=folder / "out")
    return str(folder / "out")


def expected(shards: str, world: int, steps: int) -> list:
    """By rank, the rows of every step."""
    loaders = [
        mr.Loader(shards, global_batch_size=GLOBAL_BATCH, seq_len=SEQ_LEN, seed=3, rank=rank, world_size=world)
        for rank in range(world)
    ]
    rows = [[next(loader)["input_ids"].tolist() for _ in range(steps)] for loader in loaders]
    for loader in loaders:
        loader.close()
    return rows


def start(world: int, *arguments: str) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(filter(None, sys.path))  # the frameworks, as this process has them
    processes = []
    for rank in range(world):
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        if world > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": "0", "NODE_RANK": str(rank), "GROUP_RANK": str(rank)}
            env |= {
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        command = [sys.executable, str(SCRIPT), *arguments]
        processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return processes


def run(world: int, *arguments: str) -> list:
    answers = []
    for process in start(world, *arguments):
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err[-3000:]
        answers.append(json.loads(out[out.index("[[") :]))
    return answers


def test_the_page_shows_what_is_run():
    """Each line of the classes and calls on docs/frameworks.md is one of exact.py."""
    page = (SCRIPT.parents[2] / "docs/frameworks.md").read_text()
    of_frameworks = "Accelerator|Trainer|Callback|Stateful"
    blocks = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if re.search(of_frameworks, b)]
    assert len(blocks) == 5
    ours = {
        re.sub("arguments\\.out|folder", "", line.split("  #")[0].strip()) for line in SCRIPT.read_text().splitlines()
    }
    for line in "\n".join(blocks).splitlines():
        shown = re.sub("arguments\\.out|folder", "", line.split("  #")[0].strip())
        own = re.match(r"import|from|loader = |data = |def train|if resume|for batch in loader|class (\w+)\(", shown)
        assert own or not shown or shown in ours, line


def needs(framework: str) -> None:
    package = PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (./dev check frameworks)")


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("framework", PACKAGES)
# Within an epoch, at its last batch (of 6), and behind it.
@pytest.mark.parametrize("more", [("4",), ("6",), ("7",), ("4", "--endless")], ids="-".join)
def test_a_resume_is_exact(framework, world, more, shards, tmp_path):
    needs(framework)
    arguments = (framework, shards, str(tmp_path), "--save-at", more[0], *more[1:])
    want = expected(shards, world, 9)
    if framework == "titan":  # the last token is only a label
        want = [[[row[:-1] for row in rows] for rows in steps] for steps in want]
    assert run(world, *arguments, "--steps", more[0]) == [rows[: int(more[0])] for rows in want]
    assert run(world, *arguments, "--steps", "9", "--resume") == [rows[int(more[0]) :] for rows in want]


@pytest.mark.parametrize("save_at", ["4", "6", "7"])
def test_a_stateful_dataloader_with_workers(save_at, shards, tmp_path):
    needs("stateful-dataloader")
    arguments = ("stateful-dataloader", shards, str(tmp_path), "--workers", "2", "--save-at", save_at)
    want = expected(shards, 1, 9)[0]
    assert run(1, *arguments, "--steps", save_at) == [want[: int(save_at)]]
    assert run(1, *arguments, "--steps", "9", "--resume") == [want[int(save_at) :]]


def test_lightning_paths_are_checkpoints_of_ours(tmp_path):
    """Overwritten, removed, set back; what is no plain data is named."""
    needs("lightning")
    import torch

    io = mr.torch.lightning.CheckpointIO(threads=1)
    path = tmp_path / "last.ckpt"
    for value, step in ((1.0, 5), (2.0, 6), (3.0, 2)):
        tensor = torch.full((3,), value)
        io.save_checkpoint({"global_step": step, "state_dict": {"w": tensor}, "epoch": (1, None)}, path)
        tensor.zero_()
        loaded = io.load_checkpoint(path)
        assert loaded["state_dict"]["w"].tolist() == [value] * 3
        assert (loaded["global_step"], loaded["epoch"]) == (step, (1, None))
    with pytest.raises(TypeError, match=r"hyper_parameters\.net"):
        io.save_checkpoint({"global_step": 7, "hyper_parameters": {"net": object()}}, path)
    assert io.load_checkpoint(path)["global_step"] == 2
    io.remove_checkpoint(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="not a checkpoint of Millrace"):
        io.load_checkpoint(path)


def test_lightning_says_what_to_use_for_fsdp1():
    needs("lightning")
    with pytest.raises(NotImplementedError, match=r"ModelParallelStrategy.*fully_shard.*import --from dcp"):
        mr.torch.lightning.FSDPStrategy(state_dict_type="full")


def test_every_rank_of_accelerate_ends_with_the_error(shards, tmp_path):
    needs("accelerate")
    for process in start(2, "accelerate-dataloader", shards, str(tmp_path)):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1 and "Accelerate has 2 processes" in err
