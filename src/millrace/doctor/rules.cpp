// SPDX-License-Identifier: Apache-2.0
#include "millrace/doctor/diagnose.h"

namespace millrace::doctor {

namespace {

constexpr std::string_view kRun = "run", kNode = "node", kStorage = "storage", kNetwork = "network";
constexpr Severity kError = Severity::kError, kWarning = Severity::kWarning;

constexpr Rule kRules[] = {
    {"DR01", kError, kRun, "a GPU ran out of memory",
     "Weights, optimiser, activations and the allocator's fragments did not fit.",
     "Ask `millrace plan batch` for the batch that fits; lower the batch a GPU and accumulate, or checkpoint "
     "activations. Where much is reserved but unallocated: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
     "PyTorch: notes on CUDA memory"},
    {"DR02", kError, kRun, "the host ran out of memory",
     "The kernel, the cgroup of the job or a limit of the process refused memory.",
     "Ask for more by --mem, start fewer data workers, or give the loader less memory_bytes.",
     "Linux: cgroup-v2.rst; slurm.conf"},
    {"DR03", kError, kRun, "shared memory is full", "Data workers pass batches through /dev/shm.",
     "Make /dev/shm larger (containers: --shm-size), start fewer workers, or use a loader with threads.",
     "PyTorch: notes on multiprocessing"},
    {"DR04", kError, kStorage, "a file system is full", "Writes fail, checkpoints too.",
     "Remove old checkpoints (`millrace ckpt prune`, `millrace layout clean`), or write elsewhere.", "errno ENOSPC"},
    {"DR05", kError, kStorage, "a quota is used up", "Writes fail though the file system has space.",
     "Remove files of yours or ask for more: `lfs quota -h -u $USER MOUNT`, or `quota -s`.", "errno EDQUOT"},
    {"DR06", kError, kStorage, "a file system has no room for more files",
     "Each file needs an inode; there are none left, whatever space is free.",
     "Pack small files into shards, and remove what is not needed.", "statvfs(3)"},
    {"DR07", kError, kRun, "a process has too many files open", "Its limit of descriptors is reached.",
     "ulimit -n 65536 in the script, or fewer workers and open shards.", "errno EMFILE"},
    {"DR08", kError, kRun, "a rank is stopped", "A stopped process takes part in nothing, and all others wait for it.",
     "kill -CONT PID; find out who stopped it: a debugger, Ctrl-Z, or Slurm (scontrol suspend).", "proc(5), state T"},
    {"DR09", kError, kStorage, "a rank hangs in the kernel",
     "It sleeps in a call that no signal ends, mostly of a file system that does not answer.",
     "Look at the mount that it uses (`dmesg`, `lfs check servers`, `nfsstat`); the node may need a reboot.",
     "proc(5), state D"},
    {"DR10", kError, kRun, "training stands still", "The record has had no step for far longer than a step takes.",
     "Look at the rank that stands elsewhere than the others; end the run and resume from the last checkpoint.",
     "the record's own steps"},
    {"DR11", kError, kNetwork, "a collective timed out",
     "Some rank did not come to a collective: it died, was slow, or took another path through the program.",
     "Look at the rank named below, or at the rank that names nothing. TORCH_NCCL_DUMP_ON_TIMEOUT=1 keeps what each "
     "rank was doing.",
     "PyTorch: ProcessGroupNCCL"},
    {"DR12", kError, kNetwork, "the network between ranks failed", "A connection was refused, reset or timed out.",
     "The first rank that ended is the cause of the others' errors: look at its log. Else check security groups, "
     "NCCL_SOCKET_IFNAME and EFA: `millrace env lint`, `millrace job new validate`.",
     "NCCL: troubleshooting"},
    {"DR13", kError, kNode, "a GPU is failing", "The driver or the counters name a fault of the hardware.",
     "Drain the node, reset or reboot it, and run `millrace job new validate` before it is used again.",
     "NVIDIA: Xid errors; NVML"},
    {"DR14", kError, kRun, "the batch system or a signal ended the run", "It did not end by itself.",
     "Ask `millrace job why ID`. With --signal and --requeue (`millrace job new train`) a run goes on by itself.",
     "sbatch(1)"},
    {"DR15", kError, kRun, "the program failed", "It raised an error that no other rule knows.",
     "Read the log from the line named below.", "the log"},
    {"DR16", kError, kRun, "the loss is not a number", "It became NaN or infinite, and does not come back.",
     "Go back to a checkpoint before that step with a lower learning rate, or skip these steps (`Loader.skip`).",
     "the record's values"},
    {"DR17", kWarning, kRun, "training waits for data", "GPUs idle while the loader makes a batch.",
     "More threads, a cache on the node, or a faster storage, as the stage named below says.", "the loader's counters"},
    {"DR18", kWarning, kStorage, "checkpoints keep training for too long",
     "Training stands while a checkpoint is taken.",
     "Save less often: `millrace plan checkpoint` gives the interval. Write to NVMe first (tiers=).",
     "Daly 2006; the checkpointer's counters"},
    {"DR19", kWarning, kStorage, "checkpoints are too rare", "A failure would throw away the work since the last one.",
     "Save more often: `millrace plan checkpoint` gives the interval.", "Daly 2006; the checkpointer's counters"},
    {"DR20", kWarning, kNode, "the GPUs are used little", "They wait for something for much of the time.",
     "Look at the other verdicts: data, checkpoints, a slow rank. Where none holds, the batch is small or the program "
     "synchronises often: a larger batch, torch.compile, fewer .item() calls.",
     "NVML utilisation"},
    {"DR21", kWarning, kNode, "a GPU lowers its clocks",
     "Heat, power or the hardware slow it down, and with it all ranks.",
     "Check cooling and power of the node; take another one if it stays so.", "NVML clocks event reasons"},
    {"DR22", kWarning, kNode, "a GPU, rank or node is slower than the others", "The slowest rank sets the pace of all.",
     "Leave the node out (`--exclude`), and run `millrace job new validate` on it.", "the monitor's samples"},
    {"DR23", kWarning, kNode, "memory is nearly full", "What follows is swapping, stalls and a kill.",
     "Ask for more by --mem, or give the loader less memory_bytes. Memory that grows all the time is a leak.",
     "Linux: accounting/psi.rst, cgroup-v2.rst"},
    {"DR24", kWarning, kNode, "processors are short",
     "Tasks wait for a processor, or the cgroup's limit holds them back.",
     "Ask for more by --cpus-per-task, and start fewer threads and workers.", "Linux: accounting/psi.rst"},
    {"DR25", kWarning, kStorage, "disks or file systems hold the node back",
     "Tasks wait for I/O, all of them at times.",
     "Measure the mount (`millrace job new storage-test`); read ahead, cache on NVMe, or stripe wider.",
     "Linux: accounting/psi.rst"},
    {"DR26", kWarning, kNetwork, "the network of a node has errors", "Packets are dropped, repeated or broken.",
     "Compare with other nodes; take another one if only this one has them.", "Linux: net/dev; EFA's hw_counters"},
    {"DR27", kWarning, kNetwork, "nccl-tests are slower than the link",
     "Collectives do not reach what the link carries.",
     "Check EFA or InfiniBand (`millrace job new validate`), NCCL_DEBUG=INFO for the network in use, and each pair of "
     "nodes alone.",
     "nccl-tests: PERFORMANCE.md"},
    {"DR28", kWarning, kRun, "the run starts again without coming further", "Each start ends where the one before did.",
     "Read why it ended; a requeue alone does not help.", "the record's starts"},
    {"DR29", kWarning, kStorage, "the object store slows requests down",
     "It answers 503 or the like, and requests repeat.",
     "Spread keys over prefixes, read larger ranges, or lower the request rate.", "Amazon S3: best practices"},
};

}  // namespace

std::span<const Rule> doctor_rules() {
  return kRules;
}

}  // namespace millrace::doctor
