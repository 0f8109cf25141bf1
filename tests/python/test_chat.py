# SPDX-License-Identifier: Apache-2.0
"""Chat templates against `transformers`: ids and masks of random conversations; and from jsonl to labels."""

import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from tokenizer_zoo import PATTERNS, added_token, by_type, byte_level, file, numbered, sequence, split, trained
from trouble import hostile

import millrace as mr
from millrace import chat

transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

TOKENS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
          "<|eot_id|>", "<|user|>", "<|assistant|>"]  # fmt: skip
ROUNDS = int(os.environ.get("MILLRACE_CHAT_ROUNDS", "150"))

# The published templates as jinja2, with {% generation %} around what the native ones learn.
NATIVE = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
    "llama-3": "{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}",
    "llama-2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}"
    "{% generation %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
}
# The same as they are published, without markers: what they render must be what ours render.
PUBLISHED = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama-3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
}
# Styles that use what jinja2 and transformers offer.
STYLES = {
    **NATIVE,
    "blocks": """{%- set ns = namespace(turn=0) %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set ns.turn = ns.turn + 1 %}
        {{- "<|assistant|>\\n" }}
        {%- generation %}
        {{- message.content }}{{ eos_token }}
        {%- endgeneration %}
    {%- elif message.role == "system" and loop.first %}
        {{- message.content | tojson }}
        {%- continue %}
    {%- else %}
        {{- "<|user|>\\n" + message.content | trim + eos_token }}
    {%- endif %}
    {{- "\\n" }}
{%- endfor %}
{{- ns.turn }} {{ strftime_now("%Y") }} {{ dict(a=1) | tojson(indent=2) }}{{ undefined_thing }}
""",
    "content-in-parts": "{% for message in messages %}{% if not loop.first %} {% endif %}<|{{ message.role }}|>"
    "{% generation %}{% if message.role == 'assistant' %}{{ message.content.strip() }}{% endif %}{% endgeneration %}"
    "{% if message.role != 'assistant' %}{{ message.content[:20] }}{% endif %}{% endfor %}{{ eos_token }}",
    "everything-learned": "{% generation %}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% endgeneration %}",
    "macros-and-blocks": "{% macro turn(m) %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endmacro %}"
    "{% set head %}{% generation %}head{% endgeneration %}{% endset %}{{ head | length }}{{ bos_token }}"
    "{% for m in messages %}{% if loop.index > 4 %}{% break %}{% endif %}{{ turn(m) }}{% filter upper %}{{ m.role }}"
    "{% generation %}x{% endgeneration %}{% endfilter %}{% endfor %}",
    "nested": "{{ bos_token }}{% generation %}{% for m in messages %}a{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% endfor %}{% endgeneration %}{{ eos_token }}",
    "loop-and-namespace": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ bos_token }}{% for m in messages %}"
    "{{ '\n' if not loop.first }}{% if loop.index0 == ns.last %}{% generation %}{{ m['content'].split('\n')[-1].lstrip() }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m | tojson(ensure_ascii=True) }}{% endif %}{% endfor %}",
    "reasoning": "{% for message in messages %}<|user|>{% if message.reasoning_content is defined %}"
    "{{ message.thinking }}{% endif %}{% generation %}{{ message.content ~ eos_token }}{% endgeneration %}{% endfor %}",
}


def byte_level_file(trim):
    base = trained("bytes")
    pre = sequence("pretokenizers", split(PATTERNS["llama3"]), byte_level(regex=False, trim=trim))
    return file(
        base, None, pre, byte_level(trim=trim), byte_level(), numbered(base, [added_token(t, "s") for t in TOKENS])
    )


def llama_file():
    """As Llama-2's: spaces become U+2581, one in front, unknown characters become bytes."""
    normalizer = sequence("normalizers", by_type("Prepend", prepend="▁"),
                          by_type("Replace", pattern={"String": " "}, content="▁"))  # fmt: skip
    base = trained("sentences")
    return file(base, normalizer, None, None, None, numbered(base, [added_token(t, "s") for t in ["<unk>", *TOKENS]]))


FILES = {
    "bytes": lambda: byte_level_file(trim=False),
    "trimmed": lambda: byte_level_file(trim=True),
    "llama": llama_file,
}


class Pair:
    """The same tokenizer.json in Millrace and in transformers."""

    def __init__(self, path, **special_tokens):
        self.ours = mr.Tokenizer.from_file(str(path))
        self.theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **special_tokens)

    def expected(self, messages, template, **variables):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = self.theirs.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
                                                  return_assistant_tokens_mask=True, **variables)  # fmt: skip
        return list(out["input_ids"]), list(out["assistant_masks"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name, build in FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(build()))
        made[name] = Pair(folder / f"{name}.json", bos_token="<s>", eos_token="</s>")
    return made


def conversation(rng, roles=("user", "assistant")):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": hostile(rng, TOKENS)})
    for _ in range(rng.randrange(1, 4)):
        for role in roles:
            text = rng.choice(["some text", "", " an answer", "the end \n", hostile(rng, TOKENS), hostile(rng, [])])
            messages.append({"role": role, "content": text})
    return messages


def as_lists(encoded):
    ids, mask = encoded
    assert ids.dtype == np.uint32
    assert mask.dtype == np.uint8
    return ids.tolist(), mask.tolist()


def bos_of(name):
    return {"bos_token": "<|begin_of_text|>"} if name == "llama-3" else {}


@pytest.mark.filterwarnings("ignore:.*turns of a conversation")
@pytest.mark.parametrize("tokenizer", FILES)
@pytest.mark.parametrize("name", NATIVE)
def test_native_templates_give_what_transformers_gives(pairs, tokenizer, name, seeded):
    pair = pairs[tokenizer]
    native = chat.NamedChatTemplate(name)
    for _ in range(ROUNDS):
        messages = conversation(seeded)
        expected = pair.expected(messages, NATIVE[name], **bos_of(name))
        assert as_lists(native.encode(messages, pair.ours)) == expected, messages


@pytest.mark.filterwarnings("ignore:.*turns of a conversation")
@pytest.mark.parametrize(
    ("name", "real", "tokens"),
    [
        ("llama-2", "llama2", {"bos_token": "<s>", "eos_token": "</s>"}),
        ("llama-3", "llama3.2", {"bos_token": "<|begin_of_text|>"}),
    ],
)
def test_native_templates_with_the_models_own_tokenizers(name, real, tokens, caplog, seeded):
    path = pathlib.Path(os.environ.get("MILLRACE_TEST_DATA", ""), "tokenizers", real, "tokenizer.json")
    if not path.is_file():
        pytest.skip("MILLRACE_TEST_DATA is not set")
    pair = Pair(path, **tokens)
    native = chat.NamedChatTemplate(name)
    learned = 0
    for _ in range(ROUNDS):
        messages = conversation(seeded)
        expected = pair.expected(messages, NATIVE[name])
        assert as_lists(native.encode(messages, pair.ours)) == expected, messages
        learned += sum(expected[1])
    assert learned > 10 * ROUNDS
    # The old Llama-2 file finds "<s>" only at the start and behind a space.
    assert ("does not take every <s>" in caplog.text) == (name == "llama-2")
    with pytest.raises(ValueError, match=r"no token <\|im_start\|>"):
        chat.NamedChatTemplate("chatml").encode(messages, pair.ours)


@pytest.mark.parametrize("name", PUBLISHED)
def test_markers_change_nothing_of_what_is_published(pairs, name, seeded):
    pair = pairs["bytes"]
    native = chat.NamedChatTemplate(name)
    for _ in range(ROUNDS):
        messages = conversation(seeded)
        text = pair.theirs.apply_chat_template(messages, chat_template=PUBLISHED[name], tokenize=False, **bos_of(name))
        assert native.encode_with_text(messages, pair.ours)[0] == text, messages


@pytest.mark.filterwarnings("ignore:.*turns of a conversation")
@pytest.mark.parametrize("tokenizer", FILES)
@pytest.mark.parametrize("style", STYLES)
def test_jinja_templates_give_what_transformers_gives(pairs, tokenizer, style, seeded):
    pair = pairs[tokenizer]
    ours = chat.ChatTemplate(STYLES[style], {"bos_token": "<s>", "eos_token": "</s>"})
    for _ in range(ROUNDS):
        messages = conversation(seeded)
        for message in messages:
            if seeded.random() < 0.2:
                message[seeded.choice(["reasoning", "thinking", "reasoning_content"])] = seeded.choice(["why", None])
        assert as_lists(ours.encode(messages, pair.ours)) == pair.expected(messages, STYLES[style]), messages


def test_variables_and_tools_reach_the_template(pairs):
    template = "{{ tools | tojson }}{{ style }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    messages = [{"role": "user", "content": "hé"}]
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {}}}]
    pair = pairs["bytes"]
    expected = pair.expected(messages, template, tools=tools, style="odd")
    assert as_lists(chat.ChatTemplate(template).encode(messages, pair.ours, tools=tools, style="odd")) == expected
    assert 1 in expected[1]


def test_tools_of_a_line_are_a_list_or_its_json(pairs, tmp_path):
    template = chat.ChatTemplate(
        "{{ tools | tojson }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [{"role": "assistant", "content": "yes"}]
    ids = []
    for number, given in enumerate((tools, json.dumps(tools), None, "", [])):
        (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages, "tools": given}) + "\n")
        out = str(tmp_path / str(number))
        chat.write_chat_shards([tmp_path / "a.jsonl"], template, pairs["bytes"].ours, out)
        ids.append(mr.Dataset(out).ids(0).tolist())
    assert ids[0] == ids[1] == template.encode(messages, pairs["bytes"].ours, tools=tools)[0].tolist()
    assert ids[2] == ids[3] == ids[4] == template.encode(messages, pairs["bytes"].ours)[0].tolist()
    for given, message in (("[", "not JSON"), ({"name": "f"}, "not dict"), ('{"name": "f"}', "not dict")):
        (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages, "tools": given}) + "\n")
        with pytest.raises(ValueError, match=f"line 1: .*{message}"):
            chat.write_chat_shards([tmp_path / "a.jsonl"], template, pairs["bytes"].ours, str(tmp_path / "none"))


def test_a_turn_that_transformers_loses_is_warned_of(pairs):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": " the answer"}]
    expected = pairs["trimmed"].expected(messages, NATIVE["chatml"])
    assert 1 not in expected[1]
    for template in (chat.NamedChatTemplate("chatml"), chat.ChatTemplate(NATIVE["chatml"])):
        with pytest.warns(UserWarning, match="1 turns of a conversation are not learned"):
            assert as_lists(template.encode(messages, pairs["trimmed"].ours)) == expected


def test_without_markers_nothing_is_learned_unless_it_is_asked_for(pairs, seeded):
    pair = pairs["bytes"]
    with pytest.warns(UserWarning, match="no {% generation %}"):
        _, mask = chat.ChatTemplate(PUBLISHED["chatml"]).encode(conversation(seeded), pair.ours)
    assert not mask.any()
    between = chat.ChatTemplate(PUBLISHED["chatml"], learned="between")
    for _ in range(ROUNDS):
        messages = conversation(seeded)
        expected = pair.expected(messages, NATIVE["chatml"])
        assert as_lists(between.encode(messages, pair.ours)) == expected, messages
    counting = chat.ChatTemplate(
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", learned="between"
    )
    with pytest.raises(ValueError, match=r"message 2: .* cannot tell"):
        counting.encode([{"role": r, "content": "x"} for r in ("user", "assistant", "user")], pair.ours)


def test_tokenizer_config(tmp_path, pairs):
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True},
        "eos_token": "</s>",
        "pad_token": None,
        "image_token": "<|user|>",
        "extra_special_tokens": {"audio_token": "<|assistant|>"},
        "chat_template": [{"name": "default", "template": "d{{ bos_token }}"}, {"name": "rag", "template": "r"}],
    }
    made = chat.ChatTemplate.from_tokenizer_config(config)
    assert made.template == "d{{ bos_token }}"
    assert made.special_tokens == {
        "bos_token": "<s>", "eos_token": "</s>", "image_token": "<|user|>", "audio_token": "<|assistant|>"
    }  # fmt: skip
    assert chat.ChatTemplate.from_tokenizer_config(config, name="rag").template == "r"
    with pytest.raises(ValueError, match="there are default, rag"):
        chat.ChatTemplate.from_tokenizer_config(config, name="tool_use")
    with pytest.raises(ValueError, match="there is none"):
        chat.ChatTemplate.from_tokenizer_config({})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": None}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|eot_id|>"}}))
    assert chat.ChatTemplate.from_tokenizer_config(tmp_path).special_tokens["eos_token"] == "<|eot_id|>"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert chat.ChatTemplate.from_tokenizer_config(tmp_path / "tokenizer_config.json").template == "from the file"
    pairs["bytes"].theirs.save_pretrained(tmp_path / "saved")
    saved = chat.ChatTemplate.from_tokenizer_config
    with pytest.raises(ValueError, match="there is none"):
        saved(tmp_path / "saved")


def test_errors_are_values_errors_with_the_template_s_words(pairs):
    tokenizer = pairs["bytes"].ours
    hello = [{"role": "user", "content": "x"}]
    for template, match in (
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ messages[0].content.missing.deeper }}", "has no attribute"),
        ("{{ 'a' + 1 }}", "chat template:"),
        ("{% if %}", "chat template, line 1"),
        ("{{ messages.__class__.__mro__ }}{{ [].__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
        ("{% set ns = namespace(__a=1) %}", "namespace has no"),
        ("{{ messages.append(1) }}", "unsafe|not safely"),
    ):
        with pytest.raises(ValueError, match=match):
            chat.ChatTemplate(template).encode(hello, tokenizer)
    with pytest.raises(ValueError, match="a conversation needs a message"):
        chat.ChatTemplate("x").encode([], tokenizer)
    with pytest.raises(ValueError, match="message 2: role 'tool'"):
        chat.NamedChatTemplate("chatml").encode([*hello, {"role": "tool", "content": ""}], tokenizer)
    with pytest.raises(ValueError, match="there are chatml, llama-3, llama-2"):
        chat.NamedChatTemplate("mistral")
    with pytest.raises(ValueError, match=r"message 1: its text holds <\|im_end\|>"):
        chat.NamedChatTemplate("chatml", refuse_control_text=True).encode(
            [{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "b"}], tokenizer
        )


def test_jinja2_is_imported_on_first_use_and_named_when_it_is_not_there():
    code = (
        "import sys, millrace; assert 'millrace.chat' not in sys.modules; chat = millrace.chat\n"
        "assert 'jinja2' not in sys.modules; sys.modules['jinja2'] = None\n"
        "try: chat.ChatTemplate('x').render([{'role': 'user', 'content': ''}])\n"
        "except ImportError as error: assert 'pip install' in str(error), error\n"
        "else: raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def write_jsonl(path, conversations):
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))


@pytest.mark.filterwarnings("ignore:.*turns of a conversation")
def test_from_jsonl_to_labels(pairs, tmp_path, seeded):
    pair = pairs["bytes"]
    conversations = [conversation(seeded) for _ in range(120)]
    write_jsonl(tmp_path / "a.jsonl", conversations[:50])
    write_jsonl(tmp_path / "b.jsonl", conversations[50:])
    template = chat.ChatTemplate(NATIVE["chatml"])
    out = tmp_path / "shards"
    done = [
        chat.write_chat_shards(
            [tmp_path / "b.jsonl", tmp_path / "a.jsonl"], template, pair.ours, str(out), task=(i, 2), shard_bytes=60_000
        )
        for i in range(2)
    ]
    assert sum(part["documents"] for part in done) == 120
    assert len(done[0]["shards"]) > 1
    assert sorted(p.name for p in out.glob("*.tar")) == sorted(name for part in done for name in part["shards"])
    expected = [pair.expected(messages, NATIVE["chatml"]) for messages in conversations]
    seq_len = max(len(ids) for ids, _ in expected)
    with mr.Loader(str(out), seq_len=seq_len, batch_size=10, epochs=1, shuffle=False, pad_id=-1) as loader:
        rows = [row for batch in loader for row in zip(batch["input_ids"], batch["labels"], strict=True)]
    for (ids, labels), (want_ids, want_mask) in zip(rows, expected, strict=True):
        n = len(want_ids)
        assert ids[:n].tolist() == want_ids
        assert (ids[n:] == -1).all()
        assert labels[:n].tolist() == [i if m else -100 for i, m in zip(want_ids, want_mask, strict=True)]
        assert (labels[n:] == -100).all()
    assert sum(part["learned_tokens"] for part in done) == sum(sum(mask) for _, mask in expected)
    with pytest.raises(FileExistsError, match=r"00000-00000\.tar"):
        chat.write_chat_shards([tmp_path / "a.jsonl"], template, pair.ours, str(out))


@pytest.mark.parametrize("collate", ["pad", "pack"])
def test_torch_loader_has_the_same_labels(pairs, tmp_path, collate):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    write_jsonl(tmp_path / "a.jsonl", [conversation(random.Random(i)) for i in range(60)])
    chat.write_chat_shards([tmp_path / "a.jsonl"], chat.NamedChatTemplate("chatml"), pairs["bytes"].ours,
                           str(tmp_path / "out"))  # fmt: skip
    options = dict(batch_size=4, seq_len=64, collate=collate, seed=3, epochs=1)
    learned = left_out = 0
    with (
        mr.Loader(str(tmp_path / "out"), **options) as arrays,
        mr.torch.Loader(str(tmp_path / "out"), **options) as tensors,
    ):
        for expected, batch in zip(arrays, tensors, strict=True):
            labels = batch["labels"]
            assert np.array_equal(labels.numpy(), expected["labels"])
            assert torch.equal(labels[labels != -100], batch["input_ids"][labels != -100])
            learned += int((labels != -100).sum())
            left_out += int((labels == -100).sum())
    assert learned > 100
    assert left_out > 100


def test_the_example_of_the_docs_runs(pairs, tmp_path):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/chat.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_file(trim=False)))
    done = subprocess.run(
        [sys.executable, "-c", code + "assert learned.any()"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_bad_lines_are_named(pairs, tmp_path):
    good = json.dumps({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})
    for i, (line, match) in enumerate(
        [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            ("{}", "no list of messages in 'messages'"),
            ('{"messages": [1]}', "message 1: it is not an object"),
            ('{"messages": [{"role": "user", "content": "x"}]}', "no message of the assistant"),
        ]
    ):
        path = tmp_path / f"{i}.jsonl"
        path.write_text(f"{good}\n\n{line}\n")
        with pytest.raises(ValueError, match=rf"{i}\.jsonl: line 3: .*{match}"):
            chat.write_chat_shards([path], chat.NamedChatTemplate("chatml"), pairs["bytes"].ours, str(tmp_path / "out"))
    assert not list(pathlib.Path(tmp_path).glob("out/*"))
    with pytest.raises(ValueError, match="line 1: nothing of it is learned"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chat.write_chat_shards(
            [path], chat.ChatTemplate(PUBLISHED["chatml"]), pairs["bytes"].ours, str(tmp_path / "out")
        )


def learned_text(pair, encoded):
    ids, mask = encoded
    return [pair.ours.decode(ids[run].tolist(), False) for run in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(mask)) + 1)
            if mask[run[0]]]  # fmt: skip


@pytest.mark.parametrize("kind", ["native", "markers", "between"])
def test_turns_are_left_out_by_rule(pairs, kind):
    pair = pairs["bytes"]
    markers = NATIVE["chatml"]
    bare = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", markers)

    def template(**options):
        if kind == "native":
            return chat.NamedChatTemplate("chatml", **options)
        return chat.ChatTemplate(markers if kind == "markers" else bare, learned=kind, **options)

    def turns(first, second):
        return [
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": first},
            {"role": "user", "content": "r"}, {"role": "assistant", "content": "b", "weight": second},
        ]  # fmt: skip

    def learned(template, messages):
        # This template has no generation prompt, so "between" counts the head of a turn too.
        return [text.rpartition("\n")[2] for text in learned_text(pair, template.encode(messages, pair.ours))]

    a, b = "a<|im_end|>", "b<|im_end|>"
    assert learned(template(), turns(1, None)) == [a, b]
    assert learned(template(), turns(0, 1)) == [b]
    assert learned(template(), turns(1, 0)) == [a]
    assert learned(template(last_turn_only=True), turns(1, 1)) == [b]
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        template().encode(turns(0.5, 1), pair.ours)


def test_prompts_and_completions(pairs, tmp_path):
    pair = pairs["bytes"]
    rows = [
        {"prompt": "q", "completion": "a"},
        {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
        {"prompt": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}, {"from": "human", "value": "q"}],
         "completion": "a"},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mr.prepare(str(tmp_path / "a.jsonl"), tokenizer=write_bytes_tokenizer(tmp_path), out=str(tmp_path / "prepared"),
               documents="jsonl", chat="chatml")  # fmt: skip
    for number, template in enumerate([chat.NamedChatTemplate("chatml"), chat.ChatTemplate(NATIVE["chatml"])]):
        chat.write_chat_shards([tmp_path / "a.jsonl"], template, pair.ours, str(tmp_path / f"out{number}"))
    for folder in ("prepared", "out0", "out1"):
        assert [learned_text(pair, row) for row in stored(tmp_path / folder)] == [["a<|im_end|>"]] * 3, folder
    chat.write_chat_shards([write_first(tmp_path, rows[0])], None, pair.ours, str(tmp_path / "plain"), eos="<|im_end|>")
    ((ids, mask),) = stored(tmp_path / "plain")
    assert pair.ours.decode(ids.tolist(), False) == "qa<|im_end|>"
    assert learned_text(pair, (ids, mask)) == ["a<|im_end|>"]
    for options, match in [({}, "eos is a token"), ({"eos": "no token"}, "eos is a token")]:
        with pytest.raises(ValueError, match=match):
            chat.write_chat_shards([tmp_path / "a.jsonl"], None, pair.ours, str(tmp_path / "none"), **options)
    with pytest.raises(ValueError, match="line 2: without a template, 'prompt' and 'completion' are texts"):
        chat.write_chat_shards([tmp_path / "a.jsonl"], None, pair.ours, str(tmp_path / "none"), eos="<|im_end|>")


def stored(folder):
    """Ids and mask of each sample."""
    names = ("token_ids.npy", "loss_mask.npy")
    return [tuple(np.load(io.BytesIO(sample[name])) for name in names) for sample in mr.Dataset(str(folder))]


def write_first(folder, row):
    (folder / "first.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "first.jsonl"


def write_bytes_tokenizer(folder):
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_file(trim=False)))
    return str(folder / "tokenizer.json")
