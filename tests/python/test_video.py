# SPDX-License-Identifier: Apache-2.0
"""mr.video against PyAV, which brings an FFmpeg of its own: equal planes, equal times, equal RGB."""

from __future__ import annotations

import fractions
import os
import pathlib
import random

import numpy as np
import pytest

import millrace as mr

av = pytest.importorskip("av")

DATA = os.environ.get("MILLRACE_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="MILLRACE_TEST_DATA is not set")


def picture(frame: int, width: int, height: int) -> np.ndarray:
    rng = np.random.default_rng(frame)
    blocks = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return np.ascontiguousarray(blocks.repeat(8, 0).repeat(8, 1)[:height, :width])


def encode(path: pathlib.Path, codec: str, options: dict, *, rate="30", size=(96, 64), frames=23, variable=False):
    width, height = size
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=fractions.Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = options
        stream.codec_context.time_base = 1 / fractions.Fraction(rate)
        pts = 0
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, width, height))
            frame.pts, frame.time_base = pts, 1 / fractions.Fraction(rate)
            pts += 1 + (number % 3 if variable else 0)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def reference(path: pathlib.Path):
    with av.open(str(path)) as file:
        return list(file.decode(video=0))


def planes_of(frame) -> np.ndarray:
    return frame.to_ndarray(format=frame.format.name).reshape(-1)


def check_against_pyav(path: pathlib.Path, seed: random.Random, some: int = 40):
    frames = reference(path)
    video = mr.video.Reader(path)
    assert len(video) == len(frames)
    unit = fractions.Fraction(*video.time_base)
    assert [int(pts) * unit for pts in video.pts] == [frame.pts * frame.time_base for frame in frames]
    assert (video.width, video.height, video.pixel_format) == (
        frames[0].width,
        frames[0].height,
        frames[0].format.name,
    )
    numbers = [seed.randrange(len(frames)) for _ in range(some)]
    for number in numbers:
        assert np.array_equal(video.planes(number), planes_of(frames[number])), number
    wanted = np.stack([frames[number].to_ndarray(format="rgb24") for number in numbers])
    given = video.frames(numbers)
    # docs/video.md: the largest difference that was seen.
    assert np.abs(given.astype(int) - wanted.astype(int)).max() == 0
    assert np.array_equal(mr.video.Reader(path).frames(numbers, layout="chw"), given.transpose(0, 3, 1, 2))
    assert np.array_equal(video[-1], video[len(video) - 1])
    return video, frames


KINDS = [
    ("libx264", {"g": "2", "bf": "0"}, {}),
    ("libx264", {"g": "12", "bf": "3"}, {"rate": "30000/1001"}),
    ("libx264", {"g": "12", "bf": "2"}, {"variable": True}),
    ("libx264", {"g": "8", "bf": "3", "x264-params": "open-gop=1"}, {}),
    ("libx264", {"g": "250"}, {"size": (98, 66)}),
    ("libx265", {"g": "8", "x265-params": "open-gop=1:bframes=3:log-level=none"}, {}),
    ("libsvtav1", {"g": "2", "preset": "12"}, {}),
    ("libsvtav1", {"g": "16", "preset": "12"}, {"rate": "30000/1001"}),
]


@pytest.mark.parametrize("codec, options, more", KINDS, ids=[f"{k[0]}-{i}" for i, k in enumerate(KINDS)])
def test_frames_are_those_of_pyav(tmp_path, seeded, codec, options, more):
    video, frames = check_against_pyav(encode(tmp_path / "a.mp4", codec, options, **more), seeded)
    if "variable" not in more:
        assert fractions.Fraction(*video.fps) == fractions.Fraction(more.get("rate", "30"))
    assert video.key_frames == [frame.key_frame for frame in frames]


@needs_data
def test_frames_that_show_their_number(seeded):
    check_against_pyav(pathlib.Path(DATA) / "lerobot/labeled_frames_video.mp4", seeded)


@needs_data
def test_frames_of_a_recorded_dataset(seeded):
    (path,) = (pathlib.Path(DATA) / "lerobot/pick_n_place/videos").glob("chunk-000/*ego_view/episode_000000.mp4")
    video, _ = check_against_pyav(path, seeded, some=12)
    assert video.has_b_frames and len(video) == 416


def test_rgb_is_near_the_formula(tmp_path):
    """BT.601, limited range, each chroma sample for four pixels: swscale rounds in steps, by less than 3 of 255 together."""
    video = mr.video.Reader(encode(tmp_path / "a.mp4", "libx264", {"g": "2", "crf": "30"}, size=(96, 64)))
    for number in range(0, len(video), 5):
        planes = video.planes(number).astype(float)
        luma = planes[: 96 * 64].reshape(64, 96)
        u, v = (p.reshape(32, 48).repeat(2, 0).repeat(2, 1) - 128 for p in np.split(planes[96 * 64 :], 2))
        y = (luma - 16) * 255 / 219
        u, v = u * 255 / 224, v * 255 / 224
        rgb = np.stack([y + 1.402 * v, y - 0.344136 * u - 0.714136 * v, y + 1.772 * u], axis=2)
        assert np.abs(video[number].astype(float) - np.clip(rgb, 0, 255)).max() < 3


def test_what_is_wrong_is_said(tmp_path):
    path = encode(tmp_path / "a.mp4", "libx264", {"g": "2"})
    video = mr.video.Reader(path)
    with pytest.raises(IndexError, match=r"frame 23 of .*a\.mp4: it has 23"):
        video[23]
    with pytest.raises(ValueError, match="there is no frame -1; it has frames 0 to 22"):
        video.frames([-1])
    with pytest.raises(ValueError, match="expected 'hwc' or 'chw'"):
        video.frames([0], layout="nhwc")
    assert video.frame_near(5 / 30) == 5
    with pytest.raises(ValueError, match=r"nearest is frame 5"):
        video.frame_near(5.2 / 30)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(mr.CorruptionError, match=r"cut\.mp4: .*cut off"):
        mr.video.Reader(cut)
    with pytest.raises(FileNotFoundError):
        mr.video.Reader(tmp_path / "missing.mp4")


def test_frames_come_out_of_a_bucket(tmp_path, s3, bucket, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    path = encode(tmp_path / "a.mp4", "libx264", {"g": "6", "bf": "2", "crf": "1"}, size=(320, 240), frames=240)
    s3.client.put_object(Bucket=bucket, Key="a.mp4", Body=path.read_bytes())
    before = mr.metrics()["received_bytes"]
    video = mr.video.Reader(f"s3://{bucket}/a.mp4")
    numbers = [144, 3, 145, 144]
    assert np.array_equal(video.frames(numbers), mr.video.Reader(path).frames(numbers))
    assert mr.metrics()["received_bytes"] - before < path.stat().st_size / 2, "tables and packets, not the file"
