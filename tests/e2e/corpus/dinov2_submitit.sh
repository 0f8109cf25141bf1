#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=10
#SBATCH --error=/checkpoint/%j_0_log.err
#SBATCH --gpus-per-node=8
#SBATCH --job-name=dinov2:train
#SBATCH --mem-per-gpu=90GB
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/checkpoint/%j_0_log.out
#SBATCH --signal=USR2@120
#SBATCH --time=2800
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --cpus-per-task=10 --kill-on-bad-exit=1 --output /checkpoint/%j_%t_log.out --error /checkpoint/%j_%t_log.err \
  /envs/dino/bin/python -u -m submitit.core._submit /checkpoint/run
