# SPDX-License-Identifier: Apache-2.0
"""Checkpointer(unchanged="refer"): what did not change since the save before is written once."""

import copy
import os
import signal
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import bits, data_files  # noqa: E402

import millrace as mr  # noqa: E402


class Lora(torch.nn.Module):
    """A frozen layer of 1 MB and an adapter of a few kilobytes."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base = torch.nn.Linear(512, 512)
        self.down = torch.nn.Parameter(torch.randn(512, 2, generator=generator) * 0.01)
        self.up = torch.nn.Parameter(torch.zeros(2, 512))
        with torch.no_grad():
            self.base.weight.copy_(torch.randn(512, 512, generator=generator))
            self.base.bias.zero_()
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up


BASE_BYTES = 4 * (512 * 512 + 512)


def training(seed=0):
    model = Lora(seed)
    optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return {"model": model, "optim": optim, "step": 0}


def train(state, steps=1):
    for _ in range(steps):
        state["step"] += 1
        generator = torch.Generator().manual_seed(state["step"])
        state["model"](torch.randn(4, 512, generator=generator)).square().mean().backward()
        state["optim"].step()
        state["optim"].zero_grad()


def bits_of(state):
    return copy.deepcopy(
        [bits(state["model"].state_dict()), bits(state["optim"].state_dict()), state["step"]],
    )


def restored(root, step=None, **options):
    state = training(seed=9)
    with mr.torch.Checkpointer(root, **options) as checkpointer:
        assert checkpointer.restore(state, step=step) is not None
    return bits_of(state)


def steps_of(folder):
    return [info["step"] for info in mr._core.list_steps(str(folder))]


def test_every_step_of_a_lora_comes_back_bit_for_bit_and_the_base_is_written_once(tmp_path):
    state, expected = training(), {}
    with mr.torch.Checkpointer(tmp_path, unchanged="refer") as checkpointer:
        for step in range(1, 9):
            train(state)
            checkpointer.save(step, state).wait(60)
            expected[step] = bits_of(state)
        stats = checkpointer.stats()
    sizes = {step: sum(path.stat().st_size for path in data_files(tmp_path, step)) for step in expected}
    assert sizes[1] > BASE_BYTES
    assert all(sizes[step] < 64 << 10 for step in range(2, 9))
    assert stats["write_bytes"] == sum(sizes.values())
    assert stats["referred_bytes"] == 7 * BASE_BYTES
    infos = mr._core.list_steps(str(tmp_path))
    assert [info["referred_bytes"] for info in infos] == [0] + [BASE_BYTES] * 7
    assert all([step for _, step in info["bases"]] == [1] for info in infos[1:])
    for step, wanted in expected.items():
        assert restored(tmp_path, step) == wanted


def test_all_is_written_by_default(tmp_path):
    state = training()
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            train(state)
            checkpointer.save(step, state).wait(60)
    assert [info["referred_bytes"] for info in mr._core.list_steps(str(tmp_path))] == [0, 0]
    with pytest.raises(ValueError, match="unchanged is 'write' or 'refer', not 'skip'"):
        mr.torch.Checkpointer(tmp_path, unchanged="skip")


def test_a_run_that_resumes_goes_on_referring_and_the_base_stays(tmp_path):
    state = training()
    with mr.torch.Checkpointer(tmp_path, keep_last=1, unchanged="refer") as checkpointer:
        for step in (1, 2, 3):
            train(state)
            checkpointer.save(step, state).wait(60)
    assert steps_of(tmp_path) == [1, 3]
    again = training(seed=5)
    with mr.torch.Checkpointer(tmp_path, keep_last=1, unchanged="refer") as checkpointer:
        assert checkpointer.restore(again) == 3
        train(again)
        checkpointer.save(4, again).wait(60)
        assert checkpointer.stats()["referred_bytes"] == BASE_BYTES
    assert steps_of(tmp_path) == [1, 4]
    assert restored(tmp_path) == bits_of(again)
    # The base thaws: all is written, and nothing holds step 1 any more.
    with mr.torch.Checkpointer(tmp_path, keep_last=1, unchanged="refer") as checkpointer:
        assert checkpointer.restore(again) == 4
        train(again)
        with torch.no_grad():
            again["model"].base.weight.add_(1)
        checkpointer.save(5, again).wait(60)
    assert steps_of(tmp_path) == [5]
    assert restored(tmp_path) == bits_of(again)


def test_a_damaged_base_is_said_and_a_step_without_it_is_restored(tmp_path):
    state = training()
    with mr.torch.Checkpointer(tmp_path, unchanged="refer") as checkpointer:
        for step in (1, 2, 3, 4):
            train(state)
            if step == 3:
                with torch.no_grad():
                    state["model"].base.weight.add_(1)
            checkpointer.save(step, state).wait(60)
            if step == 2:
                expected = bits_of(state)
    (file,) = data_files(tmp_path, 3)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="step 4") as warned:
        assert restored(tmp_path) == expected
    assert any(str(file) in str(each.message) for each in warned)


def test_a_damaged_base_is_read_from_another_tier_and_mended(tmp_path):
    near, root = tmp_path / "near", tmp_path / "root"
    state = training()
    with mr.torch.Checkpointer(root, tiers=[near], unchanged="refer") as checkpointer:
        for step in (1, 2):
            train(state)
            checkpointer.save(step, state).wait(60)
    (file,) = data_files(near, 1)
    whole = file.read_bytes()
    data = bytearray(whole)
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    assert restored(root, tiers=[near]) == bits_of(state)
    assert file.read_bytes() == whole, "close() waits for the mending"


KILLED = """
import sys
sys.path.insert(0, {here!r})
from test_torch_checkpointer_unchanged import *
state = training()
with mr.torch.Checkpointer({root!r}, keep_last=2, unchanged="refer") as checkpointer:
    first = checkpointer.restore(state) or 0
    for step in range(first + 1, 100000):
        train(state)
        if step % 7 == 0:
            with torch.no_grad():
                state["model"].base.weight.add_(1)
        checkpointer.save(step, state)
        print(step, flush=True)
"""


def test_a_run_that_is_killed_loses_no_listed_step(tmp_path):
    root = tmp_path / "run"
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(KILLED.format(here=os.path.dirname(__file__), root=str(root))))
    newest = 0
    for lines in (3, 9):
        with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(lines):
                assert process.stdout.readline(), "it ended by itself"
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        found = steps_of(root)
        assert found and found[-1] > newest
        newest = found[-1]
        expected = training()
        for step in range(1, newest + 1):  # what the run did, from its start
            train(expected)
            if step % 7 == 0:
                with torch.no_grad():
                    expected["model"].base.weight.add_(1)
            if step in found:
                assert restored(root, step) == bits_of(expected), step
