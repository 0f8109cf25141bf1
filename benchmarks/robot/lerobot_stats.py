# SPDX-License-Identifier: Apache-2.0
"""LeRobot's statistics of a dataset's numeric columns, for stats.py: prints seconds, CPU seconds and the statistics.

python lerobot_stats.py ROOT
"""

import json
import pathlib
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import torch

# torchvision's wheel registers operators of its own library, which does not load beside a CPU build of torch.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.compute_stats import aggregate_stats, compute_episode_stats  # noqa: E402


def main() -> None:
    root = pathlib.Path(sys.argv[1])
    features = json.loads((root / "meta/info.json").read_text())["features"]
    numeric = {name: f for name, f in features.items() if f["dtype"] not in ("video", "image", "string")}
    begin, cpu = time.perf_counter(), time.process_time()
    episodes = []
    for path in sorted(root.glob("data/*/*.parquet")):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):  # an episode
            table = file.read_row_group(group, columns=list(numeric))
            data = {}
            for name in numeric:
                column = table[name].combine_chunks()
                is_list = hasattr(column, "flatten") and column.type.num_fields == 1
                values = column.flatten().to_numpy(zero_copy_only=False) if is_list else column.to_numpy()
                data[name] = values.reshape(table.num_rows, -1) if is_list else np.asarray(values)
            episodes.append(compute_episode_stats(data, numeric))
    merged = aggregate_stats(episodes)
    seconds, used = time.perf_counter() - begin, time.process_time() - cpu
    stats = {name: {key: np.ravel(value).tolist() for key, value in each.items()} for name, each in merged.items()}
    print(json.dumps({"seconds": seconds, "cpu": used, "stats": stats}))


main()
