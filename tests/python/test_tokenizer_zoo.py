# SPDX-License-Identifier: Apache-2.0
"""Every component of a tokenizer.json against the `tokenizers` package, one small file after another (tokenizer_zoo.py).

MILLRACE_TEST_DATA    a real charsmap is taken from there; what needs it is skipped without it
MILLRACE_TEST_SEED    the seed that a failure prints
MILLRACE_FUZZ_STRINGS strings for each file (default 50)
"""

import json
import os
import random

import pytest

mr = pytest.importorskip("millrace")
hf = pytest.importorskip("tokenizers")

from tokenizer_refused import NOT_OURS, REFUSED  # noqa: E402
from tokenizer_zoo import ZOO  # noqa: E402
from trouble import hostile  # noqa: E402

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
STRINGS = int(os.environ.get("MILLRACE_FUZZ_STRINGS", "50"))


def opened(build, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(build()), encoding="utf-8")
    return mr.Tokenizer.from_file(str(path)), hf.Tokenizer.from_file(str(path))


def answer(call):
    """What `call` gives, or None for an error. A panic of `tokenizers` is no Exception."""
    try:
        return call()
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def their_encoding(theirs, text, special):
    encoding = answer(lambda: theirs.encode(text, add_special_tokens=special))
    if encoding is None:
        return None
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    offsets = [(starts[begin], starts[end]) for begin, end in encoding.offsets]
    decoded = answer(lambda: theirs.decode(encoding.ids, skip_special_tokens=special))
    return {"ids": encoding.ids, "offsets": offsets, "decoded": decoded}


def our_encoding(ours, text, special):
    found = answer(lambda: ours.encode_with_offsets(text, add_special_tokens=special))
    if found is None:
        return None
    ids, offsets = found
    assert ours.encode(text, add_special_tokens=special).tolist() == ids.tolist()
    decoded = answer(lambda: ours.decode(ids, skip_special_tokens=special))
    return {"ids": ids.tolist(), "offsets": [tuple(offset) for offset in offsets.tolist()], "decoded": decoded}


def difference(ours, theirs, text, special):
    """The difference as a text; empty when there is none."""
    expected, found = their_encoding(theirs, text, special), our_encoding(ours, text, special)
    if expected is None or found is None:
        return None if expected == found else f"{found}, not {expected}"
    for key, value in expected.items():
        # A decoder that panics has no answer to compare with.
        if found[key] != value and not (key == "decoded" and value is None):
            return f"{key}: {found[key]}, not {value}"
    return None


def shrunk(text, differs):
    """A shorter text that still differs."""
    step = max(1, len(text) // 2)
    while step:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + step :]
            if differs(shorter):
                text = shorter
            else:
                at += step
        step //= 2
    return text


@pytest.mark.parametrize("name", ZOO)
def test_component(name, tmp_path):
    if name == "normalizer-Precompiled" and "MILLRACE_TEST_DATA" not in os.environ:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    ours, theirs = opened(ZOO[name], tmp_path)
    assert ours.vocab_size == theirs.get_vocab_size(with_added_tokens=True)
    specials = [token.content for token in theirs.get_added_tokens_decoder().values()]
    rng = random.Random(f"{SEED} {name}")
    for text in ["", " ", "a", "  a", *(hostile(rng, specials) for _ in range(STRINGS))]:
        for special in (True, False):
            if difference(ours, theirs, text, special) is not None:
                text = shrunk(text, lambda t: difference(ours, theirs, t, special) is not None)  # noqa: B023
                what = difference(ours, theirs, text, special)
                pytest.fail(f"MILLRACE_TEST_SEED={SEED} {name}, special tokens {special}: {text!r}: {what}")


@pytest.mark.parametrize(
    "name", [name for name in ZOO if name.startswith(("decoder", "bpe", "unigram", "pieces", "words"))]
)
def test_random_ids_decode_alike(name, tmp_path):
    ours, theirs = opened(ZOO[name], tmp_path)
    rng = random.Random(f"{SEED} {name}")
    limit = ours.id_limit + 10
    for _ in range(STRINGS):
        ids = [rng.randrange(limit) for _ in range(rng.randrange(1, 30))]
        for skip in (True, False):
            expected = answer(lambda: theirs.decode(ids, skip_special_tokens=skip))  # noqa: B023
            found = answer(lambda: ours.decode(ids, skip_special_tokens=skip))  # noqa: B023
            assert expected is None or found == expected, f"MILLRACE_TEST_SEED={SEED} {ids}"


@pytest.mark.parametrize("name", ZOO)
def test_tokens_and_ids(name, tmp_path):
    if name == "normalizer-Precompiled" and "MILLRACE_TEST_DATA" not in os.environ:
        pytest.skip("MILLRACE_TEST_DATA is not set")
    ours, theirs = opened(ZOO[name], tmp_path)
    for token, token_id in theirs.get_vocab(with_added_tokens=True).items():
        assert ours.token_to_id(token) == token_id
        assert ours.id_to_token(token_id) == theirs.id_to_token(token_id)


@pytest.mark.parametrize("name", REFUSED)
def test_what_tokenizers_refuses_is_refused(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(REFUSED[name]()), encoding="utf-8")
    assert answer(lambda: hf.Tokenizer.from_file(str(path))) is None
    with pytest.raises((ValueError, NotImplementedError)):
        mr.Tokenizer.from_file(str(path))


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_we_do_not_take_is_refused_by_name(name, tmp_path):
    build, message = NOT_OURS[name]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(build()), encoding="utf-8")
    with pytest.raises((ValueError, NotImplementedError), match=message):
        mr.Tokenizer.from_file(str(path))
