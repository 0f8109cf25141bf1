# SPDX-License-Identifier: Apache-2.0
"""How long does it take to open a robot dataset of very many episodes?

    python benchmarks/robot/episodes_start.py --episodes 50000
    python benchmarks/robot/episodes_start.py --url s3://bucket/many     # copied there, and read with a cache

A v2.1 dataset, where each episode has a line in two lists, a table and a video for each of two cameras. The demo's
first episode is linked under the names of all others, so that the number decides and not the bytes. Each row is a
process of its own. CPU seconds are user and system time.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import resource
import subprocess
import tempfile
import time


def make(source: pathlib.Path, target: pathlib.Path, episodes: int) -> None:
    info = json.loads((source / "meta/info.json").read_text())
    lines = {name: json.loads((source / f"meta/{name}.jsonl").read_text()) for name in ("episodes", "episodes_stats")}
    (target / "meta").mkdir(parents=True)
    (target / "meta/tasks.jsonl").write_bytes((source / "meta/tasks.jsonl").read_bytes())
    for name, line in lines.items():
        with (target / f"meta/{name}.jsonl").open("w") as file:
            file.writelines(json.dumps(line | {"episode_index": number}) + "\n" for number in range(episodes))
    cameras = sum(feature["dtype"] == "video" for feature in info["features"].values())
    info |= {
        "total_episodes": episodes, "total_frames": episodes * lines["episodes"]["length"],
        "total_videos": episodes * cameras, "total_chunks": -(-episodes // info["chunks_size"]),
        "splits": {"train": f"0:{episodes}"},
    }  # fmt: skip
    (target / "meta/info.json").write_text(json.dumps(info, indent=4))
    for file in source.rglob("episode_000000.*"):
        for number in range(episodes):
            chunk = f"chunk-{number // info['chunks_size']:03d}"
            folder = target / str(file.parent.relative_to(source)).replace("chunk-000", chunk)
            if number % info["chunks_size"] == 0:
                folder.mkdir(parents=True)
            os.link(file, folder / f"episode_{number:06d}{file.suffix}")


def start(row: str, url: str, cache: str) -> None:
    import millrace as mr

    begin, cpu = time.perf_counter(), time.process_time()
    frames = mr.lerobot.Dataset(url, cache=cache)
    opened = time.perf_counter() - begin
    frames[0]
    item = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{row}: {len(frames):,} frames, open {opened:.2f} s, first item {item:.2f} s, "
          f"CPU {time.process_time() - cpu:.2f} s, peak {peak} MiB, {mr.metrics()['requests']} requests")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--url", help="where the dataset is copied to and read from; stays there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run(
            ["millrace", "lerobot", "demo", folder / "one", "--version", "2.1", "--episodes", "1", "--quiet"],
            check=True,
        )
        make(folder / "one", folder / "many", args.episodes)
        url, cache = str(folder / "many"), ""
        if args.url is not None:
            subprocess.run(["millrace", "sync", url, args.url, "--quiet"], check=True)
            url, cache = args.url, str(folder / "cache")
        for row in ("first", "second"):
            process = multiprocessing.get_context("spawn").Process(target=start, args=(row, url, cache))
            process.start()
            process.join()
            if process.exitcode != 0:
                raise SystemExit(f"{row}: exit status {process.exitcode}")


if __name__ == "__main__":
    main()
