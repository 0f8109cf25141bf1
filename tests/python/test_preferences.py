# SPDX-License-Identifier: Apache-2.0
"""mr.chat.PreferencePairs: pairs of answers from rows to arrays."""

import json

import numpy as np
import pytest

import millrace as mr


class Turns:
    """A template that learns each answer: one token a byte, 1 before a turn and 2 behind it."""

    def encode_with_text(self, messages, tokenizer, **variables):
        ids, mask = [], []
        for message in messages:
            body = list(message["content"].encode())
            learned = message["role"] == "assistant"
            ids += [1, *body, 2]
            mask += [0, *[int(learned)] * (len(body) + 1)]
        return "", (np.array(ids, np.uint32), np.array(mask, np.uint8))


def row(number):
    ask = {"role": "user", "content": "q" * (number + 1)}
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] if number % 2 else []
    return {
        "prompt": [*before, ask],
        "chosen": [{"role": "assistant", "content": f"good{number}"}],
        "rejected": f"bad{number}",
    }


@pytest.fixture
def tokenizer(dataset):
    return mr.Tokenizer.from_file(str(dataset.tokenizer))


def test_only_the_last_answer_is_learned(tmp_path, tokenizer):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row(n)) for n in range(12)))
    pairs = mr.chat.PreferencePairs(Turns(), tokenizer, pad_id=9)
    seen = set()
    with mr.SampleLoader(path, batch_size=3, epochs=1, map_batch=pairs, workers=2) as loader:
        for batch in loader:
            for at, key in enumerate(batch["__key__"]):
                number = int(key.rpartition(":")[2])
                seen.add(number)
                for side, answer in (("chosen", f"good{number}"), ("rejected", f"bad{number}")):
                    ids, labels = batch[f"{side}_input_ids"][at], batch[f"{side}_labels"][at]
                    size = batch[f"{side}_attention_mask"][at].sum()
                    assert (ids[size:] == 9).all() and (labels[size:] == -100).all()
                    assert bytes(labels[labels != -100][:-1].tolist()).decode() == answer
                    assert labels[size - 1] == 2
                    assert (b"a" in bytes(ids[:size].tolist())) == (number % 2 == 1 or "a" in answer)
    assert seen == set(range(12))


def test_texts_and_lengths(tmp_path, tokenizer):
    rows = [{"prompt": "It is a truth", "chosen": " universally", "rejected": " never"}] * 2
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with mr.SampleLoader(path, batch_size=2, map_batch=mr.chat.PreferencePairs(None, tokenizer, eos_id=3)) as loader:
        batch = next(loader)
    prompt, answer = tokenizer.encode("It is a truth").tolist(), tokenizer.encode(" universally", False).tolist()
    assert batch["chosen_input_ids"][0].tolist() == [*prompt, *answer, 3]
    assert batch["chosen_labels"][0].tolist() == [*[-100] * len(prompt), *answer, 3]
    short = mr.chat.PreferencePairs(None, tokenizer, eos_id=3, max_length=len(prompt) + 1)
    with mr.SampleLoader(path, batch_size=2, map_batch=short) as loader:
        assert next(loader)["chosen_input_ids"].shape == (2, len(prompt) + 1)


def test_wrong_rows_are_named(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="need eos_id"):
        mr.chat.PreferencePairs(None, tokenizer)
    wrong = {7: "neither a text nor", ("user", "x"): "the last message is not the assistant's"}
    for answer, text in wrong.items():
        if isinstance(answer, tuple):
            answer = [dict(zip(("role", "content"), answer, strict=True))]
        path = tmp_path / "wrong.jsonl"
        path.write_text(json.dumps({"chosen": answer, "rejected": "no"}))
        pairs = mr.chat.PreferencePairs(Turns(), tokenizer)
        with (
            mr.SampleLoader(path, batch_size=1, map_batch=pairs) as loader,
            pytest.raises(ValueError, match=rf"row .*wrong.jsonl:0: chosen: {text}"),
        ):
            next(loader)
