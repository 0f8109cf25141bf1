# SPDX-License-Identifier: Apache-2.0
"""Saves from a device: one copy into the image that is the file. The CPU takes the part of the device."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import TinyModel, bits, data_files, restored, train  # noqa: E402
from millrace.torch.device_image import row_major  # noqa: E402

import millrace as mr  # noqa: E402


class Late:
    """A device that holds some tensors and makes its copies when it is waited for."""

    def __init__(self, takes=lambda value: True):
        self.is_taken = takes
        self.queue = []
        self.copied = 0
        self.fails = None

    def takes(self, value):
        return isinstance(value, torch.Tensor) and self.is_taken(value)

    def begin(self, target, value):
        source = row_major(value)
        assert target.shape == source.shape and target.dtype == torch.uint8
        self.queue.append((target, source.clone()))

    def end(self):
        queue, self.queue = self.queue, []
        for target, source in queue:
            target.copy_(source)
        self.copied += len(queue)
        if self.fails:
            raise self.fails


def saved_from(device, root, step, state, **options):
    with mr.torch.Checkpointer(root, **options) as checkpointer:
        checkpointer._copies = device
        checkpointer.save(step, state).wait(60)


def state_of_all_kinds():
    model = TinyModel(seed=3)
    optim = torch.optim.AdamW(model.parameters())
    train(model, optim, 3)
    odd = torch.arange(12.0).view(3, 4)
    return {
        "model": model, "optim": optim, "odd": {"t": odd.t(), "conj": torch.tensor([1 + 2j]).conj(), "row": odd[1]},
        "scalar": torch.tensor(7, dtype=torch.int8), "bf16": torch.randn(5).to(torch.bfloat16),
        "empty": torch.empty(0, 3), "step": 3,
    }  # fmt: skip


def like(state):
    other = state_of_all_kinds()
    for parameter in other["model"].parameters():
        parameter.data.zero_()
    return other | {
        "odd": {"t": torch.zeros(4, 3), "conj": torch.zeros(1, dtype=torch.complex64), "row": torch.zeros(4)}
    }


@pytest.mark.parametrize("which", ["all", "large", "none"])
def test_what_is_on_a_device_is_saved_as_from_the_cpu(tmp_path, which):
    state = state_of_all_kinds()
    takes = {"all": lambda value: True, "large": lambda value: value.numel() > 20, "none": lambda value: False}[which]
    device = Late(takes)
    saved_from(device, tmp_path / "device", 3, state)
    assert (device.copied > 0) == (which != "none")
    with mr.torch.Checkpointer(tmp_path / "cpu") as checkpointer:
        checkpointer.save(3, state).wait(60)
    files = [data_files(tmp_path / name, 3)[0].read_bytes() for name in ("device", "cpu")]
    assert files[0] == files[1]
    back = like(state)
    assert restored(tmp_path / "device", back) == 3
    for name in ("scalar", "bf16", "empty", "step"):
        assert bits(back[name]) == bits(state[name]), name
    assert all(torch.equal(back["odd"][name], state["odd"][name]) for name in state["odd"])
    assert bits(dict(back["model"].state_dict())) == bits(dict(state["model"].state_dict()))


def test_saves_follow_each_other_in_the_same_image(tmp_path):
    with mr.torch.Checkpointer(tmp_path, reserve=1 << 16) as checkpointer:
        checkpointer._copies = Late()
        for step in range(1, 6):
            save = checkpointer.save(step, {"x": torch.full((1000,), step)})
        save.wait(60)
    for step in range(1, 6):
        state = {"x": torch.zeros(1000, dtype=torch.int64)}
        with mr.torch.Checkpointer(tmp_path) as checkpointer:
            assert checkpointer.restore(state, step) == step
        assert bool((state["x"] == step).all())


def test_a_copy_that_fails_commits_nothing_and_the_next_save_works(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer._copies = device = Late()
        checkpointer.save(1, {"x": torch.ones(10)}).wait(60)
        device.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
        with pytest.raises(RuntimeError, match="illegal memory access"):
            checkpointer.save(2, {"x": torch.full((10,), 2.0)})
        device.fails = None
        with pytest.raises(Exception, match=r"step 2.*the copy from the device failed.*illegal memory access"):
            checkpointer.save(3, {"x": torch.full((10,), 3.0)})
        checkpointer.save(4, {"x": torch.full((10,), 4.0)}).wait(60)
        assert checkpointer.steps() == [1, 4]


def test_a_refused_save_leaves_no_copy_behind(tmp_path):
    """A tensor that cannot be copied: the error comes out, and nothing writes into the image later."""

    class Refuses(Late):
        def begin(self, target, value):
            if value.numel() == 7:
                raise ValueError("no such memory")
            super().begin(target, value)

    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer._copies = device = Refuses()
        with pytest.raises(ValueError, match="no such memory"):
            checkpointer.save(1, {"a": torch.ones(3), "b": torch.ones(7)})
        assert not device.queue
        checkpointer.save(1, {"a": torch.ones(3)}).wait(60)
        assert checkpointer.steps() == [1]


def test_a_state_above_memory_bytes_is_staged(tmp_path):
    with mr.torch.Checkpointer(tmp_path, memory_bytes=1 << 20) as checkpointer:
        checkpointer._copies = device = Late()
        checkpointer.save(1, {"x": torch.arange(1 << 20)}).wait(60)
        assert device.copied == 0
    state = {"x": torch.zeros(1 << 20, dtype=torch.int64)}
    assert restored(tmp_path, state) == 1 and torch.equal(state["x"], torch.arange(1 << 20))


def test_tiers_wait_for_the_copies_too(tmp_path):
    tiers = [tmp_path / "near"]
    with mr.torch.Checkpointer(tmp_path / "far", tiers=tiers) as checkpointer:
        checkpointer._copies = Late()
        checkpointer.save(1, {"x": torch.arange(1000)}).wait(60)
    for place in ("near", "far"):
        state = {"x": torch.zeros(1000, dtype=torch.int64)}
        assert restored(tmp_path / place, state) == 1 and torch.equal(state["x"], torch.arange(1000))
