# SPDX-License-Identifier: Apache-2.0
"""How fast do a robot dataset's frames come for training, and frames of a video?

    python benchmarks/robot/feed.py --runs 5

Two parts, each with all sides in one process, one after the other, in every run:

- windows: v3.0, two cameras of 640 x 480 (AV1, a key frame every 2, as LeRobot records), 16-step actions, batches of 32
  shuffled frames as float32. Sides: LeRobotDataset with torchcodec; the table in memory and torchcodec for each frame;
  mr.torch.lerobot.Dataset with one and with two threads. Their tensors are compared first.
- video: one H.264 file of 640 x 480 each with a key frame every 2 and every 250. Sides: torchcodec (one thread, approximate
  mode) and mr.video.Reader (one thread).

LeRobot's side needs its environment: `./dev check frameworks` makes build/lerobot. The script runs itself there.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction

FPS, FRAMES, WIDTH, HEIGHT, CHUNK, BATCH = 30, 300, 640, 480, 16, 32
CAMERAS = ("observation.images.top", "observation.images.wrist")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


# ---- the data, made with our environment


def write_clip(path: pathlib.Path, codec: str, gop: int, seed: int) -> None:
    """A gradient that moves under some noise."""
    import av
    import numpy as np

    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    options = {"libsvtav1": {"crf": "30", "preset": "10"}, "libx264": {"crf": "23", "preset": "veryfast", "bf": "0"}}
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=FPS, options=options[codec] | {"g": str(gop)})
        stream.width, stream.height, stream.gop_size, stream.pix_fmt = WIDTH, HEIGHT, gop, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for frame in range(FRAMES):
            base = np.stack([(x + 4 * frame) % 256, (y * 2 + frame) % 256, (x + y + 7 * seed) % 256], axis=2)
            picture = np.clip(base + rng.integers(0, 8, base.shape), 0, 255).astype(np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def make(folder: pathlib.Path, episodes: int) -> None:
    import numpy as np
    import pyarrow.parquet as pq
    import robot_sets

    import millrace as mr

    sets = robot_sets.test_sets()
    made = sets.Set(folder / "v21")
    info = sets.common_info("v21")
    features = {name: f for name, f in info["features"].items() if f["dtype"] != "video"}
    for camera in CAMERAS:
        features[camera] = {
            "dtype": "video",
            "shape": [HEIGHT, WIDTH, 3],
            "names": ["height", "width", "channels"],
        }
    info |= {"features": features, "total_episodes": episodes, "total_frames": episodes * FRAMES, "total_tasks": 1}
    info |= {"total_videos": 2 * episodes, "splits": {"train": f"0:{episodes}"}}
    made.write("meta/info.json", json.dumps(info))
    made.write("meta/tasks.jsonl", json.dumps({"task_index": 0, "task": "move"}) + "\n")
    lines, stats = "", ""
    for episode in range(episodes):
        action = np.sin(np.arange(FRAMES)[:, None] / 30 + np.arange(sets.JOINTS) + episode).astype(np.float32)
        columns = {
            "observation.state": action,
            "action": action,
            "timestamp": (np.arange(FRAMES) / FPS).astype(np.float32),
            "frame_index": np.arange(FRAMES),
            "episode_index": np.full(FRAMES, episode),
            "index": episode * FRAMES + np.arange(FRAMES),
            "task_index": np.zeros(FRAMES, dtype=np.int64),
        }
        pq.write_table(sets.table(columns), made.path(f"data/chunk-000/episode_{episode:06}.parquet"))
        lines += json.dumps({"episode_index": episode, "tasks": ["move"], "length": FRAMES}) + "\n"
        each = {name: sets.statistics(values, quantiles=False) for name, values in columns.items()}
        for seed, camera in enumerate(CAMERAS):
            each[camera] = sets.image_statistics(100, quantiles=False)
            path = made.path(f"videos/chunk-000/{camera}/episode_{episode:06}.mp4")
            if episode == 0:
                write_clip(path, "libsvtav1", 2, seed)
            else:
                shutil.copy(path.with_name("episode_000000.mp4"), path)
        stats += json.dumps({"episode_index": episode, "stats": each}) + "\n"
    made.write("meta/episodes.jsonl", lines)
    made.write("meta/episodes_stats.jsonl", stats)
    mr.lerobot.convert(folder / "v21", folder / "v30", to="3.0")
    for gop in (2, 250):
        write_clip(folder / f"gop{gop}.mp4", "libx264", gop, 9)


# ---- the sides, in LeRobot's environment


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def rounds(sides: dict[str, Callable[[int], None]], runs: int) -> dict[str, tuple[float, float]]:
    """Median wall and processor seconds of each side; all sides in each round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for each in range(runs + 1):
        for name, side in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            side(each)
            if each > 0:  # the first round opens files
                times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {name: (median([t[0] for t in each]), median([t[1] for t in each])) for name, each in times.items()}


def windows(folder: pathlib.Path, runs: int, batches: int) -> None:
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import default_collate

    library = torch.library.Library("torchvision", "DEF")  # its wheel does not load beside a CPU build of torch
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torchcodec.decoders import VideoDecoder

    import millrace as mr

    torch.set_num_threads(1)
    root = folder / "v30"
    deltas = {"action": [i / FPS for i in range(CHUNK)]}
    theirs = LeRobotDataset("local/feed", root=root, video_backend="torchcodec", delta_timestamps=deltas)
    begin = time.perf_counter()
    ours = {threads: mr.torch.lerobot.Dataset(root, delta_timestamps=deltas, num_threads=threads) for threads in (1, 2)}
    print(f"start of ours, twice: {time.perf_counter() - begin:.3f} s")
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    columns = {name: torch.tensor(table[name].to_pylist()) for name in ("observation.state", "action", "task_index")}
    videos = {camera: sorted(root.glob(f"videos/{camera}/*/*.mp4")) for camera in CAMERAS}
    assert all(len(paths) == 1 for paths in videos.values())
    decoders = {camera: VideoDecoder(str(paths[0]), seek_mode="approximate") for camera, paths in videos.items()}

    def by_hand(row: int) -> dict:
        end = row // FRAMES * FRAMES + FRAMES
        rows = torch.arange(row, row + CHUNK)
        item = {name: values[row] for name, values in columns.items()}
        item |= {"action": columns["action"][rows.clamp(max=end - 1)], "action_is_pad": rows >= end}
        return item | {camera: decoder.get_frame_at(row).data / 255 for camera, decoder in decoders.items()}

    for row in (0, 7, 299, 300, len(theirs) - 1):
        given, wanted, plain = ours[1][row], theirs[row], by_hand(row)
        assert set(given) == set(wanted)
        for name, value in wanted.items():
            assert given[name] == value if isinstance(value, str) else torch.equal(given[name], value), name
        assert all(torch.equal(plain[name], wanted[name]) for name in plain)

    def rows_of(each: int) -> list[list[int]]:
        rng = random.Random(each)
        return [rng.sample(range(len(theirs)), BATCH) for _ in range(batches)]

    def one_by_one(get: Callable[[int], dict]) -> Callable[[int], None]:
        return lambda each: [default_collate([get(row) for row in rows]) for rows in rows_of(each)] and None

    sides = {
        "LeRobotDataset": one_by_one(lambda row: theirs[row]),
        "table in memory, torchcodec for each frame": one_by_one(by_hand),
        "millrace, 1 thread": lambda each: [ours[1].batch(rows) for rows in rows_of(each)] and None,
        "millrace, 2 threads": lambda each: [ours[2].batch(rows) for rows in rows_of(each)] and None,
    }
    show(rounds(sides, runs), batches * BATCH, "samples")


def video(folder: pathlib.Path, runs: int) -> None:
    import torch
    from torchcodec.decoders import VideoDecoder

    import millrace as mr

    torch.set_num_threads(1)
    for name, gop, numbers_of in (
        ("sequential, a key frame every 250", 250, lambda each: list(range(FRAMES))),
        ("random, a key frame every 2", 2, lambda each: random.Random(each).sample(range(FRAMES), 100)),
        (
            "a batch of 32 random ones, a key frame every 250",
            250,
            lambda each: random.Random(each).sample(range(FRAMES), 32),
        ),
    ):
        path = str(folder / f"gop{gop}.mp4")
        decoder = VideoDecoder(path, seek_mode="approximate", num_ffmpeg_threads=1)
        reader = mr.video.Reader(path)
        one_by_one = name.startswith("random")
        given = torch.from_numpy(reader.frames([3, 299, 17], layout="chw"))
        difference = (given.int() - decoder.get_frames_at([3, 299, 17]).data.int()).abs().max().item()

        def theirs(each: int, decoder=decoder, numbers_of=numbers_of, one_by_one=one_by_one) -> None:
            if one_by_one:
                for number in numbers_of(each):
                    decoder.get_frame_at(number)
            else:
                decoder.get_frames_at(numbers_of(each))

        def ours(each: int, layout: str, reader=reader, numbers_of=numbers_of, one_by_one=one_by_one) -> None:
            if one_by_one:
                for number in numbers_of(each):
                    reader.frames([number], layout=layout)
            else:
                reader.frames(numbers_of(each), layout=layout)

        print(f"\n{name}; largest difference of a pixel {difference}")
        # torchcodec gives [3, height, width] as a view of pixels that lie as [height, width, 3].
        sides = {"torchcodec": theirs} | {
            f"millrace, {layout}": functools.partial(ours, layout=layout) for layout in ("hwc", "chw")
        }
        show(rounds(sides, runs), len(numbers_of(1)), "frames")


def show(times: dict[str, tuple[float, float]], count: int, what: str) -> None:
    print(f"| side | {what}/s | {what} per CPU-s | of the first |\n|---|---|---|---|")
    first = next(iter(times.values()))[0]
    for name, (wall, processor) in times.items():
        print(f"| {name} | {count / wall:.1f} | {count / processor:.1f} | {first / wall:.2f}x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="of 32 frames, in each run")
    parser.add_argument("--lerobot", default=str(ROOT / "build/lerobot/bin/python"), help="LeRobot's interpreter")
    parser.add_argument(
        "--folder", type=pathlib.Path, help=argparse.SUPPRESS
    )  # the data are there; of the second start
    args = parser.parse_args()
    if args.folder is not None:
        print("windows")
        windows(args.folder, args.runs, args.batches)
        video(args.folder, args.runs)
        return
    if not pathlib.Path(args.lerobot).exists():
        raise SystemExit(f"{args.lerobot} is not there: run `./dev check frameworks`, or name another one by --lerobot")
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make(folder, args.episodes)
        env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
        flags = ["--runs", args.runs, "--batches", args.batches, "--folder", folder]
        subprocess.run([args.lerobot, __file__, *map(str, flags)], env=env, check=True)


main()
