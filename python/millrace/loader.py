# SPDX-License-Identifier: Apache-2.0
"""Shards in, batches out. `millrace.Loader` is the name to use."""

from __future__ import annotations

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._arguments import plain

if TYPE_CHECKING:
    import torch

StrPath = str | os.PathLike[str]
#: What iterating a Loader gives: arrays [rows, seq_len] by their name.
Batch = dict[str, npt.NDArray[Any]]
#: What state_dict() gives: JSON.
State = dict[str, Any]
#: Where a batch carries the state of whoever has used it (`carry_state`): int64 [2].
STATE_KEY = "loader_state"

B = TypeVar("B")
_logger = logging.getLogger("millrace")

# Those that are closed when Python ends.
open_loaders: weakref.WeakSet[Passes[Any]] = weakref.WeakSet()


class BatchIterator(Iterator[B]):
    """What iter(loader) gives. Its first next() begins; until then it does nothing."""

    def __init__(self, loader: Passes[B]) -> None:
        self._loader = loader
        # Which iteration this is. The loader keeps it, not this object: a cycle would keep its memory.
        self._key = object()
        self._begun = False

    def __iter__(self) -> BatchIterator[B]:
        return self

    def __next__(self) -> B:
        if not self._begun:
            self._begun = True
            return self._loader._first_of(self._key)
        return self._loader._next_of(self._key)


class Passes(ABC, Generic[B]):
    """What millrace.Loader and millrace.torch.Loader have in common: when which pass begins, and the state.

    A pass is `epochs` epochs. The first `for` goes on from where the loader stands: at its beginning, behind a state that
    was loaded, or behind batches that next(loader) gave. Each further `for` begins the next pass, also when the one
    before it was left early. An endless loader (`epochs=None`) goes on.
    """

    def __init__(self, reader: _core.BatchReader, epochs: int | None) -> None:
        self._reader = reader
        self._epochs = epochs
        self._iteration: object = None  # the key of that which has begun last
        self._stays = True  # the next `for` goes on from here
        self._loaded = False  # a state was, and no batch given since
        self._between = False  # next() has said that the pass is over, or a state was loaded
        self._asked_pass: int | None = None  # by set_epoch()
        self._used: State | None = None  # as mark_used() said
        self._moves = 0  # how often the reader was sent elsewhere
        self._touched = False  # it stands elsewhere than at its beginning
        self._workers_began: Callable[[], bool] | None = None  # whether a DataLoader's workers have given batches
        open_loaders.add(self)

    @abstractmethod
    def _take(self) -> B:
        """The next batch of the reader. Raises StopIteration at the end of the pass."""

    @abstractmethod
    def _position(self) -> State:
        """The state behind the last batch that was returned."""

    def _moved(self) -> None:
        """The reader was sent elsewhere."""

    def __iter__(self) -> BatchIterator[B]:
        return BatchIterator(self)

    def __next__(self) -> B:
        self._begin_asked_pass()
        return self._next()

    def __len__(self) -> int:
        """Batches in the pass under way; between passes, in the next one. The same on all ranks."""
        if self._epochs is None:
            raise TypeError(
                "an endless loader has no length; epochs=1 gives it one (in a DataLoader belongs mr.torch.as_iterable)"
            )
        if self._asked_pass is not None:
            return self._reader.pass_batches(self._asked_pass)
        number, over, batches = self._reader.pass_info()
        return self._reader.pass_batches(number + 1) if over and self._between else batches

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> NoReturn:
        # What torch's DataLoader asks for.
        raise TypeError(
            "a loader gives its batches in order only; in a DataLoader belongs mr.torch.as_iterable(loader)"
        )

    def set_epoch(self, epoch: int) -> None:
        """The next `for` gives pass `epoch`, counted from 0: with `epochs=1`, the epoch of that number.

        Changes nothing behind load_state_dict(), until a batch was given: the state says which epoch it is. Changes
        nothing in an endless loader, which counts its epochs itself.
        """
        if epoch < 0:
            raise ValueError(f"set_epoch: {epoch} is below 0")
        if self._epochs is None:
            return
        if not self._loaded:
            self._asked_pass = int(epoch)
            return
        number, over, _ = self._reader.pass_info()
        if epoch not in (number, number + over):
            _logger.warning("set_epoch(%d) changes nothing: the state that was loaded is in pass %d", epoch, number)

    @property
    def next_pass(self) -> int:
        """The pass that the next batch is of, counted from 0; `for n in range(loader.next_pass, 3): for batch in loader:`
        trains three passes, however often it is resumed. Raises ValueError (an endless loader)."""
        if self._asked_pass is not None:
            return self._asked_pass
        number, over, _ = self._reader.pass_info()
        return number + over

    def state_dict(self, batch: Mapping[str, Any] | None = None) -> State:
        """Where training stands: a small dict that json can write, equal on all ranks.

        batch: the last batch that was *used* (of a loader with carry_state=True): the state behind it, whatever was
            fetched since. None: behind the batch given to mark_used() last, else behind what next() has returned. Once
            next() has raised StopIteration, that is the beginning of the next pass.
        """
        if batch is not None:
            return self._state_behind(batch)
        if self._used is not None:
            return self._used
        if self._workers_began is not None and self._workers_began():
            raise RuntimeError(
                "the workers of a DataLoader have given batches, and only they know how many; make the loader with "
                "carry_state=True and ask for state_dict(batch), with the last batch that was used"
            )
        if self._between and self._epochs is not None:
            number, over, _ = self._reader.pass_info()
            if over:
                return self._reader.state_behind((number + 1) * self._epochs, 0)
        return self._position()

    def mark_used(self, batch: Mapping[str, Any]) -> None:
        """From now on state_dict() counts what was used, up to this batch, not what next() has returned: for frameworks
        that fetch ahead and take the state themselves. Needs carry_state=True."""
        self._used = self._state_behind(batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, at any world size and batch size. Raises ValueError naming what differs."""
        self._reader.load_state_dict(dict(state))
        self._stays = self._loaded = True
        self._asked_pass = None
        self._used = None if self._used is None else dict(state)
        self._sent()

    @property
    def epoch_units(self) -> int:
        """Rows of the current epoch over all ranks."""
        return self._reader.epoch_units

    def stats(self) -> dict[str, float]:
        """Counters so far; docs/metrics.md names them."""
        return self._reader.stats()

    def close(self) -> None:
        """Stops the threads and frees what was read ahead. Batches that were returned stay valid."""
        self._reader.close()

    def _state_behind(self, batch: Mapping[str, Any]) -> State:
        if STATE_KEY not in batch:
            raise ValueError(f"this batch has no '{STATE_KEY}': make the loader with carry_state=True")
        place = batch[STATE_KEY].tolist()
        while len(place) == 1 and isinstance(place[0], list):  # a DataLoader with batch_size=1 adds a dimension
            place = place[0]
        if len(place) != 2 or not all(isinstance(number, int) for number in place):
            raise ValueError(f"'{STATE_KEY}' has another shape than [2]: several batches were joined into this one")
        return self._reader.state_behind(*place)

    def _next(self) -> B:
        try:
            batch = self._take()
        except StopIteration:
            self._between = True
            raise
        self._touched = True
        self._loaded = self._between = False
        return batch

    def _next_of(self, iteration: object) -> B:
        if iteration is not self._iteration:
            raise RuntimeError("another iteration of this loader has begun; two at a time need two loaders")
        self._stays = False
        return self._next()

    def _first_of(self, iteration: object) -> B:
        self._iteration = iteration
        stays, self._stays = self._stays, False
        if self._begin_asked_pass() or self._epochs is None:
            return self._next()
        number, over, _ = self._reader.pass_info()
        # A state from the end of a pass stands for the next one: who saved it had all batches of this one.
        if over or not stays:
            self._start_pass(number + 1)
        return self._next()

    def _begin_asked_pass(self) -> bool:
        number, self._asked_pass = self._asked_pass, None
        if number is None:
            return False
        self._start_pass(number)
        return True

    def _start_pass(self, number: int) -> None:
        self._reader.start_pass(number)
        self._between = False
        self._sent()

    def _sent(self) -> None:
        self._moves += 1
        self._touched = True
        self._moved()

    def _next_start(self) -> tuple[State | None, int | None, int]:
        """What the next `for` would do, for one in another process: the state to load, the pass to begin (None: to go on),
        and how often this loader was sent elsewhere."""
        number = self._asked_pass
        if number is None and not self._stays and self._epochs is not None:
            number = self._reader.pass_info()[0] + 1
        return (self._reader.state_dict() if self._touched else None), number, self._moves


_BatchReader = plain(_core.BatchReader.__init__, "Loader")


def make_reader(**arguments: Any) -> _core.BatchReader:
    """A reader from arguments as _core.BatchReader.config() gives them. Raises TypeError naming a wrong one."""
    reader = _core.BatchReader.__new__(_core.BatchReader)
    _BatchReader(reader, **arguments)
    return reader


def dtype_name(dtype: Any) -> str:
    """The name of a dtype as NumPy, torch or a str has it."""
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    return np.dtype(dtype).name


def _tokenizer_facts(tokenizer: Any) -> tuple[str, int]:
    """Its hash, and 1 + its largest id."""
    if tokenizer is None:
        return "", 0
    if not isinstance(tokenizer, _core.Tokenizer):
        tokenizer = _core.Tokenizer.from_file(os.fspath(tokenizer))
    return tokenizer.hash, tokenizer.id_limit


class Loader(Passes[Batch]):
    """Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop.

    Iterating gives dicts of NumPy arrays [rows, seq_len] that own their memory (no copies): 'input_ids', 'labels' (-100
    on padding and where a sample's loss_mask.npy is 0; not shifted, as Hugging Face models expect) and 'attention_mask'
    (pad) or 'position_ids' (pack; 0 at the start of each sample, whose first label is -100). The order of samples depends
    on the data, the seed and the epoch only, never on the number of ranks.

    shards: a folder that `prepare` wrote, a tar, a brace pattern of tars, or a list of these; all of one tokenizer.
    seq_len: tokens in a row.
    batch_size: rows for each rank; or global_batch_size: rows over all ranks, a multiple of them.
    collate: 'pad' (a row is one sample, cut or padded) or 'pack' (samples laid end to end, none lost).
    epochs: in a pass: a `for` ends with them, and the next `for` gives the epochs behind them. None: no end.
    drop_last: False: an epoch's last batch may be smaller, down to no rows on some ranks.
    uneven_ranks: global_batch_size need not be a multiple of world_size; some ranks get a row more than others.
    dtype: int64 or int32, as a str, of NumPy or of torch.
    num_threads: 0: the CPUs of this process over its local ranks, at most 8.
    memory_bytes: cap for reading ahead and for batches; 0: 1 GiB or a quarter of MILLRACE_MEMORY.
    tokenizer: that which made the ids (an object or its file): other shards are refused.
    vocab_size: rows of the model's embedding: an id outside is an error that names shard and sample.
    carry_state: each batch has 'loader_state', int64 [2]; state_dict(batch) and mark_used(batch) read it.

    Batches come to one consumer at a time, in order; the object may be used from several threads. Owns threads: use it in
    a `with` block or call close(). Pickling carries the arguments, not the position.

    The constructor raises ValueError and TypeError; files are opened by the first batch, which raises CorruptionError for
    a damaged shard, FileNotFoundError, ValueError (two tokenizers), MemoryError (memory_bytes), Cancelled (closed).
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath],
        *,
        seq_len: int,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        collate: Literal["pad", "pack"] = "pad",
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        epochs: int | None = None,
        drop_last: bool = True,
        uneven_ranks: bool = False,
        pad_id: int = 0,
        dtype: str | npt.DTypeLike | torch.dtype = "int64",
        num_threads: int = 0,
        memory_bytes: int = 0,
        ids_field: str = "",
        tokenizer: _core.Tokenizer | StrPath | None = None,
        vocab_size: int | None = None,
        carry_state: bool = False,
    ) -> None:
        tokenizer_hash, id_limit = _tokenizer_facts(tokenizer)
        if vocab_size is not None and vocab_size < id_limit:
            raise ValueError(f"Loader: the tokenizer has ids up to {id_limit - 1}, vocab_size is {vocab_size}")
        self._open(
            shards=shards, seq_len=seq_len, batch_size=batch_size, global_batch_size=global_batch_size,
            collate=collate, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, epochs=epochs,
            drop_last=drop_last, uneven_ranks=uneven_ranks, pad_id=pad_id, dtype=dtype_name(dtype),
            num_threads=num_threads, memory_bytes=memory_bytes, ids_field=ids_field, tokenizer_hash=tokenizer_hash,
            vocab_size=0 if vocab_size is None else vocab_size, carry_state=carry_state,
        )  # fmt: skip

    def _open(self, **arguments: Any) -> None:
        super().__init__(make_reader(**arguments), arguments["epochs"])

    def _take(self) -> Batch:
        return next(self._reader)

    def _position(self) -> State:
        return self._reader.state_dict()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._reader.config()

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self._open(**arguments)
