#!/bin/bash
# What fits, where it starts first, how long it takes, and how many checkpoints the home holds.
set -euo pipefail
cd "$(dirname "$0")"

# On the cluster itself: --from-slurm in place of --partitions.
millrace plan gpus --gpu rtx4090 --gpu l40s --gpu rtx2080ti
# Two short runs gave these peaks (torch.cuda.max_memory_allocated) and this time a sample. Measure yours.
measured=(--measured 4:14.8GiB --measured 8:21.3GiB --measured 12:27.7GiB)
millrace plan batch --gpu rtx4090 "${measured[@]}"
millrace plan advise --partitions partitions.json --range 120:144 --steps 10000 --sample-time 130ms --measured-on rtx4090 \
  --gpus 4,6,8 "${measured[@]}"
millrace plan checkpoint --parameters 3B --models 1 --quota 23.8GB --bandwidth 500MB/s --keep-last 2 --gpus 4
