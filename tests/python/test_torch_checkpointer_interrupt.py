# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a save that goes through less memory than its file, while training waits for it."""

import os
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import restored  # noqa: E402
from test_device_image import Late  # noqa: E402

import millrace as mr  # noqa: E402


@pytest.fixture
def interrupted():
    """An event that is set when this process has seen a SIGINT."""
    seen = threading.Event()

    def handle(number, frame):
        seen.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    yield seen
    signal.signal(signal.SIGINT, before)


class PressesCtrlC(Late):
    """A device at whose third copy SIGINT comes. It waits until that is seen, and is slow from then on."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen
        self.begun = 0

    def begin(self, target, value):
        self.begun += 1
        if self.begun == 3:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.seen.wait(60), "nobody looks for signals while the save is written"
        if self.begun >= 3:
            time.sleep(0.01)  # so that a save which goes on is told from one that is about to end
        super().begin(target, value)


@pytest.mark.parametrize("tiers", [0, 1])
def test_ctrl_c_ends_a_save_through_little_memory(tmp_path, interrupted, tiers):
    places = [tmp_path / f"tier{number}" for number in range(tiers)]
    state = {"x": torch.arange(500_000)}
    with mr.torch.Checkpointer(tmp_path / "root", memory_bytes=64 << 10, tiers=places) as checkpointer:
        checkpointer._copies = whole = Late()
        checkpointer.save(1, state).wait(60)
        checkpointer._copies = device = PressesCtrlC(interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(2, state)
        assert device.begun < whole.copied / 2, "the rest was not waited for"
        assert checkpointer.steps() == [1]
        checkpointer._copies = Late()
        checkpointer.save(3, state).wait_removals()
        assert checkpointer.steps() == [1, 3]
    for place in [tmp_path / "root", *places]:
        assert not list(place.glob("step-*02/*")), "what was written of step 2 is swept"
        back = {"x": torch.zeros(500_000, dtype=torch.int64)}
        assert restored(place, back) == 3 and torch.equal(back["x"], state["x"])


def test_ctrl_c_ends_the_wait_for_the_save_before(tmp_path, interrupted):
    """Which waits for a rank that is late."""
    value = torch.arange(100_000)

    def part_of(rank):
        count = len(value) // 2
        return [("x", "I64", [2 * count], [rank * count], [count], value[rank * count :].data_ptr())]

    ranks = [
        mr._core.Saver(str(tmp_path), attempt="r0000-0", rank=rank, world_size=2, memory_bytes=64 << 10)
        for rank in range(2)
    ]
    first = ranks[0].save(1, part_of(0), "{}")
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ranks[0].save(2, part_of(0), "{}")
    assert not first.done, "the save went on"
    ranks[1].save(1, part_of(1), "{}").wait(60)
    first.wait(60)
    for save in [saver.save(3, part_of(rank), "{}") for rank, saver in reversed(list(enumerate(ranks)))]:
        save.wait(60)
    assert [step["step"] for step in mr._core.list_steps(str(tmp_path))] == [1, 3]
    for saver in ranks:
        saver.close()
