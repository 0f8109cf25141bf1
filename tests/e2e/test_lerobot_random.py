# SPDX-License-Identifier: Apache-2.0
"""Random datasets through `millrace lerobot`: v2.0, v2.1 and v3.0 there and back are equal, and so are split and merge.

MILLRACE_TEST_SEED    the seed that a failure prints
"""

from __future__ import annotations

import json
import os
import random
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conftest import Millrace, visible_files

av = pytest.importorskip("av")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SEED = int(os.environ.get("MILLRACE_TEST_SEED") or random.randrange(2**32))
RATES = [Fraction(10), Fraction(24), Fraction(30), Fraction(30000, 1001), Fraction(60)]
# Key frames every second frame without B-frames, as LeRobot writes; long groups; B-frames; an open encoder.
CODECS = [
    ("libx264", {"g": "2", "bf": "0", "crf": "30"}),
    ("libx264", {"g": "50", "bf": "0", "crf": "23"}),
    ("libx264", {"g": "12", "bf": "2", "crf": "30"}),
    ("libsvtav1", {"g": "2", "crf": "40", "preset": "12"}),
]
BOOKKEEPING = ("frame_index", "episode_index", "index", "task_index")


def encode(path: Path, frames: int, rate: Fraction, codec: str, options: dict, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.thread_count = 1
        start = rng.integers(0, 255, (8, 8, 3))
        for i in range(frames):
            picture = np.kron((start + 3 * i) % 255, np.ones((8, 8, 1))).astype(np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


class Features:
    """Columns of random kinds."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.dim = int(rng.integers(1, 9))
        self.declared = {
            "observation.state": ("float32", [self.dim], pa.list_(pa.float32(), self.dim)),
            "action": ("float64", [2], pa.list_(pa.float64())),
            "next.done": ("bool", [1], pa.bool_()),
            "observation.count": ("int32", [1], pa.int32()),
            "observation.grid": ("float32", [2, 3], pa.list_(pa.list_(pa.float32()))),
            "note": ("string", [1], pa.string()),
        }
        optional = [name for name in self.declared if name != "action"]
        for name in rng.permutation(optional)[: rng.integers(0, len(optional))]:
            del self.declared[str(name)]

    def values(self, name: str, rows: int) -> list:
        rng = self.rng
        return {
            "observation.state": lambda: rng.normal(size=(rows, self.dim)).astype(np.float32).tolist(),
            "action": lambda: rng.normal(size=(rows, 2)).tolist(),
            "next.done": lambda: [i == rows - 1 for i in range(rows)],
            "observation.count": lambda: rng.integers(-5, 5, rows).tolist(),
            "observation.grid": lambda: rng.normal(size=(rows, 2, 3)).astype(np.float32).tolist(),
            "note": lambda: [f"row {i} \N{SNOWMAN}" for i in range(rows)],
        }[name]()


def stats_of(values: np.ndarray) -> dict:
    values = values.astype(np.float64)
    return {how: np.atleast_1d(getattr(values, how)(0)).tolist() for how in ("min", "max", "mean", "std")} | {
        "count": [len(values)]
    }


def make(root: Path, seed: int) -> dict:
    """A dataset of v2.1. Returns its info.json."""
    rng = np.random.default_rng(seed)
    rate = RATES[rng.integers(len(RATES))]
    fps = rate.numerator if rate.denominator == 1 else float(rate)
    cameras = [f"observation.images.{name}" for name in ("front", "wrist", "top")[: rng.integers(0, 3)]]
    lengths = [int(n) for n in rng.choice([1, 2, 3, 7, 20, 41], rng.integers(2, 7))]
    tasks = [f"task {i}" for i in range(rng.integers(1, 4))]
    features = Features(rng)
    codecs = {camera: CODECS[rng.integers(len(CODECS))] for camera in cameras}
    episodes = stats = ""
    first = 0
    for episode, length in enumerate(lengths):
        used = np.sort(rng.integers(0, len(tasks), length))
        numbers = {
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": first + np.arange(length),
            "task_index": used,
        }
        columns = {
            name: pa.array(features.values(name, length), kind) for name, (_, _, kind) in features.declared.items()
        }
        columns["timestamp"] = pa.array((np.arange(length) / float(rate)).astype(np.float32))
        columns |= {name: pa.array(values) for name, values in numbers.items()}
        path = root / f"data/chunk-000/episode_{episode:06}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        each = {name: stats_of(np.array(column.to_pylist())) for name, column in columns.items() if name != "note"}
        for camera in cameras:
            codec, options = codecs[camera]
            if rng.random() < 0.15:  # another encoder's parameters
                options = options | {"crf": "20"}
            encode(root / f"videos/chunk-000/{camera}/episode_{episode:06}.mp4", length, rate, codec, options, rng)
            each[camera] = {how: [[[v]]] * 3 for how, v in (("min", 0.0), ("max", 1.0), ("mean", 0.5), ("std", 0.2))}
            each[camera]["count"] = [length]
        episodes += json.dumps(
            {"episode_index": episode, "tasks": [tasks[i] for i in dict.fromkeys(used.tolist())], "length": length}
        )
        episodes += "\n"
        stats += json.dumps({"episode_index": episode, "stats": each}) + "\n"
        first += length
    described = {
        name: {"dtype": dtype, "shape": shape, "names": None} for name, (dtype, shape, _) in features.declared.items()
    }
    names = ["height", "width", "channels"]
    described |= {camera: {"dtype": "video", "shape": [64, 64, 3], "names": names} for camera in cameras}
    described["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    described |= {name: {"dtype": "int64", "shape": [1], "names": None} for name in BOOKKEEPING}
    info = {
        "codebase_version": "v2.1",
        "robot_type": "random",
        "total_episodes": len(lengths),
        "total_frames": first,
        "total_tasks": len(tasks),
        "total_videos": len(lengths) * len(cameras),
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": described,
    }
    if not cameras:
        info["video_path"] = None
    (root / "meta").mkdir()
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/episodes.jsonl").write_text(episodes)
    (root / "meta/episodes_stats.jsonl").write_text(stats)
    (root / "meta/tasks.jsonl").write_text(
        "".join(json.dumps({"task_index": i, "task": task}) + "\n" for i, task in enumerate(tasks))
    )
    return info


def frames_of(path: Path) -> list:
    with av.open(str(path)) as file:
        return [(frame.pts * frame.time_base, frame.to_ndarray().tobytes()) for frame in file.decode(video=0)]


def close(a: object, b: object) -> bool:
    """Equal, numbers to 12 digits: statistics of numbers that change are computed anew."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= 1e-12 * max(1, abs(a))
    return a == b


def assert_equal(old: Path, new: Path, why: str) -> None:
    """Two datasets of v2.1 with the same episodes."""
    before, after = visible_files(old), visible_files(new)
    assert before.keys() == after.keys(), why
    for name, content in before.items():
        if name.endswith(".parquet"):
            assert pq.read_table(new / name).equals(pq.read_table(old / name)), (why, name)
        elif name.endswith(".mp4"):
            assert frames_of(new / name) == frames_of(old / name), (why, name)
        else:
            mine, its = (
                ([json.loads(line) for line in text.splitlines()] for text in (content, after[name]))
                if (name.endswith(".jsonl"))
                else (json.loads(content), json.loads(after[name]))
            )
            assert close(mine, its), (why, name)


@pytest.mark.parametrize("number", range(6))
def test_random_datasets(millrace: Millrace, number: int):
    seed = (SEED + number) % 2**32
    why = f"MILLRACE_TEST_SEED={seed}"
    info = make(millrace.cwd / "old", seed)
    before = visible_files(millrace.cwd / "old")
    count = info["total_episodes"]

    def run(*args: object) -> list[dict]:
        return millrace("lerobot", *args, "--json").objects(f"lerobot_{args[0]}")

    made = run("convert", "old", "new", "--to", "3.0") + run("convert", "new", "again", "--to", "2.1")
    assert [report["encoded_videos"] for report in made] == [0, 0], why
    assert_equal(millrace.cwd / "old", millrace.cwd / "again", why)
    # Parts in the order of the episodes, from either version, in either version.
    cut = 1 + seed % (count - 1)
    for source, to in (("old", "3.0"), ("new", "2.1")):
        parts = ("--part", f"a=0-{cut - 1}", "--part", f"b={cut}-{count - 1}")
        assert sum(report["episodes"] for report in run("split", source, f"{source}-parts", *parts)) == count, why
        made = run("merge", f"{source}-parts/a", f"{source}-parts/b", f"{source}-{to}", "--to", to)
        assert made[0]["encoded_videos"] == 0, why
    run("convert", "old-3.0", "old-back", "--to", "2.1")
    assert_equal(millrace.cwd / "old", millrace.cwd / "old-back", why)
    assert_equal(millrace.cwd / "old", millrace.cwd / "new-2.1", why)
    assert visible_files(millrace.cwd / "old") == before, why


def as_v20(old: Path, new: Path) -> None:
    """The same dataset as LeRobot wrote it with v2.0: statistics of all rows in float64, none of episodes."""
    shutil.copytree(old, new)
    (new / "meta/episodes_stats.jsonl").unlink()
    info = json.loads((new / "meta/info.json").read_text())
    (new / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.0"}))
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(new.glob("data/*/*.parquet"))])
    stats = {}
    for name, feature in info["features"].items():
        if feature["dtype"] == "video":
            values = {"mean": 0.5, "std": 0.2, "max": 1.0, "min": 0.0}
            stats[name] = {how: [[[value]]] * 3 for how, value in values.items()}
        elif feature["dtype"] != "string":
            stats[name] = stats_of(np.array(rows[name].to_pylist()))
            del stats[name]["count"]
    (new / "meta/stats.json").write_text(json.dumps(stats))


def forget_pictures(root: Path) -> None:
    """Statistics of cameras become their shapes: v2.0 has none of episodes, so they are sampled anew. Computed ones of
    grids are flat."""
    cameras = [
        k for k, f in json.loads((root / "meta/info.json").read_text())["features"].items() if "video" in f["dtype"]
    ]

    def without(stats: dict) -> dict:
        for name in cameras:
            stats[name] = {how: np.shape(value) for how, value in stats[name].items()}
        if "observation.grid" in stats:
            grid = stats["observation.grid"]
            stats["observation.grid"] = {how: np.ravel(value).tolist() for how, value in grid.items()}
        return stats

    if (root / "meta/stats.json").exists():
        path = root / "meta/stats.json"
        path.write_text(json.dumps(without(json.loads(path.read_text()))))
    if (root / "meta/episodes_stats.jsonl").exists():
        path = root / "meta/episodes_stats.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {"stats": without(line["stats"])}) + "\n" for line in lines))


@pytest.mark.parametrize("number", range(3))
def test_random_datasets_of_v20(millrace: Millrace, number: int):
    """v2.1 -> v2.0 is what LeRobot wrote; v2.0 -> v3.0 -> v2.0, v2.0 -> v2.1 and parts of v2.0 are equal."""
    seed = (SEED + 1000 + number) % 2**32
    why = f"MILLRACE_TEST_SEED={(seed - 1000 - number) % 2**32}"
    cwd = millrace.cwd
    count = make(cwd / "v21", seed)["total_episodes"]
    as_v20(cwd / "v21", cwd / "v20")
    before = visible_files(cwd / "v20")

    def run(*args: object) -> dict:
        return millrace("lerobot", *args, "--json").object(f"lerobot_{args[0]}")

    def found(name: str) -> set:
        lints = millrace("lerobot", "validate", name, "--json", "--fail-on", "never").objects("lint")
        return {(lint["rule"], lint["file"]) for lint in lints}

    report = run("convert", "v21", "made", "--to", "2.0")
    assert report["version"] == "v2.0" and report["encoded_videos"] == 0, why
    assert_equal(cwd / "v20", cwd / "made", why)
    assert found("made") == found("v20"), why
    stats = json.loads((cwd / "made/meta/stats.json").read_text())
    assert all(list(each) == ["mean", "std", "max", "min"] for each in stats.values()), why
    run("convert", "v20", "v30", "--to", "3.0")
    run("convert", "v30", "back", "--to", "2.0")
    run("convert", "v20", "again", "--to", "2.1")
    cut = 1 + seed % (count - 1)
    run("split", "v20", "parts/a", "--episodes", f"0-{cut - 1}")
    run("split", "v20", "parts/b", "--episodes", f"{cut}-{count - 1}")
    assert run("merge", "parts/a", "parts/b", "merged")["version"] == "v2.0", why
    run("merge", "parts/a", "parts/b", "merged3", "--to", "3.0")
    run("convert", "merged3", "merged2", "--to", "2.0")
    assert visible_files(cwd / "v20") == before, why
    for name in ("v20", "v21", "back", "again", "merged", "merged2"):
        forget_pictures(cwd / name)
    for name in ("back", "merged", "merged2"):
        assert_equal(cwd / "v20", cwd / name, why)
    assert_equal(cwd / "v21", cwd / "again", why)
