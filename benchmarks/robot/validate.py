# SPDX-License-Identifier: Apache-2.0
"""How many episodes does `millrace lerobot validate` check in an hour, beside the nearest checker?

    python benchmarks/robot/validate.py --episodes 5000 --runs 3

The dataset (v3.0, episodes of 60 rows, state and action of 7 float32, one camera of 48 x 64) is made first. Ours runs
with one thread of work to do for each processor: --quick reads metadata, footers and MP4 boxes, the other run all rows
too. lerobot-doctor 0.2.0 (PyPI, v3.0 only, 11 groups of checks) lives in an environment of its own; it decodes no video
either way here, as the files hold none.
"""

import argparse
import os
import pathlib
import tempfile

import robot_sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    doctor = robot_sets.environment("doctor", "lerobot-doctor==0.2.0", "numpy==2.3.5", "pyarrow==25.0.0", "av==15.1.0")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "set"
        robot_sets.make_v30(root, args.episodes, args.length, 7, camera=True)
        ours = [robot_sets.BINARY, "lerobot", "validate", root]
        sides = {
            "validate --quick": [*ours, "--quick"],
            "validate": [*ours],
        }
        if doctor is not None:
            sides["lerobot-doctor"] = [doctor.with_name("lerobot-doctor"), root]
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(args.runs):
            for name, command in sides.items():
                # Ours ends with 3 if it finds an error: the dataset is good. The doctor misses the pictures.
                ends = (0, 1) if name == "lerobot-doctor" else (0,)
                ran = robot_sets.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, may_end_with=ends)
                times.setdefault(name, []).append((ran["seconds"], ran["cpu"]))
        print(f"{args.episodes:,} episodes of {args.length} rows; median of {args.runs}")
        print("| side | wall s | CPU s | episodes an hour and core |\n|---|---|---|---|")
        for name, each in times.items():
            wall, cpu = (robot_sets.median([pair[i] for pair in each]) for i in (0, 1))
            print(f"| {name} | {wall:.2f} | {cpu:.2f} | {args.episodes / cpu * 3600:,.0f} |")


main()
