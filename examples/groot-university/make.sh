#!/bin/bash
# Writes groot.sbatch. Run it again after a change.
#
# DATA is where the dataset and the checkpoints lie.
set -euo pipefail
cd "$(dirname "$0")"
data=${DATA:-/scratch/groot}

# One node, four GPUs, as the partition has them; a day is its limit, so the job is requeued until it is done.
millrace job new groot --name so101 --partition gpu4090 --gpus 4 --gpu-type rtx4090 --cpus-per-gpu 8 --shared --mem 32G \
  --time 24:00:00 --input "$data/so101" --output "$data/out" --embodiment new_embodiment \
  --modality-config "$data/so101_modality.py" --global-batch-size 32 --max-steps 10000 --save-steps 1000 \
  --follow "$data/out=$data/kept" --follow-keep 2 --log-dir "$data/logs" >groot.sbatch
