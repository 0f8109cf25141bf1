# SPDX-License-Identifier: Apache-2.0
"""mr.Tokenizer as a Python object: pickles, Ctrl-C, and what decode takes."""

import json
import multiprocessing
import os
import pickle
import signal
import threading

import numpy as np
import pytest

import millrace as mr


@pytest.fixture
def path(tmp_path):
    """Ids are bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # GPT-2's spelling of bytes
    hidden = [b for b in range(256) if b not in shown]
    spelling = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {spelling[b]: b for b in range(256)}, "merges": []}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "pre_tokenizer": level, "decoder": level, "model": model}))
    return file


@pytest.fixture
def tokenizer(path):
    return mr.Tokenizer.from_file(str(path))


def encoded(tokenizer, text):
    return tokenizer.encode(text).tolist()


def test_pickle_goes_to_a_spawned_process(tokenizer, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    by_name = mr.Tokenizer.from_file(path.name)
    monkeypatch.chdir("/")  # where the relative path names nothing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(encoded, (by_name, "some text")) == encoded(tokenizer, "some text")
    assert pickle.dumps(tokenizer) == pickle.dumps(pickle.loads(pickle.dumps(tokenizer)))


def test_pickle_of_a_file_that_changed_is_refused(tokenizer, path):
    pickled = pickle.dumps(tokenizer)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(mr.CorruptionError, match="has changed"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)


def test_map_of_datasets(tokenizer):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["one", "another", "third", "fourth"]})
    mapped = rows.map(lambda row: {"ids": tokenizer.encode(row["text"])}, num_proc=2)
    assert mapped["ids"][1] == encoded(tokenizer, "another")


def test_ctrl_c_ends_a_long_batch(tokenizer):
    """A signal that waits for the end of the batch is handled once; here it is handled twice on the way."""
    texts = ["hello world " * 100] * 150_000
    handled = threading.Semaphore(0)
    pressed = 0

    def handler(number, frame):
        nonlocal pressed
        pressed += 1
        handled.release()
        if pressed == 2:
            raise KeyboardInterrupt

    def press():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            handled.acquire()

    before = signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=press, daemon=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            tokenizer.encode_batch(texts)
            # Any signal still on its way is the second, and comes too late.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)
    ids, offsets = tokenizer.encode_batch(["a", "bc"])
    assert ids.tolist() == [97, 98, 99] and offsets.tolist() == [0, 1, 3]


@pytest.mark.parametrize("good", [[65, 66], (65, 66), np.array([65, 66]), np.array([65, 66], np.uint32), range(65, 67)])
def test_decode_takes_integers(tokenizer, good):
    assert tokenizer.decode(good) == tokenizer.decode([65, 66]) != ""


@pytest.mark.parametrize("bad", [1.5, 65.0, "65", None, True, np.float32(65), np.bool_(True), [65]])
def test_decode_refuses_what_is_no_integer(tokenizer, bad):
    with pytest.raises(TypeError, match=r"ids\[1\]"):
        tokenizer.decode([65, bad])


@pytest.mark.parametrize("bad", [-1, -100, 2**32, 2**70, np.int64(-1)])
def test_decode_refuses_integers_that_are_no_ids(tokenizer, bad):
    with pytest.raises(ValueError, match=r"ids\[1\]"):
        tokenizer.decode([65, bad])
