# SPDX-License-Identifier: Apache-2.0
"""Reads frames of robot datasets in the form that GR00T uses. `millrace.lerobot.GrootDataset` is the name to use."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from millrace import _rotations
from millrace._robot import Dataset, Item, opened, picture_arguments

Array = npt.NDArray[Any]
#: How numbers are normalised: by quantiles, by mean and deviation, by bounds, or to 0 and 1.
Mode = Literal["q99", "mean_std", "min_max", "binary"]

_STATISTICS = {"q99": ("q01", "q99"), "min_max": ("min", "max"), "mean_std": ("mean", "std")}
_DEFAULT_COLUMN = {"state": "observation.state", "action": "action"}


@dataclass(frozen=True)
class _Group:
    """Some numbers of a column, or a camera."""

    key: str  # the key in an item
    column: str
    deltas: tuple[int, ...]
    begin: int = 0
    end: int = 0


class _Scale:
    """Normalisation as in GR00T N1.6 and N1.7: to [-1, 1], or by mean and deviation."""

    def __init__(self, mode: Mode, statistics: Mapping[str, Any], where: str) -> None:
        first, second = _STATISTICS[mode]
        if first not in statistics or second not in statistics:
            raise ValueError(
                f"{where} has no {first} and {second}; `millrace lerobot stats --groot --write` computes them"
            )
        self.mode = mode
        self.low, self.high = (np.asarray(statistics[name], np.float32) for name in (first, second))

    def __call__(self, values: Array) -> Array:
        if self.mode == "mean_std":
            deviation = np.where(self.high == 0, np.float32(1), self.high)
            return np.where(self.high == 0, values, (values - self.low) / deviation).astype(np.float32)
        flat = np.isclose(self.low, self.high)
        width = np.where(flat, np.float32(1), self.high - self.low)
        scaled = np.where(flat, np.float32(0), 2 * ((values - self.low) / width) - 1)
        return (np.clip(scaled, -1, 1) if self.mode == "q99" else scaled).astype(np.float32)

    def back(self, values: Array) -> Array:
        if self.mode == "mean_std":
            return np.where(self.high == 0, values, values * self.high + self.low).astype(np.float32)
        return ((np.clip(values, -1, 1) + 1) / 2 * (self.high - self.low) + self.low).astype(np.float32)


class _Bounded:
    """Normalisation to [-1, 1] of rotations and other values whose bounds are known without statistics."""

    def __init__(self, bound: float) -> None:
        self.bound = np.float32(bound)

    def __call__(self, values: Array) -> Array:
        return (values / self.bound).astype(np.float32)

    def back(self, values: Array) -> Array:
        return (values * self.bound).astype(np.float32)


class _Binary:
    """Normalisation of open or closed: 1 above a half, else 0."""

    def __call__(self, values: Array) -> Array:
        return (values > 0.5).astype(np.float32)

    back = __call__


class GrootDataset(Dataset):
    """A dataset with meta/modality.json, in the form that NVIDIA's Isaac-GR00T reads: groups of states and actions,
    cameras and annotations by GR00T's names.

        frames = mr.lerobot.GrootDataset("pick_n_place", action_deltas=range(16), normalize="q99")
        frames[7]["video.ego_view"]          # uint8 [1, height, width, 3]
        frames[7]["state.left_arm"]          # float32 [1, 7]
        frames[7]["action.left_arm"]         # float32 [16, 7]
        frames[7]["annotation.human.action.task_description"]

    With pad=True, an item also has 'action_is_pad', bool [times]. It has 'episode_index' and 'frame_index' if the
    dataset has these columns.

    video, state, action: names of modality.json that are read; None: all.
    language: the annotation whose text is returned, such as 'human.action.task_description', or 'task'; None: the first
        annotation of modality.json, else the frame's task.
    video_deltas, state_deltas, action_deltas: frames of the windows, relative to the frame.
    pad: False, as in N1.6 and N1.7: frames whose action window passes the end of their episode have no number
        (`skipped_frames` counts them), and other windows repeat the edge. True, as in N1.5: every frame has a number,
        and all windows repeat the edge.
    normalize: how states and actions are normalised with meta/stats.json: 'q99' (q01 to q99 become -1 to 1, and values
        beyond are cut), 'min_max', 'mean_std', 'binary' (above a half: 1, else 0), a dict of these for some keys, such
        as {"action.left_arm": "q99"}, or None. Constant numbers become 0; with 'mean_std' they do not change.
    relative: groups of actions from which the state of the same name is subtracted: the state at the last of
        state_deltas. Either names, or {action: state}. These groups are normalised by meta/relative_stats.json, which
        has a row for each of action_deltas.
    rotations: groups whose rotation is returned in another representation than modality.json's rotation_type, such as
        {"state.wrist": "rotation_6d"}: 'quaternion' (the real part first), 'axis_angle', 'rotation_6d', 'matrix', or
        'euler_angles_rpy' and the other five orders. To normalise them, they are divided by their bound, 1 or pi. A
        `normalize` mode for all groups does not change this.
    sin_cos: groups of states, all of angles, that are returned as their sines followed by their cosines,
        [times, 2 * dim]. They are not normalised.

    `restore(key, values, state)` converts the output of a policy back. Other arguments: as in Dataset. Raises
    ValueError (no modality.json, no such name, missing statistics).
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        video: Sequence[str] | None = None,
        state: Sequence[str] | None = None,
        action: Sequence[str] | None = None,
        language: str | None = None,
        video_deltas: Iterable[int] = (0,),
        state_deltas: Iterable[int] = (0,),
        action_deltas: Iterable[int] = range(16),
        pad: bool = False,
        normalize: Mode | Mapping[str, Mode] | None = None,
        relative: Sequence[str] | Mapping[str, str] = (),
        rotations: Mapping[str, str] | None = None,
        sin_cos: Sequence[str] = (),
        episodes: Sequence[int] | None = None,
        image_size: int | tuple[int, int] | None = None,
        image_fit: Literal["crop", "stretch", "pad"] = "crop",
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str = 0,
        decode_device: str = "cpu",
        num_threads: int = 0,
        max_decoders: int = 32,
        decoder_bytes: int = 1 << 30,
        memory_bytes: int = 1 << 30,
    ) -> None:
        pictures = picture_arguments(image_size, image_fit, cache, cache_bytes, decode_device)
        files = opened({"url": os.fspath(url), "cameras": [], **pictures})
        text = files.read_text("meta/modality.json")
        if text is None:
            raise ValueError(
                f"{os.fspath(url)} has no meta/modality.json; `millrace lerobot convert --to groot` writes one"
            )
        self._where, self._modality = os.fspath(url), json.loads(text)
        deltas = {"video": video_deltas, "state": state_deltas, "action": action_deltas}
        self._deltas = {kind: tuple(operator.index(delta) for delta in given) for kind, given in deltas.items()}
        for kind, given in self._deltas.items():
            if not given:
                raise ValueError(f"{kind}_deltas: at least one")
        self._groups = [
            group
            for kind, names in (("video", video), ("state", state), ("action", action))
            for group in self._groups_of(kind, names)
        ]
        annotations = self._modality.get("annotation", {})
        first = next(iter(annotations), "task")
        self._language = first if language is None else language.removeprefix("annotation.")
        if self._language != "task" and self._language not in annotations:
            raise ValueError(
                f"{self._where}: modality.json has no annotation '{self._language}'; {_listed(annotations)}"
            )
        self._relative = self._relative_of(relative)
        self._rotations = self._rotations_of(rotations or {})
        self._sin_cos = self._sin_cos_of(sin_cos)
        self._scales = self._scales_of(normalize, files)
        self._windows: dict[str, tuple[int, ...]] = {}  # for each column, the window that all its groups need
        for group in self._groups:
            wanted = {*self._windows.get(group.column, ()), *group.deltas}
            self._windows[group.column] = tuple(sorted(wanted))
        cameras = [group.column for group in self._groups if group.key.startswith("video.")]
        skips = (0, 0) if pad else (max(0, -min(self._deltas["action"])), max(0, max(self._deltas["action"])))
        self._pads = pad
        self._arguments = {
            "url": self._where,
            "episodes": None if episodes is None else [operator.index(episode) for episode in episodes],
            "cameras": list(dict.fromkeys(cameras)),
            "delta_rows": {column: list(window) for column, window in self._windows.items()},
            "channels_last": True,
            **pictures,
            "threads": num_threads,
            "most_decoders": max_decoders,
            "decoder_bytes": decoder_bytes,
            "row_bytes": memory_bytes,
            "skip_first": skips[0],
            "skip_last": skips[1],
        }
        self._feed = opened(self._arguments)

    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the frames as one batch: arrays [len(numbers), ...], and lists of str."""
        rows = super().batch(numbers)
        out: Item = {}
        for group in self._groups:
            window = self._windows[group.column]
            values = rows[group.column]
            if group.key.startswith("video."):
                if len(window) == 1:
                    values = values[:, None]
                out[group.key] = self._at(values, window, group.deltas)
                continue
            if values.ndim == 2:  # a column of shape [1]
                values = values[..., None]
            out[group.key] = self._at(values, window, group.deltas)[..., group.begin : group.end].astype(np.float32)
        references = {action: out[state][:, -1:] for action, state in self._relative.items()}
        for action, state in references.items():
            out[action] = out[action] - state
        for key, (given, wanted) in self._rotations.items():
            out[key] = _rotations.convert(out[key], given, wanted)
        for key in self._sin_cos:
            out[key] = np.concatenate([np.sin(out[key]), np.cos(out[key])], axis=-1)
        for key, scale in self._scales.items():
            out[key] = scale(out[key])
        if self._pads:
            group = next(group for group in self._groups if group.key.startswith("action."))
            padding = rows[f"{group.column}_is_pad"]
            out["action_is_pad"] = self._at(padding, self._windows[group.column], group.deltas)
        for name in ("episode_index", "frame_index"):
            if name in rows:
                out[name] = rows[name]
        out[self.language_key] = self._texts(rows)
        return out

    def restore(self, key: str, values: Array, state: Array | None = None) -> Array:
        """Converts normalised numbers of a group back to those of the dataset: `restore("action.left_arm", given,
        state)`.

        state: for a relative action, the state of its group that the policy saw last, unnormalised as in the dataset,
            [..., dim].
        """
        if key in self._scales:
            values = self._scales[key].back(values)
        if key in self._sin_cos:
            raise ValueError(f"restore: {key} is given as sines and cosines, of which angles are not known")
        if key in self._rotations:
            given, wanted = self._rotations[key]
            values = _rotations.convert(values, wanted, given)
        if key in self._relative:
            if state is None:
                raise ValueError(f"restore: {key} is relative to {self._relative[key]}: give the state")
            values = values + np.asarray(state, np.float32)[..., None, :]
        return np.asarray(values, np.float32)

    @property
    def language_key(self) -> str:
        """The key of the texts."""
        return "task" if self._language == "task" else f"annotation.{self._language}"

    @property
    def keys(self) -> list[str]:
        """The keys of the cameras and groups of an item."""
        return [group.key for group in self._groups]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_feed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._feed = opened(self._arguments)

    @staticmethod
    def _at(values: Array, window: tuple[int, ...], deltas: tuple[int, ...]) -> Array:
        return values if window == deltas else values[:, [window.index(delta) for delta in deltas]]

    def _groups_of(self, kind: str, names: Sequence[str] | None) -> list[_Group]:
        all_of_kind: dict[str, dict[str, Any]] = self._modality.get(kind, {})
        for name in names or ():
            if name not in all_of_kind:
                raise ValueError(f"{self._where}: modality.json has no {kind} '{name}'; {_listed(all_of_kind)}")
        groups = []
        for name in all_of_kind if names is None else names:
            entry = all_of_kind[name]
            usual = f"observation.images.{name}" if kind == "video" else _DEFAULT_COLUMN[kind]
            column = entry.get("original_key", usual)
            begin, end = int(entry.get("start", 0)), int(entry.get("end", 0))
            groups.append(_Group(f"{kind}.{name}", column, self._deltas[kind], begin, end))
        return groups

    def _relative_of(self, relative: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
        if isinstance(relative, str):
            raise TypeError("relative: a list of names")
        pairs = dict(relative) if isinstance(relative, Mapping) else {name: name for name in relative}
        width = {group.key: group.end - group.begin for group in self._groups}
        out = {f"action.{action}": f"state.{state}" for action, state in pairs.items()}
        for action, state in out.items():
            for key in (action, state):
                if key not in width:
                    raise ValueError(f"relative: {key} is not among what is read: {', '.join(width)}")
            if width[action] != width[state]:
                raise ValueError(f"relative: {action} has {width[action]} numbers, and {state} {width[state]}")
            rotation = self._modality["action"][action.removeprefix("action.")].get("rotation_type")
            if rotation is not None:
                raise ValueError(f"relative: {action} is a rotation ({rotation}), whose difference is no subtraction")
        return out

    def _rotations_of(self, wanted: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Returns for each key the representation in the dataset and the representation that is returned."""
        numbers, out = self._numbers(), {}
        for key, representation in wanted.items():
            _rotations.width(representation)
            if key not in numbers:
                raise ValueError(f"rotations: {key} is not among what is read: {', '.join(numbers)}")
            kind, _, name = key.partition(".")
            given = self._modality[kind][name].get("rotation_type")
            if given is None:
                raise ValueError(f"rotations: {key} has no rotation_type in modality.json of {self._where}")
            group = numbers[key]
            if group.end - group.begin != _rotations.width(given):
                raise ValueError(
                    f"rotations: {key} has {group.end - group.begin} numbers, and its rotation_type {given} takes "
                    f"{_rotations.width(given)} ({self._where})"
                )
            out[key] = given, representation
        return out

    def _sin_cos_of(self, names: Sequence[str]) -> tuple[str, ...]:
        if isinstance(names, str):
            raise TypeError("sin_cos: a list of names")
        numbers = self._numbers()
        keys = tuple(f"state.{name.removeprefix('state.')}" for name in names)
        for key in keys:
            if key not in numbers:
                raise ValueError(f"sin_cos: {key} is not among the states that are read: {', '.join(numbers)}")
            if key in self._rotations:
                raise ValueError(f"sin_cos: {key} is among rotations too")
        return keys

    def _numbers(self) -> dict[str, _Group]:
        return {group.key: group for group in self._groups if not group.key.startswith("video.")}

    def _scales_of(self, normalize: Mode | Mapping[str, Mode] | None, files: Any) -> dict[str, Any]:
        numbers = self._numbers()
        if isinstance(normalize, str):
            modes = {key: normalize for key in numbers if key not in self._sin_cos}
            # The statistics of these groups describe numbers in another representation than the returned one.
            modes |= {key: "min_max" for key in self._rotations}
        else:
            modes = dict(normalize or {})
        scales: dict[str, Any] = {}
        for key, mode in modes.items():
            if mode != "binary" and mode not in _STATISTICS:
                raise ValueError(f"normalize: 'q99', 'min_max', 'mean_std' or 'binary', not {mode!r}")
            if key not in numbers:
                raise ValueError(f"normalize: {key} is not among what is read: {', '.join(numbers)}")
            if key in self._sin_cos:
                raise ValueError(f"normalize: {key} is given as sines and cosines, which are normalised already")
            if key in self._rotations and mode != "min_max":
                raise ValueError(
                    f"normalize: {key} is a rotation that is converted: 'min_max' is what fits, not {mode!r}"
                )
            if key in self._rotations:
                scales[key] = _Bounded(_rotations.bound(self._rotations[key][1]))
            elif mode == "binary":
                scales[key] = _Binary()
            else:
                scales[key] = _Scale(mode, *self._statistics(numbers[key], files))
        return scales

    def _statistics(self, group: _Group, files: Any) -> tuple[dict[str, Any], str]:
        is_relative = group.key in self._relative
        path = "meta/relative_stats.json" if is_relative else "meta/stats.json"
        name = group.key.removeprefix("action.") if is_relative else group.column
        text = files.read_text(path)
        if text is None or name not in json.loads(text):
            how = f"--groot --horizon {len(group.deltas)}" if is_relative else "--groot"
            raise ValueError(
                f"{self._where}: {path} with {name} is missing; `millrace lerobot stats {how} --write` computes it"
            )
        statistics = {key: np.asarray(value, np.float32) for key, value in json.loads(text)[name].items()}
        if not is_relative:
            return {key: value[group.begin : group.end] for key, value in statistics.items()}, f"{path}: {name}"
        for key, value in statistics.items():
            if value.shape != (len(group.deltas), group.end - group.begin) and value.ndim == 2:
                raise ValueError(
                    f"{self._where}: {path}: {key} of {name} is {value.shape[0]} x {value.shape[1]}, and the window has "
                    f"{len(group.deltas)} actions of {group.end - group.begin} numbers; `millrace lerobot stats --groot "
                    f"--horizon {len(group.deltas)} --write` computes it"
                )
        return statistics, f"{path}: {name}"

    def _texts(self, rows: Item) -> list[str]:
        if self._language == "task":
            return list(rows["task"])
        entry = self._modality["annotation"][self._language]
        column = entry.get("original_key", f"annotation.{self._language}")
        if column not in rows:
            raise ValueError(f"{self._where}: it has no column {column}, which modality.json names")
        values = rows[column]
        if isinstance(values, list):
            return values
        tasks = self.tasks
        return [tasks[int(value)] for value in values]


def _listed(names: Iterable[str]) -> str:
    return "it has " + ", ".join(names)
