# SPDX-License-Identifier: Apache-2.0
"""However Python holds a text, its bytes are what is encoded: a tokenizer whose ids are the bytes shows them."""

import json
import os
import random

import numpy as np
import pytest

import millrace as mr

SEED = int(os.environ.get("MILLRACE_TEST_SEED", random.randrange(2**32)))


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # GPT-2's spelling of bytes
    hidden = [b for b in range(256) if b not in shown]
    spelling = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {spelling[b]: b for b in range(256)}, "merges": []}
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "pre_tokenizer": level, "decoder": level, "model": model}))
    return mr.Tokenizer.from_file(str(path))


class Text(str):
    pass


def texts(rng):
    """Of each kind: ASCII, one, two and four bytes a character; with a UTF-8 that Python made already, a subclass, long, empty."""
    for top in (0x80, 0x100, 0x3000, 0xD800, 0x110000):
        for length in (0, 1, 7, 15, 16, 17, 100, 5000):
            text = "".join(chr(c) for c in (rng.randrange(top) for _ in range(length)) if not 0xD800 <= c < 0xE000)
            yield text
            known = text[::-1]
            known.isidentifier(), known.encode(), f"{known}", np.str_(known)
            yield known
            yield Text(text)
    yield "é" * 5_000_000
    yield "ж" * 5_000_000 + "."


def test_every_kind_of_str_gives_its_bytes(byte_tokenizer):
    rng = random.Random(SEED)
    given = list(texts(rng))
    rng.shuffle(given)
    ids, offsets = byte_tokenizer.encode_batch(given)
    assert len(offsets) == len(given) + 1
    for i, text in enumerate(given):
        assert ids[offsets[i] : offsets[i + 1]].astype(np.uint8).tobytes() == text.encode(), f"seed {SEED}, text {i}"
    for text in given[:20]:
        assert byte_tokenizer.encode(text).astype(np.uint8).tobytes() == text.encode(), f"seed {SEED}"


@pytest.mark.parametrize("text", ["\ud800", "a" * 40 + "\udfff", "\U0001f600\udabc", "ж" * 33 + "\ud912"])
def test_lone_surrogates_are_refused(byte_tokenizer, text):
    with pytest.raises(UnicodeEncodeError):
        byte_tokenizer.encode_batch(["fine", text, "fine"])
    with pytest.raises(UnicodeEncodeError):
        byte_tokenizer.encode(text)
    assert byte_tokenizer.encode_batch(["fine"])[0].astype(np.uint8).tobytes() == b"fine"


def test_only_str_is_taken(byte_tokenizer):
    for wrong in (b"bytes", 3, None):
        with pytest.raises(TypeError):
            byte_tokenizer.encode_batch(["fine", wrong])


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_no_id(byte_tokenizer, threads):
    rng = random.Random(SEED)
    given = [text for text in texts(rng) if len(text) < 10_000] * 3 + ["", "é" * 200_000, ""]
    rng.shuffle(given)
    ids, offsets = byte_tokenizer.encode_batch(given)
    threaded_ids, threaded_offsets = byte_tokenizer.encode_batch(given, threads=threads)
    np.testing.assert_array_equal(threaded_ids, ids, f"seed {SEED}")
    np.testing.assert_array_equal(threaded_offsets, offsets, f"seed {SEED}")
    with pytest.raises(UnicodeEncodeError, match="position 2"):
        byte_tokenizer.encode_batch(["fine" * 50_000, "ab\udfff", "fine" * 50_000, "\udfff"] * 2, threads=threads)
    assert len(byte_tokenizer.encode_batch([], threads=threads)[0]) == 0


def test_a_thread_there_must_be(byte_tokenizer):
    with pytest.raises(ValueError, match="threads"):
        byte_tokenizer.encode_batch(["a"], threads=0)
