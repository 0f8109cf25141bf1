# SPDX-License-Identifier: Apache-2.0
"""mr.torch.lerobot.Dataset gives, item by item, the tensors that LeRobot's own class gives: of what we write and of what
LeRobot recorded. MILLRACE_TEST_LEROBOT and MILLRACE_TEST_LEROBOT_6 name the interpreters of environments with LeRobot 0.4.4
and 0.6.1 (./dev check frameworks)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import millrace as mr

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

BINARY = os.environ.get("MILLRACE_BIN") or str(pathlib.Path(sys.executable).with_name("millrace"))
FPS = 30


@pytest.fixture(params=["MILLRACE_TEST_LEROBOT", "MILLRACE_TEST_LEROBOT_6"], ids=["0.4", "0.6"])
def python(request) -> str:
    """The interpreter of an environment with LeRobot."""
    if request.param not in os.environ:
        pytest.skip("lerobot is not installed (./dev check frameworks)")
    return os.environ[request.param]


def lerobot(python: str, script: str, *args: object, home: pathlib.Path) -> None:
    done = subprocess.run(
        [python, pathlib.Path(__file__).with_name(script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HOME": str(home / "hf")},
    )
    assert done.returncode == 0, done.stderr


def check(python: str, root: pathlib.Path, home: pathlib.Path, windows: dict, episodes: list[int] | None = None) -> int:
    lerobot(python, "lerobot_items.py", root, home / "items.pt", json.dumps(windows), json.dumps(episodes), home=home)
    theirs = torch.load(home / "items.pt")
    ours = mr.torch.lerobot.Dataset(root, delta_timestamps=windows, episodes=episodes)
    assert len(ours) == len(theirs)
    for index, wanted in enumerate(theirs):
        given = ours[index]
        assert set(given) == set(wanted)
        for name, value in wanted.items():
            if isinstance(value, str):
                assert given[name] == value
                continue
            assert (given[name].dtype, given[name].shape) == (value.dtype, value.shape), (index, name)
            assert torch.equal(given[name], value), (index, name)
    return len(theirs)


@pytest.mark.parametrize("episodes", [None, [2, 0]], ids=["all", "some"])
def test_of_the_demo(tmp_path, python, episodes):
    root = tmp_path / "arm"
    subprocess.run([BINARY, "lerobot", "demo", root, "--episodes", "3"], check=True)
    windows = {
        "action": [i / FPS for i in range(-2, 9)],
        "observation.state": [-1 / FPS, 0],
        "observation.images.front": [-2 / FPS, 0, 1 / FPS],
        "observation.images.wrist": [0],
    }
    assert check(python, root, tmp_path, windows, episodes) > 20


def test_of_a_recording(tmp_path, python):
    """With a bool of shape [1] and one camera without a window."""
    root = tmp_path / "recorded"
    lerobot(python, "lerobot_write.py", root, home=tmp_path)
    assert check(python, root, tmp_path, {"action": [0, 1 / FPS], "next.done": [0, 1 / FPS]}) == 41 + 37 + 5


def test_of_an_older_version(tmp_path):
    """v2.1, which LeRobot 0.4.4 refuses, gives the tensors of the same dataset as v3.0."""
    for version in ("2.1", "3.0"):
        flags = ["--episodes", "3", "--version", version]
        subprocess.run([BINARY, "lerobot", "demo", tmp_path / version, *flags], check=True)
    windows = {"action": [0, 1 / FPS], "observation.images.front": [0, 1 / FPS]}
    old, new = (mr.torch.lerobot.Dataset(tmp_path / version, delta_timestamps=windows) for version in ("2.1", "3.0"))
    for index in range(len(new)):
        for name, value in new[index].items():
            other = old[index][name]
            assert other == value if isinstance(value, str) else torch.equal(other, value)
