# SPDX-License-Identifier: Apache-2.0
"""Saves from a device: one copy into the image that is the file. The CPU takes the part of the device."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from checkpoint_helpers import TinyModel, bits, data_files, restored, train  # noqa: E402
from millrace.torch.tensors import row_major  # noqa: E402

import millrace as mr  # noqa: E402


class Late:
    """A device that holds some tensors and makes its copies when it is waited for."""

    def __init__(self, takes=lambda value: True):
        self.is_taken = takes
        self.queue = []
        self.copied = 0
        self.fails = None
        self.may_end = threading.Event()
        self.may_end.set()

    def takes(self, value):
        return isinstance(value, torch.Tensor) and self.is_taken(value)

    def follow(self, values):
        self.followed = [value for value in values if self.takes(value)]

    def block(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def begin(self, target, value):
        assert target.shape == row_major(value).shape and target.dtype == torch.uint8
        self.queue.append((target, value))

    def ticket(self):
        queue, self.queue = self.queue, []
        return LateTicket(self, queue)


class LateTicket:
    def __init__(self, device, queue):
        self.device, self.queue = device, queue
        self.lock = threading.Lock()

    def wait(self):
        self.device.may_end.wait(60)
        self.hold()
        if self.device.fails:
            raise self.device.fails

    def hold(self):
        """The copies are done in order, so before what comes behind them: the elements are read here."""
        with self.lock:
            for target, value in self.queue:
                target.copy_(row_major(value))
            self.device.copied += len(self.queue)
            self.queue = []


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
        assert not device.queue  # what was begun is done
        checkpointer.save(1, {"a": torch.ones(3)}).wait(60)
        assert checkpointer.steps() == [1]


@pytest.mark.parametrize("tiers", [0, 1])
def test_a_state_above_memory_bytes_goes_through_it(tmp_path, tiers):
    """Bit for bit, in runs of tensors, whatever their memory is like; no other memory is taken for it."""
    cap = 192 << 10

    def plain(large, rest):
        state = state_of_all_kinds()
        state |= {"model": state["model"].state_dict(), "optim": state["optim"].state_dict()}
        return state | {"large": large, "rest": rest}

    state = plain(torch.arange(200_000).view(400, 500).t(), torch.arange(9))
    odd = state.pop("odd")
    expected = bits(state)
    places = [tmp_path / f"tier{number}" for number in range(tiers)]
    with mr.torch.Checkpointer(tmp_path / "root", memory_bytes=cap, tiers=places) as checkpointer:
        checkpointer._copies = device = Late(lambda value: value.numel() % 3 > 0)
        save = checkpointer.save(1, state | {"odd": odd})
        assert device.queue == [] and device.copied > 0
        for value in (state["large"], state["rest"]):
            value.zero_()  # all was copied
        save.wait(60)
        assert cap // 2 < checkpointer.stats()["peak_memory_bytes"] <= cap
    for place in [tmp_path / "root", *places]:
        back = plain(torch.zeros(500, 400, dtype=torch.int64), torch.zeros(9, dtype=torch.int64))
        back["bf16"].zero_()
        assert restored(place, back) == 1
        back_odd = back.pop("odd")
        assert bits(back) == expected and all(torch.equal(back_odd[name], odd[name]) for name in odd)


def test_memory_bytes_is_of_all_ranks_of_the_node(tmp_path, monkeypatch):
    state = {"x": torch.arange(100_000)}
    for ranks, peak in ((1, 804_000), (4, 256 << 10)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        with mr.torch.Checkpointer(tmp_path / str(ranks), memory_bytes=1 << 20) as checkpointer:
            checkpointer.save(1, state).wait(60)
            assert checkpointer.stats()["peak_memory_bytes"] == pytest.approx(peak, rel=0.01)
        back = {"x": torch.zeros(100_000, dtype=torch.int64)}
        assert restored(tmp_path / str(ranks), back) == 1 and torch.equal(back["x"], state["x"])


def test_a_device_that_fails_in_the_middle_of_a_run_is_heard_of(tmp_path):
    class Fails(Late):
        def begin(self, target, value):
            if self.copied >= 3:
                raise ValueError("the device is lost")
            super().begin(target, value)

    with mr.torch.Checkpointer(tmp_path, memory_bytes=64 << 10) as checkpointer:
        checkpointer._copies = Fails()
        with pytest.raises(ValueError, match="the device is lost"):
            checkpointer.save(1, {"x": torch.arange(100_000)})
        checkpointer._copies = Late()
        checkpointer.save(2, {"x": torch.arange(100_000)}).wait(60)
        assert checkpointer.steps() == [2]


def test_runs_of_values_whose_elements_do_not_lie_in_order(seeded, monkeypatch):
    """The bytes of any run, put in order block by block."""
    from millrace.torch import runs

    sizes = []
    in_order = runs._bytes
    monkeypatch.setattr(runs, "_bytes", lambda elements: sizes.append(elements.nbytes) or in_order(elements))
    generator = np.random.default_rng(seeded.randrange(2**32))
    wide = torch.from_numpy(generator.integers(0, 1 << 62, (3, 40, 50, 7)))
    values = [
        wide, wide.permute(2, 0, 3, 1), wide[:, ::3, 5:, 2], wide[1, 2, 3, 4], wide.view(torch.uint8)[..., ::3],
        wide[0, 0].t(), torch.view_as_complex(torch.randn(30, 20, 2)).t().conj(), torch.randn(1, 90_000)[:, ::2],
        torch.randn(9, 70).T,
        torch.randn(50, 60).to(torch.bfloat16).t(), torch.randn(6, 8).to(torch.float8_e4m3fn).t(),
        generator.integers(0, 9, (40, 30)).astype(np.uint16).T, np.asfortranarray(generator.random((300, 200, 3))),
    ]  # fmt: skip
    monkeypatch.setattr(runs, "_BLOCK_BYTES", 1 << 12)
    for value in values:
        whole = value.tobytes() if isinstance(value, np.ndarray) else row_major(value).numpy().tobytes()
        for _ in range(20):
            begin = int(generator.integers(0, len(whole)))
            count = int(generator.integers(1, len(whole) - begin + 1))
            target = torch.zeros(count, dtype=torch.uint8)
            runs.copy_run(value, begin, target)
            assert target.numpy().tobytes() == whole[begin : begin + count]
    assert max(sizes) <= 1 << 12


def test_tiers_wait_for_the_copies_too(tmp_path):
    tiers = [tmp_path / "near"]
    with mr.torch.Checkpointer(tmp_path / "far", tiers=tiers) as checkpointer:
        checkpointer._copies = Late()
        checkpointer.save(1, {"x": torch.arange(1000)}).wait(60)
    for place in ("near", "far"):
        state = {"x": torch.zeros(1000, dtype=torch.int64)}
        assert restored(tmp_path / place, state) == 1 and torch.equal(state["x"], torch.arange(1000))


class Training:
    """A model that trains on a device whose copies end when the test says so."""

    def __init__(self, root):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.device = Late()
        self.checkpointer = mr.torch.Checkpointer(root)
        self.checkpointer._copies = self.device
        self.expected = {}

    def step(self):
        self.optim.zero_grad()
        self.model(torch.randn(8, 6)).square().mean().backward()
        self.optim.step()

    def save(self, number):
        self.expected[number] = bits(dict(self.model.state_dict())), bits(self.optim.state_dict())
        return self.checkpointer.save(number, {"model": self.model, "optim": self.optim})

    def ready(self):
        """Until saves return early."""
        self.step()
        for number in (1, 2, 3):
            self.save(number).wait(60)
            self.step()

    def hold_from_now_on(self):
        self.device.may_end.clear()

    def check(self, root):
        self.device.may_end.set()
        self.checkpointer.close()
        with mr.torch.Checkpointer(root) as checkpointer:
            steps = checkpointer.steps()
            for number in steps:
                assert checkpointer.restore({"model": self.model, "optim": self.optim}, number) == number
                now = bits(dict(self.model.state_dict())), bits(self.optim.state_dict())
                assert now == self.expected[number], number
        return steps


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_a_save_returns_before_its_copies_are_done_and_the_step_waits(training, tmp_path):
    training.ready()
    for number in range(4, 9):
        training.hold_from_now_on()
        save = training.save(number)
        copied = training.device.copied
        training.model(torch.randn(8, 6))  # a forward changes the buffers of BatchNorm
        assert not save.done and training.device.copied == copied
        training.step()
        assert training.device.copied > copied  # before it changed a parameter
        training.device.may_end.set()
        save.wait(60)
        training.step()
    assert training.check(tmp_path) == list(range(1, 9))


def test_the_first_saves_wait(training, tmp_path):
    training.step()
    for number in (1, 2):
        assert training.device.queue == []
        training.save(number)
        assert training.device.queue == [] and not training.checkpointer._deferral._pending
        training.step()
    assert training.check(tmp_path) == [1, 2]


def test_an_average_of_weights_keeps_saves_from_returning_early(training, tmp_path):
    training.step()
    for number in range(1, 6):
        training.save(number)
        training.step()
        with torch.no_grad():
            training.model[0].weight.mul_(0.5)
    assert "model.0.weight" in training.checkpointer._deferral.refused
    assert not training.checkpointer._deferral._pending
    assert training.check(tmp_path) == [1, 2, 3, 4, 5]


def test_a_change_while_the_copies_run_is_not_committed(training, tmp_path):
    training.ready()
    training.hold_from_now_on()
    save = training.save(4)
    with torch.no_grad():
        training.model[2].bias.add_(1)
    with pytest.warns(RuntimeWarning, match=r"not committed: 'model.2.bias' was changed"):
        training.device.may_end.set()
        with pytest.raises(OSError, match=r"model.2.bias"):
            save.wait(60)
        training.checkpointer._deferral.finish()
    training.step()
    assert training.save(5) and not training.checkpointer._deferral._pending
    assert training.check(tmp_path) == [1, 2, 3, 5]


def test_a_step_that_is_compiled_waits_too(training, tmp_path):
    """torch.compile does not take the hooks into what it compiles, and so compiles once."""
    from torch._dynamo.utils import counters

    training.ready()
    training.optim.step = torch.compile(training.optim.step, backend="eager")
    training.step()
    counters.clear()
    for number in range(4, 9):
        training.hold_from_now_on()
        save = training.save(number)
        copied = training.device.copied
        assert not save.done
        training.step()
        assert training.device.copied > copied
        training.device.may_end.set()
        save.wait(60)
    assert counters["frames"]["total"] == 0
    assert training.check(tmp_path) == list(range(1, 9))


def test_plain_dicts_of_state_dicts_return_early_with_their_owners(training, tmp_path):
    training.ready()
    owners = (training.model, training.optim)

    def state():
        return {"model": training.model.state_dict(), "optim": training.optim.state_dict()}

    expected = {}
    for number in range(4, 8):
        training.hold_from_now_on()
        expected[number] = bits(state())
        save = training.checkpointer.save(number, state(), owners=owners)
        assert len(training.checkpointer._deferral._pending) == 1 and not save.done
        training.model(torch.randn(8, 6))  # a forward changes the buffers of BatchNorm
        training.step()
        training.device.may_end.set()
        save.wait(60)
    before = list(training.checkpointer._deferral._pending)
    training.checkpointer.save(8, state())
    assert training.checkpointer._deferral._pending == before  # nobody says whose tensors they are
    with pytest.raises(TypeError, match="owners are modules and optimizers, not Tensor"):
        training.checkpointer.save(9, state(), owners=[torch.ones(1)])
    training.checkpointer.close()
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        for number, wanted in expected.items():
            back = state()
            assert checkpointer.restore(back, number) == number
            assert bits(back) == wanted


def test_a_change_of_a_plain_dict_while_the_copies_run_is_not_committed(training):
    training.ready()
    training.hold_from_now_on()
    state = {"model": training.model.state_dict(), "optim": training.optim.state_dict()}
    save = training.checkpointer.save(4, state, owners=(training.model, training.optim))
    with torch.no_grad():
        state["model"]["2.bias"].add_(1)
    with pytest.warns(RuntimeWarning, match=r"not committed: 'Sequential.2.bias' was changed"):
        training.device.may_end.set()
        with pytest.raises(OSError, match=r"Sequential.2.bias"):
            save.wait(60)
        training.checkpointer._deferral.finish()


def test_a_tensor_of_nobody_keeps_a_save_from_returning_early(training, tmp_path):
    training.ready()
    extra = torch.ones(3)
    training.checkpointer.save(4, {"model": training.model, "optim": training.optim, "extra": extra})
    assert not training.checkpointer._deferral._pending


def test_a_restore_waits_for_copies_that_read_what_it_fills(training, tmp_path):
    training.ready()
    training.hold_from_now_on()
    training.save(4)
    threading.Timer(0.2, training.device.may_end.set).start()
    training.checkpointer.restore({"model": training.model, "optim": training.optim}, 1)
    assert training.check(tmp_path) == [1, 2, 3, 4]


def test_hooks_go_with_the_checkpointer(training):
    from torch.optim import optimizer

    before = len(optimizer._global_optimizer_pre_hooks)
    training.ready()
    assert len(optimizer._global_optimizer_pre_hooks) == before + 1
    training.checkpointer.close()
    assert len(optimizer._global_optimizer_pre_hooks) == before
