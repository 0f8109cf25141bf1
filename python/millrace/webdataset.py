# SPDX-License-Identifier: Apache-2.0
"""Supports code in the style `mr.WebDataset(urls).shuffle(1000).decode("rgb8").map(f).batched(64)`."""

from __future__ import annotations

import copy
import fnmatch
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from millrace import fields as _fields
from millrace.loader import State, StrPath
from millrace.samples import KEY, STATE_KEY, Map, SampleBatch, SampleLoader, Work, collate, together, unbatch

#: A handler as in webdataset: it gets an exception and raises it, or returns True to leave the sample out.
Handler = Callable[[Exception], bool]

_logger = logging.getLogger("millrace")
_IMAGE = re.compile(r"^(torch|pil)?(l|rgb|rgba)?(8)?$")


def _expand(urls: StrPath | Sequence[StrPath]) -> list[str]:
    """Expands the URLs as webdataset does: in a string, '::' separates patterns and ${NAME} is the value of the
    variable WDS_NAME. The loader expands braces."""
    if not isinstance(urls, (str, os.PathLike)):
        return [os.fspath(url) for url in urls]
    text = os.fspath(urls)
    for _ in range(10):
        names = re.findall(r"\$\{(\w+)\}", text)
        if not names:
            break
        for name in names:
            variable = f"WDS_{name}"
            if variable not in os.environ:
                raise ValueError(f"WebDataset: the variable {variable} is not set, and {urls} names ${{{name}}}")
            text = text.replace(f"${{{name}}}", os.environ[variable])
    return text.split("::")


def _first(sample: Mapping[str, Any], names: str | Sequence[str]) -> Any:
    wanted = names.split(";") if isinstance(names, str) else list(names)
    for name in wanted:
        if name in sample:
            return sample[name]
    raise ValueError(f"there is no field {' or '.join(wanted)}; there are {', '.join(sample)}")


class _Step:
    """One stage of a chain: a function of a sample (or batch), and the handler of its exceptions."""

    def __init__(self, function: Callable[[Any], Any], handler: Handler | None = None, keeps: bool = False) -> None:
        self.function = function
        self.handler = handler
        self.keeps = keeps  # True: the function returns whether to keep a sample


def _run(steps: Sequence[_Step], value: Any, key: str) -> tuple[bool, Any]:
    """Runs the stages on a sample and returns (True, result), or (False, None) if the sample is left out."""
    for step in steps:
        try:
            result = step.function(value)
        except Exception as error:
            if step.handler is None:
                error.add_note(f"in WebDataset, sample {key}")
                raise
            if not step.handler(error):
                raise NotImplementedError(
                    "WebDataset: a handler that stops would end this rank alone; let it return True, or raise"
                ) from error
            _logger.warning("WebDataset leaves out sample %s: %s", key, error)
            return False, None
        if not step.keeps:
            value = result
        elif not result:
            return False, None
    return True, value


class _Rename:
    def __init__(self, names: Mapping[str, str | Sequence[str]], keep: bool) -> None:
        self.names = names
        self.keep = keep

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        old = {name for v in self.names.values() for name in (v.split(";") if isinstance(v, str) else v)}
        kept = {name: value for name, value in sample.items() if name not in old} if self.keep else {}
        return {**kept, **{new: _first(sample, names) for new, names in self.names.items()}}


class _RenameKeys:
    def __init__(self, names: Sequence[tuple[str, str]], keep_unselected: bool, must_match: bool) -> None:
        self.names = list(names)
        self.keep_unselected = keep_unselected
        self.must_match = must_match

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        matched: set[str] = set()
        for name, value in sample.items():
            new = next((new for new, pattern in reversed(self.names) if fnmatch.fnmatch(name.lower(), pattern)), None)
            if new is None:
                if self.keep_unselected:
                    renamed[name] = value
                continue
            if new in renamed:
                raise ValueError(f"several fields match {new}")
            matched.add(new)
            renamed[new] = value
        missing = [new for new, _ in self.names if new not in matched]
        if missing and self.must_match:
            raise ValueError(f"no field matches {missing[0]}; there are {', '.join(sample)}")
        return renamed


class _MapDict:
    def __init__(self, functions: Mapping[str, Map]) -> None:
        self.functions = functions

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {**sample, **{name: function(sample[name]) for name, function in self.functions.items()}}


class _MapTuple:
    def __init__(self, functions: Sequence[Map]) -> None:
        self.functions = functions

    def __call__(self, sample: Sequence[Any]) -> tuple[Any, ...]:
        done = [function(value) for function, value in zip(self.functions, sample, strict=False)]
        return (*done, *sample[len(done) :])


class _ToTuple:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def __call__(self, sample: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(_first(sample, name) for name in self.names)


class _Pictures:
    """Converts the pictures of a sample to PIL images or torch tensors."""

    def __init__(self, kind: str, mode: str) -> None:
        self.kind = kind
        self.mode = mode

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        for name, value in sample.items():
            if name.rpartition(".")[2] in ("jpg", "jpeg", "png", "webp") and isinstance(value, np.ndarray):
                sample[name] = self._convert(value)
        return sample

    def _convert(self, pixels: Any) -> Any:
        if self.kind == "torch":
            import torch

            return torch.from_numpy(pixels)
        from PIL import Image

        return Image.fromarray(pixels, {"l": "L", "rgb": "RGB", "rgba": "RGBA"}[self.mode])


def collate_samples(samples: Sequence[Any]) -> Any:
    """Makes a batch of samples that are dicts or tuples. Numbers, and arrays of one shape, become arrays; other values
    become lists."""
    if samples and isinstance(samples[0], (tuple, list)):
        return tuple(together(list(values)) for values in zip(*samples, strict=True))
    return collate(samples)


class _Stages:
    """The stages of a chain. Immutable."""

    def __init__(self) -> None:
        self.before: list[_Step] = []  # stages of a sample
        self.after: list[_Step] = []  # stages of a batch
        self.batch_size: int | None = None
        self.collation: Callable[[Sequence[Any]], Any] | None = collate_samples
        self.partial = True
        self.shuffle = False
        self.fields: dict[str, Any] = {"all": True, "decodes": False, "may_differ": True, "with_sources": True}
        self.parses = False
        self.epochs: int | None = 1
        self.epoch_items: int | None = None
        self.length: int | None = None

    @property
    def steps(self) -> list[_Step]:
        return self.before if self.batch_size is None else self.after


class _ChainWork(Work):
    def __init__(self, stages: _Stages, seed: int) -> None:
        super().__init__({}, None, None, seed)
        self.stages = stages

    def __call__(self, batch: SampleBatch, epoch: int, position: int, example: SampleBatch | None) -> Any:
        batch.pop(STATE_KEY, None)
        if self.stages.parses:
            self._parse(batch)
        samples = []
        for sample in unbatch(batch):
            there = {name: value for name, value in sample.items() if value is not None}
            is_kept, value = _run(self.stages.before, there, sample[KEY])
            if is_kept:
                samples.append(value)
        if self.stages.batch_size is None or not samples:
            return samples
        value = samples if self.stages.collation is None else self.stages.collation(samples)
        is_kept, value = _run(self.stages.after, value, "of a batch")
        return [value] if is_kept else []


class _ChainLoader(SampleLoader):
    """Loads batches through a chain and yields them."""

    def __init__(self, urls: list[str], stages: _Stages, **arguments: Any) -> None:
        self._stages = stages
        super().__init__(
            urls, fields=None, batch_size=stages.batch_size or 1, shuffle=stages.shuffle, epochs=stages.epochs,
            drop_last=stages.batch_size is not None and not stages.partial, **arguments,
        )  # fmt: skip

    def _specs(self, fields: Mapping[str, Any], map: Map | None) -> list[dict[str, Any]]:
        return [self._stages.fields]

    def _make_work(
        self, fields: Mapping[str, Any], map: Map | None, map_batch: Map | None, arguments: Mapping[str, Any]
    ) -> Work:
        return _ChainWork(self._stages, int(arguments["seed"]))

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._stages, *super().__getstate__())

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self._stages, *rest = arguments
        super().__setstate__(tuple(rest))


class WebDataset:
    """Passes samples of tars through a chain of stages, like the package webdataset. Each method returns a new object.

    WebDataset uses mr.SampleLoader: the order depends on its seed and epoch on any number of ranks, each sample comes
    once per epoch, a state of `state_dict()` continues on any number of ranks, damaged samples are errors or are
    quarantined, and the shards can be on any storage.

    urls: a string ('::' separates patterns, braces are expanded, ${NAME} is the variable WDS_NAME), or a list.
    handler: a handler as in webdataset. If it returns True, damaged samples are quarantined. None: they are errors.
    workers, worker_kind: threads or processes that run the stages, as in SampleLoader.
    loader_options: further arguments of SampleLoader: seed, rank, world_size, cache, memory_bytes, ...

    Differences from webdataset: shuffle(n) shuffles the whole epoch, whatever n is. Ranks share the samples, not the
    shards, so there is no nodesplitter. Pickles and .pth files stay bytes. `resampled` is not supported; repeat() makes
    the stream endless.
    """

    def __init__(
        self,
        urls: StrPath | Sequence[StrPath],
        *,
        handler: Handler | None = None,
        shardshuffle: bool | int | None = None,
        nodesplitter: Any = None,
        workersplitter: Any = None,
        empty_check: bool = True,
        workers: int = 0,
        **loader_options: Any,
    ) -> None:
        for name in ("resampled", "select_files", "rename_files", "cache_dir", "detshuffle"):
            if loader_options.pop(name, None):
                raise NotImplementedError(f"WebDataset: {name} is not offered; docs/samples.md says what is")
        self._urls = _expand(urls)
        self._options = {"workers": workers, **loader_options}
        if handler is not None and _continues(handler):
            self._options["on_bad"] = "quarantine"
        self._stages = _Stages()
        self._stages.shuffle = bool(shardshuffle)
        self._loader: _ChainLoader | None = None

    def _with(self, change: Callable[[_Stages], object]) -> Any:
        if self._loader is not None:
            raise RuntimeError("this WebDataset is being read; add stages before")
        changed = copy.copy(self)
        changed._stages = copy.copy(self._stages)
        changed._stages.before = list(self._stages.before)
        changed._stages.after = list(self._stages.after)
        change(changed._stages)
        return changed

    def _add(self, function: Callable[[Any], Any], handler: Handler | None = None, keeps: bool = False) -> Any:
        return self._with(lambda stages: stages.steps.append(_Step(function, handler, keeps)))

    def _set(self, **values: Any) -> Any:
        return self._with(lambda stages: stages.__dict__.update(values))

    def shuffle(self, size: int, **_: Any) -> Any:
        """Shuffles the whole epoch, unless `size` is below 1."""
        return self._set(shuffle=True) if size >= 1 else self._with(lambda stages: None)

    def decode(self, *specs: Any, handler: Handler | None = None, only: Any = None) -> Any:
        """Decodes fields by their extensions.

        specs: the format of pictures: 'l', 'rgb' or 'rgba' (float32, 0 to 1). A suffix '8' means uint8. A prefix
            'torch' means tensors [channels, height, width]; a prefix 'pil' means PIL images. Without specs, pictures
            stay bytes.
        handler: if it returns True, samples that do not decode are quarantined.
        """
        if only is not None or any(not isinstance(spec, str) for spec in specs):
            raise NotImplementedError("WebDataset: decode() with functions or `only`: use map() or map_dict()")
        if self._stages.before:
            raise ValueError("WebDataset: decode() comes before the stages that use what it gives")
        decoded = {"all": True, "decodes": True, "may_differ": True, "with_sources": True}
        steps: list[_Step] = []
        for spec in specs:
            found = _IMAGE.match(spec)
            if not found or not spec:
                raise ValueError(f"WebDataset: '{spec}' is not a way to decode pictures")
            kind, mode, eight = found[1] or "", found[2] or "rgb", found[3]
            picture = _fields.image(
                mode={"l": "gray", "rgb": "rgb", "rgba": "rgba"}[mode],  # type: ignore[arg-type]
                layout="chw" if kind == "torch" else "hwc",
                dtype="uint8" if eight or kind == "pil" else "float32",
            )
            decoded["picture"] = picture._spec("picture")  # type: ignore[assignment]
            if kind:
                steps = [_Step(_Pictures(kind, mode))]
        changed = self._set(fields=decoded, parses=True)
        changed._stages.before += steps
        if handler is not None and _continues(handler):
            changed._options = {**changed._options, "on_bad": "quarantine"}
        return changed

    def map(self, f: Map, handler: Handler | None = None) -> Any:
        """Applies f to each sample or, after batched(), to each batch."""
        return self._add(f, handler)

    def map_dict(self, handler: Handler | None = None, **functions: Map) -> Any:
        """Applies one function to each of the named fields."""
        return self._add(_MapDict(functions), handler)

    def map_tuple(self, *functions: Map, handler: Handler | None = None) -> Any:
        """Applies one function to each element of a tuple."""
        return self._add(_MapTuple(functions), handler)

    def select(self, predicate: Callable[[Any], bool], **_: Any) -> Any:
        """Drops samples for which `predicate` is false. Batches are not refilled, so all ranks have the same number of
        batches."""
        return self._add(predicate, keeps=True)

    def rename(self, handler: Handler | None = None, keep: bool = True, **names: str | Sequence[str]) -> Any:
        """Renames fields: new="old;or this" takes the first of these fields that exists."""
        return self._add(_Rename(names, keep), handler)

    def rename_keys(
        self, *pairs: tuple[str, str], keep_unselected: bool = False, must_match: bool = True, **names: str
    ) -> Any:
        """Renames fields by pattern: new="*.pattern" takes the field that matches."""
        return self._add(_RenameKeys([*pairs, *names.items()], keep_unselected, must_match))

    def to_tuple(self, *names: str, handler: Handler | None = None) -> Any:
        """Makes a tuple of these fields. "jpg;png" takes the first of these fields that exists."""
        wanted = [name for given in names for name in given.split()]
        return self._add(_ToTuple(wanted), handler)

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[Sequence[Any]], Any] | None = collate_samples,
        partial: bool = True,
    ) -> Any:
        """Makes batches of `batchsize` samples on each rank. `collation_fn`: None makes lists of samples."""
        if self._stages.batch_size is not None:
            raise ValueError("WebDataset: batched() twice")
        if batchsize < 1:
            raise ValueError("WebDataset: a batch has 1 sample or more")
        return self._set(batch_size=int(batchsize), collation=collation_fn, partial=partial)

    def repeat(self, nepochs: int | None = None) -> Any:
        """Makes each `for` return `nepochs` epochs; None: it never ends."""
        return self._set(epochs=nepochs)

    def with_epoch(self, n: int) -> Any:
        """Makes each `for` return the next n samples (or batches) of an endless stream."""
        return self._set(epochs=None, epoch_items=int(n))

    def with_length(self, n: int, **_: Any) -> Any:
        """Sets len()."""
        return self._set(length=int(n))

    @property
    def loader(self) -> SampleLoader:
        """The SampleLoader that this object uses: report(), provenance(), quarantined(), stats()."""
        if self._loader is None:
            self._loader = _ChainLoader(self._urls, self._stages, **self._options)
        return self._loader

    def __iter__(self) -> Iterator[Any]:
        batches = itertools.chain.from_iterable(self.loader)
        items = self._stages.epoch_items
        return map(self._give, batches if items is None else itertools.islice(batches, items))

    def _give(self, value: Any) -> Any:
        return value

    def __len__(self) -> int:
        if self._stages.length is not None:
            return self._stages.length
        return self._stages.epoch_items if self._stages.epoch_items is not None else len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError("a WebDataset gives its samples in order only; iterate over it, it has its own workers")

    def state_dict(self) -> State:
        """Returns the state after the last sample or batch, for any number of ranks, as in SampleLoader."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state."""
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Stops the threads."""
        if self._loader is not None:
            self._loader.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _continues(handler: Handler) -> bool:
    """Returns whether a handler continues after damage. Handlers may sleep, warn or raise, so each is asked only
    once."""
    try:
        return bool(handler(ValueError("a question of Millrace: whether this handler goes on")))
    except Exception:
        return False
