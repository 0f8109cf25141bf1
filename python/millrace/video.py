# SPDX-License-Identifier: Apache-2.0
"""Reads frames of MP4 files by number, from any storage.

    video = millrace.video.Reader("s3://bucket/episode_000000.mp4")
    video[7]                                   # uint8 [height, width, 3], RGB
    video.frames([7, 3, 250], layout="chw")    # uint8 [3, 3, height, width]

Frames are chosen by integers, never by times. `video.pts` and `video.time_base` say when each frame is shown.
"""

from __future__ import annotations

from millrace._arguments import plain_methods as _plain_methods
from millrace._core import VideoReader as Reader

_plain_methods(Reader, ("frames", "planes", "frame_near"))

__all__ = ["Reader"]
