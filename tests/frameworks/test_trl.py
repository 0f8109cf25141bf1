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
from test_chat import NATIVE, Pair, byte_level_file, conversation

ROWS, PAD = 4, "<s>"


# Tools in the system's turn, calls in the assistant's, results in turns of the role "tool".
WITH_TOOLS = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}"
    "<|im_end|>{% endgeneration %}{% else %}{% if m.name %}{{ m.name }}: {% endif %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}"
)


def pair_of(tmp_path, template, bos="<s>"):
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed (./dev check frameworks)")
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_file(trim=False)))
    pair = Pair(tmp_path / "tokenizer.json", bos_token=bos, eos_token="</s>", pad_token=PAD)
    pair.theirs.chat_template = template
    return pair


def check_batches(tmp_path, pair, records, template):
    """Our batches of these records are those of TRL's trainer."""
    from trl import SFTConfig, SFTTrainer

    tiny = transformers.LlamaConfig(
        vocab_size=len(pair.theirs), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    trainer = SFTTrainer(
        model=transformers.LlamaForCausalLM(tiny),
        args=SFTConfig(
            output_dir=str(tmp_path / "out"), assistant_only_loss=True, max_length=None, use_cpu=True, report_to="none"
        ),
        train_dataset=datasets.Dataset.from_list(records),
        processing_class=pair.theirs,
    )
    theirs = trainer.train_dataset
    assert len(theirs) == len(records)

    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shards = str(tmp_path / "shards")
    mr.chat.write_chat_shards([tmp_path / "a.jsonl"], template, pair.ours, shards)
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
    assert step == len(records) // ROWS - 1 and learned > 100


@pytest.mark.parametrize("name", ["chatml", "llama-3"])
def test_a_batch_is_that_of_trl(tmp_path, name):
    pair = pair_of(tmp_path, NATIVE[name], "<|begin_of_text|>" if name == "llama-3" else "<s>")
    records = [{"messages": conversation(random.Random(i))} for i in range(10 * ROWS)]
    check_batches(tmp_path, pair, records, mr.chat.NamedChatTemplate(name))


def called(rng):
    """A conversation in which a tool is called, once or more. Without content where there are calls: None, as datasets
    fill in what a message lacks."""
    messages = conversation(rng, roles=("user",))
    for turn in range(rng.randrange(1, 3)):
        functions = [{"name": "weather", "arguments": {"city": rng.choice(["Zürich", 'a "b"']), "days": turn}}]
        calls = [{"type": "function", "function": function} for function in functions * rng.randrange(1, 3)]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "name": "weather", "content": f"{number} °C"} for number in range(len(calls))]
    return [*messages, {"role": "assistant", "content": rng.choice(["It is cold.", " 3 °C \n"])}]


@pytest.mark.parametrize("form", ["list", "text"])
def test_a_batch_with_tools_is_that_of_trl(tmp_path, form):
    pair = pair_of(tmp_path, WITH_TOOLS)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    records = []
    for number in range(10 * ROWS):
        names = ["weather", "news"][: 1 + number % 2]
        tools = [
            {"type": "function", "function": {"name": name, "description": "<é>", "parameters": parameters}}
            for name in names
        ]
        text = json.dumps(tools, ensure_ascii=False)
        records.append({"messages": called(random.Random(number)), "tools": tools if form == "list" else text})
    check_batches(tmp_path, pair, records, mr.chat.ChatTemplate(WITH_TOOLS, {"bos_token": "<s>"}))
