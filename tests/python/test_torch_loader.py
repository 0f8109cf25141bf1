# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Loader against millrace.Loader: the same numbers, in the same memory."""

import gc
import json
import pickle
import re
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from late_device import Late  # noqa: E402

import millrace as mr  # noqa: E402

SEQ_LEN = 16


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of 200 short documents, with a byte-level tokenizer that has no merges."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    (folder / "raw.txt").write_text("".join(f"document {i} says {'x' * (i % 23)}\n" for i in range(200)))
    mr.prepare([str(folder / "raw.txt")], tokenizer=str(folder / "tokenizer.json"), out=str(folder / "out"))
    return sorted(str(path) for path in (folder / "out").glob("*.tar"))


def byte_tokenizer() -> str:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {alphabet[byte]: byte for byte in range(256)}, "merges": []}  # fmt: skip
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                       "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
                       "model": model})  # fmt: skip


@pytest.mark.parametrize("collate", ["pad", "pack"])
def test_tensors_equal_the_arrays(shards, collate):
    options = dict(batch_size=4, seq_len=SEQ_LEN, collate=collate, seed=3, epochs=1)
    with mr.Loader(shards, **options) as arrays, mr.torch.Loader(shards, **options) as tensors:
        count = 0
        for expected, batch in zip(arrays, tensors, strict=True):
            assert expected.keys() == batch.keys()
            for name, array in expected.items():
                assert batch[name].dtype == torch.int64
                assert np.array_equal(batch[name].numpy(), array)
            count += 1
        assert count > 5


def test_tensors_share_the_memory_of_the_arrays(shards, monkeypatch):
    given = []
    original = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: given.append(array) or original(array))
    with mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN) as loader:
        batch = next(loader)
    for array, tensor in zip(given, batch.values(), strict=True):
        assert tensor.data_ptr() == array.ctypes.data
        assert array.flags.writeable  # or torch warns of undefined behaviour
    kept = batch["input_ids"].clone()
    given.clear()
    del loader, array
    assert torch.equal(batch["input_ids"], kept)  # the tensor keeps the memory alive


@pytest.mark.parametrize("device", ["gpu9", "cuda:x", 1.5])
def test_a_device_that_torch_does_not_know_is_named(shards, device):
    with pytest.raises(ValueError, match=re.escape(f"device {device!r}: torch knows no such device")):
        mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, device=device)


def test_state_continues_where_it_was_taken(shards):
    options = dict(batch_size=4, seq_len=SEQ_LEN, collate="pack", seed=5, device="cpu")
    with mr.torch.Loader(shards, **options) as loader:
        for _ in range(3):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = next(loader)["input_ids"].clone()
    with mr.torch.Loader(shards, **options) as loader:
        loader.load_state_dict(state)
        assert torch.equal(next(loader)["input_ids"], expected)


def test_pickle_carries_the_arguments(shards):
    with mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN, seed=5) as loader:
        first = next(loader)["input_ids"].clone()
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert torch.equal(next(copy)["input_ids"], first)


def test_rank_comes_from_the_environment(shards, monkeypatch):
    options = dict(global_batch_size=8, seq_len=SEQ_LEN, seed=5)
    with mr.torch.Loader(shards, rank=1, world_size=2, **options) as loader:
        expected = next(loader)["input_ids"].clone()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with mr.torch.Loader(shards, **options) as loader:
        assert torch.equal(next(loader)["input_ids"], expected)
    with pytest.raises(ValueError, match="together"):
        mr.torch.Loader(shards, rank=1, **options)


@pytest.fixture
def device_copies():
    """The look-ahead, with the CPU in the part of the device."""
    return lambda inner: device_module().DeviceCopies(inner, Late())


@pytest.fixture(params=["thread", "ring"])
def on_either(request):
    """A loader as if it had been opened with device=, through a thread or a ring of pinned buffers."""

    def on(loader):
        if request.param == "thread":
            return on_a_device(loader, lambda inner: device_module().DeviceCopies(inner, Late()))
        loader._ahead = sys.modules["millrace.torch.device_ring"].RingCopies(loader._reader, Late())
        return loader

    return on


def device_module():
    return sys.modules["millrace.torch.device"]


def test_two_pinned_buffers_serve_all_batches():
    """A copy that is under way reads its buffer, so that is not written before."""
    device = Late()
    ring = device_module().PinnedRing(device)
    begun = []
    for number in range(5):
        batch = {"ids": torch.full((3, 5), number), "pixels": [torch.full((number + 1, 2), number, dtype=torch.uint8)]}
        begun.append((number, *ring.begin(batch)))
        batch["ids"].zero_()  # who gave it may use it again at once
    for number, moved, event in begun:
        event.synchronize()
        assert torch.equal(moved["ids"], torch.full((3, 5), number))
        assert torch.equal(moved["pixels"][0], torch.full((number + 1, 2), number, dtype=torch.uint8))
    assert len(device.made) == 2


def test_a_larger_batch_gets_a_larger_buffer_and_what_was_returned_stays():
    device = Late()
    ring = device_module().PinnedRing(device)
    kept = [
        (size, ring.to_device({"x": torch.arange(size, dtype=torch.float64)})["x"]) for size in (8, 8, 90, 70, 8, 80)
    ]
    for size, tensor in kept:
        assert torch.equal(tensor, torch.arange(size, dtype=torch.float64))
        assert all(tensor.untyped_storage().data_ptr() != b.untyped_storage().data_ptr() for b in device.made)
    assert [buffer.numel() for buffer in device.made] == [64, 64, 768, 576, 640]


def test_copies_begun_before_an_error_keep_their_buffer():
    device = Late()
    ring = device_module().PinnedRing(device)
    targets, original = [], device.empty_like

    def fails_at_the_second(value):
        if value.dtype == torch.int32:
            raise torch.cuda.OutOfMemoryError("no memory on the device")
        targets.append(original(value))
        return targets[-1]

    device.empty_like = fails_at_the_second
    with pytest.raises(torch.cuda.OutOfMemoryError):
        ring.begin({"a": torch.full((4,), 1), "b": torch.full((4,), 2, dtype=torch.int32)})
    for value in (3, 4, 5):
        ring.begin({"a": torch.full((4,), value)})
    assert torch.equal(targets[0], torch.full((4,), 1))


def test_whatever_a_batch_holds_comes_to_the_device():
    device = Late()
    odd = torch.arange(12).view(3, 4).t()
    batch = {
        "array": np.arange(6, dtype=np.int32).reshape(2, 3), "flags": np.array([True, False]), "none": np.zeros((0, 4)),
        "texts": ["a", "b"], "times": np.array(["2026-01-01"], dtype="datetime64[D]"), "gaps": [None, np.ones(3)],
        "nested": {"x": torch.ones(2, dtype=torch.bfloat16)}, "odd": odd, "scalar": torch.tensor(7.5),
        "complex": torch.tensor([1 + 2j]), "objects": [{"a": 1}], "parts": [None, {"x": np.arange(3), "y": ["z"]}],
    }  # fmt: skip
    moved = device_module().PinnedRing(device).to_device(batch)
    assert list(moved) == list(batch)
    assert torch.equal(moved["array"], torch.arange(6, dtype=torch.int32).view(2, 3))
    assert moved["flags"].tolist() == [True, False] and moved["none"].shape == (0, 4)
    assert moved["parts"][0] is None and moved["parts"][1]["y"] == ["z"]
    assert torch.equal(moved["parts"][1]["x"], torch.arange(3))
    assert moved["texts"] == ["a", "b"] and moved["times"] is batch["times"] and moved["objects"] == [{"a": 1}]
    assert moved["gaps"][0] is None and torch.equal(moved["gaps"][1], torch.ones(3, dtype=torch.float64))
    assert torch.equal(moved["nested"]["x"], torch.ones(2, dtype=torch.bfloat16))
    assert torch.equal(moved["odd"], odd) and moved["odd"].data_ptr() != odd.data_ptr()
    assert moved["scalar"] == 7.5 and moved["complex"].tolist() == [1 + 2j]


def test_device_copies_run_ahead(shards, device_copies):
    """What is fetched ahead is not in the state."""
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.Loader(shards, **options) as plain, mr.Loader(shards, **options) as inner:
        ahead = device_copies(inner)
        assert ahead.state == plain.state_dict()
        for expected in plain:
            assert torch.equal(next(ahead)["input_ids"], torch.from_numpy(expected["input_ids"]))
            assert ahead.state == plain.state_dict()
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(ahead)


def test_no_more_batches_than_asked_for_are_fetched_ahead(device_copies):
    class Counted:
        given = 0
        fetched = threading.Semaphore(0)

        def __next__(self):
            self.given += 1
            self.fetched.release()
            return {"x": np.array([self.given])}

        def state_dict(self):
            return {"given": self.given}

    inner = Counted()
    ahead = device_copies(inner)
    for number in range(1, 5):
        assert next(ahead)["x"].tolist() == [number] and ahead.state == {"given": number}
        for _ in range(3 if number == 1 else 1):
            assert inner.fetched.acquire(timeout=60)
        assert not inner.fetched.acquire(timeout=0.05)
    ahead.pause()
    assert not ahead._shared.changed._is_owned() and ahead._thread is None
    # A pause loses nothing.
    assert [next(ahead)["x"].item() for _ in range(4)] == [5, 6, 7, 8]
    ahead.restart()
    assert ahead.state == {"given": inner.given}


def test_a_batch_whose_copy_fails_is_copied_by_the_next_call():
    """Another error than one of the loader: the batch was fetched, so the loader would not give it again."""
    device = Late()
    original, calls = device.empty_like, []

    def fails_once(value):
        calls.append(value)
        if len(calls) == 3:
            raise torch.cuda.OutOfMemoryError("no memory on the device")
        return original(value)

    class Numbers:
        given = 0

        def __next__(self):
            self.given += 1
            return {"x": np.array([self.given])}

        def state_dict(self):
            return {"given": self.given}

    device.empty_like = fails_once
    ahead = device_module().DeviceCopies(Numbers(), device)
    given = []
    while len(given) < 6:
        try:
            given.append(next(ahead)["x"].item())
        except torch.cuda.OutOfMemoryError:
            assert given == [1, 2] and ahead.is_ahead
        assert ahead.state == {"given": len(given)}
    assert given == [1, 2, 3, 4, 5, 6] and len(calls) >= 7
    ahead.restart()


def test_the_thread_ends_with_its_loader(device_copies):
    class Endless:
        def __next__(self):
            return {"x": np.zeros(1)}

        def state_dict(self):
            return {}

    ahead = device_copies(Endless())
    next(ahead)
    thread = ahead._thread
    del ahead
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def on_a_device(loader, copies):
    """A loader of this module as if it had been opened with device=."""
    inner = sys.modules["millrace.torch.samples"]._Tensors(loader) if hasattr(loader, "_batches") else loader._reader
    loader._ahead = copies(inner)
    return loader


def values(batches):
    return [batch["input_ids"].tolist() for batch in batches]


def test_a_loader_for_a_device_moves_like_another(shards, on_either):
    """Passes, a `for` that is left, states, skips and provenance, with batches under way."""
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as plain, mr.torch.Loader(shards, **options) as loader:
        on_either(loader)
        steps = len(plain)
        assert steps > 6 and len(loader) == steps
        for each in (plain, loader):
            each.taken = [next(each), next(each)]
            each.taken += [batch for _, batch in zip(range(2), each, strict=False)]
            assert each.next_pass == 0
            each.taken += list(each)  # the next pass, as the `for` before was left
            each.state = each.state_dict()
            assert each.next_pass == 2
            each.taken += [next(iter(each))]
            each.load_state_dict(each.state)
            each.taken += [next(each)]
            each.skip(2, 4)
            each.taken += list(each)
        assert values(loader.taken) == values(plain.taken) and loader.state == plain.state
        assert loader.state_dict() == plain.state_dict()


def test_next_pass_is_told_from_where_training_is(shards, on_either):
    """Not from where the reader is, which may have reached the end."""
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.torch.Loader(shards, **options) as loader:
        on_either(loader)
        steps = len(loader)
        for _ in range(steps - 1):
            last = next(loader)
        assert loader.next_pass == 0
        rest = list(loader)  # goes on in this pass
        assert len(rest) == 1 and not torch.equal(rest[0]["input_ids"], last["input_ids"])
        assert loader.next_pass == 1


def test_close_ends_a_wait_of_the_thread(tmp_path, shards, device_copies):
    loader = on_a_device(mr.torch.Loader(shards, batch_size=4, seq_len=SEQ_LEN), device_copies)
    next(loader)
    thread = loader._ahead._thread
    loader.close()
    thread.join(60)
    assert not thread.is_alive()


def test_an_error_of_the_batch_ahead_loses_no_batch_and_moves_no_state(shards, device_copies):
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.Loader(shards, **options) as plain, mr.Loader(shards, **options) as inner:

        class Stalls:
            """Each batch is preceded by a stall."""

            due = False

            def __next__(self):
                self.due = not self.due
                if self.due:
                    raise TimeoutError("no batch")
                return next(inner)

            def state_dict(self):
                return inner.state_dict()

        ahead = device_copies(Stalls())
        for expected in plain:
            before, stalls = ahead.state, 0
            while True:
                try:
                    batch = next(ahead)
                    break
                except TimeoutError:
                    stalls += 1
                    assert ahead.state == before
            assert stalls > 0
            assert torch.equal(batch["input_ids"], torch.from_numpy(expected["input_ids"]))
            assert ahead.state == plain.state_dict()


def test_samples_are_copied_ahead(tmp_path, device_copies):
    from sample_tars import picture_tars

    tars = picture_tars(tmp_path, shards=2, each=20)
    fields = {"image": mr.image("jpg;png;webp"), "cls": mr.integer(), "txt": mr.text()}
    options = dict(fields=fields, batch_size=4, seed=7, epochs=1)
    with mr.torch.SampleLoader(tars, **options) as plain, mr.torch.SampleLoader(tars, **options) as loader:
        loader._ahead = device_copies(sys.modules["millrace.torch.samples"]._Tensors(loader))
        assert loader.state_dict() == plain.state_dict()
        for expected in plain:
            batch = next(loader)
            assert batch["__key__"] == expected["__key__"] and batch["txt"] == expected["txt"]
            assert torch.equal(batch["cls"], expected["cls"])
            assert all(map(torch.equal, batch["image"], expected["image"]))
            assert loader.state_dict() == plain.state_dict()
