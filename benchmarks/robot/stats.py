# SPDX-License-Identifier: Apache-2.0
"""How long do statistics of the numeric columns take, beside LeRobot's own code?

    python benchmarks/robot/stats.py --episodes 1000 --runs 3

The dataset (v3.0, episodes of 450 rows, state and action of 14 float32 and the five bookkeeping columns) is made first.
Ours is `millrace lerobot stats`, and `stats --write`, which also computes and writes those of each episode. LeRobot's is
compute_episode_stats and aggregate_stats of lerobot 0.4.4 over the same rows, read with pyarrow; imports are not counted.
LeRobot's quantiles come from histograms of each episode and are averaged; ours are exact. Minimum, maximum and mean of
both sides are compared before a time is printed.
"""

import argparse
import json
import pathlib
import tempfile

import robot_sets

PEER = pathlib.Path(__file__).with_name("lerobot_stats.py")


def peer() -> pathlib.Path | None:
    """An interpreter with lerobot: that of `./dev check frameworks` where it exists."""
    python = robot_sets.ROOT / "build/lerobot/bin/python"
    return python if python.exists() else None


def check_equal(ours: dict, theirs: dict) -> None:
    import numpy as np

    for feature in ours["features"]:
        for name in ("min", "max", "mean"):
            np.testing.assert_allclose(feature[name], theirs[feature["name"]][name], rtol=1e-4, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--length", type=int, default=450)
    parser.add_argument("--dim", type=int, default=14)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "set"
        robot_sets.make_v30(root, args.episodes, args.length, args.dim, camera=False)
        python = peer()
        if python is None:
            print("lerobot is left out: ./dev check frameworks makes its environment")
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(args.runs):
            for name, flags in (("millrace lerobot stats", ()), ("with --write", ("--write",))):
                ran = robot_sets.run([robot_sets.BINARY, "lerobot", "stats", root, "--json", *flags])
                times.setdefault(name, []).append((ran["seconds"], ran["cpu"]))
                ours = json.loads(ran["out"].splitlines()[-1])
            if python is not None:
                ran = robot_sets.run([python, PEER, root])
                theirs = json.loads(ran["out"].splitlines()[-1])
                check_equal(ours, theirs["stats"])
                times.setdefault("LeRobot", []).append((theirs["seconds"], theirs["cpu"]))
        rows = args.episodes * args.length
        print(f"{rows:,} rows, {2 * args.dim + 5} numbers a row; median of {args.runs}")
        print("| side | wall s | CPU s | million rows a CPU-second |\n|---|---|---|---|")
        for name, each in times.items():
            wall, cpu = (robot_sets.median([pair[i] for pair in each]) for i in (0, 1))
            print(f"| {name} | {wall:.2f} | {cpu:.2f} | {rows / cpu / 1e6:.2f} |")


main()
