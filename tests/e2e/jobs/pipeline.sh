#!/bin/bash
# Submits the three steps of a run, each after the one before it.
set -euo pipefail

usage() { echo "usage: $0 RUN" >&2; exit 2; }
[[ $# -eq 1 ]] || usage
run=$1

case $run in
  debug|test) nodes=1 ;;
  full)       nodes=16 ;;
  *)          usage ;;
esac

prepare=$(sbatch --parsable --array=0-31 prepare.sbatch "$run")
train=$(sbatch --parsable --nodes="$nodes" --dependency=afterok:"$prepare" --kill-on-invalid-dep=yes train.sbatch "$run")
sbatch --dependency=afterany:"$train" report.sbatch "$run"
for id in $prepare $train; do
  squeue -h -j "$id" -o '%i %T' || echo "$id has left the queue"
done
