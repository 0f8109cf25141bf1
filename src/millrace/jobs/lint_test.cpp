// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/lint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "millrace/jobs/env_lint.h"

namespace millrace::jobs {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// "SB01:4"
std::vector<std::string> places(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& finding : findings) {
    if (!finding.suppressed_because) out.push_back(std::string(finding.rule->id) + ":" + std::to_string(finding.line));
  }
  return out;
}

std::vector<std::string> lint(const std::string& text, const JobContext& context = {}) {
  const ScriptFile file{"job.sbatch", text};
  return places(lint_jobs(std::span(&file, 1), context));
}

// Two lines before `rest`, so that it begins in line 3.
std::string job(const std::string& rest) {
  return "#!/bin/bash\n#SBATCH --time=30\n" + rest;
}

struct Case {
  std::string id;
  std::string wrong;
  int line;  // of the finding in `wrong`
  std::string right;
};

const std::string kTrain = "srun --cpus-per-task=4 --kill-on-bad-exit=1 python train.py --resume latest\n";

// One for each rule that needs no other file; a few rules have several, for what they look at.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"SB01", job("#SBATCH --output=/fsx/logs/%j.out\nmkdir -p /fsx/logs\n"), 3,
       job("#SBATCH --output=/fsx/logs/%j.out\nmkdir -p /fsx/data\n")},
      {"SB01", job("#SBATCH -e logs/%j.err\n"), 3, job("#SBATCH -e %x-%j.err\n")},
      {"SB01", job("#SBATCH -o /fsx/%j/log\n"), 3, job("#SBATCH -o /fsx/log-%j\n")},
      {"SB02", job("export RANK=$SLURM_PROCID\n"), 3, job("srun bash -c 'RANK=$SLURM_PROCID exec python t.py'\n")},
      {"SB02", job("srun bash -c \"echo $SLURM_NODEID\"\n"), 3, job("echo \"$SLURM_JOB_NUM_NODES\"\n")},
      {"SB02", job("work() { echo $SLURM_PROCID; }\nwork\n"), 3,
       job("work() { export RANK=$SLURM_PROCID; }\nexport -f work\nsrun bash -c work\n")},
      {"SB02", job("srun bash <<END\necho ${SLURM_PROCID}\nEND\n"), 4,
       job("srun bash <<'END'\necho $SLURM_PROCID\nEND\nsrun bash <<END\necho \\$SLURM_PROCID\nEND\n")},
      {"SB03", job("set -euo pipefail\nx | tee log\nCODE=${PIPESTATUS[0]}\n"), 5,
       job("set -e\nx | tee log\nCODE=${PIPESTATUS[0]}\n")},
      {"SB03", job("set -e\nsrun x\nCODE=$?\n"), 5, job("set -e\nsrun x || CODE=$?\n")},
      {"SB03", job("set -e\nsrun bash -c 'set +e'\nx\nCODE=$?\n"), 6,
       job("set +e\nsrun bash -c '\nset -e\nx\n'\nCODE=$?\n")},
      {"SB03", job("set -euo pipefail\nx\nif [ $? -ne 0 ]; then exit 1; fi\n"), 5, job("set -e\nset +e\nx\nCODE=$?\n")},
      {"SB04", job("srun a \\  # why\n  -b\n"), 3, job("srun a \\\n  -b\n")},
      {"SB05", job("#SBATCH --container-image=nvcr.io/nvidia/pytorch:24.01\n"), 3,
       job("#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.01\n")},
      {"SB05", job("srun --container-image=docker://a.b/c python x\n"), 3,
       job("srun --container-image=/fsx/images/a.sqsh python x\n")},
      {"SB06", "#!/bin/bash\n#SBATCH --nodes=1\n", 2, "#!/bin/bash\n#SBATCH -t 1:00:00\n"},
      {"SB06", "#!/bin/bash\n#SBATCH --time=UNLIMITED\n", 2, "#!/bin/bash\necho no batch script\n"},
      {"SB07", "#!/bin/bash\n#SBATCH -t 2-0\n" + kTrain, 2,
       "#!/bin/bash\n#SBATCH -t 2-0 --signal=B:USR1@300\ntrap 'save' USR1\n" + kTrain + "wait\n"},
      {"SB07", job("#SBATCH --signal=B:USR1@60\n"), 3, job("#SBATCH --signal=TERM@60\n")},
      {"SB07", job("#SBATCH --signal=USR1@60\ntrap 'x' SIGUSR1\n"), 3,
       job("#SBATCH --signal=B:SIGUSR1@60\ntrap 'x' USR1\n")},
      {"SB08", job("trap 'save' USR1\n" + kTrain), 4,
       job("trap 'save' USR1\n" + kTrain.substr(0, kTrain.size() - 1) + " &\nwait\n")},
      {"SB08", job("trap 'save' USR1\n" + kTrain), 4, job("trap 'clean' EXIT\n" + kTrain)},
      {"SB08", job("trap 'save' USR1\n{ " + kTrain + "}\n"), 4, job("trap 'save' USR1\n{ " + kTrain + "} &\nwait\n")},
      {"SB08", job("trap 'save' USR1\n( " + kTrain + ")\n"), 4, job("trap 'save' USR1\n( " + kTrain + ") &\nwait\n")},
      {"SB08", job("trap 'save' USR1\nrun() { " + kTrain + "}\nrun\n"), 4,
       job("trap 'save' USR1\nrun() { " + kTrain + "}\nrun &\nwait\n")},
      {"SB08", job("#SBATCH --signal=B:TERM@60\ntrap 'save' TERM\n" + kTrain), 5,
       job("trap 'rm -f /tmp/x' INT TERM\n" + kTrain)},
      {"SB09", job("#SBATCH --requeue\n"), 3, job("#SBATCH --requeue --open-mode=append\n")},
      {"SB09", job("#SBATCH --requeue --open-mode=append\nsrun python train.py --epochs 3\n"), 4,
       job("#SBATCH --requeue --open-mode=append\n" + kTrain)},
      {"SB09", job("#SBATCH --requeue --open-mode=append\nA=(--epochs 3)\nsrun python train.py \"${A[@]}\"\n"), 5,
       job("#SBATCH --requeue --open-mode=append\nA=(--resume latest)\nsrun python train.py \"${A[@]}\"\n")},
      {"SB10", job("#SBATCH --gres=gpu:8\n#SBATCH --gpus-per-node=8\n"), 4,
       job("#SBATCH --gres=nvme:1\n#SBATCH --gpus-per-node=8\n")},
      {"SB11", job("#SBATCH --gres=gpu:8:h200\n"), 3, job("#SBATCH --gres=gpu:h200:8\n")},
      {"SB11", job("#SBATCH --gres=gpu:8:h200\n#SBATCH -G16\n"), 3, job("#SBATCH --gres=gpu:h200:8\n")},
      {"SB12", job("#SBATCH --gres=gpu:32\n"), 3, job("#SBATCH --gpus=32 --nodes=4\nsrun x\n")},
      {"SB13", job("#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc_per_node=8 train.py\n"), 3,
       job("#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc_per_node=8 train.py\n")},
      {"SB13", job("#SBATCH --gpus-per-node=8\nsrun torchrun --nproc-per-node 4 train.py\n"), 4,
       job("#SBATCH --gpus-per-node=8\nsrun torchrun --nproc-per-node 8 train.py\n")},
      {"SB13", job("#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=1\nsrun python train.py\n"), 4,
       job("#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\nsrun python train.py\n")},
      {"SB13", job("#SBATCH --nodes=2\nnvidia-smi\n"), 3, job("#SBATCH --nodes=2\nsrun nvidia-smi\n")},
      {"SB13", job("#SBATCH --nodes=2\nSRUN=\"python3 -u\"; $SRUN x.py\n"), 3,
       job("#SBATCH --nodes=2\nSRUN=\"srun -N2\"; $SRUN x\n")},
      {"SB13", job("#SBATCH --nodes=2\nCMD=(nvidia-smi -L); \"${CMD[@]}\"\n"), 3,
       job("#SBATCH --nodes=2\nCMD=(srun x); \"${CMD[@]}\"\n")},
      {"SB13", job("#SBATCH --nodes=2\ntimeout -k 5 60 nvidia-smi\n"), 3,
       job("#SBATCH --nodes=2\ntimeout -k 5 60 srun nvidia-smi\n")},
      {"SB13", job("#SBATCH --nodes=2\ntorchrun train.py\n"), 4, job("#SBATCH --nodes=1\ntorchrun train.py\n")},
      {"SB13", job("#SBATCH --nodes=2\nsrun accelerate launch train.py\n"), 4,
       job("#SBATCH --nodes=2\nsrun accelerate launch --num_machines 2 --machine_rank 1 train.py\n")},
      {"SB13", job("#SBATCH --nodes=2\nsrun accelerate launch --num_machines=1 train.py\n"), 4,
       job("#SBATCH --nodes=2\nsrun accelerate launch --config_file two.yaml train.py\n")},
      {"SB13", job("#SBATCH --nodes=2\naccelerate launch train.py\n"), 4,
       job("#SBATCH --nodes=1\naccelerate launch train.py\n")},
      {"SB13", job("#SBATCH --nodes=2 --ntasks-per-node=8\nsrun -n 16 torchrun train.py\n"), 3,
       job("#SBATCH --nodes=2 --ntasks-per-node=8\nsrun -n 2 torchrun train.py\n")},
      {"SB13", job("#SBATCH --nodes=2\nnccom-test --minbytes 8\n"), 3,
       job("#SBATCH --nodes=2\nnccom-test --hosts \"$SLURM_JOB_NODELIST\"\n")},
      {"SB14", job("#SBATCH -c 8\nsrun python x.py\n"), 4, job("#SBATCH -c 8\nsrun -c 8 python x.py\n")},
      {"SB14", job("srun python train.py\n"), 3, job("#SBATCH --cpus-per-gpu=8\nsrun python train.py\n")},
      {"SB14", job("#SBATCH -c 8\nsrun python x.py\n"), 4,
       job("#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python x.py\n")},
      {"SB18", job("srun python train.py --checkpoint-dir ~/ckpt\n"), 3,
       job("srun python train.py --checkpoint-dir /fsx/ckpt\n")},
      {"SB18", job("srun python train.py --output-dir=$HOME/out\n"), 3, job("srun python train.py --code=$HOME/out\n")},
      {"SB19", job("export MASTER_PORT=29500\n"), 3, job("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\n")},
      {"SB19", job("srun torchrun --rdzv_endpoint=a:29500 train.py\n"), 3,
       job("#SBATCH --exclusive --mem=0\nexport MASTER_PORT=29500\n")},
      {"SB19", job("export MASTER_PORT=$RANDOM\n"), 3, job("export MASTER_PORT=$((RANDOM % 9000 + 20000))\n")},
      {"SB19", job("srun torchrun --rdzv_endpoint=$A:$RANDOM train.py\n"), 3,
       job("P=$((20000 + SLURM_JOB_ID % 10000))\nsrun torchrun --rdzv_endpoint=$A:$P train.py\n")},
      {"SB48", job("#SBATCH --gpus-per-node=8\ntorchrun --nproc-per-node 8 --numa-binding=numa train.py\n"), 4,
       job("#SBATCH --gpus-per-node=8\ntorchrun --nproc-per-node 8 --numa-binding=node train.py\n")},
      {"SB48", job("torchrun --nproc-per-node 8 --numa_binding socket train.py\n"), 3,
       job("#SBATCH --exclusive\ntorchrun --nproc-per-node 8 --numa_binding $BINDING train.py\n")},
      {"SB37", job("#SBATCH -N 2\nsrun torchrun --nnodes=2 --rdzv_endpoint=localhost:29500 train.py\n"), 4,
       job("#SBATCH -N 1\nsrun torchrun --nnodes=1 --rdzv_endpoint=localhost:29500 train.py\n")},
      {"SB37", job("#SBATCH -N 2\nsrun torchrun --nnodes 2 --standalone train.py\n"), 4,
       job("#SBATCH -N 2\nsrun -N1 torchrun --standalone train.py\n")},
      {"SB37", job("#SBATCH -N 2\nexport MASTER_ADDR=127.0.0.1\nsrun python train.py\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(scontrol show hostnames | head -n1)\nsrun python train.py\n")},
      {"SB37", job("srun bash -c 'export MASTER_PORT=$((RANDOM + 9999)); exec python t.py'\n"), 3,
       job("export MASTER_PORT=$((RANDOM + 9999))\nsrun python t.py\n")},
      {"SB20", job("#SBATCH -N 2\nwhile true; do nvidia-smi; sleep 9; done &\nsrun x\n"), 4,
       job("#SBATCH -N 2\nsrun --overlap nvidia-smi -l 9 &\nsrun x\n")},
      {"SB20", job("#SBATCH -N 2\nwatch_it() { while :; do nvidia-smi; done; }\nwatch_it &\nsrun x\n"), 5,
       job("#SBATCH -N 1\nwatch_it() { while :; do nvidia-smi; done; }\nwatch_it &\n")},
      {"SB21", job("#SBATCH --ntasks-per-node=8\nsrun python train.py\n"), 4,
       job("#SBATCH --ntasks-per-node=8\nsrun -K1 python train.py\n")},
      {"SB21", job("#SBATCH --ntasks-per-node=8\nsrun python train.py\n"), 4,
       job("#SBATCH --ntasks-per-node=8\nexport SLURM_KILL_BAD_EXIT=1\nsrun python train.py\n")},
      {"SB23", job("#SBATCH --array=0-3\necho $SLURM_ARRAY_TASK_ID\nsrun python train.py --ckpt-dir /fsx/c\n"), 5,
       job("#SBATCH --array=0-3\nsrun python train.py --ckpt-dir /fsx/c/$SLURM_ARRAY_TASK_ID\n")},
      {"SB24", job("rm -rf /fsx/*\n"), 3, job("rm -rf /tmp/x /fsx/run/7/tmp\n")},
      {"SB24", job("find /fsx4 -name '*.tmp' -delete\n"), 3, job("find /tmp -name '*.tmp' -delete\n")},
      {"SB24", job("aws s3 sync /fsx/a s3://b/a --delete\n"), 3, job("millrace sync /fsx/a s3://b/a --delete\n")},
      {"SB25", job("aws s3 cp /fsx/a s3://b/a --recursive\n"), 3,
       job("until aws s3 cp /fsx/a s3://b/a; do sleep 9; done\nmillrace cp a s3://b/a\n")},
      {"SB26", job("#SBATCH --dependency=afterok:123\n"), 3, job("#SBATCH -d afterok:123 --kill-on-invalid-dep=yes\n")},
      {"SB26", job("sbatch -d afterok:1 x.sbatch\n"), 3, job("sbatch --dependency=afterany:1 x.sbatch\n")},
      {"SB27", job("#SBATCH --array=0-9 -o /fsx/log\necho $SLURM_ARRAY_TASK_ID\n"), 3,
       job("#SBATCH --array=0-9 -o /fsx/log-%A_%a\necho $SLURM_ARRAY_TASK_ID\n")},
      {"SB27", job("#SBATCH --array=0-9\nsrun x\n"), 3,
       job("#SBATCH --array=0-9\nsrun millrace prepare in --out o --tokenizer t\n")},
      {"SB28", job("srun --mpi=pmix x\n"), 3, job("srun --mpi=list | grep -q pmix || exit 1\nsrun --mpi=pmix x\n")},
      {"SB29", job("#SBATCH --auto-resume=1\n"), 3, job("srun --auto-resume=1 x\n")},
      {"SB30", job("#SBATCH --nodelist=n[1-4]\n"), 3, job("#SBATCH --exclude=n5\n")},
      {"SB31", job("#SBATCH -N 2 --gpus-per-node=4\nexport FI_PROVIDER=efa\nsrun x\n"), 3,
       job("#SBATCH -N 2 --gpus-per-node=8\nexport FI_PROVIDER=efa\nsrun x\n")},
      {"SB32", "# a model\n#!/bin/bash\n#SBATCH --time=30\n", 1, job("")},
      {"SB32", "#!/bin/bash   # the shell\n", 1, "#!/bin/bash -l\n"},
      {"SB32", "", 1, job("")},
      {"SB32", "\n \n", 1, job("")},
      {"SB32", "\xEF\xBB\xBF#!/bin/bash\n#SBATCH --time=5\n", 1, job("")},
      {"SB32", job("echo a\r\necho b\r\n"), 3, job("echo a\n")},
      {"SB32", job("cp \"$NOWHERE\" /tmp\n"), 3, job("cp \"${NOWHERE:?}\" /tmp\n")},
      {"SB32", job("for ((i = 0; i < 3; ++i)); do cp \"$i\" \"$k\" /tmp; done\n"), 3,
       job("for ((i = 0; i < 3; ++i)); do cp \"$i\" /tmp; done\n")},
      {"SB32", job("N=$(ls)\n[ $N = a ]\n"), 4, job("N=$(ls)\n[ $N -gt 0 ]\n[ -z ${N+x} ]\n")},
      {"SB32", job("echo $A $B\n"), 3,
       job(": \"${A:=x}\" \"${B:?}\"\n[ -z \"$C\" ] || echo $C\necho $A $B $SLURMD_NODENAME\n")},
      {"SB32", job("D=$(mktemp -d)\nrm -r $D\n"), 4, job("D=$(mktemp -d)\nrm -r \"$D\"\nN=$((1 + 2))\n[ $N -eq 3 ]\n")},
      {"SB33", job("set -e\n#SBATCH --nodes=2\n"), 4, job("#SBATCH --nodes=2\nset -e\nsrun x\n##SBATCH --nodes=3\n")},
      {"SB33", job("x\n#SBATCH --nodes=2\n"), 4, job("cat >y <<E\n#!/bin/bash\n#SBATCH --nodes=2\nE\n")},
      {"SB34", job("#SBATCH nodes=2\n"), 3, job("# SBATCH nodes=2\n")},
      {"SB34", job("#SBATCH --job-name=Big simulation\n"), 3, job("#SBATCH --job-name=\"Big simulation\"\n")},
      {"SB34", job("#SBATCH --mpi=pmix\n"), 3, job("#SBATCH --tasks-per-node=2 --power=level\n")},
      {"SB34", job("#SBATCH --nodez=2\n"), 3, job("#SBATCH --nodes=2\nsrun x\n")},
      {"SB34", job("#SBATCH --ntasks=$N\n"), 3, job("#SBATCH --ntasks=4\n")},
      {"SB34", "#!/bin/bash\n#SBATCH --time=2h\n", 2, "#!/bin/bash\n#SBATCH --time=2:00:00\n"},
      {"SB34", job("#SBATCH --mem=4GiB\n"), 3, job("#SBATCH --mem=4GB --tmp=0\n")},
      {"SB34", job("#SBATCH --gres=gpu=2\n"), 3, job("#SBATCH --gres=gpu:2,nvme:1\n")},
      {"SB34", job("#SBATCH --array=5-1\n"), 3, job("#SBATCH --array=1,3,5-9:2%2\n")},
      {"SB34", job("#SBATCH --signal=FOO@60\n"), 3, job("#SBATCH --signal=10@60\n")},
      {"SB34", job("#SBATCH -N 1,2\nsrun x\n"), 3, job("#SBATCH -N 1-2\nsrun x\n")},
      {"SB34", job("#SBATCH -c 0\n"), 3, job("#SBATCH -c 1\n")},
      {"SB34", job("#SBATCH --partition=\n"), 3, job("#SBATCH --partition=a\n")},
      {"SB34", job("#SBATCH --site-plugin=2\n"), 3, job("#SBATCH --ntasks-per-gpu=2\n")},
      {"SB35", "aws s3 sync a s3://b --metadata md5=1\n", 1, "aws s3 cp a s3://b --metadata md5=1\n"},
      {"SB36", job("srun ior -w -r -o /fsx/x -b 1g\n"), 3, job("srun ior -w -r -C -e -o /fsx/x -b 1g\n")},
      {"SB38", job("#SBATCH -N 2\nsrun torchrun --nproc_per_node=8 train.py\n"), 4,
       job("#SBATCH -N 2\nsrun torchrun --nnodes=2 --rdzv_endpoint=$A:29500 train.py\n")},
      {"SB38", job("#SBATCH -N 2\nA=\"torchrun --nnodes 2\"\nsrun torchrun --nnodes=2 --node_rank=1 train.py\n"), 5,
       job("#SBATCH -N 2\nsrun -N1 torchrun --nproc_per_node=8 train.py\n")},
      {"SB38", job("#SBATCH -N 2\nsrun bash -c 'torchrun --nproc_per_node=8 train.py'\n"), 4,
       job("#SBATCH -N 2\nsrun torchrun $ARGUMENTS train.py\n")},
      {"SB38", job("#SBATCH -N 2\nA=(--nproc_per_node 8)\nsrun torchrun \"${A[@]}\" train.py\n"), 5,
       job("#SBATCH -N 2\nA=(--nnodes 2 --master_addr $M)\nsrun torchrun \"${A[@]}\" train.py\n")},
      {"SB39", job("srun python x.py &\n"), 3, job("srun python x.py &\nwait\n")},
      {"SB39", job("srun python x.py &\necho started\nexit 0\n"), 3, job("srun python x.py &\npython y.py\n")},
      {"SB39", job("for i in 1 2; do\n  srun -n1 --exact x $i &\ndone\n"), 4,
       job("for i in 1 2; do\n  srun -n1 --exact x $i &\ndone\nwait\n")},
      {"SB39", job("(srun a; srun b) &\n"), 3, job("(srun a; srun b)\n")},
      {"SB40", job("srun nvidia-smi dmon &\nsrun python t.py\n"), 4,
       job("srun --overlap nvidia-smi dmon &\nsrun python t.py\n")},
      {"SB40", job("srun python t.py &\nsrun nvidia-smi\nwait\n"), 4,
       job("srun python t.py &\nsrun --overlap nvidia-smi\nwait\n")},
      {"SB40", job("for i in 1 2; do\n  srun -n1 x $i &\ndone\nwait\n"), 4,
       job("for i in n1 n2; do\n  srun -w $i x &\ndone\nwait\n")},
      {"SB40", job("srun a &\nsrun b &\nwait\n"), 4, job("srun a &\nwait\nsrun b &\nwait\n")},
      {"SB41", job("srun --export=A=1 python t.py\n"), 3, job("srun --export=ALL,A=1 python t.py\n")},
      {"SB41", job("#SBATCH --export=NONE\nsrun python t.py\n"), 3,
       job("#SBATCH --export=NONE\nunset SLURM_EXPORT_ENV\nsrun python t.py\n")},
      {"SB41", job("#SBATCH --export=A=1\nsrun python t.py\n"), 3,
       job("#SBATCH --export=A=1\nsrun --export=ALL python t.py\n")},
      {"SB41", job("srun --export=none python t.py\n"), 3, job("srun --export=PATH,A=1 python t.py\n")},
      {"SB41", job("srun --export=NIL python t.py\n"), 3, job("srun --export=A=1,all python t.py\n")},
      {"SB42", job("#SBATCH --chdir=$WORK\n"), 3, job("#SBATCH --comment=$WORK\n")},
      {"SB42", job("#SBATCH --error=$USER-%j.err\n"), 3, job("#SBATCH --error=%u-%j.err\n")},
      {"SB42", job("#SBATCH --output=~/%j.out\n"), 3, job("#SBATCH --output=/home/me/%j.out\n")},
      {"SB42", job("#SBATCH -J `date`\n"), 3, job("#SBATCH -J a$1\n")},
      {"SB43", job("#SBATCH --mem=1G\n#SBATCH --mem-per-cpu=1G\n"), 4, job("#SBATCH --mem=1G\n")},
      {"SB43", job("#SBATCH --gpus-per-task=1\n"), 3, job("#SBATCH --gpus-per-task=1 --ntasks=2\n")},
      {"SB43", job("#SBATCH --gpus=1 --cpus-per-gpu=2 -c 2\n"), 3, job("#SBATCH --gpus=1 --cpus-per-gpu=2\n")},
      {"SB43", job("#SBATCH -n 2 --ntasks-per-node=2\nsrun --ntasks-per-gpu=1 x\n"), 4,
       job("srun --ntasks-per-gpu=1 x\n")},
      {"SB43", job("#SBATCH -N 2 --gpus=4 --gpus-per-node=4\nsrun x\n"), 3,
       job("#SBATCH -N 2 --gpus=8 --gpus-per-node=4\nsrun x\n")},
      {"SB43", job("#SBATCH -N 2 -n 16 --ntasks-per-node=4\nsrun x\n"), 3,
       job("#SBATCH -N 2 -n 8 --ntasks-per-node=4\nsrun x\n")},
      {"SB43", job("#SBATCH -N 2-1\nsrun x\n"), 3, job("#SBATCH -N 1-2\nsrun x\n")},
      {"SB43", job("#SBATCH --time-min=60\n"), 3, job("#SBATCH --time-min=20\n")},
      {"SB43", job("#SBATCH -w n1 -x n1\n"), 3, job("#SBATCH -w n1 -x n2\n")},
      {"SB43", job("srun --exact --whole x\n"), 3, job("srun --exact x\n")},
      {"SB43", job("srun --exclusive --overlap x\n"), 3, job("srun --overlap x\n")},
      {"SB44", job("#SBATCH --time=40\n"), 3, job("#SBATCH --time=30\n")},
      {"SB44", job("#SBATCH --requeue\n#SBATCH --no-requeue\n"), 4, job("#SBATCH --no-requeue\n")},
      {"SB44", job("#SBATCH -N 2 -n 1\nsrun x\n"), 3, job("#SBATCH -N 2 -n 2\nsrun x\n")},
      {"SB44", job("#SBATCH -N 2 -n 9 --ntasks-per-node=8\nsrun x\n"), 3,
       job("#SBATCH -N 2 -n 16 --ntasks-per-node=8\nsrun x\n")},
      {"SB45", job("srun python train.py | tee log\n"), 3, job("set -o pipefail\nsrun python train.py | tee log\n")},
      {"SB45", job("set -e\nsrun python train.py 2>&1 | tee log\nls\n"), 4,
       job("set -euo pipefail\nsrun python train.py 2>&1 | tee log\nls\n")},
      {"SB45", job("srun python train.py | tee log\necho $?\n"), 3,
       job("srun python train.py | tee log\nexit ${PIPESTATUS[0]}\n")},
      {"SB45", job("srun python train.py | tee log && ls\n"), 3, job("srun hostname | sort\n")},
      {"SB46", job("srun python train.py &\nwait\n"), 4, job("srun python train.py &\nwait $!\n")},
      {"SB47", job("#SBATCH -N 2\nexport MASTER_ADDR=$SLURM_NODELIST\nsrun x\n"), 4,
       job("#SBATCH -N 2\nexport MASTER_ADDR=$(scontrol show hostnames $SLURM_NODELIST | head -n1)\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=${SLURM_JOB_NODELIST%%,*}\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(hostname)\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$(echo $SLURM_NODELIST | cut -d, -f1)\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$SLURMD_NODENAME\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$SLURM_SUBMIT_HOST\nsrun x\n"), 4,
       job("#SBATCH -N 1\nMASTER_ADDR=$SLURM_SUBMIT_HOST\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun x\n"), 4,
       job("#SBATCH -N 2\nsrun bash -c 'MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR exec x'\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$(hostname -I)\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(hostname -I | awk '{print $1}')\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$(hostname -i)\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(hostname -f)\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$(srun hostname | head -n1)\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(srun -N1 -n1 -w $N hostname --short)\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nMASTER_ADDR=$(scontrol show hostnames)\nsrun x\n"), 4,
       job("#SBATCH -N 2\nMASTER_ADDR=$(scontrol show hostnames | sed -n 1p)\nsrun x\n")},
      {"SB47", job("#SBATCH -N 2\nsrun bash -c 'export MASTER_ADDR=$(hostname); exec x'\n"), 4,
       job("#SBATCH -N 2\nexport MASTER_ADDR=$(hostname)\nsrun bash -c 'exec x'\n")},
      {"SH01", job("if x; then\n"), 3, job("if x; then y; fi\n")},
      {"SH01", job("coproc P { cat\n"), 3, job("coproc P { cat; }\ncoproc { cat; }\ncoproc P (cat)\ncoproc cat -n\n")},
      {"SH02", job("source env.sh\n"), 3, job("source venv/bin/activate\n")},
      {"SH03",
       job("echo \xE2\x80\x9C"
           "a\n"),
       3, job("echo a # \xE2\x80\x9C\n")},
      {"SH03", job("echo \xE9\n"), 3, job("echo \xC3\xA9\n")},
      {"SH04", job("echo \xC3\xA2\xE2\x82\xAC\xE2\x84\xA2\n"), 3, job("echo \xED\x95\x9C\n")},
      {"EN01", job("export NCCL_IFNAME=ens5\n"), 3, job("export NCCL_NET_GDR_LEVEL=SYS\n")},
      {"EN01", job("export NCCL_TEST=/opt\n"), 3, job("export NCCL_TESTS=/opt/nccl-tests\n")},
      {"EN01", job("NCCL_DEBUG=INFO\n"), 3, job("NCCL_DEBUG=INFO\nexport NCCL_DEBUG\n")},
      {"EN01", job("export NCCL_IFNAME=x\n"), 3, job("NCCL_EXIT=0\nexport NCCL_FLAG=-x\necho $NCCL_EXIT $NCCL_FLAG\n")},
      {"EN01", job("export NCCL_SHARP_DISABEL=1\n"), 3,
       job("export NCCL_IBEXT_DISABLE=1 NCCL_SHARP_DISABLE=1 NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx\n")},
      {"EN02", job("export OFI_NCCL_ROUND_ROBIN_THRESHOLD=8192\n"), 3, job("export OFI_NCCL_MIN_STRIPE_SIZE=8192\n")},
      {"EN02", job("export NCCL_TREE_THRESHOLD=1\n"), 3, job("export NCCL_MAX_CTAS=16\n")},
      {"EN03", job("export NCCL_MIN_NCHANNELS=128\n"), 3, job("export NCCL_MAX_CTAS=32\n")},
      {"EN03", job("export FI_PROVIDER=efa NCCL_MAX_CTAS=64\n"), 3, job("export NCCL_MAX_CTAS=64\n")},
      {"EN04", job("export NCCL_ALGO=Ring\n"), 3, job("export NCCL_DEBUG=WARN\n")},
      {"EN05", job("export NCCL_BUFFSIZE=16777216\n"), 3, job("export NCCL_BUFFSIZE=8388608\n")},
      {"EN05", job("export NCCL_P2P_NET_CHUNKSIZE=100000\n"), 3, job("export NCCL_P2P_NET_CHUNKSIZE=524288\n")},
      {"EN06", job("export NCCL_SOCKET_IFNAME=eth0\n"), 3, job("export NCCL_SOCKET_IFNAME=^docker,lo,veth\n")},
      {"EN06", job("export NCCL_SOCKET_IFNAME==eth0,eth1\n"), 3, job("export NCCL_SOCKET_IFNAME=^docker,eth,lo\n")},
      {"EN06", job("export GLOO_SOCKET_IFNAME=eth0\n"), 3, job("export NCCL_SOCKET_IFNAME=eth0,en,bond\n")},
      {"EN07", job("export NCCL_DEBUG_FILE=/fsx/nccl-%r.log\n"), 3,
       job("export NCCL_DEBUG_FILE=/fsx/nccl-%h.%p.log\n")},
      {"EN08", job("export RDMAV_FORK_SAFE=1\n"), 3, job("export FI_EFA_USE_HUGE_PAGE=0\n")},
      {"EN09", job("export FI_EFA_FORK_SAFE=1\n"), 3, job("export FI_EFA_USE_HUGE_PAGE=0\n")},
      {"EN10", job("srun env NCCL_P2P_DISABLE=1 x\n"), 3, job("srun env NCCL_P2P_DISABLE=0 x\n")},
      {"EN11", job("export NCCL_P2P_LEVEL=5\n"), 3, job("export NCCL_P2P_LEVEL=SYS\n")},
      {"EN12", job("#SBATCH -N 32\nexport NCCL_DEBUG=INFO\nsrun x\n"), 4,
       job("#SBATCH -N 2\nexport NCCL_DEBUG=INFO\nsrun x\n")},
      {"EN13", job("export NCCL_ASYNC_ERROR_HANDLING=1\n"), 3, job("export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n")},
      {"EN14", job("export WORLD_SIZE=$SLURM_NTASKS\n"), 3,
       job("srun bash -c 'export WORLD_SIZE=$SLURM_NTASKS; exec x'\n")},
      {"EN14", job("export RANK=$SLURM_NODEID\n"), 3,
       job("run() { srun --nodelist=n$NODE_RANK x --node_rank $NODE_RANK & }\nfor ((NODE_RANK = 0; NODE_RANK < 2; "
           "++NODE_RANK)); do run; done\nNODE_RANK=0\nrun\n")},
      {"EN15", job("export CUDA_VISIBLE_DEVICES=0,1\n"), 3, job("srun x --devices $CUDA_VISIBLE_DEVICES\n")},
      {"EN16", job("export HF_TOKEN=hf_abcdefghijkl\n"), 3,
       job("HF_TOKEN=$(cat ~/.token)\nexport HF_TOKEN WANDB_API_KEY='<Your Token>'\n")},
      {"EN18", job("export NCCL_TUNER_PLUGIN=/opt/aws-ofi-nccl/lib/x.so\n"), 3,
       job("export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib\n")},
      {"IG01", job("# millrace: ignore SB30\n"), 3, job("# millrace: ignore SB30 -- a reason\n")},
      {"IG02", job("# millrace: ignore SB99 -- a reason\n"), 3, job("# millrace: ignore SB30 -- a reason\n")},
  };
  return all;
}

TEST(JobLint, EveryRuleFindsWhatIsWrongAndLeavesWhatIsRight) {
  for (const Case& each : cases()) {
    EXPECT_THAT(lint(each.wrong), Contains(each.id + ":" + std::to_string(each.line))) << each.wrong;
    EXPECT_THAT(lint(each.right), Not(Contains(HasSubstr(each.id + ":")))) << each.right;
  }
}

TEST(JobLint, NoRuleIsWithoutATest) {
  std::set<std::string_view> tested{"SB15", "SB16", "SB17", "SB22", "EN17"};  // below, they need a cluster or a plan
  for (const Case& each : cases()) tested.insert(each.id);
  for (const Rule& rule : all_job_rules()) EXPECT_EQ(tested.count(rule.id), 1U) << rule.id;
  EXPECT_EQ(tested.size(), all_job_rules().size());
}

ClusterFacts two_partitions() {
  return {.source = "cluster.yaml",
          .partitions = {{.name = "gpu",
                          .instance = "p5e.48xlarge",
                          .nodes = 80,
                          .gpus = 8,
                          .gpu_type = "h200",
                          .cpus = 192,
                          .efa_interfaces = 32,
                          .dynamic = true,
                          .known_instance = true},
                         {.name = "small",
                          .instance = "g4dn.xlarge",
                          .nodes = 4,
                          .gpus = 1,
                          .gpu_type = "t4",
                          .cpus = 4,
                          .efa_interfaces = 0,
                          .dynamic = false,
                          .known_instance = true}},
          .mounts = {"/fsx1", "/fsx2"},
          .memory_scheduling = true};
}

TEST(JobLint, ScriptsAreHeldAgainstTheCluster) {
  const ClusterFacts cluster = two_partitions();
  const JobContext context{&cluster, nullptr};
  const std::vector<Case> with_cluster = {
      {"SB05", job("srun --container-image=/fsx1/a.sqsh x\n"), 3, job("srun x\n")},
      {"SB11", job("#SBATCH -p gpu --gres=gpu:a100:8\n"), 3, job("#SBATCH -p gpu --gres=gpu:h200:8\n")},
      {"SB12", job("#SBATCH -p small --gpus-per-node=2\n"), 3, job("#SBATCH -p small --gpus-per-node=1\n")},
      {"SB14", job("#SBATCH -p gpu --ntasks-per-node=8 -c 32\n"), 3, job("#SBATCH -p gpu --ntasks-per-node=8 -c 24\n")},
      {"SB14", job("#SBATCH -p gpu --ntasks-per-node=8 -c 12 --exclusive --mem=0\n" + kTrain), 3,
       job("#SBATCH -p gpu --ntasks-per-node=8 -c 12 --exclusive --mem=0\nsrun -c 12 hostname\n")},
      {"SB14", job("#SBATCH -p gpu --ntasks-per-node=8 -c 12 --exclusive --mem=0\n" + kTrain), 3,
       job("#SBATCH -p gpu --ntasks-per-node=8 -c 12\n")},
      {"SB15", job("#SBATCH -p gpu --exclusive\n"), 3, job("#SBATCH -p gpu --exclusive --mem=0\n")},
      {"SB15", job("#SBATCH -p gpu\n"), 2, job("#SBATCH -p gpu --mem-per-gpu=200G\n")},
      {"SB16", job("#SBATCH -p gpu -N 81\nsrun x\n"), 3, job("#SBATCH -p gpu -N 80\nsrun x\n")},
      {"SB17", job("#SBATCH -p cpu\n"), 3, job("#SBATCH -p small\n")},
      {"SB18", job("srun ls /fsx4/x\n"), 3, job("srun ls /fsx2/x /tmp/y --exclude '/.part-*'\n")},
      {"SB18", job("#SBATCH -o /fsx3/%j\n"), 3, job("#SBATCH -o /fsx1/%j\n")},
      {"SB22", job("#SBATCH -p gpu -N 2\nsrun x\n"), 3, job("#SBATCH -p gpu -N 2 --wait-all-nodes=1\nsrun x\n")},
      {"SB29", job("srun --auto-resume=1 x\n"), 3, job("srun x\n")},
      {"SB31", job("#SBATCH -p small --gpus=1\nexport FI_PROVIDER=efa\n"), 4,
       job("#SBATCH -p gpu --gpus=8\nexport FI_PROVIDER=efa\n")},
      {"EN17", job("#SBATCH -p small\nexport FI_PROVIDER=efa\n"), 4, job("#SBATCH -p gpu\nexport FI_PROVIDER=efa\n")},
  };
  for (const Case& each : with_cluster) {
    EXPECT_THAT(lint(each.wrong, context), Contains(each.id + ":" + std::to_string(each.line))) << each.wrong;
    EXPECT_THAT(lint(each.right, context), Not(Contains(HasSubstr(each.id + ":")))) << each.right;
  }
}

TEST(JobLint, ScriptsAreHeldAgainstThePlan) {
  const PlanFacts plan{.source = "plan.json", .allocations = {{"model1", 11}}};
  const JobContext context{nullptr, &plan};
  EXPECT_THAT(lint(job("#SBATCH -J model1-training -N 80\nsrun x\n"), context), Contains("SB16:3"));
  EXPECT_THAT(lint(job("#SBATCH -J model1 -N 11\nsrun x\n"), context), Not(Contains("SB16:3")));
  EXPECT_THAT(lint(job("#SBATCH -J model12 -N 80\nsrun x\n"), context), Not(Contains("SB16:3")));
}

std::string severities(const std::string& text) {
  const ScriptFile file{"job.sbatch", text};
  std::string out;
  for (const Finding& finding : lint_jobs(std::span(&file, 1)))
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", finding.rule->id, severity_name(finding.severity()));
  return out;
}

// What may be meant is no error.
TEST(JobLint, WhatMayBeRightIsAWarning) {
  EXPECT_EQ(severities(job("#SBATCH -N 2\nA=\"accelerate launch --rdzv_backend c10d --machine_rank $SLURM_PROCID\"\n"
                           "srun bash -c \"$A x.py\"\n")),
            "SB02 warning");
  EXPECT_EQ(severities(job("#SBATCH -N 2 -c 4 --gpus-per-node=4 --ntasks-per-node=1\nsrun -K1 -c 4 python train.py\n")),
            "SB13 warning");
  EXPECT_EQ(severities(job("export NCCL_SOMEBODYS_PLUGIN=1\n")), "EN01 warning");
  EXPECT_EQ(severities(job("#SBATCH -o /logs/%x/%j.out\n")), "SB01 warning");
  EXPECT_EQ(severities(job("#SBATCH -N 2\nsrun -c 4 torchrun --standalone train.py\n")), "SB37 warning");
}

TEST(JobLint, TwoModelsMayNotShareCheckpoints) {
  const std::string a = job("#SBATCH -J a\nsrun python train.py --checkpoint-dir /fsx/c\n"),
                    b = job("#SBATCH -J b\nD=/fsx/c\nsrun python train.py --checkpoint-dir=$D\n");
  const ScriptFile files[] = {{"a", a}, {"b", b}};
  const auto findings = lint_jobs(files);
  EXPECT_THAT(places(findings), Contains("SB23:5"));
  const ScriptFile same[] = {{"a", a}, {"again", a}};
  EXPECT_THAT(places(lint_jobs(same)), Not(Contains("SB23:4"))) << "a resubmitted job";
}

TEST(JobLint, AReasonSilencesWhatACommandOfSeveralLinesDoes) {
  const std::string text =
      job("# millrace: ignore SB24 -- the folder is ours\nfind \\\n  /fsx4 \\\n  -delete\n#SBATCH -w n1 # millrace: "
          "ignore-file SB33 -- shown on purpose\n");
  EXPECT_THAT(lint(text), IsEmpty());
  EXPECT_THAT(lint(job("#SBATCH -w n1 # millrace: ignore SB30 -- the only one with the disk\n")), IsEmpty());
  EXPECT_THAT(lint(job("find /fsx4 -delete # millrace: ignore SB24 -- ours\n")), IsEmpty());
}

TEST(JobLint, AScriptOfAnotherLanguageIsHeldToItsOptionsOnly) {
  EXPECT_THAT(lint("#!/usr/bin/env python3\n#SBATCH --time=30 -w n1\nimport os\nprint('it''s', f\"{os}\"\n"),
              testing::ElementsAre("SB30:2"));
}

// --- what stands in the data folder

std::filesystem::path data_folder() {
  const char* given = std::getenv("MILLRACE_TEST_DATA");
  return given == nullptr ? std::filesystem::path() : std::filesystem::path(given) / "guides";
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(JobLint, TheGuidesScriptsComeOutRed) {
  if (!std::filesystem::exists(data_folder())) GTEST_SKIP() << "MILLRACE_TEST_DATA has no guides";
  const std::map<std::string, std::string> expected = {
      {"fsx_performance.sbatch", "SB36:23"},
      {"model1.sbatch", "SB32:1 SB06:3 SB14:20 SB21:20"},
      {"nccl_test_all.sbatch",
       "SB32:1 EN09:11 EN09:12 EN09:13 EN09:14 EN09:15 EN02:16 EN02:17 EN03:17 EN09:18 EN09:19 SB28:39 SB04:39"},
      {"preprocess.sbatch", "SB06:2 SB01:8 SB14:15"},
      {"production.sbatch",
       "SB01:9 SB01:10 SB07:12 SB05:13 EN18:26 EN09:29 EN09:30 EN09:31 EN09:32 EN09:35 EN09:36 EN01:37 EN02:38 "
       "EN03:38 EN02:39 EN03:39 EN09:40 EN09:41 EN05:42 EN05:43 "
       "EN02:44 EN04:45 EN01:46 EN18:47 EN07:49 EN14:59 EN14:60 SB02:60 EN14:61 SB02:61 EN15:63 SB02:70 SB20:84 "
       "SB14:88 SB21:88 SB03:100 SB02:111 SB25:113 SB02:119 SB24:120"},
      {"two_nodes.sbatch", "SB13:3"},
      {"validate_gpu_efa.sbatch", ""},
      {"setup_dirs.sh", "SB32:1"},
      {"upload_data.sh", "SB24:30 SB35:35"},
  };
  for (const auto& [name, findings] : expected) {
    std::string got;
    for (const std::string& place : lint(read(data_folder() / name))) got += (got.empty() ? "" : " ") + place;
    EXPECT_EQ(got, findings) << name;
  }
}

TEST(EnvLint, ReadsWhatEnvPrintsAndWhatAScriptSets) {
  const std::string running =
      "HOME=/"
      "root\nSLURM_JOB_ID=7\nSLURM_JOB_NUM_NODES=32\nRANK=0\nNCCL_DEBUG=INFO\nCUDA_VISIBLE_DEVICES=0\nNCCL_IFNAME="
      "x\nTEXT=a\nmore of it\nHF_TOKEN=hf_abcdefghijkl\n";
  EXPECT_THAT(places(lint_environment({"-", running}, {})), testing::ElementsAre("EN14:4", "EN12:5", "EN01:7"));
  const std::string task = "SLURM_JOB_ID=7\nSLURM_STEP_ID=0\nRANK=3\nSLURM_PROCID=3\n";
  EXPECT_THAT(places(lint_environment({"-", task}, {})), IsEmpty());
  const std::string script =
      "export NCCL_ALGO=Ring\nNCCL_DEBUG=INFO\n# millrace: ignore EN07 -- one rank only\nexport "
      "NCCL_DEBUG_FILE=/tmp/x\n";
  EXPECT_THAT(places(lint_environment({"a.sh", script}, {.nodes = 17})), testing::ElementsAre("EN04:1", "EN12:2"));
}

TEST(EnvLint, NamesTheNearestName) {
  EXPECT_EQ(nearest_env_name("NCCL_IFNAME"), "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(nearest_env_name("NCCL_BUFSIZE"), "NCCL_BUFFSIZE");
  EXPECT_EQ(nearest_env_name("NCCL_COMPLETELY_ELSE"), "");
  EXPECT_NE(find_env_name("FI_EFA_USE_HUGE_PAGE"), nullptr);
}

}  // namespace
}  // namespace millrace::jobs
