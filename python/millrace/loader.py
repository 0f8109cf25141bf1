# SPDX-License-Identifier: Apache-2.0
"""Shards in, batches out. `millrace.Loader` is the name to use."""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._arguments import plain, resolve_rank
from millrace.accounting import Clock, LoaderReport

if TYPE_CHECKING:
    import torch

    from millrace.sources import SampleSource

StrPath = str | os.PathLike[str]
#: A batch of a Loader: arrays [rows, seq_len] by name.
Batch = dict[str, npt.NDArray[Any]]
#: The result of state_dict(): JSON.
State = dict[str, Any]
#: What a worker process does at its next `for`: the pass to begin (None: continue), and how often the loader moved.
NextStart = tuple[int | None, int]
#: The key under which a batch carries the state after it (`carry_state`): int64 [2].
STATE_KEY = "loader_state"

#: Whether, and how, the samples of an epoch are shuffled.
Shuffle = bool | Literal["full"]
#: Weights of a mixture from a step on: {0: [1, 1], 10_000: [3, 1]}.
Schedule = Mapping[int, Sequence[float]]

B = TypeVar("B")
_logger = logging.getLogger("millrace")


class SamplePart(NamedTuple):
    """Tokens [begin, end) of one sample, as part of a row. The sample is `mr.Dataset(part.shard)[part.sample]`."""

    source: int  #: the number of the sample's dataset in a mixture, else 0
    shard: str  #: the file or URL of the shard
    sample: int  #: the number of the sample in the shard
    begin: int
    end: int
    replaces: str = ""  #: why the original row was quarantined and replaced by this row; empty: not replaced


class QuarantinedRow(NamedTuple):
    """A damaged row that another row replaced."""

    source: int  #: the number of the row's dataset in a mixture, else 0
    epoch: int  #: the epoch of that dataset
    reason: str  #: names the shard, and the sample if it is known


class QuarantinedShard(NamedTuple):
    """A damaged tar without an index. The samples before the damage are read."""

    source: int  #: the number of the tar's dataset in a mixture, else 0
    shard: str  #: the file or URL of the tar
    samples: int  #: how many samples are read; 0: none can be read
    reason: str  #: names the shard and the place of the damage


@dataclass(frozen=True)
class Source:
    """One dataset of a mixture: `mr.Loader([mr.Source("web", weight=3), mr.Source("code", weight=1)], ...)`.

    shards: the same types as Loader or SampleLoader accepts.
    weight: the dataset's share of the rows. Only the ratios of the weights count. 0 pauses the dataset.
    ids_field: the field of the token ids; empty: the field that the shards name.
    """

    shards: StrPath | Sequence[StrPath] | SampleSource
    weight: float = 1.0
    ids_field: str = ""

    def _paths(self) -> list[str]:
        if not isinstance(self.shards, (str, os.PathLike, Sequence)):
            raise TypeError("Loader: shards are paths; mr.SampleLoader reads a SampleSource")
        if isinstance(self.shards, (str, os.PathLike)):
            return [os.fspath(self.shards)]
        return [os.fspath(path) for path in self.shards]


# Loaders to close when Python ends.
open_loaders: weakref.WeakSet[PassIterator[Any]] = weakref.WeakSet()


def _refuse_in_workers(kind: str) -> None:
    """Raises RuntimeError in a torch DataLoader with several workers, where each worker would return every batch."""
    data = sys.modules.get("torch.utils.data")  # every worker has imported it
    info = None if data is None else data.get_worker_info()
    if info is None or info.num_workers < 2:
        return
    raise RuntimeError(
        f"{kind}: this is worker {info.id} of {info.num_workers} of a DataLoader, and each of them would give every "
        "batch. Open the loader outside of the workers and give the DataLoader "
        "mr.torch.as_iterable(loader), whose workers share the batches; or iterate over the loader itself"
    )


class BatchIterator(Iterator[B]):
    """The result of iter(loader). The first call of next() begins the pass."""

    def __init__(self, loader: PassIterator[B]) -> None:
        self._loader = loader
        # Identifies this iteration. The loader keeps the key, not this object: a reference cycle would keep its memory.
        self._key = object()
        self._begun = False

    def __iter__(self) -> BatchIterator[B]:
        return self

    def __next__(self) -> B:
        if not self._begun:
            self._begun = True
            return self._loader._first_of(self._key)
        return self._loader._next_of(self._key)


class PassIterator(ABC, Generic[B]):
    """The base of millrace.Loader and millrace.torch.Loader: iteration and the state.

    A pass is `epochs` epochs. With a mixture, the stop rule ends the pass. The first `for` continues from the loader's
    position: from the start, after a loaded state, or after the batches that next(loader) returned. Each further `for`
    begins the next pass, even if the previous `for` was left early. An endless loader (`epochs=None`) continues.

    Opening and iterating raise RuntimeError in a torch DataLoader with several workers: see mr.torch.as_iterable.
    """

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        _refuse_in_workers(cls.__name__)
        return super().__new__(cls)

    def __init__(self, reader: _core.BatchReader, epochs: int | None, is_endless: bool) -> None:
        self._reader = reader
        self._epochs = epochs  # None: endless, or a mixture
        self._passes = _core.PassMachine(is_endless)
        self._iteration: object = None  # the key of the iteration that began last
        self._used: State | None = None  # set by mark_used()
        self._clock = Clock()
        self._workers_began: Callable[[], bool] | None = None  # whether a DataLoader's workers have given batches
        open_loaders.add(self)

    @abstractmethod
    def _take(self) -> B:
        """Returns the next batch of the reader. Raises StopIteration at the end of the pass."""

    @abstractmethod
    def _position(self) -> State:
        """Returns the state after the last returned batch."""

    def _pause(self) -> None:
        """Prepares for a new position of the reader: nothing else may take batches from the reader meanwhile."""

    def _moved(self) -> None:
        """Handles that the reader has a new position."""

    def _settle(self) -> None:
        """Moves a reader that is ahead back to the last returned batch. Batches that were fetched ahead are fetched
        again."""

    def __iter__(self) -> BatchIterator[B]:
        return BatchIterator(self)

    def __next__(self) -> B:
        self._begin(self._passes.next_begins())
        return self._next()

    def __len__(self) -> int:
        """Returns the number of batches in the current pass or, between passes, in the next one. It is the same on all
        ranks. For a mixture, it makes every draw of the pass; a draw takes some nanoseconds."""
        if self._passes.is_endless:
            raise TypeError(
                "an endless loader has no length; epochs=1 (of a mixture, a stop rule) gives it one, and in a DataLoader "
                "belongs mr.torch.as_iterable"
            )
        return self._reader.pass_batches(self._passes.pass_of_length(self._where))

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> NoReturn:
        # torch's DataLoader calls this.
        raise TypeError(
            "a loader gives its batches in order only; in a DataLoader belongs mr.torch.as_iterable(loader)"
        )

    def set_epoch(self, epoch: int) -> None:
        """Makes the next `for` return pass `epoch`, counted from 0. With `epochs=1`, this is the epoch of that number.

        Has no effect after load_state_dict() until a batch is returned: the state names the epoch. Has no effect in an
        endless loader, which counts its epochs itself.
        """
        if epoch < 0:
            raise ValueError(f"set_epoch: {epoch} is below 0")
        if not self._passes.ask(int(epoch), self._where):
            number, _ = self._where()
            _logger.warning("set_epoch(%d) changes nothing: the state that was loaded is in pass %d", epoch, number)

    @property
    def next_pass(self) -> int:
        """The pass of the next batch, counted from 0. Raises ValueError (an endless loader).

        `for n in range(loader.next_pass, 3): for batch in loader:` trains three passes, with any number of resumes.
        """
        return self._passes.following(self._settled)

    def state_dict(self, batch: Mapping[str, Any] | None = None) -> State:
        """Returns the position of training: a small JSON-serialisable dict. It is equal on all ranks, except for
        'quarantined'.

        batch: the last batch that training *used*. The result is the state after it, without batches that were fetched
            since. Needs carry_state=True. None: the state after the batch last passed to mark_used(), else after
            the batches that next() has returned. Once next() has raised StopIteration, the state is the beginning of
            the next pass.
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
        number = self._passes.pass_of_state(self._where)
        return self._position() if number is None else self._reader.state_behind(number * (self._epochs or 1), 0)

    def mark_used(self, batch: Mapping[str, Any]) -> None:
        """Makes state_dict() return the state after this batch, not after the last batch that next() returned. It is
        for frameworks that fetch ahead and call state_dict() themselves. Needs carry_state=True."""
        self._used = self._state_behind(batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, at any world size and batch size. Raises ValueError naming the arguments that
        differ."""
        self._pause()
        self._reader.load_state_dict(dict(state))
        self._passes.loaded()
        self._used = None if self._used is None else dict(state)
        self._moved()

    def set_weights(self, weights: Sequence[float]) -> None:
        """Sets the weights of a mixture, one per source, from the next batch on. The weights are part of the state.
        Drops batches that were read ahead. Call it on every rank at the same batch. Raises ValueError (no mixture;
        wrong weights)."""
        self._to_position()
        self._reader.set_weights([float(weight) for weight in weights])
        self._used = None
        self._passes.moved()
        self._moved()

    @property
    def step(self) -> int:
        """The number of the next batch. If the loader fetches batches ahead of next() (`device=`, `workers=`), it is
        the number of the batch that is fetched next.

        Steps count the batches of a pass from 0, at this batch size. Skipped batches count too. In an endless loader of
        one dataset, steps count the batches of the whole run.
        """
        return self._reader.step

    def provenance(self, step: int, states: Sequence[Mapping[str, Any]] = ()) -> list[list[list[SamplePart]]]:
        """Returns the samples that a step of the current pass used: for each rank its rows, and for each row its parts
        in order. Reads indexes, no samples. Raises ValueError (no such step; a state of another run).

        A row in quarantined() is listed as the row that replaced it.

        states: states of other ranks. A rank knows only its own quarantined rows; these states add those of the other
            ranks.
        """
        ranks = self._reader.provenance(operator.index(step), [json.dumps(dict(state)) for state in states])
        return [[[SamplePart(*part) for part in row] for row in rows] for rows in ranks]

    def quarantined(self) -> list[QuarantinedRow]:
        """Returns the damaged rows that were replaced, up to the last fetched batch. They include those of the earlier
        runs that the state comes from. The list is that of this rank, or of the rank whose state was loaded."""
        return [QuarantinedRow(*row) for row in self._reader.quarantined()]

    def quarantined_shards(self) -> list[QuarantinedShard]:
        """Returns the damaged tars without an index, which are read in part or not at all. The list is the same on
        every rank."""
        return [QuarantinedShard(*shard) for shard in self._reader.damaged_shards()]

    def skip(self, begin: int, end: int) -> None:
        """Leaves out steps [begin, end) of the current pass, such as those around a spike of the loss: load a state
        from before these steps, call skip() on every rank, and continue. The skipped steps are part of the state. Drops
        batches that were read ahead. Raises ValueError (no such steps)."""
        self._to_position()
        self._reader.skip(operator.index(begin), operator.index(end))
        self._used = None
        self._passes.moved()
        self._moved()

    @property
    def epoch_units(self) -> int:
        """The number of rows of the current epoch over all ranks. Raises ValueError (a mixture: each dataset has its
        own epoch)."""
        return self._reader.epoch_units

    def report(self) -> LoaderReport:
        """Reports how long training has waited for data since the first batch, where the loader spent its time, and
        what limits it. `print(loader.report())` prints this as a sentence."""
        threads = int(self._reader.config()["num_threads"])
        return self._clock.report(time.perf_counter(), self._reader.stats(), threads)

    def stats(self) -> dict[str, float]:
        """Returns the counters so far. docs/metrics.md explains them."""
        return self._reader.stats()

    def close(self) -> None:
        """Stops the threads and frees batches that were read ahead. Returned batches stay valid."""
        self._reader.close()
        self._moved()

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
        _refuse_in_workers(type(self).__name__)
        asked = time.perf_counter()
        try:
            batch = self._take()
        except StopIteration:
            self._passes.ended()
            raise
        self._clock.given(asked, time.perf_counter(), None if self._clock.is_running else self._reader.stats())
        self._passes.gave()
        return batch

    def _next_of(self, iteration: object) -> B:
        if iteration is not self._iteration:
            raise RuntimeError("another iteration of this loader has begun; two at a time need two loaders")
        self._passes.for_goes_on()
        return self._next()

    def _first_of(self, iteration: object) -> B:
        self._settle()
        self._iteration = iteration
        self._begin(self._passes.for_begins(self._where))
        return self._next()

    def _begin(self, number: int | None) -> None:
        """Begins pass `number`; None: continues the current pass."""
        if number is None:
            return
        self._pause()
        self._reader.start_pass(number)
        self._passes.began()
        self._moved()

    def _where(self) -> tuple[int, bool]:
        return self._reader.pass_info()

    def _settled(self) -> tuple[int, bool]:
        self._settle()
        return self._where()

    def _to_position(self) -> None:
        """Moves a reader that is ahead back to the last returned batch."""
        self._pause()
        self._reader.load_state_dict(self._position())

    def _next_start(self) -> tuple[State | None, NextStart]:
        """Returns what a loader in another process needs to do the same at the next `for`: the state to load (None: the
        loader is at its start), and the pass to begin."""
        return (self._position() if self._passes.is_touched else None), self._passes.next_start(self._where)


def source_arguments(
    shards: StrPath | Sequence[StrPath] | Source | Sequence[Source], schedule: Schedule | None
) -> dict[str, Any]:
    """Returns the arguments `shards`, `sources` and `weights` of _core.BatchReader. Raises TypeError, ValueError."""
    listed = shards if isinstance(shards, Sequence) and not isinstance(shards, str) else []
    if isinstance(shards, Source):
        listed = [shards]
    mixed = [source for source in listed if isinstance(source, Source)]
    if not mixed:
        if schedule is not None:
            raise ValueError("Loader: a schedule is of a mixture; give a list of mr.Source")
        return {"shards": shards, "sources": [], "weights": []}
    if len(mixed) != len(listed):
        raise TypeError("Loader: either every dataset is an mr.Source, or none is")
    phases = {0: [source.weight for source in mixed], **(schedule or {})}
    return {
        "shards": [],
        "sources": [(source._paths(), source.ids_field) for source in mixed],
        "weights": [(step, [float(weight) for weight in phases[step]]) for step in sorted(phases)],
    }


def shuffle_arguments(shuffle: Shuffle) -> dict[str, bool]:
    """Returns the arguments `shuffle` and `full_shuffle` of _core.BatchReader. Raises ValueError."""
    if isinstance(shuffle, str) and shuffle != "full":
        raise ValueError(f"shuffle is True, False or 'full', not '{shuffle}'")
    return {"shuffle": bool(shuffle), "full_shuffle": shuffle == "full"}


_BatchReader = plain(_core.BatchReader.__init__, "Loader")


def make_reader(**arguments: Any) -> _core.BatchReader:
    """Makes a reader from arguments in the form that _core.BatchReader.config() returns. Raises TypeError naming a
    wrong argument."""
    reader = _core.BatchReader.__new__(_core.BatchReader)
    _BatchReader(reader, **arguments)
    return reader


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype that is given as a NumPy dtype, a torch dtype or a str."""
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    return np.dtype(dtype).name


def _tokenizer_facts(tokenizer: Any) -> tuple[str, int]:
    """Returns the tokenizer's hash, and its largest id + 1."""
    if tokenizer is None:
        return "", 0
    if not isinstance(tokenizer, _core.Tokenizer):
        tokenizer = _core.Tokenizer.from_file(os.fspath(tokenizer))
    return tokenizer.hash, tokenizer.id_limit


class Loader(PassIterator[Batch]):
    """Shards in, batches out: C++ threads read, verify, decode and collate ahead of the training loop.

    Iterating gives dicts of NumPy arrays [rows, seq_len] that own their memory (no copies): 'input_ids', 'labels' (-100
    on padding and where a sample's loss_mask.npy is 0; not shifted, as Hugging Face models expect) and 'attention_mask'
    (pad) or 'position_ids' (packed; 0 at the start of each sample, whose first label is -100). The order of samples depends
    on the data, the seed and the epoch only, never on the number of ranks.

    shards: a folder that `prepare` wrote, a tar, a brace pattern of tars, or a list of these. All must have the same
        tokenizer. Or a list of `Source`: these are mixed by weight, and each batch on every rank has the mixture.
    seq_len: tokens per row.
    batch_size: rows per rank. Or give global_batch_size: rows over all ranks, a multiple of the number of ranks.
    collate: 'pad' (a row is one sample, cut or padded), 'pack' (samples laid end to end and cut into rows, no token lost)
        or 'best_fit' (rows of whole samples, padded; only samples longer than a row are cut, no token lost).
    shuffle: True: shuffles windows of neighbouring samples, and the samples within blocks of windows, which are read
        together. 'full': one permutation of all samples. Each sample is then read on its own, so use it for indexed shards
        on a disk of the node or in the cache. It does not work with packed rows. False: the order of the shards.
    rank, world_size: by default RANK and WORLD_SIZE, as torchrun sets them; without these, rank 0 of 1.
    epochs: epochs per pass. A `for` ends after them, and the next `for` gives the following ones. None: never ends.
    stop: when a pass of a mixture ends: 'endless', 'first_empty' (before a dataset would begin its second epoch) or
        'all_empty' (when each has ended its first; the others repeat).
    schedule: weights of a mixture by step of the pass: {10_000: [1, 4]} applies from step 10,000 on. `set_weights()`
        changes them during a pass.
    drop_last: False: the last batch of an epoch may be smaller, down to no rows on some ranks. With a mixture this is the
        last batch of a pass: it ends where the stop rule ends the mixture. An endless mixture has no last batch.
    fill_last: fills that batch, so that every rank has the same number of batches and of rows: 'pad' adds rows of padding,
        'repeat' the first rows of the epoch (with a mixture: of the pass). Each batch then has 'row_mask', bool [rows],
        which is False on added rows. In an evaluation each sample then counts once on any number of ranks. drop_last has
        no effect then.
    uneven_ranks: True: global_batch_size need not be a multiple of world_size. Some ranks get one row more than others.
    dtype: int64 or int32, as a str or as a dtype of NumPy or torch.
    num_threads: 0: the CPUs of this process divided by its local ranks, at most 8.
    memory_bytes: the most memory for reading ahead and for batches; 0: 1 GiB or a quarter of MILLRACE_MEMORY.
    tokenizer: the tokenizer of the ids (an object or its file). Shards of another tokenizer are refused.
    vocab_size: rows of the model's embedding. An id outside of them is an error that names the shard and the sample.
    carry_state: True: each batch has 'loader_state', int64 [2], which state_dict(batch) and mark_used(batch) read.
    carry_documents: True: each packed batch says where its documents (samples, or parts of samples) are. 'document_ids'
        [rows, seq_len] counts from 0 in each row and is -1 on padding. For variable-length attention over the concatenated
        rows there are 'cu_seqlens', int32 [documents + 1], and 'max_seqlen', int32 []; there the padding of a row counts as
        a document.
    on_bad: what to do with a row whose bytes are damaged or missing. 'raise': the state stays before its batch.
        'quarantine': another row of the same part of the epoch replaces it, the same one on every rank and in every resumed
        run. `quarantined()` lists it, a warning names it, and the state keeps it. From a damaged tar without an index, the
        samples before the damage are used, and `quarantined_shards()` lists the tar. A storage that does not answer is
        always an error, and so is a missing tar without an index.
    max_bad: raises CorruptionError when this rank has more quarantined rows and shards than this.
    cache: a folder on a disk of this node that keeps shards from S3, the web or a network file system, in blocks. All
        processes and jobs of the node share it, and one of them downloads each block. It survives restarts.
    cache_bytes: the largest size of the folder, such as '500GB'; 0: half of the disk. While jobs with different limits run,
        the smallest limit applies.
    stall_seconds: reports a wait for a batch that takes longer: the stage, and the shards and requests it waits for. 0:
        reports none.
    on_stall: how to report: 'warn' (again each time the wait has doubled) or 'raise' (TimeoutError; the next call goes on
        waiting for the same batch).
    numa: True: keeps threads on the processors of the NUMA node of this rank's GPU or, without a GPU, of the rank's share
        of the nodes, within the process's affinity mask. These threads touch the buffers first, so their memory is there
        too.
    carry_source: True: each batch of a mixture has 'source', int64 [rows]: the number of each row's dataset, -1 for
        padding.

    Batches arrive in order, one consumer at a time. Several threads may use the object. It owns threads: use it in a
    `with` block or call close(). Pickling keeps the arguments, not the position.

    The constructor raises ValueError and TypeError. The first batch opens the files. It raises CorruptionError for a
    damaged shard, FileNotFoundError, ValueError (two tokenizers), MemoryError (memory_bytes), Cancelled (closed).
    """

    def __init__(
        self,
        shards: StrPath | Sequence[StrPath] | Source | Sequence[Source],
        *,
        seq_len: int,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        collate: Literal["pad", "pack", "best_fit"] = "pad",
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
        pad_id: int = 0,
        dtype: str | npt.DTypeLike | torch.dtype = "int64",
        num_threads: int = 0,
        memory_bytes: int = 0,
        ids_field: str = "",
        tokenizer: _core.Tokenizer | StrPath | None = None,
        vocab_size: int | None = None,
        carry_state: bool = False,
        carry_source: bool = False,
        carry_documents: bool = False,
        on_bad: Literal["raise", "quarantine"] = "raise",
        max_bad: int = 1000,
        cache: StrPath | None = None,
        cache_bytes: int | str = 0,
        stall_seconds: float = 120,
        on_stall: Literal["warn", "raise"] = "warn",
        numa: bool = True,
    ) -> None:
        rank, world_size = resolve_rank(rank, world_size)
        tokenizer_hash, id_limit = _tokenizer_facts(tokenizer)
        if vocab_size is not None and vocab_size < id_limit:
            raise ValueError(f"Loader: the tokenizer has ids up to {id_limit - 1}, vocab_size is {vocab_size}")
        self._open(
            **source_arguments(shards, schedule), stop=stop, carry_source=carry_source, carry_documents=carry_documents, seq_len=seq_len, batch_size=batch_size, global_batch_size=global_batch_size,
            collate=collate, **shuffle_arguments(shuffle), seed=seed, rank=rank, world_size=world_size, epochs=epochs,
            drop_last=drop_last, fill_last=fill_last or "", uneven_ranks=uneven_ranks, pad_id=pad_id, dtype=dtype_name(dtype),
            num_threads=num_threads, memory_bytes=memory_bytes, ids_field=ids_field, tokenizer_hash=tokenizer_hash,
            vocab_size=0 if vocab_size is None else vocab_size, carry_state=carry_state, on_bad=on_bad, max_bad=max_bad,
            cache="" if cache is None else os.fspath(cache), cache_bytes=str(cache_bytes),
            stall_seconds=stall_seconds, on_stall=on_stall, numa=numa,
        )  # fmt: skip

    def _open(self, **arguments: Any) -> None:
        reader = make_reader(**arguments)
        is_mixture = bool(arguments["weights"])
        is_endless = arguments["stop"] == "endless" if is_mixture else arguments["epochs"] is None
        super().__init__(reader, arguments["epochs"], is_endless)

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
