// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

namespace {

constexpr std::string_view kJobModule = "job", kShellModule = "shell";

constexpr Rule kJobRules[] = {
    {"SB01", Severity::kError, kJobModule, "the folder of the log exists before the job is submitted",
     "Slurm opens the log before the first line of the script runs. Where its folder is missing the job fails with "
     "exit code 0:53 and leaves no log at all.",
     "Make the folder before sbatch, name it with its whole path, and keep patterns such as %j out of folder names.",
     "Slurm 22.05, reproduced"},
    {"SB02", Severity::kError, kJobModule, "ranks are taken inside the tasks, not in the batch shell",
     "The batch shell runs once, on the first node, with SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID all 0; what it "
     "exports reaches every task.",
     "Read them where the tasks run: srun bash -c 'RANK=$SLURM_PROCID ... exec python train.py', or use torchrun.",
     "Slurm 22.05, reproduced"},
    {"SB03", Severity::kError, kJobModule, "under `set -e` an exit status is taken in the same command",
     "`set -e` ends the script at the failing command, so the line that reads $? behind it is only reached after a "
     "success.",
     "Write `code=0; srun ... || code=$?`.", "bash, reproduced"},
    {"SB04", Severity::kError, kJobModule, "nothing stands between a backslash and the end of its line",
     "A backslash before a blank is an escaped blank and no continuation: the command ends here, and the next line is "
     "run as a command of its own (exit status 127).",
     "Move the comment to a line of its own above the command, and let the line end in the backslash.",
     "bash, reproduced"},
    {"SB05", Severity::kError, kJobModule, "container options are ones that pyxis understands",
     "Without pyxis sbatch refuses the options; with it an image is REGISTRY#IMAGE:TAG, and REGISTRY/IMAGE is looked "
     "up in the default registry.",
     "Write registry#image:tag, or the path of a .sqsh file; install pyxis on the cluster.",
     "NVIDIA pyxis; Slurm 22.05, reproduced"},
    {"SB06", Severity::kWarning, kJobModule, "there is a time limit, and the partition allows it",
     "Without --time the job gets the partition's limit, cannot be fitted into gaps, and a hanging job holds its GPUs "
     "until somebody looks.",
     "Set --time to a little more than the run needs.", "sbatch manual"},
    {"SB07", Severity::kWarning, kJobModule, "a training job that ends by its time limit is told before",
     "At the limit Slurm sends SIGTERM and soon SIGKILL; what was learned since the last checkpoint is lost, and "
     "nothing submits the job again.",
     "Add --signal=B:USR1@300 and a trap on USR1 that saves and requeues.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB08", Severity::kError, kJobModule, "a trap can run: the step is in the background and the shell waits",
     "bash runs a trap only after the foreground command has ended, so a trap beside a foreground srun runs when it is "
     "too late.",
     "Start `srun ... &`, then `wait` in a loop until it has ended.", "bash; Slurm 22.05, reproduced"},
    {"SB09", Severity::kWarning, kJobModule, "a job that is requeued appends to its log and goes on where it was",
     "A requeued job has the same id: its log is opened anew and emptied, and without a way to resume it starts from "
     "nothing.",
     "Add --open-mode=append and give the program its resume option.", "Slurm 22.05, reproduced"},
    {"SB10", Severity::kWarning, kJobModule, "GPUs are asked for in one way",
     "--gres=gpu and --gpus* are documented as alternatives; versions differ in what they make of both.",
     "Keep one, for example --gpus-per-node.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB11", Severity::kError, kJobModule, "the GPU type exists, and stands before the count",
     "A type that no node has leaves the job pending or refused; gpu:8:h200 is a type named 8.",
     "Write gpu:TYPE:COUNT with a type that sinfo -o %G shows.", "Slurm 22.05, reproduced"},
    {"SB12", Severity::kError, kJobModule, "a node has as many GPUs as the job asks of one",
     "No node can satisfy it: sbatch refuses the job, or it waits for ever.",
     "Ask for what a node has, and for more nodes.", "sbatch manual"},
    {"SB13", Severity::kError, kJobModule,
     "tasks fit the launcher: one a node for torchrun, one a GPU for plain python",
     "torchrun starts a process for each GPU by itself, so more tasks start the whole set more often; plain python "
     "needs a task for each process; without a launcher only the first node works.",
     "Use --ntasks-per-node=1 with torchrun, --ntasks-per-node=GPUs with srun python.",
     "torchrun documentation; Slurm 22.05, reproduced"},
    {"SB14", Severity::kWarning, kJobModule, "CPUs are asked for, fit the node, and reach the step",
     "Without --cpus-per-task a task has one CPU for all its data workers; srun of Slurm 22.05 to 23.02 does not take "
     "the value of sbatch.",
     "Set --cpus-per-task to the node's CPUs / tasks, and pass --cpus-per-task=\"$SLURM_CPUS_PER_TASK\" to srun.",
     "Slurm changelog 22.05 and 23.11"},
    {"SB15", Severity::kWarning, kJobModule, "memory is asked for where it counts",
     "--exclusive gives all CPUs and GPUs but only the memory that was asked for; where memory is scheduled, a job "
     "without --mem takes all of it or a small default.",
     "Add --mem=0 to --exclusive, else --mem-per-gpu.", "sbatch manual; Slurm 22.05, reproduced"},
    {"SB16", Severity::kError, kJobModule, "the job has the nodes that the plan gives it",
     "Two jobs that together want more than there is run one after the other instead of side by side.",
     "Set --nodes as the plan says.", "Millrace"},
    {"SB17", Severity::kError, kJobModule, "the partition exists", "sbatch refuses the job.",
     "Name a queue of the cluster file.", "sbatch manual"},
    {"SB18", Severity::kWarning, kJobModule, "paths lie on file systems that every node has, and not in a home folder",
     "A path that is not mounted is a folder on the node's root disk; homes often come from the head node by NFS, slow "
     "and under a small quota.",
     "Use a mount that the cluster file declares.", "Millrace"},
    {"SB19", Severity::kWarning, kJobModule, "the port of the rendezvous is not the same for all jobs on a node",
     "Two jobs that share a node then meet, or the second fails to bind.",
     "Derive it: MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)), or add --exclusive.", "Millrace"},
    {"SB20", Severity::kWarning, kJobModule, "a monitor runs on every node, and ends with the job",
     "A loop in the background of the batch shell sees the first node only, and one without an end outlives a step "
     "that failed.",
     "Run it as `srun --overlap --ntasks-per-node=1 ... &`, and kill it from a trap on EXIT.",
     "Slurm 22.05, reproduced"},
    {"SB21", Severity::kWarning, kJobModule, "one dead rank ends the step",
     "Without it the other ranks wait in a collective until its timeout, with all GPUs held.",
     "Add --kill-on-bad-exit=1 to srun.", "srun manual"},
    {"SB22", Severity::kWarning, kJobModule, "on nodes that boot for the job it starts when all are there",
     "The batch script starts when its first node is up; the first collective then waits for the others, or times out.",
     "Add --wait-all-nodes=1.", "sbatch manual"},
    {"SB23", Severity::kError, kJobModule, "two models do not write the same checkpoints",
     "They overwrite each other's, and a restart loads the wrong one.",
     "Put the model's name, or the array index, into the path.", "Millrace"},
    {"SB24", Severity::kWarning, kJobModule, "nothing deletes by pattern on file systems that others use",
     "A path that is empty, mistyped or not what it was takes somebody's data.",
     "Remove what this job made, by its own name; leave ageing to one clean-up with a dry run.", "Millrace"},
    {"SB25", Severity::kWarning, kJobModule, "an upload in a job is safe to repeat, and is repeated when it fails",
     "It runs while all GPUs of the job wait; it fails once and is not tried again; a requeued job does it twice.",
     "Use `millrace sync`, which goes on where it stopped, in a job of its own with --dependency=afterok.", "Millrace"},
    {"SB26", Severity::kWarning, kJobModule, "a job whose dependency failed does not wait for ever",
     "It stays PENDING with the reason DependencyNeverSatisfied until somebody cancels it.",
     "Add --kill-on-invalid-dep=yes.", "Slurm 22.05, reproduced"},
    {"SB27", Severity::kError, kJobModule, "the elements of an array write to different files, and do different work",
     "With one name for all they overwrite each other's log; without the index they all do the same.",
     "Use %A_%a in --output, and SLURM_ARRAY_TASK_ID in the command.", "sbatch manual"},
    {"SB28", Severity::kWarning, kJobModule, "an MPI plugin is asked for before it is used",
     "Many builds of Slurm come without pmix: srun then fails at once.",
     "Look first: `srun --mpi=list 2>&1 | grep -q pmix || exit 1`.", "srun manual"},
    {"SB29", Severity::kError, kJobModule, "--auto-resume is given to srun, and only on HyperPod",
     "Other clusters' srun refuses it, and sbatch always does.", "Move it to srun, or leave it out.",
     "aws-samples/awsome-distributed-training"},
    {"SB30", Severity::kWarning, kJobModule, "the job is not pinned to named nodes",
     "When one of them fails, the job waits for it although others are free.",
     "Use --exclude for the bad ones, or a partition.", "sbatch manual"},
    {"SB31", Severity::kWarning, kJobModule, "a job over EFA has whole nodes that have EFA",
     "The adapters belong to the node: jobs that share it share them too, and other types have none.",
     "Ask for all GPUs of the node, or leave the EFA settings out.", "AWS EC2 documentation"},
    {"SB32", Severity::kError, kJobModule,
     "the script begins with a plain `#!`, has Unix line ends, and uses variables that exist, in quotes",
     "sbatch refuses a script whose first line is not #! and one with Windows line ends; the kernel passes all that "
     "stands behind the interpreter as one argument; an empty variable changes what a command does.",
     "Begin with #!/bin/bash and nothing behind it; convert with dos2unix; write \"${NAME:?}\".",
     "Slurm source; Linux execve(2), reproduced"},
    {"SB33", Severity::kWarning, kJobModule, "every #SBATCH line is one that sbatch reads",
     "sbatch stops at the first command and takes the mark only at a line's start; what it passes over it does not "
     "mention.",
     "Move it above the first command, to the start of its line.", "Slurm source"},
    {"SB34", Severity::kError, kJobModule, "sbatch knows every option, and can read its value",
     "sbatch refuses the script.", "Look the option up in `man sbatch`.", "sbatch manual"},
    {"SB35", Severity::kError, kJobModule, "one checksum is not stored on many objects",
     "A hash over a list of files is the hash of no object, so a later comparison with one file always fails.",
     "Use `millrace sync` and `millrace verify`, which keep a hash for each object.", "Millrace"},
    {"SB36", Severity::kWarning, kJobModule, "a storage test reads from the storage",
     "Without -C each task reads back what its own node has just written, which still is in that node's memory; "
     "without -e the write ends before the data has left it.",
     "Add -C -e to ior, and more data than a node has memory.", "IOR documentation"},
    {"SB37", Severity::kError, kJobModule, "all tasks meet at one address",
     "localhost, and a port that every task draws by itself, is another place on every node: each waits for the others "
     "until its timeout, or trains alone.",
     "Use the first host of `scontrol show hostnames \"$SLURM_JOB_NODELIST\"`, and a port from SLURM_JOB_ID.",
     "torchrun documentation"},
    {"SH01", Severity::kError, kShellModule, "bash can read the script",
     "bash stops here when it gets here, hours into the job maybe; the rules see nothing of what follows.",
     "Close what is open; `bash -n` says the same.", "bash"},
    {"SH02", Severity::kNote, kShellModule, "what cannot be followed is said",
     "Files that are sourced and text that is evaluated may set or do anything; the rules have not seen it.",
     "Lint the other file too.", "Millrace"},
    {"SH03", Severity::kWarning, kShellModule, "the text is UTF-8 without characters that only look like others",
     "bash takes a no-break space, a curly quote or a byte-order mark for a letter.", "Type the character anew.",
     "bash"},
    {"SH04", Severity::kWarning, kShellModule, "the text is not one that was decoded with the wrong code page",
     "Names and paths in such text are not the ones that were meant.",
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
