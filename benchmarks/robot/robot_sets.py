# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of robot datasets share: large datasets made quickly, and runs of both sides.

make_v30 writes a dataset of v3.0 as LeRobot's recorder does: float32 lists of fixed size, a row group for each episode,
per-episode statistics, and, where asked, one camera whose files hold packets without pictures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARY = os.environ.get("MILLRACE_BIN") or str(ROOT / ".venv/bin/millrace")
FPS = 30


def test_sets():
    """The makers that the end-to-end tests use."""
    path = ROOT / "tests/e2e/lerobot_sets.py"
    spec = importlib.util.spec_from_file_location("lerobot_sets", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lerobot_sets"] = module
    spec.loader.exec_module(module)
    return module


def run(command: list, env: dict | None = None, may_end_with: tuple[int, ...] = (0,)) -> dict:
    """Wall and CPU seconds of a process with its start, and its output."""
    begin = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in may_end_with:
        raise SystemExit(f"{command}: {done.stderr[-2000:]}")
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "out": done.stdout,
    }


def environment(name: str, *packages: str) -> pathlib.Path | None:
    """The interpreter of an environment below build/bench with these packages; None with a word where pip fails."""
    folder = ROOT / "build/bench" / name
    python = folder / "bin/python"
    if (folder / "done").exists():
        return python
    venv.create(folder, with_pip=True, clear=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name} is left out, since it could not be installed: {done.stderr.strip().splitlines()[-1:]}")
        return None
    (folder / "done").write_text(" ".join(packages))
    return python


def make_v30(root: pathlib.Path, episodes: int, length: int, dim: int, camera: bool) -> None:
    """Data files of up to 500 episodes each; `dim` numbers in observation.state and in action."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    sets = test_sets()
    rng = np.random.default_rng(1)
    key = "observation.images.top"
    vector = {"dtype": "float32", "shape": [dim], "names": None}
    scalar = {"dtype": "int64", "shape": [1], "names": None}
    features = {"observation.state": vector, "action": vector}
    if camera:
        features[key] = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    features |= {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}
    features |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), scalar)
    table: dict[str, list] = {}
    made = sets.Set(root)
    sums: dict[str, np.ndarray] = {}
    per_file = 500
    for begin in range(0, episodes, per_file):
        members = range(begin, min(begin + per_file, episodes))
        number = begin // per_file
        writer = None
        for place, episode in enumerate(members):
            action = np.cumsum(rng.normal(0, 0.02, (length, dim)), axis=0).astype(np.float32)
            columns = {
                "observation.state": (action * 0.9).astype(np.float32),
                "action": action,
                "timestamp": (np.arange(length) / FPS).astype(np.float32),
                "frame_index": np.arange(length),
                "episode_index": np.full(length, episode),
                "index": episode * length + np.arange(length),
                "task_index": np.zeros(length, dtype=np.int64),
            }
            rows = sets.table(columns, "List")
            if writer is None:
                writer = pq.ParquetWriter(made.path(f"data/chunk-000/file-{number:03}.parquet"), rows.schema)
            writer.write_table(rows)
            row = {"episode_index": episode, "tasks": ["move"], "length": length}
            row |= {"data/chunk_index": 0, "data/file_index": number}
            row |= {"dataset_from_index": episode * length, "dataset_to_index": (episode + 1) * length}
            if camera:
                row |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
                row |= {f"videos/{key}/from_timestamp": place * length / FPS}
                row |= {f"videos/{key}/to_timestamp": (place + 1) * length / FPS}
                for name, value in sets.image_statistics(100).items():
                    row[f"stats/{key}/{name}"] = value
            for name, values in columns.items():
                for statistic, value in sets.statistics(values).items():
                    row[f"stats/{name}/{statistic}"] = value
                sums[name] = values
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            for name, value in row.items():
                table.setdefault(name, []).append(value)
        assert writer is not None
        writer.close()
        if camera:
            made.video(
                f"videos/{key}/chunk-000/file-{number:03}.mp4",
                frames=length * len(members),
                parts=tuple([length] * len(members)),
            )
    pq.write_table(pa.table(table), made.path("meta/episodes/chunk-000/file-000.parquet"))
    tasks = pa.table({"task_index": pa.array([0]), "task": pa.array(["move"])})
    pq.write_table(tasks, made.path("meta/tasks.parquet"))
    info = {"codebase_version": "v3.0", "robot_type": "arm", "total_episodes": episodes, "fps": FPS, "total_tasks": 1}
    info |= {"total_frames": episodes * length, "chunks_size": 1000, "data_files_size_in_mb": 100}
    info |= {"video_files_size_in_mb": 200, "splits": {"train": f"0:{episodes}"}, "features": features}
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if camera else None
    made.write("meta/info.json", json.dumps(info))
    # Numbers of the last episode only: `stats --write` puts the dataset's there.
    stats = {name: sets.statistics(values) for name, values in sums.items()}
    if camera:
        stats[key] = sets.image_statistics(episodes * min(length, 100))
    made.write("meta/stats.json", json.dumps(stats))
    run([BINARY, "lerobot", "stats", root, "--write", "--quiet"])


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
