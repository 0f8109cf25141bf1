#!/bin/bash
# Writes vla.sbatch. Run it again after a change.
#
# DATA is a folder that every node sees: the dataset, the tokenizer, the logs and the run. CODE is a clone of Millrace.
set -euo pipefail
cd "$(dirname "$0")"
data=${DATA:-/fsx/vla} code=${CODE:-/fsx/millrace}

millrace job new train --name vla --nodes 2 --gpus 8 --cpus-per-gpu 12 --time 12:00:00 --max-restarts 3 \
  --log-dir "$data/logs" -- \
  "$code/examples/train_vla.py" --dataset "$data/arm" --tokenizer "$data/tokenizer.json" --out "$data/run" --fsdp \
  >vla.sbatch
