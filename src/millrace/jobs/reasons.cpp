// SPDX-License-Identifier: Apache-2.0

// Slurm's words for why a job waits and how it ended. Sources: squeue(1), "JOB REASON CODES" and "JOB STATE CODES" of
// 22.05 to 26.05, and what 22.05.8 did (docs/design/job.md).

#include <array>

#include "millrace/jobs/why.h"

namespace millrace::jobs {

namespace {

constexpr std::array<ReasonRule, 53> kWaitingReasons{{
    {"None", Outlook::kWaits, "The scheduler has not looked at the job yet.", "Ask again in a minute."},
    {"Resources", Outlook::kWaits, "It is next, and the nodes that fit it are in use.",
     "A shorter --time lets it fill a gap; fewer nodes or GPUs, or another partition, may start sooner."},
    {"Priority", Outlook::kWaits, "Other jobs of the partition come first.",
     "A shorter --time lets it start in a gap that the jobs ahead leave (backfill)."},
    {"Dependency", Outlook::kWaits, "It waits for another job.",
     "To start without it: scontrol update JobId=ID Dependency="},
    {"DependencyNeverSatisfied", Outlook::kNever,
     "The job that it depends on ended in a way that the condition excludes.",
     "Cancel it, repair the other job and submit both again; with --kill-on-invalid-dep=yes Slurm cancels it itself."},
    {"BeginTime", Outlook::kWaits, "Its begin time has not come.",
     "After a requeue two minutes are normal. Else: scontrol update JobId=ID StartTime=now"},
    {"JobHeldUser", Outlook::kNever, "Its owner holds it (scontrol hold, or sbatch --hold).", "scontrol release ID"},
    {"JobHeldAdmin", Outlook::kNever, "An administrator holds it.", "Ask the administrators of the cluster."},
    {"JobHoldMaxRequeue", Outlook::kNever, "It was requeued more often than the cluster allows (MaxBatchRequeue).",
     "Find out in its log why it failed each time; then scontrol release ID"},
    {"launch_failed_requeued_held", Outlook::kNever, "A node could not start it, so Slurm requeued it and holds it.",
     "scontrol release ID; leave the node out by scontrol update JobId=ID ExcNodeList=NODE"},
    {"JobArrayTaskLimit", Outlook::kWaits, "As many elements run as the array allows at once (the number after %).",
     "scontrol update JobId=ID ArrayTaskThrottle=N"},
    {"PartitionNodeLimit", Outlook::kNever,
     "It asks for more nodes than the partition has or allows, or for nodes outside of it.",
     "Lower --nodes, or choose another partition."},
    {"PartitionTimeLimit", Outlook::kNever, "Its time limit is above the partition's MaxTime.",
     "scontrol update JobId=ID TimeLimit=TIME, or choose another partition."},
    {"PartitionDown", Outlook::kWaits, "The partition is down.",
     "Choose another partition, or wait for the administrators."},
    {"PartitionInactive", Outlook::kWaits, "The partition is inactive: it starts no jobs.",
     "Choose another partition, or wait for the administrators."},
    {"BadConstraints", Outlook::kNever, "No node of the partition has what the job asks for.",
     "Change --constraint, --gres, --mem or --cpus-per-task; `millrace plan gpus --from-slurm` lists what there is."},
    {"ReqNodeNotAvail*", Outlook::kWaits, "Nodes that it needs are down, drained or reserved.",
     "Leave out --nodelist; a reservation before its end needs a shorter --time."},
    {"Reservation", Outlook::kWaits, "It waits for its reservation.",
     "scontrol show reservation tells when it begins."},
    {"ReservationDeleted", Outlook::kNever, "Its reservation was deleted.",
     "scontrol update JobId=ID ReservationName=NAME, or submit it without --reservation."},
    {"NodeDown", Outlook::kWaits, "A node that it needs is down.",
     "Leave out --nodelist, or wait for the administrators."},
    {"Nodes required for job are DOWN*", Outlook::kWaits, "Nodes that it needs are down, drained or reserved.",
     "Leave out --nodelist, ask for fewer nodes, or wait for the administrators."},
    {"Licenses", Outlook::kWaits, "A licence that it asks for is in use.",
     "scontrol show licenses tells how many are free."},
    {"InvalidAccount", Outlook::kNever, "Its account is not valid.",
     "Submit it with --account of yours: sacctmgr show assoc user=$USER"},
    {"InvalidQOS", Outlook::kNever, "Its QOS is not valid.",
     "Submit it with --qos of yours: sacctmgr show assoc user=$USER"},
    {"QOSMax*PerUser*", Outlook::kWaits, "Your running jobs use all that the QOS allows one user.",
     "It starts when one of your jobs of this QOS ends. The limits: sacctmgr show qos"},
    {"QOSMax*", Outlook::kNever, "It asks for more than the QOS allows one job.",
     "Ask for less, or use another --qos: sacctmgr show qos"},
    {"QOSMin*", Outlook::kNever, "It asks for less than the QOS demands of a job.",
     "Ask for more, or use another --qos."},
    {"QOSGrp*", Outlook::kWaits, "All jobs of the QOS together use what it allows.",
     "It starts when others of the QOS end; another --qos may start sooner."},
    {"QOS*", Outlook::kWaits, "A limit of its QOS holds it back.", "The limits: sacctmgr show qos"},
    {"AssocMax*", Outlook::kWaits, "Your jobs use all that your association allows.",
     "The limits: sacctmgr show assoc user=$USER"},
    {"AssocGrp*", Outlook::kWaits, "All jobs of your account use what it allows.",
     "It starts when others of the account end, or with another --account."},
    {"Assoc*", Outlook::kWaits, "A limit of your account holds it back.", "The limits: sacctmgr show assoc user=$USER"},
    {"AccountNotAllowed", Outlook::kNever, "Its account may not use the partition.",
     "Submit it with another --account, or to another partition: scontrol show partition lists AllowAccounts."},
    {"AccountingPolicy", Outlook::kWaits, "A limit of the accounting holds it back.",
     "The limits: sacctmgr show assoc user=$USER"},
    {"PartitionConfig", Outlook::kNever, "The partition is set up so that it cannot run there.",
     "Choose another partition: scontrol show partition tells who may use which."},
    {"ReservationInvalid", Outlook::kNever, "Its reservation is not there, or not for it.",
     "scontrol update JobId=ID ReservationName=NAME, or submit it without --reservation."},
    {"Constraints", Outlook::kNever, "What it asks for cannot be met.",
     "Change --constraint, --gres, --mem or --cpus-per-task; `millrace plan gpus --from-slurm` lists what there is."},
    {"DeadLine", Outlook::kNever, "It cannot end before its --deadline.", "Submit it with a later --deadline."},
    {"Max*PerAccount", Outlook::kWaits, "Running jobs of your account use all that the QOS allows one account.",
     "It starts when others of the account end; another --account or --qos may start sooner."},
    {"Max*RunMins*", Outlook::kWaits, "Running jobs hold all the time that the QOS allows at once.",
     "It starts when others end; a shorter --time needs less of it."},
    {"MaxPoweredUpNodes", Outlook::kWaits, "As many cloud nodes run as the cluster allows.",
     "It starts when other jobs end and their nodes are powered down."},
    {"NvidiaImexChannels", Outlook::kWaits,
     "All IMEX channels of its nodes are in use (GPUs that share NVLink memory).",
     "It starts when other jobs on these nodes end."},
    {"MpiPortsBusy", Outlook::kWaits, "The ports that its steps need are in use.", "It starts when other jobs end."},
    {"BurstBuffer*", Outlook::kWaits, "It waits for its burst buffer.", "scontrol show burstbuffer tells its state."},
    {"Power*", Outlook::kWaits, "The cluster's power limit leaves no room for it.", "It starts when other jobs end."},
    {"SchedDefer", Outlook::kWaits, "The cluster starts no job at submission (SchedulerParameters=defer).",
     "Ask again in a minute."},
    {"FedJobLock", Outlook::kWaits, "Its federation decides which cluster runs it.", "Ask again in a minute."},
    {"FrontEndDown", Outlook::kWaits, "The node from which its kind of job starts is down.",
     "Wait for the administrators."},
    {"JobLaunchFailure", Outlook::kWaits, "A node could not start it before.", "Its log and its node's tell why."},
    {"MaxMemPerLimit", Outlook::kNever,
     "It asks for more memory than the cluster or partition allows (MaxMemPerNode, MaxMemPerCPU).",
     "Lower --mem, --mem-per-cpu or --mem-per-gpu."},
    {"Prolog", Outlook::kWaits, "The cluster's prolog script runs on its nodes.", "Ask again in a minute."},
    {"Cleaning", Outlook::kWaits, "It was requeued, and its last run is being cleaned up.", "Ask again in a minute."},
    {"NonZeroExitCode", Outlook::kWaits, "It failed before and was requeued.", "Its log tells why it failed."},
}};

constexpr std::array<ReasonRule, 17> kEndStates{{
    {"COMPLETED", Outlook::kDone, "It completed.", ""},
    {"TIMEOUT", Outlook::kFailed, "It was still running at its time limit.",
     "Raise --time, or save before the limit and requeue: `millrace job new train` writes a script that does."},
    {"OUT_OF_MEMORY", Outlook::kFailed, "The kernel killed a process: the job used more memory than it asked for.",
     "Raise --mem (or --mem-per-gpu); fewer loader processes need less."},
    {"NODE_FAIL", Outlook::kFailed, "A node died or stopped answering.",
     "Submit it again; --requeue lets Slurm do it, and --exclude leaves the node out."},
    {"PREEMPTED", Outlook::kFailed, "A job of higher priority took its nodes.",
     "--requeue runs it again; save at SIGTERM within the partition's GraceTime."},
    {"CANCELLED", Outlook::kFailed, "It was cancelled.", ""},
    {"BOOT_FAIL", Outlook::kFailed, "A node never booted: the cloud gave none, or it was not up in time.",
     "The log of ResumeProgram tells why (ParallelCluster: /var/log/parallelcluster/slurm_resume.log of the head "
     "node). "
     "Without capacity take another partition or instance type, or reserve some; a slow boot needs a longer "
     "ResumeTimeout."},
    {"DEADLINE", Outlook::kFailed, "It could not end before its --deadline.",
     "Leave --deadline out, or start earlier."},
    {"EXIT 0:53", Outlook::kFailed, "Slurm could not open the log file, so the script never ran.",
     "Make the log's folder before you submit: mkdir -p FOLDER"},
    {"EXIT 127:0", Outlook::kFailed, "The last command was not found.",
     "Load the modules or activate the environment in the script; check PATH."},
    {"EXIT 126:0", Outlook::kFailed, "The last command is not executable.",
     "chmod +x it, or start it by its interpreter."},
    {"EXIT 75:0", Outlook::kFailed, "The program saved its state and wants to run again (mr.EXIT_REQUEUE).",
     "Requeue it: `millrace job requeue ID`; scripts of `millrace job new train` do it themselves."},
    {"EXIT 137:0", Outlook::kFailed, "A process was killed by SIGKILL, often for want of memory.",
     "Look at the memory: raise --mem, or lower what the program holds."},
    {"EXIT 0:9", Outlook::kFailed, "It was killed by SIGKILL.",
     "Look whether the node or the job's memory limit did it."},
    {"EXIT 139:0", Outlook::kFailed, "A process crashed (SIGSEGV).",
     "The log may show where; set PYTHONFAULTHANDLER=1."},
    {"EXIT 143:0", Outlook::kFailed, "A process was stopped by SIGTERM.", "Look for another rank that failed first."},
    {"FAILED", Outlook::kFailed, "The script ended with an error.", "Its log tells the command that failed."},
}};

}  // namespace

std::span<const ReasonRule> waiting_reasons() {
  return kWaitingReasons;
}

std::span<const ReasonRule> end_states() {
  return kEndStates;
}

}  // namespace millrace::jobs
