# SPDX-License-Identifier: Apache-2.0
"""Robot datasets of LeRobot as tensors.

frames = mr.torch.lerobot.Dataset("so101", delta_timestamps={"action": [i / 30 for i in range(16)]})
loader = torch.utils.data.DataLoader(frames, batch_size=32, shuffle=True, num_workers=2)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch

from millrace._robot import Dataset as _Dataset
from millrace._robot import Item
from millrace._robot_groot import GrootDataset as _GrootDataset
from millrace._robot_loader import Loader as _Loader
from millrace._robot_loader import Source
from millrace.loader import State

from .device import as_tensors, copies_of, resolve_device
from .dist import resolve_rank

__all__ = ["Dataset", "GrootDataset", "Loader", "Source"]


class _Frames(torch.utils.data.Dataset[Item]):
    """A dataset of arrays, converted to tensors."""

    frames: _Dataset

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: SupportsIndex | slice) -> Any:
        """Returns a frame or, for a slice, a list of frames."""
        if isinstance(number, slice):
            return self.__getitems__(range(len(self))[number])
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[Item]:
        """Returns frames that are read together, as DataLoader requests them. The frames share memory."""
        batch = tensors(self.frames.batch(numbers))
        return [{name: values[i] for name, values in batch.items()} for i in range(len(numbers))]

    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the frames as one batch: tensors [len(numbers), ...], and lists of str."""
        return tensors(self.frames.batch(numbers))

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.frames.fps

    @property
    def num_frames(self) -> int:
        """The number of frames."""
        return len(self.frames)

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return len(self.frames.episodes)

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """dtype, shape and names of each feature, as in meta/info.json."""
        return self.frames.features


class _LikeLeRobot(_Dataset):
    _float_table_pictures = True


class Dataset(_Frames):
    """millrace.lerobot.Dataset with tensors. For datasets of every version, they are the same tensors that LeRobot's
    own LeRobotDataset returns for v3.0.

    Pictures are float32 [3, height, width] in [0, 1], numbers are float32, int64 and bool, texts are str. A feature of
    shape [1] has no dimension. `<feature>_is_pad` is bool [times]. LeRobot chooses frames by stored timestamps; this
    class chooses them by integers. Both choose the same frames wherever LeRobot raises no error.

    image_transforms: called with each camera's tensor of a frame, [3, height, width] or [times, 3, height, width].
    return_uint8: True: returns frames of videos as uint8. Pictures inside Parquet stay float32, as in LeRobot.

    The other arguments are those of millrace.lerobot.Dataset.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        cameras: Sequence[str] | None = None,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        return_uint8: bool = False,
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
    ) -> None:
        self.frames = _LikeLeRobot(
            url,
            delta_timestamps=delta_timestamps,
            episodes=episodes,
            cameras=cameras,
            pictures="uint8" if return_uint8 else "float32",
            image_size=image_size,
            image_fit=image_fit,
            cache=cache,
            cache_bytes=cache_bytes,
            decode_device=decode_device,
            tolerance_s=tolerance_s,
            num_threads=num_threads,
            max_decoders=max_decoders,
            decoder_bytes=decoder_bytes,
            memory_bytes=memory_bytes,
        )
        self.image_transforms = image_transforms

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[Item]:
        """Returns frames that are read together, as DataLoader requests them. The frames share memory."""
        items = super().__getitems__(numbers)
        if self.image_transforms is not None:
            for item in items:
                for camera in self.frames.cameras:
                    item[camera] = self.image_transforms(item[camera])
        return items

    def batch(self, numbers: Sequence[SupportsIndex]) -> Item:
        """Returns the frames as one batch: tensors [len(numbers), ...], and lists of str."""
        if self.image_transforms is None:
            return super().batch(numbers)
        return torch.utils.data.default_collate(self.__getitems__(numbers))


class GrootDataset(_Frames):
    """millrace.lerobot.GrootDataset with tensors. Takes the same arguments."""

    frames: _GrootDataset

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        self.frames = _GrootDataset(url, **options)


class _Read:
    """The batches that a Loader reads ahead, for DeviceCopies. Has no reference to the loader, which has a reference to
    this object."""

    def __init__(self, loader: Loader) -> None:
        self._loader = weakref.ref(loader)

    def __next__(self) -> Item:
        loader = self._loader()
        if loader is None:
            raise StopIteration
        return loader._ahead.take(loader._read)

    def state_dict(self) -> State:
        return {}  # the loader's own reader keeps the position of training


class Loader(_Loader):
    """millrace.lerobot.Loader with tensors. Takes a Dataset of this module or a list of Source over such datasets,
    every other argument of millrace.lerobot.Loader, and one more:

    device: None or a CPU device: the tensors share the loader's memory, without a copy. A CUDA device: the tensors are
        on that device. A thread copies each batch into one of three pinned buffers, which are allocated once, and then
        to the device on a side stream, two batches ahead of training. The current stream waits for the copy; the caller
        does not.

    `rank` and `world_size` default to those of torch.distributed if it is initialised, else to the environment's RANK
    and WORLD_SIZE, else to 0 of 1. With uint8 pictures (return_uint8=True), only a quarter of the bytes are copied to
    the device: divide by 255 there.
    """

    def __init__(
        self,
        datasets: Dataset | GrootDataset | Source | Sequence[Source],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        to_device = None if device is None else resolve_device(device)
        rank, world_size = resolve_rank(rank, world_size)
        super().__init__(datasets, rank=rank, world_size=world_size, **options)  # type: ignore[arg-type]
        self._copied = copies_of(_Read(self), to_device)

    def close(self) -> None:
        """Stops the threads and frees batches that were read ahead. Returned batches stay valid."""
        self._moved()
        super().close()

    def _next_read(self) -> Item:
        return as_tensors(super()._next_read()) if self._copied is None else next(self._copied)

    def _pause(self) -> None:
        if self._copied is not None:
            self._copied.pause()

    def _moved(self) -> None:
        if self._copied is not None:
            self._copied.restart()
        super()._moved()


def tensors(batch: Item) -> Item:
    """Returns the batch as tensors that share the same memory."""
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
