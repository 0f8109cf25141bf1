# SPDX-License-Identifier: Apache-2.0
"""Encodes conversations as token ids and a mask of the learned tokens (docs/chat.md).

`ChatTemplate` renders any `chat_template` of a `tokenizer_config.json` with jinja2, as `transformers` does.
`NamedChatTemplate` is one of the native templates ("chatml", "llama-3", "llama-2") and needs no jinja2. Both return the
ids and the mask of `apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)`.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from millrace import _core

__all__ = ["ChatTemplate", "Encoded", "NamedChatTemplate", "PreferencePairs", "template_names", "write_chat_shards"]

Message = Mapping[str, Any]
Encoded = tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]
Span = tuple[int, int]

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one field; templates read the first name
_SHARE_GPT_ROLES = {"human": "user", "gpt": "assistant"}


class _Template(Protocol):
    def encode_with_text(
        self, messages: Sequence[Message], tokenizer: _core.Tokenizer, **variables: Any
    ) -> tuple[str, Encoded]: ...


def template_names() -> list[str]:
    """Returns the names of the native templates."""
    return _core.chat_template_names()


class NamedChatTemplate:
    """A native template: see `template_names()`.

    refuse_control_text: True: a message that contains the template's own control tokens as text raises ValueError.
        False: such text becomes the token, as in `transformers`.
    last_turn_only: True: only the last answer of a conversation is learned, not every answer.
    """

    def __init__(self, name: str, *, refuse_control_text: bool = False, last_turn_only: bool = False) -> None:
        if name not in template_names():
            raise ValueError(f"'{name}' is no chat template; there are {', '.join(template_names())}")
        self.name = name
        self._options = (refuse_control_text, last_turn_only)
        self._native: tuple[_core.Tokenizer, _core.NativeChat] | None = None  # of the tokenizer used last

    def encode(self, messages: Sequence[Message], tokenizer: _core.Tokenizer) -> Encoded:
        """Returns the ids, uint32 [n], and the mask, uint8 [n] (1: learned). Raises ValueError naming the message."""
        return self.encode_with_text(messages, tokenizer)[1]

    def encode_with_text(
        self, messages: Sequence[Message], tokenizer: _core.Tokenizer, **variables: Any
    ) -> tuple[str, Encoded]:
        """Returns the rendered text and the result of `encode`. Raises ValueError for variables: native templates have
        none."""
        if any(value for value in variables.values()):
            raise ValueError(f"{self.name} has no place for {', '.join(sorted(variables))}")
        native = self._native
        if native is None or native[0] is not tokenizer:
            native = (tokenizer, _core.NativeChat(self.name, tokenizer, *self._options))
            self._native = native
        text, encoded = native[1].encode_line(json.dumps({"messages": [dict(message) for message in messages]}))
        return text, _checked(*encoded)


class ChatTemplate:
    """A jinja2 chat template with the variables that `transformers` passes to it.

    template: the text of the template.
    special_tokens: `bos_token`, `eos_token` and so on, as in a tokenizer_config.json.
    learned: the text that is learned. "markers": the text between `{% generation %}` and `{% endgeneration %}` in the
        template, as in `transformers`. "between": for templates without markers: the text that an assistant message
        adds after the generation prompt, up to the last character that is not white space. Raises ValueError for a
        template that renders the start of a conversation differently when more messages follow.
    last_turn_only: True: only the last answer of a conversation is learned, not every answer. A message with a "weight"
        of 0 is never learned. Both need a template that marks each assistant message exactly once, or "between".

    Thread-safe.
    """

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        learned: Literal["markers", "between"] = "markers",
        last_turn_only: bool = False,
    ) -> None:
        if learned not in ("markers", "between"):
            raise ValueError(f"learned is 'markers' or 'between', not {learned!r}")
        self.template = template
        self.special_tokens = dict(special_tokens or {})
        self.learned = learned
        self.last_turn_only = last_turn_only

    @classmethod
    def from_tokenizer_config(
        cls,
        config: str | os.PathLike[str] | Mapping[str, Any],
        *,
        name: str | None = None,
        learned: Literal["markers", "between"] = "markers",
        last_turn_only: bool = False,
    ) -> ChatTemplate:
        """Makes a template from a tokenizer_config.json (its path, its folder, or its content).

        Files in the same folder are used as in `transformers`: a chat_template.jinja (and additional_chat_templates/)
        overrides the template in the file, and a special_tokens_map.json overrides the tokens in the file if the file
        has no `added_tokens_decoder`.

        name: the template to use if there are several; None: "default".

        Raises FileNotFoundError, ValueError.
        """
        templates: dict[str, str] = {}
        if isinstance(config, Mapping):
            values = dict(config)
        else:
            path = pathlib.Path(config)
            path = path / "tokenizer_config.json" if path.is_dir() else path
            values = json.loads(path.read_text(encoding="utf-8"))
            beside = path.parent / "special_tokens_map.json"
            if beside.exists() and "added_tokens_decoder" not in values:
                values.update(json.loads(beside.read_text(encoding="utf-8")))
            templates = _template_files(path.parent)
        if not templates:
            templates = _templates_of(values.get("chat_template"))
        if name is None and len(templates) == 1:
            name = next(iter(templates))
        name = name or "default"
        if name not in templates:
            there = f"there are {', '.join(sorted(templates))}" if templates else "there is none"
            raise ValueError(f"no chat_template '{name}' in the tokenizer's configuration: {there}")
        return cls(templates[name], _special_tokens(values), learned=learned, last_turn_only=last_turn_only)

    @property
    def has_markers(self) -> bool:
        """Whether the template marks learned text with `{% generation %}`."""
        return _GENERATION.search(self.template) is not None

    def render(self, messages: Sequence[Message], **variables: Any) -> tuple[str, list[Span]]:
        """Returns the rendered text, and the learned parts of it as [begin, end) in characters.

        variables: `tools`, `documents`, and others that the template reads.

        Raises ValueError if the template raises an error or there are no messages.
        """
        if not messages:
            raise ValueError("a conversation needs a message")
        text, spans = self._render(messages, **variables)
        if self.learned == "between":
            spans = list(self._between(text, messages, **variables))
        return text, self._kept(spans, messages)

    def _kept(self, spans: list[Span], messages: Sequence[Message]) -> list[Span]:
        """Returns the spans that are learned."""
        weights = [message.get("weight") for message in messages if message.get("role") == "assistant"]
        for weight in weights:
            if weight not in (None, 0, 1):
                raise ValueError(f"a message has the weight {weight!r}, which is neither 0 nor 1")
        if 0 not in weights and not self.last_turn_only:
            return spans
        if len(spans) != len(weights):
            raise ValueError(
                f"the template marks {len(spans)} pieces of text for {len(weights)} messages of the assistant, so that "
                "none of them can be left out; try learned='between'"
            )
        last = len(spans) - 1
        return [
            span
            for number, (span, weight) in enumerate(zip(spans, weights, strict=True))
            if weight != 0 and (number == last or not self.last_turn_only)
        ]

    def encode(self, messages: Sequence[Message], tokenizer: _core.Tokenizer, **variables: Any) -> Encoded:
        """Returns the ids, uint32 [n], and the mask, uint8 [n] (1: learned). Raises the same errors as `render`."""
        return self.encode_with_text(messages, tokenizer, **variables)[1]

    def encode_with_text(
        self, messages: Sequence[Message], tokenizer: _core.Tokenizer, **variables: Any
    ) -> tuple[str, Encoded]:
        """Returns the rendered text and the result of `encode`."""
        text, spans = self.render(messages, **variables)
        if self.learned == "markers" and not self.has_markers:
            warnings.warn(
                "the chat template has no {% generation %}, so nothing is learned; add it, or use learned='between'",
                stacklevel=3,
            )
        return text, _checked(*_core.encode_rendered(tokenizer, text, _in_bytes(text, spans)))

    def _render(self, messages: Sequence[Message], **variables: Any) -> tuple[str, list[Span]]:
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **self.special_tokens, **variables}
        chat = [_plain(message) for message in messages]
        progress = _Progress()
        template = _compile(self.template)
        import jinja2

        token = _progress.set(progress)
        try:
            for block in template.generate(messages=chat, **given):
                progress.add(block)
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(f"chat template: {error}") from error
        finally:
            _progress.reset(token)
        return "".join(progress.blocks), progress.spans

    def _between(self, text: str, messages: Sequence[Message], **variables: Any) -> Iterator[Span]:
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            asked = self._render(messages[:i], **{**variables, "add_generation_prompt": True})[0] if i else ""
            answered = self._render(messages[: i + 1], **variables)[0]
            if not (text.startswith(answered) and answered.startswith(asked)):
                raise ValueError(
                    f"message {i + 1}: the template renders what comes before it differently once it is there, so that "
                    "learned='between' cannot tell what it adds; mark it with {% generation %}"
                )
            end = len(answered.rstrip())
            if end > len(asked):
                yield len(asked), end


class PreferencePairs:
    """Makes batches of preference pairs, for DPO and similar methods. It is a `map_batch` function of SampleLoader, for
    rows with a prompt, a chosen answer and a rejected answer.

        pairs = mr.chat.PreferencePairs(template, tokenizer, max_length=1024)
        mr.SampleLoader("pairs.jsonl", batch_size=8, map_batch=pairs)

    With a template, an answer is a list of messages whose last message is the assistant's. The messages of the prompt
    come before it; without a prompt, the list has the whole conversation. A text counts as one message. With `template`
    None, prompt and answer are texts: the answer follows the prompt, and `eos_id` ends it.

    Returns chosen_input_ids, chosen_attention_mask and chosen_labels, int64 [rows, longest], and the same three for
    rejected. Labels are -100 except on the last answer. Rows longer than `max_length` are cut at the end.
    """

    def __init__(
        self,
        template: _Template | None,
        tokenizer: _core.Tokenizer,
        *,
        max_length: int | None = None,
        pad_id: int = 0,
        eos_id: int | None = None,
        prompt: str = "prompt",
        chosen: str = "chosen",
        rejected: str = "rejected",
    ) -> None:
        if template is None and eos_id is None:
            raise ValueError("PreferencePairs: texts without a template need eos_id, which ends an answer")
        self._template = template
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._pad_id = pad_id
        self._eos_id = eos_id
        self._names = (prompt, chosen, rejected)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the batch of pairs. Raises ValueError naming the row."""
        prompt, *sides = self._names
        pairs: dict[str, Any] = {"__key__": batch["__key__"]}
        prompts = batch.get(prompt) or [None] * len(batch["__key__"])
        for side, name in zip(sides, ("chosen", "rejected"), strict=True):
            rows = []
            for key, before, answer in zip(batch["__key__"], prompts, batch[side], strict=True):
                try:
                    rows.append(self._row(before, answer))
                except (ValueError, TypeError) as error:
                    raise ValueError(f"row {key}: {side}: {error}") from error
            pairs.update({f"{name}_{array}": values for array, values in self._padded(rows).items()})
        return pairs

    def _row(self, prompt: Any, answer: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        if self._template is None:
            if not isinstance(answer, str) or not isinstance(prompt, (str, type(None))):
                raise ValueError("messages need a template")
            begin = self._tokenizer.encode(prompt or "")
            end = [*self._tokenizer.encode(answer, False), self._eos_id]
            ids = np.concatenate([begin, end]).astype(np.int64)
            return ids, np.arange(len(ids)) >= len(begin)
        messages = _turns(prompt, "user") + _turns(answer, "assistant")
        if not messages or messages[-1].get("role") != "assistant":
            raise ValueError("the last message is not the assistant's")
        encoded, mask = self._template.encode_with_text(messages, self._tokenizer)[1]
        # Earlier answers belong to the prompt: both sides share them, so there is nothing to learn from them.
        learned = np.flatnonzero(mask)
        if not len(learned):
            raise ValueError("the template marks nothing as the assistant's")
        breaks = np.flatnonzero(np.diff(learned) > 1)
        first = learned[breaks[-1] + 1] if len(breaks) else learned[0]
        return encoded.astype(np.int64), (np.arange(len(mask)) >= first) & (mask != 0)

    def _padded(self, rows: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]) -> dict[str, Any]:
        most = self._max_length or max((len(ids) for ids, _ in rows), default=0)
        longest = min(most, max((len(ids) for ids, _ in rows), default=0))
        ids = np.full((len(rows), longest), self._pad_id, np.int64)
        labels = np.full_like(ids, -100)
        attention = np.zeros_like(ids)
        for row, (values, learned) in enumerate(rows):
            size = min(len(values), longest)
            ids[row, :size] = values[:size]
            labels[row, :size] = np.where(learned[:size], values[:size], -100)
            attention[row, :size] = 1
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def _turns(value: Any, role: str) -> list[Message]:
    """Returns messages; a text becomes one message of `role`."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, Sequence) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError("neither a text nor a list of messages")
    return list(value)


def write_chat_shards(
    inputs: Iterable[str | os.PathLike[str]],
    template: _Template | None,
    tokenizer: _core.Tokenizer,
    out: str | os.PathLike[str],
    *,
    field: str = "messages",
    task: tuple[int, int] = (0, 1),
    shard_bytes: int = 256 << 20,
    text: bool = True,
    eos: str | None = None,
) -> dict[str, Any]:
    """Writes jsonl conversations as shards with a loss_mask.npy, for templates that `millrace prepare` lacks.

    Args:
        inputs: jsonl files with one conversation per line. A conversation is a list of messages in `field` or, if that
            is missing, in "conversations" (ShareGPT's from and value), or it is "prompt" and "completion", each a list
            of messages or a text. Prompts are not learned. A list in "tools", or its JSON as a text, is passed to the
            template.
        template: the template to render with. None: prompts and completions are texts that follow each other, as a base
            model sees them. `eos` is added to a completion that does not end with it.
        out: an empty folder (a path or URL) for the shards. An existing shard is never replaced.
        task: (i, n): uses the inputs i, i + n, ... of the sorted list, so that n processes share the work.
        shard_bytes: a new shard begins at this size. Each shard is built in memory.
        text: True: also writes the rendered text, next to the ids and the mask.
    Returns: a dict: documents, tokens, learned_tokens, shards (their names).
    Raises: ValueError naming file and line, FileExistsError, OSError. A line without learned text is an error.
    """
    index, count = task
    if not 0 <= index < count:
        raise ValueError(f"task {index} of {count} does not exist")
    if template is None and (eos is None or tokenizer.token_to_id(eos) is None):
        raise ValueError(f"write_chat_shards: without a template, eos is a token that ends a completion, not {eos!r}")
    if shard_bytes < 1:
        raise ValueError("shard_bytes is at least 1")
    names: list[str] = []
    totals = {"documents": 0, "tokens": 0, "learned_tokens": 0}
    shard, size = _core.ChatShard(), 0

    def finish_shard() -> None:
        nonlocal size
        name = f"{index:05d}-{len(names):05d}.tar"
        shard.write(f"{os.fspath(out).rstrip('/')}/{name}", tokenizer)
        names.append(name)
        size = 0

    for path in sorted(os.fspath(path) for path in inputs)[index::count]:
        for number, record in _records(path):
            try:
                if template is None:
                    rendered, (ids, mask) = _encode_pair(record, tokenizer, eos or "")
                else:
                    messages = _messages_of(record, field)
                    rendered, (ids, mask) = template.encode_with_text(messages, tokenizer, **_tools_of(record))
                if not mask.any():
                    raise ValueError("nothing of it is learned")
            except ValueError as error:
                raise ValueError(f"{path}: line {number}: {error}") from error
            if size >= shard_bytes:
                finish_shard()
            size = shard.add(f"{index:05d}-{totals['documents']:09d}", ids, mask, rendered if text else None)
            totals["documents"] += 1
            totals["tokens"] += ids.size
            totals["learned_tokens"] += int(mask.sum())
    if size > 0:
        finish_shard()
    return {**totals, "shards": names}


def _records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: line {number}: not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}: line {number}: not a JSON object")
            yield number, record


def _tools_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the template's variables. Some datasets have lists of tools as JSON texts, since each tool has different
    fields."""
    tools = record.get("tools")
    if isinstance(tools, str) and tools:
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as error:
            raise ValueError(f"'tools' is a text that is not JSON: {error}") from error
    if tools and not isinstance(tools, list):
        raise ValueError(f"'tools' is a list, or the JSON of one, not {type(tools).__name__}")
    return {"tools": tools} if tools else {}


def _encode_pair(record: Mapping[str, Any], tokenizer: _core.Tokenizer, eos: str) -> tuple[str, Encoded]:
    """Encodes a prompt and its completion as one text. The mask begins after as many ids as the prompt alone has."""
    prompt, completion = record.get("prompt"), record.get("completion")
    if not isinstance(prompt, str) or not isinstance(completion, str):
        raise ValueError("without a template, 'prompt' and 'completion' are texts")
    text = prompt + completion + ("" if completion.endswith(eos) else eos)
    begin, ids = tokenizer.encode(prompt), tokenizer.encode(text)
    if not np.array_equal(ids[: len(begin)], begin):
        warnings.warn(
            "the last token of a prompt changes when its completion follows, so that the mask is off by a token; end "
            "prompts where words end, without a space",
            stacklevel=3,
        )
    return text, (ids, (np.arange(len(ids)) >= len(begin)).astype(np.uint8))


def _side(value: Any, role: str, name: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise ValueError(f"'{name}' is neither a text nor a list of messages")
    return value


def _messages_of(record: Mapping[str, Any], field: str) -> list[Message]:
    messages = record.get(field, record.get("conversations"))
    learned_from = 0
    if messages is None and "prompt" in record and "completion" in record:
        messages = _side(record["prompt"], "user", "prompt")
        learned_from = len(messages)
        messages = messages + _side(record["completion"], "assistant", "completion")
    if not isinstance(messages, list):
        raise ValueError(f"there is no list of messages in '{field}', nor a 'prompt' and a 'completion'")
    for i, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise ValueError(f"message {i}: it is not an object")
    plain = [
        {"role": _SHARE_GPT_ROLES.get(message["from"], message["from"]), "content": message.get("value")}
        if "from" in message and "role" not in message
        else message
        for message in messages
    ]
    return [{**message, "weight": 0} for message in plain[:learned_from]] + plain[learned_from:]


def _checked(ids: npt.NDArray[np.uint32], mask: npt.NDArray[np.uint8], lost: int, overrun: int) -> Encoded:
    """Returns the ids and the mask. Warns about turns that `transformers` loses silently."""
    if lost:
        warnings.warn(
            f"{lost} turns of a conversation are not learned: no token stands for the first character of one, so "
            "`transformers` leaves it and what follows out of the mask",
            stacklevel=4,
        )
    if overrun:
        warnings.warn(
            f"{overrun} turns of a conversation are learned to its end: no token stands for the last character of one",
            stacklevel=4,
        )
    return ids, mask


def _in_bytes(text: str, spans: Sequence[Span]) -> list[Span]:
    """Converts spans (begin, end) in characters to (first byte, first byte of the last character)."""
    if any(end < 1 for _, end in spans):
        raise ValueError("the template has an empty {% generation %} block before any text")
    if text.isascii():
        return [(begin, end - 1) for begin, end in spans]
    at = {0: 0}
    last, size = 0, 0
    for place in sorted({place for begin, end in spans for place in (begin, end - 1)}):
        size += len(text[last:place].encode())
        at[place] = size
        last = place
    return [(at[begin], at[end - 1]) for begin, end in spans]


def _template_files(folder: pathlib.Path) -> dict[str, str]:
    templates = {}
    if (folder / "chat_template.jinja").exists():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _templates_of(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        return dict(value)
    return {entry["name"]: entry["template"] for entry in value}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if key.endswith("_token") and isinstance(content, str):
            tokens[key] = content
    extra = config.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        tokens.update(_special_tokens({f"{key}": value for key, value in extra.items()}))
    return tokens


def _plain(message: Message) -> dict[str, Any]:
    """Returns a message as templates see it: without empty keys, and with reasoning under the name that templates
    read."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message is a dict, not {type(message).__name__}")
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


class _Progress:
    """A rendering in progress: the text so far, and its marked spans."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.size = 0
        self.spans: list[Span] = []

    def add(self, block: str) -> None:
        self.blocks.append(block)
        self.size += len(block)


_progress: contextvars.ContextVar[_Progress] = contextvars.ContextVar("millrace.chat")


@functools.lru_cache(maxsize=64)
def _compile(template: str) -> Any:
    environment = _environment()
    import jinja2

    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error}") from error


@functools.lru_cache(maxsize=1)
def _environment() -> Any:
    """Returns a jinja2 environment with the settings of `transformers`. It is a sandbox, because templates come from
    strangers."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError("chat templates need jinja2: pip install 'jinja2>=3.1.6'") from error
    if tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
        raise ImportError(f"jinja2 {jinja2.__version__} has holes in its sandbox: pip install 'jinja2>=3.1.6'")

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012  (jinja2's own way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            text = caller()
            progress = _progress.get()
            progress.spans.append((progress.size, progress.size + len(text)))
            return text

    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that reach the interpreter's internals."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *rest = args
            values = dict(*rest, **kwargs)
            for name in values:
                Namespace._check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            Namespace._check(name)
            super().__setitem__(name, value)

        @staticmethod
        def _check(name: Any) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace has no {name!r}")

    class Dict:
        """Provides `dict` without access to the type."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda format: datetime.datetime.now().strftime(format),
        dict=Dict(),
        namespace=Namespace,
    )
    return environment
