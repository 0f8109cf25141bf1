# SPDX-License-Identifier: Apache-2.0
"""mr.torch.as_iterable inside torch's DataLoader: workers share a pass, and no row is repeated or lost."""

import io
import itertools
import sys
import tarfile
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

import millrace as mr  # noqa: E402


def options(**more):
    return dict(global_batch_size=64, seq_len=16, seed=4, **more)


def ids(batch) -> list:
    return batch["input_ids"].tolist()


@pytest.fixture(scope="module")
def epochs(dataset):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        return [[ids(batch) for batch in loader] for _ in range(4)]


@pytest.mark.parametrize("make", [mr.Loader, mr.torch.Loader])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_passes_come_in_the_loaders_order(dataset, epochs, make, workers):
    with make(dataset.tars, **options(epochs=1)) as loader:
        data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=workers)
        assert len(data) == len(epochs[0])
        for epoch in range(3):
            assert [ids(batch) for batch in data] == epochs[epoch]


@pytest.mark.parametrize("more", [dict(persistent_workers=True), dict(multiprocessing_context="spawn")], ids=str)
def test_kinds_of_workers(dataset, epochs, more):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        next(loader)  # a spawned worker continues from here, too
        data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2, **more)
        assert [ids(batch) for batch in data] == epochs[0][1:]
        assert [ids(batch) for batch in data] == epochs[1]


def test_a_pass_that_was_left_early_is_over_in_workers_too(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
        data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2)
        assert [ids(batch) for batch in itertools.islice(data, 2)] == epochs[0][:2]
        assert [ids(batch) for batch in data] == epochs[1]


def test_the_state_is_that_of_the_batch_that_was_used(dataset, epochs):
    with mr.Loader(dataset.tars, **options(epochs=1, carry_state=True)) as loader:
        data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2)
        used = list(itertools.islice(data, 3))[-1]  # more were fetched
        with pytest.raises(RuntimeError, match=r"state_dict\(batch\)"):
            loader.state_dict()
        state = loader.state_dict(used)
    for workers in (0, 1, 2):
        with mr.Loader(dataset.tars, **options(epochs=1)) as loader:
            loader.load_state_dict(state)
            data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=workers)
            assert [ids(batch) for batch in data] == epochs[0][3:]
            assert [ids(batch) for batch in data] == epochs[1]


def test_an_endless_loader_in_workers_does_not_begin_again(dataset, epochs):
    with mr.Loader(dataset.tars, **options(carry_state=True)) as loader:
        data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=2)
        used = list(itertools.islice(data, 3))
        assert [ids(batch) for batch in used] == epochs[0][:3]
        with pytest.raises(RuntimeError, match="used") as raised:
            next(iter(data))
        assert raised.type is RuntimeError  # none of its subclasses
        loader.load_state_dict(loader.state_dict(used[-1]))
        assert ids(next(iter(data))) == epochs[0][3]


def test_what_cannot_sit_in_a_dataloader_says_so(dataset):
    for epochs in (None, 1):
        with mr.Loader(dataset.tars, **options(epochs=epochs)) as loader, pytest.raises(TypeError, match="as_iterable"):
            next(iter(DataLoader(loader)))
    with pytest.raises(TypeError, match="not list"):
        mr.torch.as_iterable([loader])


def accelerate_state(processes):
    facts = {} if processes is None else {"num_processes": processes}
    return types.SimpleNamespace(PartialState=types.SimpleNamespace(_shared_state=facts))


def test_several_processes_of_accelerate_are_refused(dataset, monkeypatch):
    with mr.Loader(dataset.tars, **options()) as loader:
        monkeypatch.setitem(sys.modules, "accelerate.state", accelerate_state(2))
        with pytest.raises(RuntimeError, match="has 2 processes"):
            mr.torch.as_iterable(loader)
        mr.torch.as_iterable(loader, left_alone=True)
        monkeypatch.setitem(sys.modules, "accelerate.state", accelerate_state(1))
        made = mr.torch.as_iterable(loader)
        monkeypatch.setitem(sys.modules, "accelerate.state", accelerate_state(2))
        with pytest.raises(RuntimeError, match="has 2 processes"):  # it came later
            iter(made)
        monkeypatch.setitem(sys.modules, "accelerate.state", accelerate_state(None))
        mr.torch.as_iterable(loader)
        monkeypatch.setenv("WORLD_SIZE", "2")  # ranks that may yet become its processes
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(RuntimeError, match="has 2 processes"):
            mr.torch.as_iterable(loader)


def test_ranks_with_a_process_group_are_refused_before_an_accelerator_is_made(dataset, monkeypatch):
    """Each rank refuses at once, so that none waits for another."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with mr.Loader(dataset.tars, **options()) as loader:
            monkeypatch.setitem(sys.modules, "accelerate.state", accelerate_state(None))
            mr.torch.as_iterable(loader)
            monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
            with pytest.raises(RuntimeError, match="has 2 processes"):
                mr.torch.as_iterable(loader)
    finally:
        monkeypatch.undo()
        torch.distributed.destroy_process_group()


def larger(sample, rng):
    return {**sample, "cls": sample["cls"] + 100, "noise": rng.random()}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_samples_of_every_kind(tmp_path, workers):
    from sample_tars import picture_tars

    tars = picture_tars(tmp_path, shards=2, each=21)
    arguments = dict(fields=["cls", "txt"], batch_size=4, epochs=1, map=larger, carry_state=True, memory_bytes=64 << 20)

    def run(state=None):
        with mr.torch.SampleLoader(tars, **arguments) as loader:
            if state is not None:
                loader.load_state_dict(state)
            data = DataLoader(mr.torch.as_iterable(loader), batch_size=None, num_workers=workers)
            batches = list(data)
            return batches, [loader.state_dict(batch) for batch in batches]

    with mr.torch.SampleLoader(tars, **arguments) as loader:
        expected = list(loader)
    batches, states = run()
    assert [batch["__key__"] for batch in batches] == [batch["__key__"] for batch in expected]
    for batch, same in zip(batches, expected, strict=True):
        assert torch.equal(batch["cls"], same["cls"]) and torch.equal(batch["noise"], same["noise"])
        assert batch["cls"].min() >= 100 and batch["txt"] == same["txt"]
    rest, _ = run(states[3])
    assert [batch["__key__"] for batch in rest] == [batch["__key__"] for batch in expected[4:]]


class Streams(torch.utils.data.IterableDataset):
    """What people write: a dataset that opens the loader in the worker, or iterates over one of the parent."""

    def __init__(self, make, loader=None):
        self.make, self.loader = make, loader

    def __iter__(self):
        if self.loader is None:
            with self.make() as loader:
                yield from loader
        else:
            yield from self.loader


def kinds_of_loaders(dataset, tmp_path):
    samples = str(tmp_path / "samples.tar")
    with tarfile.open(samples, "w") as tar:
        for i in range(8):
            info = tarfile.TarInfo(f"{i}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    return {
        "Loader": lambda: mr.Loader(dataset.tars, **options(epochs=1)),
        "torch.Loader": lambda: mr.torch.Loader(dataset.tars, **options(epochs=1)),
        "SampleLoader": lambda: mr.SampleLoader(samples, fields=["txt"], batch_size=2, epochs=1),
    }


@pytest.mark.parametrize("kind", ["Loader", "torch.Loader", "SampleLoader"])
@pytest.mark.parametrize("where", ["opened in the worker", "opened before", "begun before"])
def test_several_workers_with_a_loader_each_are_refused(dataset, tmp_path, kind, where):
    """Each of them would give every batch."""
    make = kinds_of_loaders(dataset, tmp_path)[kind]
    loader = None if where == "opened in the worker" else make()
    if where == "begun before":
        next(loader)
    data = DataLoader(Streams(make, loader), batch_size=None, num_workers=2)
    with pytest.raises(RuntimeError, match=r"worker \d of 2 .*as_iterable"):
        list(data)
    if loader is not None:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_may_open_a_loader(dataset, epochs, workers):
    make = lambda: mr.torch.Loader(dataset.tars, **options(epochs=1))  # noqa: E731
    data = DataLoader(Streams(make), batch_size=None, num_workers=workers)
    assert [ids(batch) for batch in data] == epochs[0]
