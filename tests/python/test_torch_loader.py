# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Loader against millrace.Loader: the same numbers, in the same memory."""

import json
import pickle
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

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


def test_device_copies_run_one_batch_ahead(shards, monkeypatch):
    """The look-ahead with the CPU in the part of the device: what is fetched ahead is not in the state."""

    class Stream:
        def __init__(self, device): ...
        def wait_stream(self, other): ...
        def __enter__(self): ...
        def __exit__(self, *exception): ...

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    copies = sys.modules["millrace.torch.loader"]._DeviceCopies
    options = dict(batch_size=4, seq_len=SEQ_LEN, seed=7, epochs=1)
    with mr.Loader(shards, **options) as plain, mr.Loader(shards, **options) as inner:
        ahead = copies(inner, torch.device("cpu"))
        assert ahead.state == plain.state_dict()
        for expected in plain:
            assert torch.equal(next(ahead)["input_ids"], torch.from_numpy(expected["input_ids"]))
            assert ahead.state == plain.state_dict()
        with pytest.raises(StopIteration):
            next(ahead)
