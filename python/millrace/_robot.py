# SPDX-License-Identifier: Apache-2.0
"""Reads rows of robot datasets by number. `millrace.lerobot.Dataset` is the name to use."""

from __future__ import annotations

import itertools
import operator
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex, overload

from millrace import _core
from millrace._arguments import plain

#: Arrays and texts by the names of features.
Item = dict[str, Any]

_open = plain(_core.LeRobotFeed.__init__, "Dataset")


class Frames(Sequence[Item]):
    """Frames of episodes by number: the interface of all Dataset classes that a Loader uses."""

    @abstractmethod
    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the frames as one batch: arrays [len(numbers), ...], and lists of str."""

    @property
    @abstractmethod
    def episodes(self) -> list[int]:
        """The numbers of the selected episodes, ascending."""

    @property
    @abstractmethod
    def first_frames(self) -> list[int]:
        """The number of the first frame of each episode, followed by the total number of frames."""

    @abstractmethod
    def _facts(self) -> tuple[str, str]:
        """Returns the dataset's name, and a text that distinguishes it from another dataset with episodes of the same
        lengths."""

    @overload
    def __getitem__(self, number: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...
    def __getitem__(self, number: SupportsIndex | slice) -> Item | list[Item]:
        """Returns a frame or, for a slice, a list of frames."""
        if isinstance(number, slice):
            return self.__getitems__(range(len(self))[number])
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[Item]:
        """Returns frames that are read together, which is much faster than reading them one by one. The frames share
        memory."""
        batch = self.batch(numbers)
        return [{name: values[i] for name, values in batch.items()} for i in range(len(numbers))]

    def rows_to_order(self) -> tuple[str, str, list[int], list[int]]:
        """Returns the input of _core.row_reader, which orders the rows: name, facts, episodes and their lengths."""
        begins = self.first_frames
        lengths = [end - begin for begin, end in itertools.pairwise(begins)]
        return (*self._facts(), self.episodes, lengths)

    def _row(self, number: SupportsIndex) -> int:
        size, asked = len(self), operator.index(number)
        if not -size <= asked < size:
            raise IndexError(f"frame {asked} of a dataset of {size}")
        return asked % size


class Dataset(Frames):
    """The frames of a robot dataset of LeRobot v2.0, v2.1 or v3.0, as NumPy arrays, with windows around each.

        frames = mr.lerobot.Dataset("so101", delta_timestamps={"action": [i / 30 for i in range(16)]})
        frames[7]["observation.images.top"]       # uint8 [3, height, width]
        frames.batch([7, 300, 12])["action"]      # float32 [3, 16, 6]

    A frame is a dict: cameras, columns (float32, int64, bool or str), `<feature>_is_pad` for each window, and 'task'.
    Names, shapes and padding are those of LeRobot's own class. A window that passes an end of its episode repeats the
    first or last frame.

    Frame k of an episode is frame k of its video, by integer arithmetic. Stored timestamps are not used for this.

    url: the dataset's folder, a path or URL.
    delta_timestamps: for each feature, the times of its window in seconds, relative to the frame. Each time must be
        within tolerance_s of a multiple of 1/fps. With a single time, a frame of a video has no time dimension, as in
        LeRobot; a picture inside Parquet has one.
    episodes: reads only frames of these episodes. Frame numbers count from the first selected episode; 'index' stays
        that of the dataset. The order of the list has no effect.
    cameras: decodes only these cameras (videos and pictures inside Parquet); `cameras=[]`: no camera.
    pictures: 'uint8', or 'float32' in [0, 1].
    layout: 'chw' or 'hwc'.
    image_size: (height, width) of all pictures, or one number for both: each frame is resized as it is decoded.
        None: pictures keep their stored size.
    image_fit: how a picture with another aspect ratio is fitted to image_size, as in mr.image: 'crop', 'stretch' or
        'pad'.
    cache: a folder on a disk of this node that keeps data read from other places. All processes with the same folder
        share it (docs/loader.md). Only data that frames need is fetched.
    cache_bytes: the largest size of the cache, such as '500GB'; 0: half of the disk.
    decode_device: 'cpu'. Any other device is refused: decoding on a GPU is not implemented.
    num_threads: threads that read and decode a batch; 0: the number of processors, at most 8.
    max_decoders, decoder_bytes: the most videos that are open at once, and the most memory of their decoders, counted
        as 20 pictures each.
    memory_bytes: the most memory for numbers of data files that are kept, and the same again for pictures inside data
        files.
    skip_first, skip_last: frames of each episode that get no number, like the frames that LeRobot's EpisodeAwareSampler
        drops. Windows still include them.

    This is a map-style dataset for torch's DataLoader, with __getitems__. Thread-safe. Forked and pickled copies open
    their own files. Raises FileNotFoundError, ValueError, millrace.CorruptionError (naming file, episode and frame),
    NotImplementedError (a library is missing, a depth camera).
    """

    #: Whether pictures inside Parquet are always float32, as in LeRobot.
    _float_table_pictures = False

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        cameras: Sequence[str] | None = None,
        pictures: Literal["uint8", "float32"] = "uint8",
        layout: Literal["chw", "hwc"] = "chw",
        image_size: int | tuple[int, int] | None = None,
        image_fit: Literal["crop", "stretch", "pad"] = "crop",
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str = 0,
        decode_device: str = "cpu",
        tolerance_s: float = 1e-4,
        num_threads: int = 0,
        max_decoders: int = 32,
        decoder_bytes: int = 1 << 30,
        memory_bytes: int = 1 << 30,
        skip_first: int = 0,
        skip_last: int = 0,
    ) -> None:
        if pictures not in ("uint8", "float32"):
            raise ValueError("pictures: expected 'uint8' or 'float32'")
        if layout not in ("chw", "hwc"):
            raise ValueError("layout: expected 'chw' or 'hwc'")
        windows = {name: [float(time) for time in times] for name, times in (delta_timestamps or {}).items()}
        self._arguments: dict[str, Any] = {
            "url": os.fspath(url),
            "episodes": None if episodes is None else [operator.index(episode) for episode in episodes],
            "cameras": None if cameras is None else list(cameras),
            "delta_timestamps": windows,
            "tolerance_s": tolerance_s,
            "float_pictures": pictures == "float32",
            "float_table_pictures": self._float_table_pictures,
            "channels_last": layout == "hwc",
            **picture_arguments(image_size, image_fit, cache, cache_bytes, decode_device),
            "threads": num_threads,
            "most_decoders": max_decoders,
            "decoder_bytes": decoder_bytes,
            "row_bytes": memory_bytes,
            "skip_first": skip_first,
            "skip_last": skip_last,
        }
        self._feed = opened(self._arguments)

    def __len__(self) -> int:
        return len(self._feed)

    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the frames as one batch: arrays [len(numbers), ...], and lists of str."""
        return self._feed.read([self._row(number) for number in numbers])

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self._feed.fps

    @property
    def episodes(self) -> list[int]:
        """The numbers of the selected episodes, ascending."""
        return self._feed.episodes

    @property
    def first_frames(self) -> list[int]:
        """The number of the first frame of each episode, followed by the total number of frames."""
        return self._feed.first_rows

    @property
    def skipped_frames(self) -> int:
        """The number of frames of the selected episodes that have no number."""
        return self._feed.skipped_rows

    @property
    def cameras(self) -> list[str]:
        """The cameras that are decoded."""
        return self._feed.cameras

    @property
    def tasks(self) -> list[str]:
        """The texts of the tasks, by task_index."""
        return self._feed.tasks

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """dtype, shape and names of each feature, as in meta/info.json."""
        return self._feed.features

    def _facts(self) -> tuple[str, str]:
        return self._arguments["url"], "\n".join([*self.features, *self.tasks])

    def __getstate__(self) -> dict[str, Any]:
        return self._arguments

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._feed = opened(arguments)


_MOST_PIXELS = 16_384  # per side


def picture_arguments(
    image_size: int | tuple[int, int] | None,
    image_fit: str,
    cache: str | os.PathLike[str] | None,
    cache_bytes: int | str,
    decode_device: str,
) -> dict[str, Any]:
    """Returns the picture arguments of _core.LeRobotFeed."""
    if decode_device != "cpu":
        raise NotImplementedError(
            f"decode_device={decode_device!r}: videos are decoded on the processor; decoding on a GPU is neither built nor "
            "tried. mr.torch.lerobot.Loader(device=...) moves batches to it"
        )
    sides: tuple[int, ...] = (0, 0)
    if image_size is not None:
        sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        if len(sides) != 2 or not all(isinstance(side, int) and 1 <= side <= _MOST_PIXELS for side in sides):
            raise ValueError(f"image_size: a height and a width of 1 to {_MOST_PIXELS} pixels, not {image_size}")
    folder = "" if cache is None else os.fspath(cache)
    return {"size": sides, "fit": image_fit, "cache": folder, "cache_bytes": str(cache_bytes)}


def opened(arguments: dict[str, Any]) -> _core.LeRobotFeed:
    feed = _core.LeRobotFeed.__new__(_core.LeRobotFeed)
    _open(feed, **arguments)
    return feed
