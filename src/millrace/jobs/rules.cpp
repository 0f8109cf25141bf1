// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

namespace {

constexpr std::string_view kJobModule = "job", kShellModule = "shell";

constexpr Rule kJobRules[] = {
    {"SB01", Severity::kError, kJobModule, "the log folder exists before the job is submitted",
     "Slurm opens the log before the first line of the script runs. Where its folder is missing the job fails with "
     "exit code 0:53 and leaves no log at all.",
     "Create the folder before you call sbatch. Give its full path, without patterns such as %j in folder names.",
     "Slurm 22.05, reproduced"},
    {"SB02", Severity::kError, kJobModule, "ranks are taken inside the tasks, not in the batch shell",
     "The batch shell runs once, on the first node, with SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID all 0; what it "
     "exports reaches every task.",
     "Read them inside the tasks: srun bash -c 'RANK=$SLURM_PROCID ... exec python train.py', or use torchrun.",
     "Slurm 22.05, reproduced"},
    {"SB03", Severity::kError, kJobModule, "under `set -e`, the command itself records its exit status",
     "`set -e` ends the script at the failing command, so a later line that reads $? only runs after a success.",
     "Write `code=0; srun ... || code=$?`.", "bash, reproduced"},
    {"SB04", Severity::kError, kJobModule, "a backslash is the last character of its line",
     "A backslash before a blank is an escaped blank, not a continuation. The command ends there, and bash runs the "
     "next line as a separate command (exit status 127).",
     "Move the comment to the line above the command, and end the line with the backslash.", "bash, reproduced"},
    {"SB05", Severity::kError, kJobModule, "pyxis understands the container options",
     "Without pyxis sbatch refuses the options; with it an image is REGISTRY#IMAGE:TAG, and REGISTRY/IMAGE is looked "
     "up in the default registry.",
     "Write registry#image:tag, or the path of a .sqsh file; install pyxis on the cluster.",
     "NVIDIA pyxis; Slurm 22.05, reproduced"},
    {"SB06", Severity::kWarning, kJobModule, "there is a time limit, and the partition allows it",
     "Without --time the job gets the partition's limit. Slurm cannot backfill it, and a hung job holds its GPUs until "
     "somebody notices.",
     "Set --time to a little more than the run needs.", "sbatch manual"},
    {"SB07", Severity::kWarning, kJobModule, "a training job is warned before its time limit",
     "At the limit Slurm sends SIGTERM and soon SIGKILL; what was learned since the last checkpoint is lost, and "
     "nothing submits the job again.",
     "Add --signal=B:USR1@300 and a trap on USR1 that saves and requeues.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB08", Severity::kError, kJobModule, "a trap can run: the step is in the background, and the shell waits for it",
     "bash runs a trap only after the foreground command has ended, so a trap beside a foreground srun runs when it is "
     "too late.",
     "Start `srun ... &`, then `wait` in a loop until it has ended.", "bash; Slurm 22.05, reproduced"},
    {"SB09", Severity::kWarning, kJobModule, "a requeued job appends to its log and resumes",
     "A requeued job keeps its id, so Slurm truncates its log. A program without a resume option starts from the "
     "beginning.",
     "Add --open-mode=append, and pass the program its resume option.", "Slurm 22.05, reproduced"},
    {"SB10", Severity::kWarning, kJobModule, "GPUs are asked for in one way",
     "--gres=gpu and --gpus* are documented as alternatives; versions differ in what they make of both.",
     "Keep one, for example --gpus-per-node.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB11", Severity::kError, kJobModule, "the GPU type exists, and stands before the count",
     "A type that no node has leaves the job pending or refused; gpu:8:h200 is a type named 8.",
     "Write gpu:TYPE:COUNT with a type that sinfo -o %G shows.", "Slurm 22.05, reproduced"},
    {"SB12", Severity::kError, kJobModule, "each node has as many GPUs as the job asks for per node",
     "No node can satisfy the request: sbatch refuses the job, or it stays pending.",
     "Ask for the GPUs that a node has, and for more nodes.", "sbatch manual"},
    {"SB13", Severity::kError, kJobModule,
     "tasks fit the launcher: one per node for torchrun, one per GPU for plain python",
     "torchrun starts one process per GPU, so every further task starts that set again. Plain python needs one task "
     "per process. Without a launcher only the first node works.",
     "Use --ntasks-per-node=1 with torchrun, --ntasks-per-node=GPUs with srun python.",
     "torchrun documentation; Slurm 22.05, reproduced"},
    {"SB14", Severity::kWarning, kJobModule, "CPUs are requested, fit the node, and reach the step",
     "Without --cpus-per-task a task has one CPU for all its data workers. In Slurm 22.05 to 23.02, srun does not "
     "inherit the value from sbatch.",
     "Set --cpus-per-task to the node's CPUs / tasks, and pass --cpus-per-task=\"$SLURM_CPUS_PER_TASK\" to srun.",
     "Slurm changelog 22.05 and 23.11"},
    {"SB15", Severity::kWarning, kJobModule, "memory is requested where it counts",
     "--exclusive gives all CPUs and GPUs, but only the memory that was requested. Where memory is scheduled, a job "
     "without --mem gets all of it or a small default.",
     "Add --mem=0 to --exclusive, else --mem-per-gpu.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB16", Severity::kError, kJobModule, "the job has the nodes that the plan gives it",
     "Two jobs that together need more nodes than exist run one after the other instead of side by side.",
     "Set --nodes as the plan says.", "Millrace"},
    {"SB17", Severity::kError, kJobModule, "the partition exists", "sbatch refuses the job.",
     "Name a queue of the cluster file.", "sbatch manual"},
    {"SB18", Severity::kWarning, kJobModule,
     "paths are on file systems that every node mounts, and not in a home folder",
     "A path that is not mounted is a folder on the node's root disk; homes often come from the head node by NFS, slow "
     "and under a small quota.",
     "Use a mount that the cluster file declares.", "Millrace"},
    {"SB19", Severity::kWarning, kJobModule, "the rendezvous port differs between jobs on a node",
     "Otherwise two jobs that share a node join each other, or the second fails to bind.",
     "Derive it: MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)), or add --exclusive.", "Millrace"},
    {"SB20", Severity::kWarning, kJobModule, "a monitor runs on every node, and ends with the job",
     "A loop in the background of the batch shell sees the first node only, and one without an end outlives a step "
     "that failed.",
     "Run it as `srun --overlap --ntasks-per-node=1 ... &`, and kill it from a trap on EXIT.",
     "Slurm 22.05, reproduced"},
    {"SB21", Severity::kWarning, kJobModule, "one dead rank ends the step",
     "Otherwise the other ranks wait in a collective until its timeout, and hold all GPUs.",
     "Add --kill-on-bad-exit=1 to srun.", "srun manual"},
    {"SB22", Severity::kWarning, kJobModule, "a job on nodes that boot for it starts when all of them are up",
     "The batch script starts when its first node is up; the first collective then waits for the others, or times out.",
     "Add --wait-all-nodes=1.", "sbatch manual"},
    {"SB23", Severity::kError, kJobModule, "two models do not write to the same checkpoints",
     "They overwrite each other's checkpoints, and a restart loads the wrong one.",
     "Put the model's name, or the array index, into the path.", "Millrace"},
    {"SB24", Severity::kWarning, kJobModule, "no command deletes by pattern on a shared file system",
     "An empty, mistyped or changed path deletes somebody else's data.",
     "Remove the files of this job by name. Leave old files to one clean-up job that has a dry run.", "Millrace"},
    {"SB25", Severity::kWarning, kJobModule, "an upload in a job can be repeated safely, and is retried when it fails",
     "The job's GPUs wait while it runs. A failed upload is not retried, and a requeued job uploads twice.",
     "Use `millrace sync`, which resumes, in a separate job with --dependency=afterok.", "Millrace"},
    {"SB26", Severity::kWarning, kJobModule, "a job whose dependency failed does not stay pending",
     "It stays PENDING with the reason DependencyNeverSatisfied until somebody cancels it.",
     "Add --kill-on-invalid-dep=yes.", "Slurm 22.05, reproduced"},
    {"SB27", Severity::kError, kJobModule, "array tasks write to different files and do different work",
     "With one log name they overwrite each other's log. Without the index they all do the same work.",
     "Use %A_%a in --output, and SLURM_ARRAY_TASK_ID in the command.", "sbatch manual"},
    {"SB28", Severity::kWarning, kJobModule, "the script checks that an MPI plugin exists before it uses it",
     "Many builds of Slurm come without pmix: srun then fails at once.",
     "Check first: `srun --mpi=list 2>&1 | grep -q pmix || exit 1`.", "srun manual"},
    {"SB29", Severity::kError, kJobModule, "--auto-resume is given to srun, and only on HyperPod",
     "Other clusters' srun refuses it, and sbatch always does.", "Move it to srun, or leave it out.",
     "aws-samples/awsome-distributed-training"},
    {"SB30", Severity::kWarning, kJobModule, "the job is not pinned to named nodes",
     "When one of them fails, the job waits for it although other nodes are free.",
     "Use --exclude for the bad ones, or a partition.", "sbatch manual"},
    {"SB31", Severity::kWarning, kJobModule, "a job over EFA gets whole nodes, and they have EFA",
     "The adapters belong to the node, so jobs on it share them. Instance types without EFA have none.",
     "Ask for all GPUs of the node, or leave the EFA settings out.", "AWS EC2 documentation"},
    {"SB32", Severity::kError, kJobModule,
     "the script begins with a plain `#!`, has Unix line ends, and uses variables that exist, in quotes",
     "sbatch refuses a script whose first line is not #! and one with Windows line ends; the kernel passes all that "
     "stands behind the interpreter as one argument; an empty variable changes what a command does.",
     "Begin with #!/bin/bash and nothing behind it; convert with dos2unix; write \"${NAME:?}\".",
     "Slurm source; Linux execve(2), reproduced"},
    {"SB33", Severity::kWarning, kJobModule, "sbatch reads every #SBATCH line",
     "sbatch stops at the first command and takes the mark only at a line's start; what it passes over it does not "
     "mention.",
     "Move it above the first command, to the start of its line.", "Slurm source"},
    {"SB34", Severity::kError, kJobModule, "sbatch knows every option and can parse its value",
     "sbatch refuses the script.", "Look the option up in `man sbatch`.", "sbatch manual"},
    {"SB35", Severity::kError, kJobModule, "one checksum is not stored on several objects",
     "A hash over a list of files is the hash of no object, so a later comparison with one file always fails.",
     "Use `millrace sync` and `millrace verify`, which keep a hash for each object.", "Millrace"},
    {"SB36", Severity::kWarning, kJobModule, "a storage test reads from the storage",
     "Without -C each task reads back what its own node has just written, which still is in that node's memory; "
     "without -e the write ends before the data has left it.",
     "Add -C -e to ior, and more data than a node has memory.", "IOR documentation"},
    {"SB37", Severity::kError, kJobModule, "all tasks rendezvous at one address",
     "localhost, and a port that every task draws by itself, is another place on every node: each waits for the others "
     "until its timeout, or trains alone.",
     "Use the first host of `scontrol show hostnames \"$SLURM_JOB_NODELIST\"`, and a port from SLURM_JOB_ID.",
     "torchrun documentation"},
    {"SB38", Severity::kError, kJobModule, "torchrun on several nodes knows their number and where they meet",
     "Without --nnodes each node's torchrun is a training of its own. All of them succeed, and each has seen a part of "
     "the "
     "batch.",
     "Add --nnodes=$SLURM_JOB_NUM_NODES --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID and "
     "--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT.",
     "Slurm 22.05 and torchrun, reproduced"},
    {"SB39", Severity::kError, kJobModule, "the script waits for a step that it starts in the background",
     "When the batch shell ends, Slurm kills the job's steps, and the job is COMPLETED with exit code 0:0.",
     "Keep its process, and wait for it: `pid=$!`, later `wait \"$pid\"`.", "Slurm 22.05, reproduced"},
    {"SB40", Severity::kWarning, kJobModule, "a step beside a running one says how they share the job",
     "A step takes all CPUs of the nodes it runs on, and a second one waits until it has ended, at worst until the "
     "job's "
     "time limit.",
     "Add --overlap to a monitor. Add --exact and its CPUs to each of several steps.", "Slurm 22.05, reproduced"},
    {"SB41", Severity::kError, kJobModule, "the tasks get the environment of the script",
     "--export with anything but ALL replaces the environment: tasks get neither PATH nor MASTER_ADDR. srun inherits "
     "it "
     "from sbatch.",
     "Write --export=ALL,NAME=VALUE, or leave it out; `unset SLURM_EXPORT_ENV` before srun undoes sbatch's.",
     "Slurm 22.05, reproduced"},
    {"SB42", Severity::kError, kJobModule, "no #SBATCH line holds a variable, a command or ~",
     "sbatch expands none of them: a folder of that very name is looked for, and where there is none the job fails or "
     "runs "
     "in /tmp.",
     "Write the value, a pattern such as %u, %x or %j, or pass the option on sbatch's command line.",
     "Slurm 22.05, reproduced"},
    {"SB43", Severity::kError, kJobModule, "no options stand together that Slurm refuses together",
     "sbatch refuses the script, or srun ends at once, when the nodes are there.", "Keep one of them.",
     "Slurm 22.05, reproduced"},
    {"SB44", Severity::kWarning, kJobModule, "no option silently changes another one",
     "Of two that exclude each other the later one counts. --ntasks takes nodes away, and makes --ntasks-per-node a "
     "limit.",
     "Keep the one that is meant.", "Slurm 22.05, reproduced"},
    {"SB45", Severity::kWarning, kJobModule, "the status of a training in a pipe is not lost",
     "A pipe has the status of its last command, and tee succeeds: the job is COMPLETED, and jobs with afterok start.",
     "Put `set -o pipefail` above it, or use --output instead of tee.", "bash; Slurm 22.05, reproduced"},
    {"SB46", Severity::kWarning, kJobModule, "the status of a step in the background is asked for",
     "`wait` without a process ends with 0, whatever the step ended with: the job is COMPLETED.",
     "Keep the process, `pid=$!`, and end with the status of `wait \"$pid\"`.", "bash; Slurm 22.05, reproduced"},
    {"SB47", Severity::kError, kJobModule, "the master address is the name of one node, the same for all tasks",
     "A list of nodes is no name, the host of sbatch is no node of the job, and each task has another own name.",
     "Take the first host of `scontrol show hostnames \"$SLURM_JOB_NODELIST\"`.", "Slurm 22.05, reproduced"},
    {"SB48", Severity::kError, kJobModule, "torchrun can bind the processes as --numa-binding says",
     "torchrun refuses another word. Without GPUs there is nothing that the processes could be bound near to.",
     "Use node, socket, exclusive or core-complex, in a job with GPUs.", "torchrun of PyTorch 2.13, reproduced"},
    {"SH01", Severity::kError, kShellModule, "bash can read the script",
     "bash stops here when it reaches this line, perhaps hours into the job. The rules do not see what follows.",
     "Close what is open; `bash -n` says the same.", "bash"},
    {"SH02", Severity::kNote, kShellModule, "code that cannot be analysed is reported",
     "Sourced files and evaluated text may set or do anything. The rules have not seen them.",
     "Lint the other file too.", "Millrace"},
    {"SH03", Severity::kWarning, kShellModule, "the text is UTF-8 without look-alike characters",
     "bash takes a no-break space, a curly quote or a byte-order mark for a letter.", "Type the character again.",
     "bash"},
    {"SH04", Severity::kWarning, kShellModule, "the text was not decoded with the wrong code page",
     "Names and paths in such text are not the intended ones.",
     "Take the original file, or encode it back (iconv -t cp1252 or cp1254) and read that as UTF-8.", "Millrace"},
};

std::vector<Rule> join_job_rules() {
  std::vector<Rule> all(std::begin(kJobRules), std::end(kJobRules));
  for (const auto rules : {env_rules(), suppression_rules()}) all.insert(all.end(), rules.begin(), rules.end());
  return all;
}

}  // namespace

std::span<const Rule> job_rules() {
  return kJobRules;
}

std::span<const Rule> all_job_rules() {
  static const std::vector<Rule> all = join_job_rules();
  return all;
}

}  // namespace millrace::jobs
