# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Loader(device=) with the CPU in the part of the device: batches in a ring of pinned buffers, one copy
each, against the plain loader."""

import gc
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from late_device import Late  # noqa: E402
from test_torch_loader import SEQ_LEN, shards, values  # noqa: E402, F401

import millrace as mr  # noqa: E402


def ring_module():
    return sys.modules["millrace.torch.device_ring"]


def on_ring(loader, device=None, ahead=2):
    """A loader as if it had been opened with device=."""
    loader._ahead = ring_module().RingCopies(loader._reader, device or Late(), ahead)
    return loader


def same(batch, expected):
    assert list(batch) == list(expected)
    for name, tensor in expected.items():
        assert batch[name].dtype == tensor.dtype and batch[name].shape == tensor.shape, name
        assert torch.equal(batch[name], tensor), name
    return True


def random_options(random):
    collate = random.choice(["pad", "pack", "best_fit"])
    fill_last, ranks = random.choice([None, "pad", "repeat"]), random.randint(1, 3)
    rows = random.randint(1, 9)
    return dict(
        collate=collate, seq_len=random.randint(1, 40), global_batch_size=rows * ranks if fill_last else rows, uneven_ranks=fill_last is None,
        seed=random.randrange(1 << 30), dtype=random.choice(["int64", "int32"]), epochs=random.choice([None, 1, 2]),
        drop_last=fill_last is None and random.random() < 0.5, fill_last=fill_last,
        carry_state=random.random() < 0.5, carry_documents=collate != "pad" and random.random() < 0.5,
        shuffle=random.choice([True, False]), num_threads=random.randint(1, 4), world_size=ranks,
        rank=random.randrange(ranks),
    )  # fmt: skip


def test_random_loaders_give_on_a_device_what_they_give_on_the_host(shards, seeded):  # noqa: F811
    """Copies are late: each is made when its event is waited for, so a buffer that was written too early would show.
    All batches are kept, and compared again at the end."""
    for _ in range(12):
        options = random_options(seeded)
        with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
            device = Late()
            on_ring(loader, device, ahead=seeded.randint(1, 4))
            assert loader.state_dict() == plain.state_dict()
            kept = []
            for number, expected in enumerate(plain):
                batch = next(loader)
                same(batch, expected)
                assert loader.state_dict() == plain.state_dict()
                kept.append((batch, expected))
                if number == 60:
                    break
            else:
                with pytest.raises(StopIteration):
                    next(loader)
            assert all(same(*pair) for pair in kept)
            assert len(device.made) == 1 and loader.stats()["batch_copies"] == 0


def test_a_mixture_says_its_sources(shards, seeded):  # noqa: F811
    sources = [mr.Source(shards, weight=1), mr.Source(shards, weight=3)]
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=seeded.randrange(99), stop="first_empty", carry_source=True)
    with mr.torch.Loader(sources, **options) as plain, mr.torch.Loader(sources, **options) as loader:
        on_ring(loader)
        for expected in plain:
            assert same(next(loader), expected) and loader.state_dict() == plain.state_dict()


def test_a_loader_moves_at_random_like_another(shards, seeded):  # noqa: F811
    """States, passes, skips and a `for` that is left, with copies under way. No buffer is lost on the way."""
    options = dict(batch_size=2, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_ring(loader)
        states = [plain.state_dict()]
        for _ in range(80):
            move = seeded.choice(["next", "next", "next", "for", "load", "pass", "skip", "state"])
            state, epoch, step = seeded.choice(states), seeded.randrange(3), seeded.randrange(20)
            answers = []
            for each in (plain, loader):
                if move == "next":
                    answers.append(values([batch]) if (batch := next(each, None)) else "end")
                elif move == "for":
                    answers.append(values(batch for _, batch in zip(range(epoch), each, strict=False)))
                elif move == "load":
                    each.load_state_dict(state)
                elif move == "pass":
                    each.set_epoch(epoch)
                elif move == "skip":
                    try:
                        each.skip(step, step + 1)
                    except ValueError as error:  # no such step
                        answers.append(str(error))
                answers.append((each.state_dict(), each.next_pass))
            assert answers[: len(answers) // 2] == answers[len(answers) // 2 :], move
            states.append(plain.state_dict())
        assert loader.stats()["batch_copies"] == 0


def test_a_copy_that_fails_loses_no_batch_and_moves_no_state(shards):  # noqa: F811
    device = Late()
    original, calls = device.empty_like, []

    def fails_sometimes(value):
        calls.append(value)
        if len(calls) % 3 == 0:
            raise torch.cuda.OutOfMemoryError("no memory on the device")
        return original(value)

    device.empty_like = fails_sometimes
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_ring(loader, device)
        failed = 0
        for expected in plain:
            before = loader.state_dict()
            while True:
                try:
                    batch = next(loader)
                    break
                except torch.cuda.OutOfMemoryError:
                    failed += 1
                    assert loader.state_dict() == before
            assert same(batch, expected) and loader.state_dict() == plain.state_dict()
    assert len(calls) > 20


def test_every_copy_may_fail_once(shards):  # noqa: F811
    device = Late()
    original, failed = device.empty_like, []

    def fails_first(value):
        if len(failed) % 2 == 0:
            failed.append(True)
            raise torch.cuda.OutOfMemoryError("no memory on the device")
        failed.append(False)
        return original(value)

    device.empty_like = fails_first
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_ring(loader, device, ahead=0)
        for expected in plain:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                next(loader)
            assert loader._ahead.is_ahead and same(next(loader), expected)


def test_a_close_with_copies_under_way(shards):  # noqa: F811
    """What was returned stays, and the memory of the ring outlives the copies out of it."""
    device = Late()
    loader = on_ring(mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, seed=3), device)
    kept = [next(loader) for _ in range(4)]
    while not loader._ahead._items:
        kept.append(next(loader))
    loader.close()
    with pytest.raises(mr.Cancelled):
        next(loader)
    with mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, seed=3) as plain:
        assert all(same(batch, next(plain)) for batch in kept)
    del loader, plain
    gc.collect()
    with device.side_stream():
        device.record().synchronize()  # the copies that were under way are made now
    assert not device.queue


def test_the_state_is_behind_what_was_returned_at_the_end_of_a_pass_too(shards):  # noqa: F811
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_ring(loader)
        for each in (plain, loader):
            each.taken = [*each, *each]
            each.end = each.state_dict()
        assert values(loader.taken) == values(plain.taken) and loader.end == plain.end


def test_a_damaged_batch_is_an_error_in_its_turn(tmp_path, shards):  # noqa: F811
    for file in Path(shards[0]).parent.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    damaged = sorted(tmp_path.glob("*.tar"))[-1]
    data = bytearray(damaged.read_bytes())
    at = data.rindex(b"\x93NUMPY")
    data[at + 130] ^= 1
    damaged.write_bytes(data)
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1, shuffle=False)
    with mr.torch.Loader(tmp_path, **options) as plain, mr.torch.Loader(tmp_path, **options) as loader:
        on_ring(loader)
        for each in (plain, loader):
            each.taken = []
            for _ in range(2):
                with pytest.raises(mr.CorruptionError) as error:
                    each.taken.extend(each)
                each.error = str(error.value)
        assert loader.error == plain.error and values(loader.taken) == values(plain.taken)
        assert loader.state_dict() == plain.state_dict() and loader.taken


def test_fields_are_as_if_they_were_apart(shards):  # noqa: F811
    """Views of one block, but writing into one does not spoil another that a backward needs."""
    with mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, seed=7) as loader:
        batch = next(on_ring(loader))
    ids, labels, mask = batch["input_ids"], batch["labels"], batch["attention_mask"]
    assert ids.untyped_storage().data_ptr() == labels.untyped_storage().data_ptr()
    assert all(t.is_contiguous() and not t.requires_grad and t.data_ptr() % 64 == 0 for t in batch.values())
    weight = torch.randn(4, SEQ_LEN, requires_grad=True)
    loss = (weight * labels).sum()  # keeps the labels
    before = labels.clone()
    ids.zero_()
    mask.fill_(5)
    loss.backward()
    assert torch.equal(labels, before) and torch.equal(weight.grad, before.float())
    loss = (weight * labels).sum()
    labels.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_batch_that_was_fetched_ahead_in_inference_mode_can_be_trained_on(shards):  # noqa: F811
    with mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, seed=7) as loader:
        on_ring(loader)
        with torch.inference_mode():
            first = next(loader)
        weight = torch.randn(4, SEQ_LEN, requires_grad=True)
        for batch in (first, next(loader), next(loader)):
            assert not any(tensor.is_inference() for tensor in batch.values())
            (weight * batch["labels"]).sum().backward()


def test_batches_beyond_the_ring_lie_in_other_memory(shards):  # noqa: F811
    """The reader never waits for who keeps batches."""
    options = dict(batch_size=1, seq_len=SEQ_LEN, seed=7)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        reader = loader._reader
        size, count = reader.ring_space(4)
        ring = np.zeros(size * count + 64, dtype=np.uint8)
        reader.use_ring(ring.ctypes.data + -ring.ctypes.data % 64, size, count, 4, ring)
        kept = [reader.next_in_ring(True) for _ in range(count + 5)]
        assert sorted(batch.buffer for batch in kept) == [-1] * 5 + list(range(count))
        for batch in kept:
            name, dtype, shape, at = batch.layout[0]
            assert (name, dtype, shape) == ("input_ids", "int64", (1, SEQ_LEN))
            ids = batch.array()[at : at + 8 * SEQ_LEN].view(np.int64).reshape(shape)
            assert np.array_equal(ids, next(plain)["input_ids"].numpy())
        assert kept[0].layout is kept[1].layout
        kept[0].release()
        with pytest.raises(ValueError, match="released"):
            kept[0].array()
        del ids, batch, kept
        # Those that were ready before lie elsewhere yet.
        assert any(reader.next_in_ring(True).buffer >= 0 for _ in range(count))
        with pytest.raises(ValueError, match="in other memory already"):
            reader.use_ring(ring.ctypes.data + -ring.ctypes.data % 64, size, count, 4, ring)


def test_a_batch_in_other_memory_is_copied_all_the_same(shards):  # noqa: F811
    class Early(Late):
        """Copies memory that is not pinned at once, as CUDA does."""

        plain_copies = 0

        def copy(self, target, pinned):
            if any(buffer.untyped_storage().data_ptr() == pinned.untyped_storage().data_ptr() for buffer in self.made):
                return super().copy(target, pinned)
            self.plain_copies += 1
            target.copy_(pinned)

    options = dict(batch_size=1, seq_len=SEQ_LEN, seed=7)
    device = Early()
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_ring(loader, device)
        same(next(loader), next(plain))
        taken = [loader._reader.next_in_ring(True)]
        while taken[-1].buffer >= 0:
            taken.append(loader._reader.next_in_ring(True))
        loader._ahead._uncopied = taken.pop()  # as if the device had not had memory for it
        ahead = len(loader._ahead._items)
        batches = [next(loader) for _ in range(ahead + 1)]
        expected = [next(plain) for _ in range(ahead + len(taken) + 1)]
        assert all(map(same, batches, [*expected[:ahead], expected[-1]]))
        assert device.plain_copies > 0


def test_next_asks_torch_for_few_things(shards):  # noqa: F811
    """The ring, its buffers and their parts are made once. Then a batch costs one piece of memory, one copy, one event,
    and the views that are returned."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            asked.append(str(function))
            return function(*args, **(kwargs or {}))

    device, events = Late(), []
    record = device.record
    device.record = lambda: events.append(record()) or events[-1]
    with mr.torch.Loader(shards, batch_size=1, seq_len=SEQ_LEN, seed=7) as loader:
        on_ring(loader, device)
        for _ in range(200):  # every buffer of the ring was used
            next(loader)
        begun, copies = len(events), len(device.queue)
        asked = []
        with Count():
            for _ in range(50):
                next(loader)
        views = [name for name in asked if "view" in name or "as_strided" in name]
        apart = [name for name in asked if "detach" in name]
        # As many as were returned, give or take those ahead. `data` is a detach or two, as torch counts.
        assert 48 <= len(events) - begun <= 52 and copies <= 6
        assert len(views) == 50 * (1 + 3)
        # The memory of the device, the copy, and filling it: Late does that.
        assert len(asked) - len(views) - len(apart) <= 3 * 52, asked[:20]
