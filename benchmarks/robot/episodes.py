# SPDX-License-Identifier: Apache-2.0
"""CSV episodes to arrays, and windows of random episodes, beside the readers that people use.

    python benchmarks/robot/episodes.py [--question csv|windows|all] [--episodes 50] [--runs 5]

Everything runs on one CPU in one process. Peers that are not installed are left out, and said so (pip install polars
pandas). Sides take turns; numbers are CPU time, the median of the runs. Files are in the page cache. Before a time is
printed, all sides have given equal bits.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

import millrace as mr

COLUMNS, ROWS, WINDOW = 31, 1000, 16

Reader = Callable[[pathlib.Path], np.ndarray]


def optional(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed: left out")
        return None


def write_episodes(folder: pathlib.Path, episodes: int, digits: str) -> list[pathlib.Path]:
    """Joints that move smoothly with noise: `digits` is a format, or 'repr' for all digits of a float64."""
    rng = np.random.default_rng(1)
    paths = []
    for i in range(episodes):
        phase = np.linspace(0, 20, ROWS)[:, None] + rng.uniform(0, 6, COLUMNS)
        values = np.sin(phase) * rng.uniform(0.5, 3, COLUMNS) + rng.normal(0, 0.01, (ROWS, COLUMNS))
        paths.append(folder / f"episode_{i:04}.csv")
        with paths[-1].open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([f"joint_{j}" for j in range(COLUMNS)])
            write = repr if digits == "repr" else lambda x: format(x, digits)
            out.writerows([write(float(x)) for x in row] for row in values)
    return paths


def dict_reader(path: pathlib.Path) -> np.ndarray:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return np.array([[float(row[name]) for name in reader.fieldnames] for row in reader]).astype(np.float32)


def csv_readers() -> dict[str, Reader]:
    readers: dict[str, Reader] = {
        "millrace": lambda path: mr.episodes.read_csv(path).numbers,
        "csv.DictReader": dict_reader,
    }
    if polars := optional("polars"):
        readers[f"polars {polars.__version__}"] = lambda path: polars.read_csv(path).to_numpy().astype(np.float32)
    if pandas := optional("pandas"):
        readers[f"pandas {pandas.__version__}"] = lambda path: pandas.read_csv(path).to_numpy(np.float32)
    return readers


def take_turns(sides: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """CPU seconds of a call of each side: the median of the runs."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, call in sides.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def print_table(title: str, unit: str, times: dict[str, float], per: int, scale: float) -> None:
    print(f"\n| {title} | {unit} | to ours |\n|---|---|---|")
    for name, seconds in sorted(times.items(), key=lambda item: item[1]):
        print(f"| {name} | {seconds / per * scale:.3g} | {seconds / times['millrace']:.1f} |")


def ask_csv(folder: pathlib.Path, episodes: int, runs: int) -> None:
    for what, digits in (("8 digits behind the point", ".8f"), ("all 17 digits", "repr")):
        below = folder / digits
        below.mkdir()
        paths = write_episodes(below, episodes, digits)
        size = sum(path.stat().st_size for path in paths)
        readers = csv_readers()
        for path in paths[:3]:
            wanted = dict_reader(path)
            for name, read in readers.items():
                equal = read(path).tobytes() == wanted.tobytes()
                print("" if equal else f"{name} gives other float32 than float()\n", end="")
                assert equal or name != "millrace"
        sides = {
            name: (lambda read=read, paths=paths: [read(path) for path in paths]) for name, read in readers.items()
        }
        times = take_turns(sides, runs)
        print_table(
            f"CSV with {what}, {size / episodes / 1e3:.0f} kB an episode", "ms an episode", times, episodes, 1e3
        )
        for name, seconds in times.items():
            print(f"{name}: {size / seconds / 1e6:.0f} MB/s")


def ask_windows(folder: pathlib.Path, episodes: int, runs: int) -> None:
    source = folder / "set"
    source.mkdir()
    write_episodes(source, episodes, ".8f")
    mr.episodes.convert(source, to="packed", out=folder / "set.mrpack")
    mr.episodes.convert(source, out=folder / "npz")
    mr.episodes.convert(source, out=folder / "deflated", compress=True)
    packed, npz = mr.episodes.open(folder / "set.mrpack"), mr.episodes.open(folder / "npz")
    rng = random.Random(1)
    places = [(rng.randrange(episodes), rng.randrange(ROWS - WINDOW)) for _ in range(500)]

    def by_numpy(kind: str, mode: str | None = None) -> Callable[[int, int], np.ndarray]:
        def window(i: int, start: int) -> np.ndarray:
            with np.load(folder / kind / f"episode_{i:04}.npz", mmap_mode=mode) as file:
                return file["data"][start : start + WINDOW]

        return window

    ways: dict[str, Callable[[int, int], np.ndarray]] = {
        "millrace": lambda i, start: packed.window(i, start, WINDOW),
        "millrace, NPZ files": lambda i, start: npz.window(i, start, WINDOW),
        "numpy.load of NPZ": by_numpy("npz"),
        'numpy.load of NPZ, mmap_mode="r"': by_numpy("npz", "r"),
        "numpy.load of compressed NPZ": by_numpy("deflated"),
    }
    if pandas := optional("pandas"):
        ways["pandas.read_csv"] = lambda i, start: pandas.read_csv(source / f"episode_{i:04}.csv").to_numpy(np.float32)[
            start : start + WINDOW
        ]
    for i, start in places[:20]:
        wanted = packed.window(i, start, WINDOW).tobytes()
        assert all(way(i, start).tobytes() == wanted for way in ways.values())
    sides = {name: (lambda way=way: [way(i, start).sum() for i, start in places]) for name, way in ways.items()}
    sums = take_turns({"sum": lambda: [packed.window(*place, WINDOW).sum() for place in places]}, runs)["sum"]
    arrays = [packed.window(i, start, WINDOW) for i, start in places]
    adding = take_turns({"sum": lambda: [array.sum() for array in arrays]}, runs)["sum"]
    times = {name: seconds - adding for name, seconds in take_turns(sides, runs).items()}
    print_table(f"{WINDOW} rows of a random episode", "us", times, len(places), 1e6)
    print(
        f"(the sum of each window, {adding / len(places) * 1e6:.2f} us of {sums / len(places) * 1e6:.2f}, is taken off)"
    )
    kept = sum(path.stat().st_size for path in (folder / "npz").iterdir())
    for name, size in {"packed": (folder / "set.mrpack").stat().st_size, "NPZ": kept}.items():
        print(f"{name}: {size / episodes / 1e3:.2f} kB an episode")
    plain = 0
    for i in range(episodes):
        np.savez(folder / "plain.npz", packed[i].numbers)
        plain += (folder / "plain.npz").stat().st_size
    print(f"numpy.savez of one float32 array: {plain / episodes / 1e3:.2f} kB an episode")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--question", choices=("csv", "windows", "all"), default="all")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    # Before a peer is imported, which counts CPUs for its threads.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        if options.question != "windows":
            ask_csv(pathlib.Path(name), options.episodes, options.runs)
        if options.question != "csv":
            ask_windows(pathlib.Path(name), options.episodes, options.runs)


if __name__ == "__main__":
    main()
