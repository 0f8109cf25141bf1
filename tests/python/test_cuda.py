# SPDX-License-Identifier: Apache-2.0
"""On a real GPU: what comes to it, and saves that run beside a training, however that training is compiled.

The other tests let the CPU stand in for a device. These need torch and millrace only.
"""

from __future__ import annotations

import copy
import io
import os
import tarfile
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

import millrace as mr  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SIDE, ROWS = 2048, 16  # copies of 150 MB, which last longer than a step


# --- the loader


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("shards"), np.random.default_rng(3)
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(500):
                data = io.BytesIO()
                np.save(data, random.integers(0, 32_000, size=random.integers(1, 600), dtype=np.uint32))
                member = tarfile.TarInfo(f"{number:06d}.token_ids.npy")
                member.size = data.tell()
                data.seek(0)
                tar.addfile(member, data)
    return [str(folder / f"{shard}.tar") for shard in range(3)]


@pytest.mark.parametrize(
    "options",
    [{"collate": "pad"}, {"collate": "pack"}, {"collate": "pack", "carry_documents": True}],
    ids=["pad", "pack", "documents"],
)
def test_batches_on_the_device_are_those_on_the_host(shards, options):
    options = dict(batch_size=8, seq_len=1024, seed=11, epochs=2, **options)
    kept = []  # what training keeps is not written over
    with mr.torch.Loader(shards, **options) as host, mr.torch.Loader(shards, device="cuda", **options) as device:
        for expected, batch in zip(host, device, strict=True):
            assert expected.keys() == batch.keys()
            assert all(value.is_cuda for value in batch.values())
            # Work of the consumer's stream that is queued behind the copy.
            kept.append(({name: value + 1 for name, value in batch.items()}, batch, expected))
            assert host.state_dict() == device.state_dict()
        for changed, batch, expected in kept:
            for name, value in expected.items():
                assert torch.equal(batch[name].cpu(), value), name
                assert torch.equal(changed[name].cpu(), value + 1), name
    assert len(kept) > 20


def test_a_resume_gives_the_batches_that_training_has_not_had(shards):
    options = dict(batch_size=4, seq_len=512, collate="pack", seed=5, device="cuda")
    with mr.torch.Loader(shards, **options) as loader:
        for _ in range(7):
            next(loader)
        state = loader.state_dict()
        expected = [{name: value.cpu() for name, value in next(loader).items()} for _ in range(4)]
    with mr.torch.Loader(shards, **options) as loader:
        loader.load_state_dict(state)
        for each in expected:
            batch = next(loader)
            assert all(torch.equal(batch[name].cpu(), value) for name, value in each.items())


# --- saves


class Training:
    """A model whose every tensor changes at every step. `step` may be compiled or captured."""

    def __init__(self, compiled=None, sharded=False):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(SIDE, SIDE), torch.nn.BatchNorm1d(SIDE), torch.nn.GELU(), torch.nn.Linear(SIDE, SIDE)
        ).cuda()
        if sharded:
            torch.distributed.fsdp.fully_shard(self.model)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.01, capturable=True)
        self.data = torch.randn(ROWS, SIDE, device="cuda")
        self.forward = compiled(self.model) if compiled else self.model

    def step(self):
        self.optim.zero_grad()
        self.forward(self.data + torch.randn_like(self.data)).square().mean().backward()
        self.optim.step()

    def state(self):
        return {"model": self.model, "optim": self.optim}

    def tensors(self):
        values = [v for s in self.optim.state.values() for v in s.values()]
        values = [*self.model.state_dict().values(), *values]
        return [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]

    def copies(self):
        return [value.detach().clone() for value in self.tensors()]


def saves_are_what_was_there(root, training, step, saves=40):
    """Trains and saves, and holds each committed step against what was there when it was saved. How many returned
    early, how many were committed, and what was warned of."""
    expected, early = {}, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mr.torch.Checkpointer(root) as checkpointer:
            for number in range(saves):
                expected[number] = training.copies()
                save = checkpointer.save(number, training.state())
                early += any(thread.is_alive() for _, thread in checkpointer._deferral._pending)
                for _ in range(3):
                    step()
                try:
                    save.wait(60)
                except Exception as error:
                    assert "was changed outside" in str(error)
                    del expected[number]
    said = [str(each.message) for each in caught if "checkpoint" in str(each.message)]
    with mr.torch.Checkpointer(root) as checkpointer:
        for number, then in expected.items():
            assert checkpointer.restore(training.state(), number) == number
            for at, (now, value) in enumerate(zip(training.tensors(), then, strict=True)):
                assert torch.equal(now, value), (number, at)
    return early, len(expected), said


def warmed(training):
    for _ in range(3):
        training.step()
    return training


def test_plain_training(tmp_path):
    training = warmed(Training())
    early, committed, said = saves_are_what_was_there(tmp_path, training, training.step)
    assert (committed, said) == (40, [])
    assert early > 20


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model(tmp_path, mode):
    training = warmed(Training(compiled=lambda model: torch.compile(model, mode=mode)))
    early, committed, said = saves_are_what_was_there(tmp_path, training, training.step)
    assert (committed, said) == (40, [])
    assert early > 20


def test_a_compiled_optimizer(tmp_path):
    training = warmed(Training())
    compiled = torch.compile(training.optim.step)

    def step():
        training.optim.zero_grad()
        training.forward(training.data + torch.randn_like(training.data)).square().mean().backward()
        compiled()

    _, committed, said = saves_are_what_was_there(tmp_path, training, step)
    assert committed >= 39, said


def test_an_optimizer_that_is_compiled_later(tmp_path):
    """The first steps have hooks, and let saves return early."""
    training = warmed(Training())
    compiled, count = torch.compile(training.optim.step), 0

    def step():
        nonlocal count
        count += 1
        training.optim.zero_grad()
        training.forward(training.data + torch.randn_like(training.data)).square().mean().backward()
        training.optim.step() if count < 30 else compiled()

    _, committed, said = saves_are_what_was_there(tmp_path, training, step)
    assert committed >= 38, said


def test_a_captured_step(tmp_path):
    training = Training()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warmed(training)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    training.optim.zero_grad(set_to_none=False)
    with torch.cuda.graph(graph):
        training.step()
    early, committed, said = saves_are_what_was_there(tmp_path, training, graph.replay)
    assert (committed, said) == (40, [])
    assert early == 0


def test_a_step_that_is_captured_later(tmp_path):
    """Saves returned early before the capture. They do not after it."""
    training = warmed(Training())
    graph, count = torch.cuda.CUDAGraph(), 0
    side = torch.cuda.Stream()

    def step():
        nonlocal count
        count += 1
        if count == 30:
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                training.step()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                training.step()
        if count < 30:
            training.step()
        else:
            graph.replay()

    early, committed, said = saves_are_what_was_there(tmp_path, training, step)
    assert committed == 40, said
    assert 0 < early < 15


def test_graphed_callables(tmp_path):
    training = Training()
    sample = torch.randn(ROWS, SIDE, device="cuda")
    training.forward = torch.cuda.make_graphed_callables(training.model, (sample,))
    warmed(training)
    early, committed, said = saves_are_what_was_there(tmp_path, training, training.step)
    assert (committed, said) == (40, [])
    assert early > 20


def test_an_average_of_weights(tmp_path):
    """Something else than a step changes a parameter: no save returns early."""
    training = warmed(Training())
    average = copy.deepcopy(training.model)

    def step():
        training.step()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), training.model.parameters(), strict=True):
                mean.lerp_(now, 0.1)

    training.state = lambda: {"model": training.model, "optim": training.optim, "average": average}
    early, committed, _ = saves_are_what_was_there(tmp_path, training, step)
    assert (early, committed) == (0, 40)


def test_fsdp2_on_one_device(tmp_path):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        training = warmed(Training(sharded=True))
        early, committed, said = saves_are_what_was_there(tmp_path, training, training.step)
        assert (committed, said) == (40, [])
        assert early > 20
    finally:
        torch.distributed.destroy_process_group()


def test_a_state_larger_than_the_memory_for_it(tmp_path):
    """It goes through a part of its size. Training stops until it is written."""
    training, cap = warmed(Training()), 32 << 20
    with mr.torch.Checkpointer(tmp_path, memory_bytes=cap) as checkpointer:
        for number in (1, 2):
            expected = training.copies()
            save = checkpointer.save(number, training.state())
            training.step()
            save.wait(60)
            training.step()
        assert sum(value.nbytes for value in expected) > 3 * cap
        assert checkpointer.stats()["peak_memory_bytes"] <= cap
        assert checkpointer.restore(training.state()) == 2
    assert all(torch.equal(now, then) for now, then in zip(training.tensors(), expected, strict=True))
