# SPDX-License-Identifier: Apache-2.0
"""The campaign of `./dev soak tokenizer` counts what it compares and finds what differs."""

import json
import pathlib
import random
import sys

import pytest

pytest.importorskip("millrace")
pytest.importorskip("tokenizers")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks" / "tokenizer"))

import campaign
from tokenizer_zoo import ZOO
from trouble import hostile


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(ZOO["bpe-legacy"]()), encoding="utf-8")
    return campaign.Pair(path)


def corpora(rng):
    return {
        flavour: ["".join(hostile(rng, []) for _ in range(200)) for _ in range(20)] for flavour in ("prose", "code")
    }


def test_it_compares_until_there_are_enough(pair, seeded, monkeypatch):
    monkeypatch.setattr(campaign, "ROUND_BYTES", 50_000)
    result = campaign.campaign({"small": pair}, corpora(seeded), 100_000, seed=seeded.randrange(2**32))
    row = result["tokenizers"]["small"]
    assert result["differences"] == [], result
    assert row["ids"] == result["ids"] >= 100_000
    assert row["bytes"] >= 2 * 50_000 * result["rounds"] and row["texts"] > 10


def test_one_wrong_id_is_found_and_its_text_made_short(pair, seeded, monkeypatch):
    """As if one token had a wrong number: every text with it differs."""
    monkeypatch.setattr(campaign, "ROUND_BYTES", 50_000)
    right = pair.theirs

    class Wrong:
        def encode_batch_fast(self, texts, add_special_tokens):
            class One:
                def __init__(self, text, encoding):
                    self.ids = [*encoding.ids, 1] if "你" in text else encoding.ids

            found = right.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
            return [One(text, encoding) for text, encoding in zip(texts, found, strict=True)]

    pair.theirs = Wrong()
    result = campaign.campaign({"small": pair}, corpora(seeded), 10**9, seed=seeded.randrange(2**32))
    (difference,) = [each for each in result["differences"] if each["flavour"] == "prose"]
    assert result["rounds"] == 1 and difference["tokenizer"] == "small"
    assert difference["text"] == "你"
    assert difference["theirs"] == [*difference["ours"], 1]


def test_pieces_are_of_the_texts(seeded):
    texts = ["abcdefgh" * 100, "x"]
    size = sum(len(piece) for batch in campaign.cut(texts, random.Random(seeded.random()), 10_000) for piece in batch)
    assert size >= 10_000
    pieces = next(campaign.cut(texts, random.Random(3), 10_000))
    assert all(any(piece in text for text in texts) for piece in pieces)
