#!/bin/bash
# Writes cluster.yaml, plan.json and the batch scripts beside it. Change spec.yaml or this file, and run it again.
#
# FSX is what stands before /fsx1, /fsx2 and /fsx3 (nothing on the cluster).
set -euo pipefail
cd "$(dirname "$0")"
fsx=${FSX:-}

millrace cluster new spec.yaml --out cluster.yaml --force

# Raw text to shards: ten tasks on nodes that are paid for anyway, before the trainings take them.
millrace job new preprocess --name llama3-prep --partition train --input "$fsx/fsx1/raw/part-*.txt" \
  --tokenizer "$fsx/fsx1/tokenizer.json" --output "$fsx/fsx1/shards" --tasks 10 --cpus-per-gpu 8 \
  --log-dir "$fsx/fsx3/logs" >preprocess.sbatch

# 80 nodes for seven models, one of them larger. Two nodes stay free for those that fail.
models=()
for i in 1 2 3 4 5 6; do models+=(--model "model$i:weight=11"); done
millrace plan nodes --nodes 80 --instance p5e.48xlarge --spares 2 "${models[@]}" --model model7:weight=14 --json >plan.json

# Each gets its nodes by the plan, checkpoints of its own, and one more copy in the bucket.
shards="$fsx/fsx1/shards/{00000..00008}.tar"
for i in 1 2 3 4 5 6 7; do
  nodes=$(sed -n "s/.*\"model\":\"model$i\",\"nodes\":\([0-9]*\),.*/\1/p" plan.json)
  millrace job new train --name "model$i" --nodes "$nodes" --cluster cluster.yaml --time 7-00:00:00 --signal 600 \
    --max-restarts 10 --log-dir "$fsx/fsx3/model$i/logs" -- \
    pretrain_lm.py --shards "$shards" --valid "$fsx/fsx1/shards/00009.tar" --tokenizer "$fsx/fsx1/tokenizer.json" \
    --out "s3://checkpoints/model$i" --tier "/scratch/model$i" --tier "$fsx/fsx2/model$i/checkpoints" \
    --record "$fsx/fsx3/model$i/record" --bf16 --seed "$i" --steps 100000 --save-every 500 --batch-size 4 \
    --seq-len 8192 --dim 4096 --layers 32 --heads 32 --lr 3e-4 >"model$i.sbatch"
done
