# SPDX-License-Identifier: Apache-2.0
"""Is a conversion between v2.1 and v3.0 bound by the disk?

    python benchmarks/robot/convert.py --episodes 20 --runs 3

The dataset of v2.1 is made first: one camera of 640 x 480 with noise, H.264, 300 frames an episode, so that a clip has
some megabytes. Sides: `convert --to 3.0`, `convert --to 2.1` of its result, and `cp -r` of the source. Each is followed by
`sync`. Conversions read their results again and compare decoded frames, so they do more than copy. A conversion that
encodes a frame ends the run.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
from fractions import Fraction

import robot_sets

FRAMES, WIDTH, HEIGHT = 300, 640, 480
CAMERA = "observation.images.top"


def write_clip(path: pathlib.Path) -> None:
    import av
    import numpy as np

    rng = np.random.default_rng(1)
    options = {"preset": "ultrafast", "crf": "20", "bf": "0"}
    with av.open(str(path), "w") as file:
        stream = file.add_stream("h264", rate=robot_sets.FPS, options=options)
        stream.width, stream.height, stream.gop_size = WIDTH, HEIGHT, 30
        stream.time_base = Fraction(1, robot_sets.FPS)
        for _ in range(FRAMES):
            picture = rng.integers(90, 130, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def make_v21(root: pathlib.Path, episodes: int) -> None:
    """All episodes have one clip's pictures: the work does not depend on what is in them."""
    import numpy as np
    import pyarrow.parquet as pq

    sets = robot_sets.test_sets()
    made = sets.Set(root)
    info = sets.common_info("v21")
    features = {name: f for name, f in info["features"].items() if f["dtype"] != "video"}
    features[CAMERA] = {
        "dtype": "video",
        "shape": [HEIGHT, WIDTH, 3],
        "names": ["height", "width", "channels"],
    }
    info |= {"features": features, "total_episodes": episodes, "total_frames": episodes * FRAMES, "total_tasks": 1}
    info |= {"total_videos": episodes, "splits": {"train": f"0:{episodes}"}}
    made.write("meta/info.json", json.dumps(info))
    made.write("meta/tasks.jsonl", json.dumps({"task_index": 0, "task": "move"}) + "\n")
    lines, stats = "", ""
    first = made.path(f"videos/chunk-000/{CAMERA}/episode_000000.mp4")
    write_clip(first)
    for episode in range(episodes):
        action = np.sin(np.arange(FRAMES)[:, None] / 30 + np.arange(sets.JOINTS) + episode).astype(np.float32)
        columns = {
            "observation.state": action,
            "action": action,
            "timestamp": (np.arange(FRAMES) / robot_sets.FPS).astype(np.float32),
            "frame_index": np.arange(FRAMES),
            "episode_index": np.full(FRAMES, episode),
            "index": episode * FRAMES + np.arange(FRAMES),
            "task_index": np.zeros(FRAMES, dtype=np.int64),
        }
        pq.write_table(sets.table(columns), made.path(f"data/chunk-000/episode_{episode:06}.parquet"))
        if episode > 0:
            shutil.copy(first, first.with_name(f"episode_{episode:06}.mp4"))
        lines += json.dumps({"episode_index": episode, "tasks": ["move"], "length": FRAMES}) + "\n"
        each = {name: sets.statistics(values, quantiles=False) for name, values in columns.items()}
        each[CAMERA] = sets.image_statistics(100, quantiles=False)
        stats += json.dumps({"episode_index": episode, "stats": each}) + "\n"
    made.write("meta/episodes.jsonl", lines)
    made.write("meta/episodes_stats.jsonl", stats)


def size_of(root: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def timed(command: list, target: pathlib.Path) -> dict:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["sync"], check=True)
    return robot_sets.run(["bash", "-c", '"$@" && sync', "bash", *command])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--folder", type=pathlib.Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = pathlib.Path(name)
        old, new, back, copy = (folder / each for each in ("v21", "v30", "back", "copy"))
        make_v21(old, args.episodes)
        convert = [robot_sets.BINARY, "lerobot", "convert", "--json"]
        sides = {
            "convert --to 3.0": ([*convert, old, new, "--to", "3.0"], new),
            "convert --to 2.1": ([*convert, new, back, "--to", "2.1"], back),
            "cp -r": (["cp", "-r", old, copy], copy),
        }
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(args.runs):
            for side, (command, target) in sides.items():
                ran = timed(command, target)
                if ran["out"] and json.loads(ran["out"].splitlines()[-1])["encoded_videos"] > 0:
                    raise SystemExit(ran["out"])
                times.setdefault(side, []).append((ran["seconds"], ran["cpu"]))
        size = size_of(old)
        print(f"{args.episodes} episodes, {size / 1e6:.1f} MB; median of {args.runs}")
        print("| side | wall s | CPU s | MB/s |\n|---|---|---|---|")
        for side, each in times.items():
            wall, cpu = (robot_sets.median([pair[i] for pair in each]) for i in (0, 1))
            print(f"| {side} | {wall:.2f} | {cpu:.2f} | {size / wall / 1e6:.1f} |")


main()
