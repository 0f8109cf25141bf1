# SPDX-License-Identifier: Apache-2.0
"""Loads frames of robot datasets in the loader's order. `millrace.lerobot.Loader` is the name to use."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace import _core
from millrace._arguments import plain, resolve_rank
from millrace._robot import Frames, Item
from millrace.loader import PassIterator, SamplePart, Schedule, State

_logger = logging.getLogger("millrace")
_row_reader = plain(_core.row_reader, "Loader")
#: The key of a state under which the replaced frames are listed.
_LEDGER = "quarantined_frames"


class QuarantinedFrame(NamedTuple):
    """A frame that could not be read and was replaced by another frame."""

    source: int  #: the number of the frame's dataset in a mixture, else 0
    frame: int  #: the number of the frame in that dataset
    reason: str  #: names file and episode


@dataclass(frozen=True)
class Source:
    """One dataset of a mixture: `mr.lerobot.Loader([Source(arm, weight=3), Source(hand)], ...)`.

    weight: the dataset's share of the frames. Only the ratios of the weights count. 0 pauses the dataset.
    """

    dataset: Frames
    weight: float = 1.0


class _Ahead:
    """Batches that a thread reads ahead, in the order of `rows`."""

    def __init__(self, rows: _core.BatchReader, depth: int) -> None:
        self._rows, self._depth = rows, depth
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._queue: collections.deque[tuple[Item, concurrent.futures.Future[Item]]] = collections.deque()
        self._over = False

    def restart(self, state: State) -> None:
        """Discards the batches that were read. The next batch is the one after `state`."""
        self._drop()
        self._rows.load_state_dict(state)

    def take(self, read: Callable[[Item], Item]) -> Item:
        """Returns the next batch, read with `read`. Keeps no reference to `read`, which is a method of the object that
        owns this one. Raises StopIteration. After any other error, the next call reads the same batch again."""
        while len(self._queue) < self._depth and not self._over:
            place = next(self._rows, None)
            if place is None:
                self._over = True
            else:
                self._queue.append((place, self._submit(read, place)))
        if not self._queue:
            raise StopIteration
        place, future = self._queue[0]
        try:
            batch = _result(future)
        except Exception:
            self._queue[0] = (place, self._submit(read, place))
            raise
        self._queue.popleft()
        return batch

    def close(self) -> None:
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._rows.close()

    def _submit(self, read: Callable[[Item], Item], place: Item) -> concurrent.futures.Future[Item]:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "mr-frames")
        return self._thread.submit(read, place)

    def _drop(self) -> None:
        for _, future in self._queue:
            future.cancel()
        self._queue.clear()
        self._over = False


def _result(future: concurrent.futures.Future[Item]) -> Item:
    """Returns the result of the future. Reacts to Ctrl-C while waiting."""
    while not concurrent.futures.wait([future], timeout=0.5).done:
        pass
    return future.result()


class Loader(PassIterator[Item]):
    """Batches of frames of robot datasets, shuffled, read ahead, and resumed exactly at any number of ranks.

        frames = mr.lerobot.Dataset("so101", delta_timestamps={"action": [i / 30 for i in range(16)]})
        with mr.lerobot.Loader(frames, batch_size=32, seed=1, epochs=1) as loader:
            for batch in loader:
                batch["observation.images.top"]      # uint8 [32, 3, height, width]

    A batch has the same form as the result of `Dataset.batch`. The order depends on the datasets, the seed and the
    epoch only, never on the number of ranks. docs/format/order.md defines it, with frames as samples and episodes as
    shards. Passes, states, skip(), set_weights() and provenance() are those of millrace.Loader.

    datasets: a Dataset, a GrootDataset or a millrace.episodes.Dataset, or a list of `Source`, which are mixed by
        weight. A batch of a mixture has 'source', int64 [rows], the number of each row's dataset, and 'parts': for each
        dataset its rows of the batch, in their order, or None. The datasets may have different features.
    batch_size: frames per rank. Or give global_batch_size: frames over all ranks, a multiple of the number of ranks.
    rank, world_size, epochs, stop, schedule, drop_last, uneven_ranks: as in millrace.Loader.
    fill_last: 'repeat' fills the last batch of an epoch (with a mixture: of a pass) with the first frames of the epoch
        (of the pass), so that every rank has the same number of batches and of frames. 'row_mask', bool [rows], is
        False on the added frames. With a mixture, the rows of 'row_mask' are those of 'source'.
    prefetch: number of batches that are read ahead.
    on_bad: what to do with a frame whose window is damaged or missing. 'raise': the state stays before its batch.
        'quarantine': the frame at the same position in the next readable episode replaces it, the same one on every
        rank and in every resumed run. All other frames stay where they are. `quarantined_frames()` lists the replaced
        frames.
    max_bad: raises CorruptionError when this rank has more quarantined frames than this.

    Batches go to one consumer at a time. The object owns threads: use it in a `with` block or call close(). Raises the
    same errors as Dataset.
    """

    def __init__(
        self,
        datasets: Frames | Source | Sequence[Source],
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int | None = None,
        stop: Literal["endless", "first_empty", "all_empty"] = "endless",
        schedule: Schedule | None = None,
        drop_last: bool = True,
        fill_last: Literal["repeat"] | None = None,
        uneven_ranks: bool = False,
        prefetch: int = 2,
        on_bad: Literal["raise", "quarantine"] = "raise",
        max_bad: int = 1000,
    ) -> None:
        sources = [datasets] if isinstance(datasets, Source) else datasets
        self._is_mixture = isinstance(sources, Sequence) and not isinstance(sources, Frames)
        listed: list[Any] = list(sources) if self._is_mixture else [Source(sources)]  # type: ignore[arg-type]
        if not listed or not all(isinstance(source, Source) for source in listed):
            raise TypeError("Loader: a mr.lerobot.Dataset, or a list of mr.lerobot.Source")
        if schedule is not None and not self._is_mixture:
            raise ValueError("Loader: a schedule is of a mixture; give a list of mr.lerobot.Source")
        if fill_last not in (None, "repeat"):
            raise ValueError("fill_last: 'repeat' or None")
        if on_bad not in ("raise", "quarantine"):
            raise ValueError("on_bad: 'raise' or 'quarantine'")
        if prefetch < 1:
            raise ValueError("prefetch: at least 1")
        rank, world_size = resolve_rank(rank, world_size)
        phases = {0: [source.weight for source in listed], **(schedule or {})} if self._is_mixture else {}
        self._datasets = [source.dataset for source in listed]
        self._frames = [_frames_of(dataset) for dataset in self._datasets]
        arguments: dict[str, Any] = {
            "datasets": [frames.rows_to_order() for frames in self._frames],
            "weights": [(step, [float(weight) for weight in phases[step]]) for step in sorted(phases)],
            "stop": stop,
            "batch_size": batch_size,
            "global_batch_size": global_batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
            "epochs": epochs,
            "drop_last": drop_last,
            "fill_last": fill_last or "",
            "uneven_ranks": uneven_ranks,
        }
        self._fills = fill_last is not None
        self._quarantines, self._max_bad = on_bad == "quarantine", max_bad
        self._ledger: dict[tuple[int, int], str] = {}
        # Two readers follow the same order: one is at the batch that next() returns, the other is ahead of it.
        super().__init__(_row_reader(**arguments), epochs, stop == "endless" if self._is_mixture else epochs is None)
        self._ahead = _Ahead(_row_reader(**arguments), prefetch)
        self._begun = False

    def quarantined_frames(self) -> list[QuarantinedFrame]:
        """Returns the frames that were replaced, in this run and in the earlier runs that the state comes from. The
        list is that of this rank, or of the rank whose state was loaded. Batches that were read ahead count too."""
        return [QuarantinedFrame(source, frame, why) for (source, frame), why in sorted(self._ledger.items())]

    def provenance(self, step: int, states: Sequence[Mapping[str, Any]] = ()) -> list[list[list[SamplePart]]]:
        """Returns the frames that a step of the current pass used: for each rank its rows, and for each row one part.
        `sample` is the frame in the episode that `shard` names. Raises ValueError (no such step; a state of another
        run).

        A frame in quarantined_frames() is listed as the frame that replaced it.

        states: states of other ranks. A rank knows only its own quarantined frames; these states add those of the other
            ranks.
        """
        known = dict(self._ledger)
        for state in states:
            known |= {(source, frame): why for source, frame, why in state.get(_LEDGER, [])}
        ranks = super().provenance(step, [_order_of(state) for state in states])
        return [[[self._replaced(part, known) for part in row] for row in rows] for rows in ranks]

    def _replaced(self, part: SamplePart, known: Mapping[tuple[int, int], str]) -> SamplePart:
        frames = self._frames[part.source]
        names = self._episode_names[part.source]
        row = frames.first_frames[names[part.shard]] + part.sample
        if (part.source, row) not in known:
            return part
        for episode, candidate in _candidates(frames.first_frames, row):
            if (part.source, candidate) not in known:
                shard = next(name for name, number in names.items() if number == episode)
                sample = candidate - frames.first_frames[episode]
                return part._replace(shard=shard, sample=sample, replaces=known[part.source, row])
        return part

    @functools.cached_property
    def _episode_names(self) -> list[dict[str, int]]:
        """For each dataset, the numbers of its episodes, by the names that the order uses."""
        named = [(frames.rows_to_order()[0], frames.episodes) for frames in self._frames]
        return [{f"{name} episode {episode}": i for i, episode in enumerate(episodes)} for name, episodes in named]

    def state_dict(self, batch: Mapping[str, Any] | None = None) -> State:
        """Returns the position of training: a small JSON-serialisable dict. It is equal on all ranks, except for the
        quarantined frames. Once next() has raised StopIteration, the state is the beginning of the next pass."""
        state = dict(super().state_dict(batch))
        if self._ledger:
            state[_LEDGER] = [list(frame) for frame in self.quarantined_frames()]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, at any world size and batch size. Raises ValueError naming the arguments that
        differ."""
        super().load_state_dict(_order_of(state))
        self._ledger = {(source, frame): why for source, frame, why in state.get(_LEDGER, [])}

    def close(self) -> None:
        """Stops the threads and frees batches that were read ahead. Returned batches stay valid."""
        self._ahead.close()
        super().close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> None:
        raise TypeError("a robot Loader is not pickled; make it in the process that trains")

    def _take(self) -> Item:
        if not self._begun:
            self._begun = True
            self._ahead.restart(self._reader.state_dict())
        batch = self._next_read()
        next(self._reader)
        return batch

    def _next_read(self) -> Item:
        """Returns the next batch that was read ahead. Raises the errors of _Ahead.take()."""
        return self._ahead.take(self._read)

    def _position(self) -> State:
        return self._reader.state_dict()

    def _moved(self) -> None:
        self._begun = False

    # ---- on the thread that reads ahead

    def _read(self, place: Item) -> Item:
        rows = place["input_ids"].reshape(-1)
        if not self._is_mixture:
            batch = self._rows_of(0, rows)
            if self._fills:
                batch["row_mask"] = np.asarray(place["row_mask"])
            return batch
        source = place["source"]
        parts = [self._rows_of(i, rows[source == i]) if (source == i).any() else None for i in range(len(self._frames))]
        mask = {"row_mask": np.asarray(place["row_mask"])} if self._fills else {}
        return {"source": source, "parts": parts, **mask}

    def _batch_of(self, source: int, rows: Sequence[int]) -> Item:
        return self._datasets[source].batch(rows)

    def _rows_of(self, source: int, rows: npt.NDArray[Any]) -> Item:
        wanted = [int(row) for row in rows]
        if not self._quarantines:
            return self._batch_of(source, wanted)
        try:
            return self._batch_of(source, [row for row in self._without_known(source, wanted)])
        except (_core.CorruptionError, FileNotFoundError):
            return self._batch_of(source, [self._sound(source, row) for row in wanted])

    def _without_known(self, source: int, rows: list[int]) -> list[int]:
        known = any((source, row) in self._ledger for row in rows)
        return [self._sound(source, row) for row in rows] if known else rows

    def _sound(self, source: int, row: int) -> int:
        """Returns `row` or, if it is damaged, the row that replaces it. The result depends on the dataset alone."""
        dataset = self._frames[source]
        for _, candidate in _candidates(dataset.first_frames, row):
            if (source, candidate) in self._ledger:
                continue
            try:
                dataset.batch([candidate])
            except (_core.CorruptionError, FileNotFoundError) as error:
                self._quarantine(source, candidate, str(error))
            else:
                return candidate
        raise _core.CorruptionError(f"every episode is damaged at the place of frame {row}")

    def _quarantine(self, source: int, frame: int, why: str) -> None:
        if len(self._ledger) >= self._max_bad:
            raise _core.CorruptionError(f"more than max_bad={self._max_bad} frames are damaged; the last one: {why}")
        self._ledger[source, frame] = why
        _logger.warning("frame %d is left out: %s", operator.index(frame), why)


def _order_of(state: Mapping[str, Any]) -> State:
    return {name: value for name, value in state.items() if name != _LEDGER}


def _candidates(begins: Sequence[int], row: int) -> Iterator[tuple[int, int]]:
    """Yields the rows that may replace a row, first the row itself: the frame at the same position of each episode, and
    the number of the episode."""
    episodes = len(begins) - 1
    episode = int(np.searchsorted(begins, row, "right")) - 1
    for step in range(episodes):
        there = (episode + step) % episodes
        yield there, int(min(begins[there] + row - begins[episode], begins[there + 1] - 1))


def _frames_of(dataset: Any) -> Frames:
    """Returns the NumPy dataset inside a dataset that returns tensors."""
    frames = getattr(dataset, "frames", dataset)
    if not isinstance(frames, Frames):
        raise TypeError(f"Loader: a mr.lerobot.Dataset, not {type(dataset).__name__}")
    return frames
