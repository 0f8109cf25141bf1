# SPDX-License-Identifier: Apache-2.0
"""Restores into a device by way of blocks. The CPU takes the part of the device."""

import copy
import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import TinyModel, bits, data_files, flip_byte_of, train  # noqa: E402
from millrace.torch import device_load  # noqa: E402
from test_device_image import Late  # noqa: E402

import millrace as mr  # noqa: E402


class Blocks(Late):
    """A device that makes its copies when it is waited for: a block that is read into again too early shows."""

    def __init__(self, takes=lambda value: True):
        super().__init__(takes)
        self.blocks = 0

    def block(self, size):
        self.blocks += 1
        return torch.empty(size + 1, dtype=torch.uint8)[1:]  # at an odd address


def state_of_many_shapes(random):
    dtypes = [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float64]
    state = {"scalar": torch.tensor(7, dtype=torch.int8), "empty": torch.empty(0, 3), "step": 3}
    for at in range(40):
        shape = [random.choice([1, 2, 3, 5, 17, 130]) for _ in range(random.randint(0, 4))]
        while math.prod(shape) > 300_000:
            shape.pop()
        state[f"t{at}"] = (torch.randn(shape) * 100).to(random.choice(dtypes))
    state["long"] = torch.arange(40_000)
    state["wide"] = torch.randn(3, 1, 30_000)
    return state


def zeros_like(state):
    return {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0 for name, value in state.items()}


def restored_to(device, root, state, **options):
    with mr.torch.Checkpointer(root) as checkpointer:
        checkpointer._copies = device
        return checkpointer.restore(state, **options)


@pytest.mark.parametrize("block", [3 * 4096, 20_000, 1 << 16, 64 << 20])
def test_what_comes_to_a_device_is_what_was_saved(tmp_path, seeded, monkeypatch, block):
    monkeypatch.setattr(device_load, "BLOCK_BYTES", block)
    torch.manual_seed(seeded.randrange(1 << 30))
    saved = state_of_many_shapes(seeded)
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, saved).wait(60)
    odd = {name for name in saved if seeded.random() < 0.2}  # these stay on the host
    state = zeros_like(saved)
    hosts = [state[name] for name in odd if name != "step"]
    device = Blocks(lambda value: not any(value is host for host in hosts))
    assert restored_to(device, tmp_path, state) == 1
    assert {name: bits(value) for name, value in state.items()} == {name: bits(value) for name, value in saved.items()}
    assert device.copied > 10 and 1 <= device.blocks <= 3


def test_a_model_and_its_optimizer(tmp_path):
    model = TinyModel(seed=3)
    optim = torch.optim.AdamW(model.parameters())
    train(model, optim, 3)
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, {"model": model, "optim": optim}).wait(60)
    for steps in (0, 1):  # an optimizer without and with a state
        other = TinyModel(seed=4)
        other_optim = torch.optim.AdamW(other.parameters())
        train(other, other_optim, steps)
        device = Blocks()
        assert restored_to(device, tmp_path, {"model": other, "optim": other_optim}) == 3
        assert device.copied > 0
        assert bits(dict(other.state_dict())) == bits(dict(model.state_dict()))
        assert bits(other_optim.state_dict()) == bits(optim.state_dict())


def test_views_and_other_dtypes_come_through_the_host(tmp_path):
    saved = {"rows": torch.randn(3, 4), "columns": torch.randn(4, 3), "wide": torch.randn(5), "half": torch.randn(6)}
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, saved).wait(60)
    both = torch.zeros(12 + 5)
    state = {
        "rows": both[:12].view(3, 4), "columns": torch.zeros(3, 4).t(), "wide": both[12:],
        "half": torch.zeros(6, dtype=torch.float64),
    }  # fmt: skip
    assert restored_to(Blocks(), tmp_path, state) == 1
    assert all(torch.equal(state[name], saved[name].to(state[name].dtype)) for name in saved)


def test_damage_is_named_and_the_step_before_is_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(device_load, "BLOCK_BYTES", 1 << 16)
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"a": torch.full((40_000,), step), "b": torch.full((40_000,), step)}).wait(60)
    flip_byte_of(data_files(tmp_path, 2)[0], "b")
    state = {"a": torch.zeros(40_000, dtype=torch.int64), "b": torch.zeros(40_000, dtype=torch.int64)}
    before = copy.deepcopy(state)
    device = Blocks()
    with pytest.raises(mr.CorruptionError, match="tensor 'b'"):
        restored_to(device, tmp_path, state, step=2)
    assert device.queue == [] and not torch.equal(state["a"], before["a"]), "the copies that were begun have ended"
    with pytest.warns(RuntimeWarning, match="trying the step before"):
        assert restored_to(Blocks(), tmp_path, state) == 1
    assert all(bool((value == 1).all()) for value in state.values())
