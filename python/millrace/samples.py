# SPDX-License-Identifier: Apache-2.0
"""Loads samples of any kind: pictures, text, arrays. `millrace.SampleLoader` is the name to use."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from millrace import _core
from millrace._arguments import resolve_rank
from millrace._rows import Files, Settings, resolve_source
from millrace.fields import LENGTHS, Field, Fields, parser_of, resolve_fields
from millrace.loader import (
    STATE_KEY,
    PassIterator,
    Schedule,
    Shuffle,
    Source,
    State,
    StrPath,
    make_reader,
    shuffle_arguments,
    source_arguments,
)
from millrace.sources import SampleSource

#: A sample: its fields by name, and '__key__'.
Sample = dict[str, Any]
#: A batch: one array or list per field.
SampleBatch = dict[str, Any]
#: A user's function of a sample or of a batch. A function with a parameter `rng` gets a random generator.
Map = Callable[..., Any]

KEY = "__key__"
_ROW_MASK = "row_mask"
_PLACES = "__places__"  # the place of each row, with on_bad="quarantine"; removed before the user gets the batch


def _wants_rng(function: Map) -> bool:
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def unbatch(batch: SampleBatch) -> list[Sample]:
    """Returns the samples of a batch, without rows of padding."""
    keys = batch[KEY]
    mask = batch.get(_ROW_MASK)
    names = [name for name in batch if name not in (KEY, _ROW_MASK, STATE_KEY)]
    samples: list[Sample] = [{KEY: key} for key in keys]
    for name in names:
        for sample, value in zip(samples, batch[name], strict=True):
            sample[name] = value
    if mask is None:
        return samples
    return [sample for sample, is_real in zip(samples, mask, strict=True) if is_real]


def collate(samples: Sequence[Sample], rules: Mapping[str, Field] | None = None) -> SampleBatch:
    """Makes a batch of samples. Numbers become an array, arrays (and tensors) of one shape are stacked, and everything
    else becomes a list. `rules` has the fields that are padded. Raises ValueError (samples with different fields)."""
    batch: SampleBatch = {}
    names = list(samples[0]) if samples else []
    for sample in samples:
        if sample.keys() != samples[0].keys():
            raise ValueError(f"samples of one batch have other fields: {sorted(sample)} and {sorted(samples[0])}")
    for name in names:
        values = [sample[name] for sample in samples]
        options = rules[name].options if rules and name in rules else {}
        if name != KEY and options.get("batch") == "pad" and all(isinstance(value, np.ndarray) for value in values):
            batch[name], batch[name + LENGTHS] = _padded(values, options["pad_value"], options["length"])
        else:
            batch[name] = values if name == KEY else together(values)
    return batch


def together(values: list[Any]) -> Any:
    """Returns one array or tensor if the values are numbers, or arrays or tensors of one shape and dtype; else the
    list."""
    first = values[0]
    if isinstance(first, (bool, np.bool_, int, np.integer, float, np.floating)):
        if all(isinstance(value, (bool, np.bool_, int, np.integer, float, np.floating)) for value in values):
            return np.array(values)
        return values
    if isinstance(first, np.ndarray):
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return np.stack(values) if alike else values
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.stack(values) if alike else values
    return values


def _padded(values: list[Any], pad_value: float, length: int) -> tuple[Any, Any]:
    rows = length or max(len(value) for value in values)
    padded = np.full((len(values), rows, *values[0].shape[1:]), pad_value, values[0].dtype)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value[:rows]
    return padded, np.array([min(len(value), rows) for value in values], np.int64)


class RejectedRows(Exception):
    """Rows of a batch that a field's parser or map() rejected, each with the reason."""

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(rows)
        self.rows = rows


class Work:
    """The Python work on a batch: parses fields, calls the user's functions and collates again. Can be pickled if the
    functions can."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        map: Map | None,
        map_batch: Map | None,
        seed: int,
        quarantines: bool = False,
    ) -> None:
        self.map = map
        self.map_batch = map_batch
        self.seed = seed
        # Rows that fail are collected and reported together, so that all of them are replaced at once.
        self.quarantines = quarantines
        self.takes_all = not fields
        self.parsers = {name: field.parse for name, field in fields.items() if field.parse is not None}
        # The values of a field that map() returns are collated by the field's rule, which needs no tokenizer.
        self.rules = {
            name: Field(field.kind, options={k: v for k, v in field.options.items() if k != "tokenizer"})
            for name, field in fields.items()
        }

    @property
    def may_fail(self) -> bool:
        """Whether code of the user runs on the batch. If it fails, the batch must be made again."""
        return self.map is not None or self.map_batch is not None or bool(self.parsers) or self.takes_all

    def __call__(self, batch: SampleBatch, epoch: int, position: int, example: SampleBatch | None) -> SampleBatch:
        """Returns the finished batch. `example`: a sample of another batch, for a batch without samples. Raises
        RejectedRows."""
        failed: dict[int, str] = {}
        self._parse(batch, failed)
        if self.map is not None:
            mapped = self._map(batch, self.map, epoch, failed)
            if example is not None:
                example = {name: values[:] for name, values in example.items()}  # a copy: the example may be used again
                self._parse(example, failed)
                mapped = {name: values[:0] for name, values in self._map(example, self.map, epoch, failed).items()}
                failed.clear()  # the example is not a row of this batch
            batch = _framed(mapped, batch)
        if failed:
            raise RejectedRows(failed)
        if self.map_batch is not None:
            rng = {"rng": np.random.default_rng([self.seed, epoch, position])} if _wants_rng(self.map_batch) else {}
            batch = self.map_batch(batch, **rng)
        return batch

    def _parse(self, batch: SampleBatch, failed: dict[int, str] | None = None) -> None:
        for name, values in batch.items():
            parse = parser_of(name) if self.takes_all and isinstance(values, list) else self.parsers.get(name)
            if parse is None or name == KEY:
                continue
            for row, value in enumerate(values):
                if not isinstance(value, (bytes, str)):  # a missing value, or a value that is an object already
                    continue
                try:
                    values[row] = parse(value)
                except ImportError:
                    raise
                except Exception as error:
                    reason = f"sample {batch[KEY][row]}: {name}: {error}"
                    if failed is None or not self.quarantines:
                        raise _core.CorruptionError(reason) from error
                    failed.setdefault(row, reason)

    def _map(self, batch: SampleBatch, function: Map, epoch: int, failed: dict[int, str]) -> SampleBatch:
        wants_rng = _wants_rng(function)
        mapped = []
        rows = range(len(batch[KEY])) if _ROW_MASK not in batch else np.flatnonzero(batch[_ROW_MASK]).tolist()
        for row, sample in zip(rows, unbatch(batch), strict=True):
            if row in failed:
                continue
            key = sample[KEY]
            # The generator depends on the seed, the sample and the epoch only: it is the same on any number of ranks
            # and after a resume.
            rng = {}
            if wants_rng:
                rng = {"rng": np.random.default_rng([self.seed, epoch, zlib.crc32(os.fsencode(key))])}
            try:
                result = function(sample, **rng)
            except ImportError:
                raise
            except Exception as error:
                if self.quarantines:
                    failed[row] = f"sample {key}: map(): {type(error).__name__}: {error}"
                    continue
                error.add_note(f"in map() of sample {key}")
                raise
            if not isinstance(result, Mapping):
                raise TypeError(f"map() gave {type(result).__name__} for sample {key}; it gives a dict")
            mapped.append({KEY: key, **result})
        return {} if failed else collate(mapped, self.rules)


def _has_samples(batch: SampleBatch) -> bool:
    return bool(batch[_ROW_MASK].any() if _ROW_MASK in batch else batch[KEY])


def _framed(mapped: SampleBatch, batch: SampleBatch) -> SampleBatch:
    """Returns the batch that map() made, with the entries of the original batch that belong to no sample."""
    mapped.setdefault(KEY, [])
    if _ROW_MASK in batch:
        mapped = _with_padding(mapped, batch[_ROW_MASK])
    if STATE_KEY in batch:
        mapped[STATE_KEY] = batch[STATE_KEY]
    return mapped


def _with_padding(batch: SampleBatch, mask: Any) -> SampleBatch:
    """Adds rows of padding after the real rows, as the mask says: zeros in arrays, None in lists."""
    missing = len(mask) - int(mask.sum())
    padded: SampleBatch = {}
    for name, values in batch.items():
        if isinstance(values, list):
            padded[name] = values + [None] * missing
        elif isinstance(values, np.ndarray):
            padded[name] = np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
        else:
            padded[name] = values.new_zeros((len(mask), *values.shape[1:]))
            padded[name][: len(values)] = values
    padded[_ROW_MASK] = mask
    return padded


class Ahead:
    """Batches that are being processed by Work, at most `most` at once. Each has the state after it."""

    def __init__(self, reader: _core.BatchReader, work: Work, executor: Executor | None, most: int, keep: bool) -> None:
        self._reader = reader
        self._work = work
        self._executor = executor
        self._most = most
        self._keep_state = keep
        # One sample from the reader. The result of map() for it shows which fields a batch without samples has.
        self._example: SampleBatch | None = None
        self.restart()

    def restart(self) -> None:
        """Discards the batches in progress: the reader has a new position."""
        for future, *_ in getattr(self, "_under_way", ()):
            future.cancel()
        self._under_way: deque[tuple[Future[SampleBatch], State, Any]] = deque()
        self._state: State | None = None
        self._at_end = False

    @property
    def is_ahead(self) -> bool:
        """Whether batches were taken from the reader and not yet returned."""
        return bool(self._under_way)

    @property
    def state(self) -> State:
        """The state after the last returned batch."""
        if self._under_way and self._state is not None:
            return self._state
        return self._reader.state_dict()

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> SampleBatch:
        while True:
            try:
                return self._try_next()
            except RejectedRows:
                pass  # the reader knows the rows now, and is before the batch again

    def _try_next(self) -> SampleBatch:
        if self._executor is None:
            before = self._reader.state_dict() if self._work.may_fail else None
            batch = next(self._reader)
            places = batch.pop(_PLACES, None)
            try:
                return self._work(*self._arguments(batch))
            except RejectedRows as error:
                self._reject(places, error, before)
                raise
            except BaseException:
                if before is not None:
                    self._reader.load_state_dict(before)
                raise
        if self._state is None:
            self._state = self._reader.state_dict()
        while not self._at_end and len(self._under_way) < self._most:
            try:
                batch = next(self._reader)
            except StopIteration:
                self._at_end = True
                break
            behind = self._reader.state_dict()
            places = batch.pop(_PLACES, None)
            self._under_way.append((self._executor.submit(self._work, *self._arguments(batch)), behind, places))
        if not self._under_way:
            raise StopIteration
        future, behind, places = self._under_way[0]
        try:
            result = future.result()
        except RejectedRows as error:
            before = self._state
            self.restart()
            self._reject(places, error, before)
            raise
        except BaseException:
            before = self._state
            self.restart()
            self._reader.load_state_dict(before)  # the next call returns this batch again
            raise
        self._under_way.popleft()
        self._state = behind
        return result

    def _reject(self, places: Any, error: RejectedRows, before: State | None) -> None:
        """Rejects rows of a batch and moves the reader back before it. Raises CorruptionError (more than max_bad
        rows)."""
        try:
            self._reader.reject([(places[row].tolist(), reason) for row, reason in error.rows.items()])
        finally:
            if before is not None:
                self._reader.load_state_dict(before)

    def _arguments(self, batch: SampleBatch) -> tuple[SampleBatch, int, int, SampleBatch | None]:
        place = batch[STATE_KEY] if self._keep_state else batch.pop(STATE_KEY)
        example = None
        if self._work.map is not None:
            if _has_samples(batch):
                names = [name for name in batch if name not in (_ROW_MASK, STATE_KEY)]
                first = int(batch[_ROW_MASK].argmax()) if _ROW_MASK in batch else 0
                self._example = {name: batch[name][first : first + 1] for name in names}
            else:
                example = self._example
        return batch, int(place[0]), int(place[1]), example


def _row_sources(shards: Any, fields: Mapping[str, Field]) -> list[SampleSource | None]:
    """Returns for each dataset the source that reads its rows; None: tars. Only the requested columns of a table are
    read."""
    columns = None
    if fields:
        columns = [field.of or name for name, field in fields.items()]
        if any(field.optional or ";" in (field.of or "") for field in fields.values()):
            columns = None  # some of these columns may be missing
    if isinstance(shards, Source):
        shards = [shards]
    if isinstance(shards, Sequence) and any(isinstance(source, Source) for source in shards):
        return [resolve_source(getattr(source, "shards", source), columns) for source in shards]
    source = resolve_source(shards, columns)
    return [] if source is None else [source]


def _paths(shards: Any, rows: Sequence[SampleSource | None]) -> Any:
    """Returns `shards` with each dataset of rows replaced by the name of its source."""
    if isinstance(shards, Source):
        shards = [shards]
    if isinstance(shards, Sequence) and any(isinstance(source, Source) for source in shards):
        named = zip(shards, rows, strict=True)
        return [source if row is None else replace(source, shards=[row.name]) for source, row in named]
    return [rows[0].name] if rows and rows[0] is not None else shards


class SampleLoader(PassIterator[SampleBatch]):
    """Samples of any kind in batches, from WebDataset tars or tables: C++ threads read, verify, decode and collate.

    The rules of Loader for order, epochs, states, mixtures, quarantine and the cache apply here too: the order depends
    on the data, the seed and the epoch only, and a state continues on any number of ranks.

    Iterating gives dicts: '__key__' has the keys of the samples, and each field is an array or a list.

    shards: tars, brace patterns or folders, written by Millrace or by other tools. Or rows: .jsonl, .parquet, .arrow,
        .npy or .npz, a folder that the package datasets wrote, or your own SampleSource. Or a list of `Source` of
        these, mixed by weight.
    fields: the fields that are read; the other fields of a sample are not decoded. Either names such as ["jpg", "cls"],
        whose extensions say how they are decoded, or a dict: {"jpg": mr.image(size=224), "cls": mr.integer(),
        "caption": mr.text("txt")}. None: all fields, by their extensions.
    map: a function that gets each sample (a dict) and returns a dict. It runs after the fields are decoded and changes
        neither the order nor the states. A sample for which it raises counts as damaged: with on_bad='quarantine'
        another sample replaces it. If the function has a parameter `rng`, it gets a random generator that depends on
        the seed, the epoch and the sample.
    map_batch: a function that gets each batch and returns a batch. With a parameter `rng`, it gets a random generator
        that depends on the seed and the position of the batch.
    workers: threads or processes that run `map` and `map_batch`; 0: the caller runs them.
    worker_kind: 'thread' or 'process' (the processes must be able to import the functions).
    batch_size, global_batch_size, shuffle, seed, rank, world_size, epochs, stop, schedule, drop_last, fill_last,
        uneven_ranks, num_threads, memory_bytes, carry_state, carry_source, on_bad, max_bad, cache, cache_bytes,
        stall_seconds, on_stall, numa: as in Loader. A picture that does not decode counts as damaged.

    The object owns threads: use it in a `with` block or call close(). Pickling keeps the arguments, not the position.
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath] | SampleSource | Source | Sequence[Source],
        *,
        fields: Fields | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        map: Map | None = None,
        map_batch: Map | None = None,
        workers: int = 0,
        worker_kind: Literal["thread", "process"] = "thread",
        shuffle: Shuffle = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int | None = None,
        stop: Literal["endless", "first_empty", "all_empty"] = "endless",
        schedule: Schedule | None = None,
        drop_last: bool = True,
        fill_last: Literal["pad", "repeat"] | None = None,
        uneven_ranks: bool = False,
        num_threads: int = 0,
        memory_bytes: int = 0,
        carry_state: bool = False,
        carry_source: bool = False,
        on_bad: Literal["raise", "quarantine"] = "raise",
        max_bad: int = 1000,
        cache: StrPath | None = None,
        cache_bytes: int | str = 0,
        stall_seconds: float = 120,
        on_stall: Literal["warn", "raise"] = "warn",
        numa: bool = True,
    ) -> None:
        rank, world_size = resolve_rank(rank, world_size)
        resolved = resolve_fields(fields)
        rows = _row_sources(shards, resolved)
        settings = Settings("" if cache is None else os.fspath(cache), str(cache_bytes))
        if memory_bytes > 0:
            settings = replace(settings, kept_bytes=min(settings.kept_bytes, memory_bytes // 8))
        typed = {field.of or name for name, field in resolved.items() if field.options.get("dtype")}
        settings = replace(settings, typed=frozenset(typed))
        for source in rows:
            if isinstance(source, Files):
                source.use(settings)
        if rows and all(source is not None for source in rows):  # sources of rows describe their columns themselves
            resolved = resolve_fields(fields, by_extension=False)
        arguments = dict(
            **source_arguments(_paths(shards, rows), schedule), rows=rows, stop=stop, carry_source=carry_source, batch_size=batch_size,
            global_batch_size=global_batch_size, **shuffle_arguments(shuffle), seed=seed, rank=rank, world_size=world_size,
            epochs=epochs, drop_last=drop_last, fill_last=fill_last or "", uneven_ranks=uneven_ranks,
            num_threads=num_threads, memory_bytes=memory_bytes, on_bad=on_bad, max_bad=max_bad,
            cache="" if cache is None else os.fspath(cache), cache_bytes=str(cache_bytes), stall_seconds=stall_seconds,
            on_stall=on_stall, numa=numa,
        )  # fmt: skip
        self._open(arguments, resolved, map, map_batch, (workers, worker_kind), carry_state)

    def _open(
        self,
        arguments: dict[str, Any],
        fields: dict[str, Field],
        map: Map | None,
        map_batch: Map | None,
        workers: tuple[int, str],
        carry_state: bool,
    ) -> None:
        count, kind = workers
        if count < 0 or kind not in ("thread", "process"):
            raise ValueError("SampleLoader: workers is 0 or more, worker_kind 'thread' or 'process'")
        self._arguments = (arguments, fields, map, map_batch, workers, carry_state)
        reader = make_reader(**arguments, seq_len=1, carry_state=True, fields=self._specs(fields, map))
        is_mixture = bool(arguments["weights"])
        is_endless = arguments["stop"] == "endless" if is_mixture else arguments["epochs"] is None
        super().__init__(reader, arguments["epochs"], is_endless)
        self._executor: Executor | None = None
        if count > 0 and kind == "thread":
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="mr-map")
        elif count > 0:
            self._executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
        self._work = work = self._make_work(fields, map, map_batch, arguments)
        self._carry_state = carry_state
        self._batches = Ahead(reader, work, self._executor, count + 1, carry_state)

    def _specs(self, fields: Mapping[str, Field], map: Map | None) -> list[dict[str, Any]]:
        specs = [field._spec(name) for name, field in fields.items()]
        # With map(), each sample stays separate, and the results of map() are collated.
        return (
            specs
            if map is None
            else [spec if spec["kind"] == "number" else {**spec, "batch": "list"} for spec in specs]
        )

    def _make_work(
        self, fields: Mapping[str, Field], map: Map | None, map_batch: Map | None, arguments: Mapping[str, Any]
    ) -> Work:
        return Work(fields, map, map_batch, int(arguments["seed"]), arguments["on_bad"] == "quarantine")

    def _take(self) -> SampleBatch:
        return next(self._batches)

    def _position(self) -> State:
        return self._batches.state

    def _moved(self) -> None:
        self._batches.restart()

    def _settle(self) -> None:
        if self._batches.is_ahead:
            self._to_position()
            self._batches.restart()

    def close(self) -> None:
        """Stops the threads and processes and frees batches that were read ahead. Returned batches stay valid."""
        self._batches.restart()
        super().close()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> SampleLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self._open(*arguments)
