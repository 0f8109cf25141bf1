# SPDX-License-Identifier: Apache-2.0
"""Reads rows of NPZ and packed episodes by number. `millrace.episodes.Dataset` is the name to use."""

from __future__ import annotations

import collections
import fnmatch
import operator
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from millrace import _core
from millrace._robot import Frames, Item

_MOST_MAPPED = 256  # NPZ files that stay mapped


class Dataset(Frames):
    """The rows of episodes that millrace.episodes.convert wrote, NPZ or packed, with windows around each.

        frames = mr.episodes.Dataset(
            "data/episodes", columns={"state": ["q*"], "action": ["a*"]}, windows={"action": range(16)}
        )
        frames[7]["action"]              # float32 [16, actions]
        frames.batch([7, 300])["state"]  # float32 [2, states]

    A row is a dict: the features of `columns`, `<feature>_is_pad` for each window, the text columns, 'episode_index' and
    'frame_index'. A window that passes an end of its episode repeats the first or last row. millrace.lerobot.Loader
    (also millrace.episodes.Loader) returns the rows in its order, with exact resume, alone or mixed with other
    datasets.

    path: the same paths as millrace.episodes.open accepts.
    columns: the names of the columns for each feature; 'q*' means all columns that begin with 'q'. None: one feature,
        'numbers', of all columns.
    windows: for each feature, the rows of its window, relative to the row.
    texts: text columns that are read; None: all.
    episodes: reads only rows of these episodes.
    skip_first, skip_last: rows of each episode that get no number. Windows still include them.
    progress: called as progress(opened, all) while several threads open the NPZ files, and at the end. If it raises an
        error, the constructor stops with that error.

    This is a map-style dataset for torch's DataLoader. Thread-safe. Usable after fork. Pickled copies open the files
    again. Raises FileNotFoundError, ValueError, millrace.CorruptionError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, Sequence[str]] | None = None,
        windows: Mapping[str, Iterable[int]] | None = None,
        texts: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
        skip_first: int = 0,
        skip_last: int = 0,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        if skip_first < 0 or skip_last < 0:
            raise ValueError("skip_first and skip_last: from 0")
        self._set = _core.Episodes(os.fspath(path))
        self._is_packed = self._set.is_packed
        names = self._set.columns
        wanted = {"numbers": names} if columns is None else columns
        self._features = {feature: self._places(feature, given, names) for feature, given in wanted.items()}
        self._windows = {
            feature: np.array([operator.index(delta) for delta in deltas], np.int64)
            for feature, deltas in (windows or {}).items()
        }
        for feature, window in self._windows.items():
            if feature not in self._features:
                raise ValueError(f"windows: there is no feature {feature}; there is {', '.join(self._features)}")
            if len(window) == 0:
                raise ValueError(f"windows: {feature} has no rows")
        self._texts = list(self._set.text_columns if texts is None else texts)
        for name in self._texts:
            if name not in self._set.text_columns:
                raise ValueError(f"texts: {self._set.path} has no text column {name}")
        self._lengths = self._set.read_lengths(progress)
        chosen = range(len(self._set)) if episodes is None else sorted({operator.index(each) for each in episodes})
        if any(not 0 <= each < len(self._set) for each in chosen):
            raise ValueError(f"episodes: {self._set.path} has the episodes 0 to {len(self._set) - 1}")
        self._episodes = list(chosen)
        self._skip_first = skip_first
        counts = np.maximum(self._lengths[self._episodes] - skip_first - skip_last, 0)
        self._begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._open_again()

    def _open_again(self) -> None:
        self._lock = threading.Lock()
        self._mapped: collections.OrderedDict[int, _core.Episode] = collections.OrderedDict()

    def __len__(self) -> int:
        return int(self._begins[-1])

    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the rows as one batch: arrays [len(numbers), ...], and lists of str."""
        rows = np.array([self._row(number) for number in numbers], np.int64)
        chosen = np.searchsorted(self._begins, rows, "right") - 1
        episodes = np.array(self._episodes, np.int64)[chosen]
        places = rows - self._begins[chosen] + self._skip_first
        ends = self._lengths[episodes] - 1
        batch: Item = {}
        none = np.zeros(1, np.int64)
        for feature, columns in self._features.items():
            window = self._windows.get(feature, none)
            out = np.empty((len(rows), len(window), len(columns)), self._set.dtype)
            for i, (episode, place, end) in enumerate(zip(episodes.tolist(), places, ends, strict=True)):
                wanted = np.clip(place + window, 0, end)
                first = int(wanted.min())
                numbers_there = self._rows(episode, first, int(wanted.max()) + 1 - first)
                out[i] = numbers_there[wanted - first][:, columns]
            batch[feature] = out if feature in self._windows else out[:, 0]
        for feature, window in self._windows.items():
            asked = places[:, None] + window
            batch[f"{feature}_is_pad"] = (asked < 0) | (asked > ends[:, None])
        for name in self._texts:
            batch[name] = [
                self._episode(episode)[name][place]
                for episode, place in zip(episodes.tolist(), places.tolist(), strict=True)
            ]
        batch["episode_index"], batch["frame_index"] = episodes, places
        return batch

    @property
    def episodes(self) -> list[int]:
        """The numbers of the selected episodes, ascending."""
        return self._episodes

    @property
    def first_frames(self) -> list[int]:
        """The number of the first row of each episode, followed by the total number of rows."""
        return [int(begin) for begin in self._begins]

    @property
    def names(self) -> list[str]:
        """The names of all episodes of the path, by their numbers."""
        return self._set.names

    def _facts(self) -> tuple[str, str]:
        names = self._set.names
        return self._set.path, "\n".join([*self._set.columns, *(names[episode] for episode in self._episodes)])

    def _rows(self, episode: int, first: int, count: int) -> Any:
        if self._is_packed:
            return self._set.window(episode, first, count)
        return self._episode(episode).numbers[first : first + count]

    def _episode(self, number: int) -> _core.Episode:
        """Returns an episode. It stays mapped as long as it is among the episodes used last."""
        with self._lock:
            known = self._mapped.get(number)
            if known is not None:
                self._mapped.move_to_end(number)
                return known
        opened = self._set[number]
        with self._lock:
            self._mapped[number] = opened
            while len(self._mapped) > _MOST_MAPPED:
                self._mapped.popitem(last=False)
        return opened

    def _places(self, feature: str, given: Sequence[str], names: list[str]) -> list[int]:
        if isinstance(given, str):
            raise TypeError(f"columns: of {feature} a list of names")
        places: list[int] = []
        for pattern in given:
            found = [i for i, name in enumerate(names) if name == pattern] or [
                i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)
            ]
            if not found:
                raise ValueError(f"columns: {self._set.path} has no column {pattern}; it has {', '.join(names)}")
            places += found
        return places

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_mapped")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_again()
