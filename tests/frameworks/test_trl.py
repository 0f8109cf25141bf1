# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning data beside TRL's SFTTrainer: the same ids, labels and masks of the same conversations.
`./dev check frameworks` installs TRL; elsewhere this skips."""

import importlib.util
import json
import pathlib
import random
import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import datasets
import transformers

import millrace as mr

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from test_chat import NATIVE, Pair, byte_level_file, conversation, write_jsonl

ROWS, PAD = 4, "<s>"


@pytest.mark.parametrize("name", ["chatml", "llama-3"])
def test_a_batch_is_that_of_trl(tmp_path, name):
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed (./dev check frameworks)")
    from trl import SFTConfig, SFTTrainer

    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_file(trim=False)))
    bos = "<|begin_of_text|>" if name == "llama-3" else "<s>"
    pair = Pair(tmp_path / "tokenizer.json", bos_token=bos, eos_token="</s>", pad_token=PAD)
    pair.theirs.chat_template = NATIVE[name]
    conversations = [conversation(random.Random(i)) for i in range(10 * ROWS)]

    tiny = transformers.LlamaConfig(
        vocab_size=len(pair.theirs), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    trainer = SFTTrainer(
        model=transformers.LlamaForCausalLM(tiny),
        args=SFTConfig(
            output_dir=str(tmp_path / "out"), assistant_only_loss=True, max_length=None, use_cpu=True, report_to="none"
        ),
        train_dataset=datasets.Dataset.from_list([{"messages": each} for each in conversations]),
        processing_class=pair.theirs,
    )
    theirs = trainer.train_dataset
    assert len(theirs) == len(conversations)

    write_jsonl(tmp_path / "a.jsonl", conversations)
    shards = str(tmp_path / "shards")
    mr.chat.write_chat_shards([tmp_path / "a.jsonl"], mr.chat.NamedChatTemplate(name), pair.ours, shards)
    longest = max(len(row["input_ids"]) for row in theirs)
    pad_id = pair.theirs.pad_token_id
    learned = 0
    with mr.Loader(shards, seq_len=longest, batch_size=ROWS, epochs=1, shuffle=False, pad_id=pad_id) as loader:
        for step, ours in enumerate(loader):
            wanted = trainer.data_collator([theirs[step * ROWS + row] for row in range(ROWS)])
            for key, padding in (("input_ids", pad_id), ("labels", -100), ("attention_mask", 0)):
                width = wanted[key].shape[1]
                assert np.array_equal(ours[key][:, :width], wanted[key].numpy()), (key, step)
                assert (ours[key][:, width:] == padding).all()
            learned += int((ours["labels"] != -100).sum())
    assert step == 9 and learned > 100
