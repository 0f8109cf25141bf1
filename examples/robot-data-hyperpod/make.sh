#!/bin/bash
# Writes groot.sbatch. Run it again after a change.
#
# FSX is the mount of the shared file system.
set -euo pipefail
cd "$(dirname "$0")"
fsx=${FSX:-/fsx}

# The instance group ml.p5.48xlarge is the partition of the same name. A node that fails is replaced by HyperPod, and the
# job goes on from the newest checkpoint.
millrace job new groot --name so101 --nodes 1 --gpus 8 --cpus-per-gpu 24 --input "$fsx/datasets/so101" \
  --output "$fsx/out/so101" --embodiment new_embodiment --modality-config "$fsx/so101_modality.py" \
  --global-batch-size 128 --max-steps 20000 --save-steps 1000 --max-restarts 5 \
  --follow "$fsx/out/so101=s3://my-bucket/checkpoints/so101" --log-dir "$fsx/logs" >groot.sbatch
