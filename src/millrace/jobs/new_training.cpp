// SPDX-License-Identifier: Apache-2.0
// Training jobs: started, warned before the time limit, requeued.
//
// How the signal travels. Slurm sends USR1 to the batch shell, which passes it to srun: srun forwards USR1 to its
// tasks, but takes TERM as an order to kill them. Where Slurm tracks processes by cgroup a task's own process gets the
// signal; where it tracks them by their parents, everything below it does. So each task is a shell that takes USR1,
// everything else ignores USR1, and the shell gives TERM to the training programs alone: torchrun never sees a signal,
// and so has no reason to kill its workers after 30 seconds.
//
// How the exit status travels. torchrun turns a worker's 75 into 1 and kills the other workers 30 seconds after the
// first has ended; srun --kill-on-bad-exit kills the other tasks at once. So each rank leaves its status in a file, and
// stays until all have one.
#include <fmt/format.h>

#include <algorithm>

#include "millrace/jobs/script.h"

namespace millrace::jobs {

namespace {

int64_t ranks_per_node(const JobSpec& spec) {
  return launcher_of(spec) == Launcher::kSingle ? 1 : std::max<int64_t>(1, spec.gpus_per_node);
}

bool tells(const JobSpec& spec) {
  return spec.signal_s > 0;
}

void write_rendezvous(ScriptText& out) {
  out.line("MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)");
  out.line("MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))  # another for each job that shares the node");
  out.line("export MASTER_ADDR MASTER_PORT");
  out.line("");
}

// --- the end, for later readers

// Slurm without accounting forgets a job after minutes. A job that runs again has not ended.
constexpr std::string_view kLeaveEnd =
    R"sh(# How the job ended, for `millrace job ls` when Slurm has forgotten it.
ended_file=LOG_FOLDER"/ended-$SLURM_JOB_ID.json" started=$(date +%s) last_step=null
ended=0 requeued=0 reached=0
rm -f "$ended_file"
# shellcheck disable=SC2317  # called by the trap
leave_end() {  # STATUS
  local stopped=false
  # bash comes here with status 0 when a signal kills it.
  if [ "$requeued" -eq 1 ] || { [ "$1" -eq 0 ] && [ "$reached" -eq 0 ]; }; then return 0; fi
  if [ "$ended" -eq 1 ] || [ "$1" -eq 143 ]; then stopped=true; fi
  {
    printf '{"format": "millrace-job-end", "version": 1, "job_id": "%s", "exit": %d, "stopped": %s, ' \
      "$SLURM_JOB_ID" "$1" "$stopped"
    printf '"step": %s, "restarts": %d, "nodes": "%s", "started": %d, "ended": %d}\n' "$last_step" \
      "${SLURM_RESTART_COUNT:-0}" "${SLURM_JOB_NODELIST:-}" "$started" "$(date +%s)"
  } >"$ended_file.part" && mv "$ended_file.part" "$ended_file"
}
trap 'leave_end "$?" || true' EXIT

)sh";

// --- the folders of --save

constexpr std::string_view kKeepFunctions =
    R"sh(# What --save names comes back at the start and goes out at the end. A folder that all nodes see is copied once, to the
# URL itself; of a node's own disk each node's part goes to URL/node-N. .millrace-part, the last file of a copy, says when.
# shellcheck disable=SC2317  # called in the tasks, too
keep_part() {  # in|out DIR URL
  local here='' there
  if [ "$1" = out ]; then
    echo "$(date +%s) $3" >"$2/.millrace-part"
    millrace sync "$2" "$3" --exclude '/.millrace-*' && millrace cp "$2/.millrace-part" "$3/.millrace-part"
    return
  fi
  if ! there=$(millrace cat "$3/.millrace-part" --json 2>&1); then
    case $there in *'"not_found"'*) return 0 ;; esac  # the first start
    echo "$there" >&2
    return 1
  fi
  there=$(millrace cat "$3/.millrace-part") || return
  [ ! -e "$2/.millrace-part" ] || here=$(cat "$2/.millrace-part")
  if [ "${here#* }" = "$3" ] && [ "${here%% *}" -ge "${there%% *}" ]; then return 0; fi  # what is here is as new
  millrace sync "$3" "$2" --exclude '/.millrace-*' && echo "$there" >"$2/.millrace-part"
}
export -f keep_part
)sh";

constexpr std::string_view kKeepOnNodes = R"sh(keep() {  # in|out DIR URL
  local seen=$2/.millrace-$SLURM_JOB_ID-seen own
  mkdir -p "$2"
  : >"$seen"
  # shellcheck disable=SC2016  # the names are the task's
  own=$(ON_EACH_NODE \
    bash -c 'mkdir -p "$1"; [ -e "$2" ] || echo own' look "$2" "$seen") || return
  rm "$seen"
  if [ -z "$own" ]; then
    keep_part "$@"
  else
    # shellcheck disable=SC2016
    ON_EACH_NODE \
      bash -c 'keep_part "$1" "$2" "$3/node-$SLURM_NODEID"' keep "$@"
  fi
}

)sh";

void write_keeping(const JobSpec& spec, ScriptText& out) {
  if (spec.save.empty()) return;
  out.lines(kKeepFunctions);
  out.lines(replaced(kKeepOnNodes, "ON_EACH_NODE", fmt::format("{} {}", kOnEachNode, kStepCpus)));
  for (const Copy& copy : spec.save)
    out.line(fmt::format("keep in {} {}", shell_quoted(copy.source), shell_quoted(copy.target)));
  out.line("");
}

void write_kept(const JobSpec& spec, ScriptText& out) {
  if (spec.save.empty()) return;
  out.line("kept=1");
  out.line("if [ \"$ended\" -eq 0 ]; then");
  for (const Copy& copy : spec.save)
    out.line(fmt::format("  keep out {} {} || kept=0", shell_quoted(copy.source), shell_quoted(copy.target)));
  out.line("fi");
  out.line("[ \"$kept\" -eq 1 ] || echo 'not all that --save names is copied' >&2");
  out.line("");
}

// --- the checkpoints of --follow

std::string follow_command(const Copy& copy) {
  return fmt::format("millrace ckpt follow {} {}", shell_quoted(copy.source), shell_quoted(copy.target));
}

void write_restoring(const JobSpec& spec, ScriptText& out) {
  if (spec.follow.empty()) return;
  out.line("# What a kill left half written goes, and the newest checkpoint comes back.");
  for (const Copy& copy : spec.follow) out.line(follow_command(copy) + " --restore");
  out.line("");
}

// Returns what ends them.
std::string write_followers(const JobSpec& spec, ScriptText& out) {
  if (spec.follow.empty()) return {};
  out.line("followers=()");
  for (const Copy& copy : spec.follow) {
    out.line(fmt::format("{} --keep-last {} &", follow_command(copy), spec.follow_keep));
    out.line("followers+=(\"$!\")");
  }
  return "kill \"${followers[@]}\" 2>/dev/null || true";
}

void write_followed(const JobSpec& spec, ScriptText& out) {
  if (spec.follow.empty()) return;
  out.line("# The last ones.");
  out.line("kill \"${followers[@]}\" 2>/dev/null || true");
  out.line(
      "for follower in \"${followers[@]}\"; do while kill -0 \"$follower\" 2>/dev/null; do wait \"$follower\" || true; "
      "done; done");
  for (const Copy& copy : spec.follow) {
    out.line(fmt::format("{} --keep-last {} --settle 1 --once || echo 'not all checkpoints of --follow are copied' >&2",
                         follow_command(copy), spec.follow_keep));
  }
  out.line("");
}

// --- the monitor

void write_monitor(const JobSpec& spec, ScriptText& out) {
  out.line(
      "# One on every node, beside the training; a file of its own for each node and start. `millrace doctor` reads "
      "it.");
  out.line("# shellcheck disable=SC2016  # the names are the task's");
  out.line(fmt::format("{} --overlap --cpus-per-task=1 bash -c \\", kOnEachNode));
  out.line("  'csv=\"$1-$SLURMD_NODENAME-${SLURM_RESTART_COUNT:-0}.csv\"");
  if (spec.gpus_per_node == 0) {
    out.line(fmt::format("  exec millrace monitor --quiet --every {}s --csv \"$csv\"' monitor \\", spec.monitor_s));
  } else {
    out.line(fmt::format(
        "  if command -v millrace >/dev/null; then exec millrace monitor --quiet --every {}s --csv \"$csv\"; fi",
        spec.monitor_s));
    out.line(fmt::format(
        "  exec nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,temperature.gpu,power.draw "
        "--format=csv -l {} \\",
        spec.monitor_s));
    out.line("    >\"$csv\"' monitor \\");
  }
  out.line(fmt::format("  {}\"/gpu-$SLURM_JOB_ID\" &", shell_quoted(spec.log_dir)));
  out.line("monitor=$!");
}

// --- restarts

// What starts of a job leave for the next one, below the log's folder.
constexpr std::string_view kRestartState =
    R"sh(# What each start leaves for the next one. The program writes its last step to MILLRACE_PROGRESS (mr.Run does).
restarts=LOG_FOLDER"/restarts-$SLURM_JOB_ID"
export MILLRACE_PROGRESS=$restarts.step
max_restarts=MAX_RESTARTS failed=0
# The start before was cut off together with a node.
if [ -s "$restarts.on" ]; then
  sinfo -h -N -n "$(cat "$restarts.on")" -t down -o %N | sort -u >>"$restarts.nodes" || true
fi
echo "$SLURM_JOB_NODELIST" >"$restarts.on"
)sh";

void write_restart_state(const JobSpec& spec, ScriptText& out) {
  out.lines(replaced(replaced(kRestartState, "LOG_FOLDER", shell_quoted(spec.log_dir)), "MAX_RESTARTS",
                     std::to_string(spec.max_restarts)));
}

bool has_monitor(const JobSpec& spec) {
  return spec.monitor_s > 0;
}

// What is left at the end: the monitor and the folder of the ranks.
void write_beside(const JobSpec& spec, ScriptText& out) {
  if (!has_monitor(spec) && !tells(spec) && spec.follow.empty()) return;
  std::string at_end;
  if (tells(spec)) {
    out.line("# Each rank leaves its exit status here: a file RANK.STATUS with the name of its node.");
    out.line(fmt::format("export MILLRACE_RANKS={}\"/ranks-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}\"",
                         shell_quoted(spec.log_dir)));
    out.line("mkdir -p \"$MILLRACE_RANKS\"");
    out.line("late=''");
    at_end = "[ -z \"$late\" ] || kill \"$late\"; rm -rf \"$MILLRACE_RANKS\"";
    write_restart_state(spec, out);
  }
  if (has_monitor(spec)) {
    write_monitor(spec, out);
    at_end = fmt::format("kill \"$monitor\" 2>/dev/null || true{}{}", at_end.empty() ? "" : "; ", at_end);
  }
  if (const std::string end_followers = write_followers(spec, out); !end_followers.empty()) {
    at_end = fmt::format("{}{}{}", end_followers, at_end.empty() ? "" : "; ", at_end);
  }
  out.line(fmt::format("trap 'leave_end \"$?\" || true; {}' EXIT", at_end));
  out.line("");
}

// --- the ranks

constexpr std::string_view kRunRank =
    R"sh(# A rank: gives its program TERM when it gets USR1 or TERM itself, and stays until all ranks have ended, because the first
# that leaves takes the others along.
# shellcheck disable=SC2317  # called in the tasks
run_rank() {  # COMMAND...
  local child='' told=0 code=0 waited=0 all good
  trap 'told=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' USR1 TERM
  (trap '' USR1; exec "$@") &
  child=$!
  if [ -n "${MILLRACE_NODE:-}" ]; then
    : >"$MILLRACE_NODE/$$"
    [ ! -e "$MILLRACE_NODE/told" ] || told=1
  fi
  [ "$told" -eq 0 ] || kill -TERM "$child" 2>/dev/null
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done
  wait "$child" || code=$?
  echo "$SLURMD_NODENAME" >"$MILLRACE_RANKS/$RANK.$code"
  shopt -s nullglob
  while [ "$code" -eq 75 ] && [ "$waited" -lt SAVE_SECONDS ]; do
    all=("$MILLRACE_RANKS"/*.*) good=("$MILLRACE_RANKS"/*.0 "$MILLRACE_RANKS"/*.75)
    if [ "${#all[@]}" -ge "$WORLD_SIZE" ] || [ "${#all[@]}" -gt "${#good[@]}" ]; then break; fi
    sleep 1
    waited=$((waited + 1))
  done
  [ -z "${MILLRACE_NODE:-}" ] || rm -f "$MILLRACE_NODE/$$"
  return "$code"
}
export -f run_rank
)sh";

constexpr std::string_view kRunNode = R"sh(# A node: torchrun itself hears of no signal, its ranks do.
# shellcheck disable=SC2317
run_node() {  # COMMAND...
  local agent code=0
  MILLRACE_NODE=$(mktemp -d) || return
  export MILLRACE_NODE
  tell_ranks() {
    local pid
    : >"$MILLRACE_NODE/told"
    for pid in "$MILLRACE_NODE"/[0-9]*; do kill -TERM "${pid##*/}" 2>/dev/null; done
  }
  trap tell_ranks USR1 TERM
  (trap '' USR1; exec "$@") &
  agent=$!
  while kill -0 "$agent" 2>/dev/null; do wait "$agent"; done
  wait "$agent" || code=$?
  rm -rf "$MILLRACE_NODE"
  return "$code"
}
export -f run_node
)sh";

void write_rank_functions(const JobSpec& spec, ScriptText& out) {
  if (!tells(spec)) return;
  out.lines(replaced(kRunRank, "SAVE_SECONDS", std::to_string(spec.signal_s)));
  if (launcher_of(spec) == Launcher::kTorchrun) {
    out.lines(kRunNode);
    out.line(
        "# Where Slurm's own TERM reaches torchrun (cancelled, preempted), the workers have longer than 30 s, too.");
    out.line(fmt::format("export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={}", spec.signal_s));
  }
  out.line("");
}

void write_torchrun(const JobSpec& spec, ScriptText& out) {
  out.line(fmt::format("  {}torchrun --nnodes=\"$SLURM_JOB_NUM_NODES\" --nproc_per_node={} --rdzv_backend=c10d \\",
                       tells(spec) ? "bash -c 'run_node \"$@\"' node \\\n  " : "", ranks_per_node(spec)));
  out.line(
      "    --rdzv_id=\"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}\" --rdzv_endpoint=\"$MASTER_ADDR:$MASTER_PORT\" \\");
  std::string more;
  if (!spec.numa_binding.empty()) more += " --numa-binding=" + shell_quoted(spec.numa_binding);
  if (!spec.event_log_handler.empty()) more += " --event-log-handler=" + shell_quoted(spec.event_log_handler);
  if (spec.virtual_local_rank) more += " --virtual-local-rank";
  if (!more.empty()) out.line(fmt::format("   {} \\", more));
  if (tells(spec)) out.line("    --no-python bash -c 'run_rank \"$@\"' rank python3 -u \\");
}

void write_step(const JobSpec& spec, ScriptText& out) {
  const bool torchrun = launcher_of(spec) == Launcher::kTorchrun;
  if (launcher_of(spec) == Launcher::kSrun) out.line("# The ranks are known inside the tasks only.");
  if (tells(spec) || launcher_of(spec) == Launcher::kSrun) out.line("# shellcheck disable=SC2016");
  out.line(fmt::format("srun {} --kill-on-bad-exit=1{} \\", kStepCpus,
                       container_flags(spec, tells(spec) ? spec.log_dir : "")));
  const std::string_view run = tells(spec) ? "run_rank \"$@\"" : "exec \"$@\"";
  switch (launcher_of(spec)) {
    case Launcher::kTorchrun:
      write_torchrun(spec, out);
      break;
    case Launcher::kSrun:
      out.line(
          fmt::format("  bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; {}' "
                      "task \\",
                      run));
      break;
    case Launcher::kSingle:
      if (tells(spec)) out.line(fmt::format("  bash -c 'RANK=0 WORLD_SIZE=1; {}' task \\", run));
      break;
  }
  out.line(fmt::format("{}{} &", torchrun ? "    " : "  ", joined(spec.command)));
  out.line("step=$!");
  out.line("");
}

// --- the end

constexpr std::string_view kTraps = R"sh(limit=0
# shellcheck disable=SC2317  # called by the trap
before_limit() {
  limit=1
  kill -USR1 "$step" 2>/dev/null || true  # srun forwards it to the tasks; TERM would make it kill them
  # A save that takes too long, or hangs, costs the checkpoint and not the requeue.
  {
    sleep SECONDS_LEFT
    kill -0 "$$" 2>/dev/null || exit 0
    may_requeue || exit 0
    echo 'the time limit is near: requeued before all was saved'
    scontrol requeue "$SLURM_JOB_ID"
  } &
  late=$!
}
trap before_limit USR1
# shellcheck disable=SC2317
end() {  # preempted or cancelled: Slurm itself decides whether it runs again
  ended=1
  kill -USR1 "$step" 2>/dev/null || true
}
trap end TERM
)sh";

constexpr std::string_view kStatus = R"sh(
# 75 where all ranks say so, or that they are done: the program has saved its state and wants to run again. What the
# ranks of other nodes have left may take a minute to be seen here.
count() { find "$MILLRACE_RANKS" -type f "$@" | wc -l; }
for ((look = 0; look < 30 && code != 0 && limit == 0; ++look)); do
  if [ "$(count -name '*.75')" -eq 0 ] || [ "$(count)" -ge "$world" ]; then break; fi
  sleep 2
done
if [ "$(count -name '*.75')" -gt 0 ] && [ "$(count '(' -name '*.75' -o -name '*.0' ')')" -eq "$world" ]; then code=75; fi

)sh";

// A requeue before Slurm has given a dead node up would leave a job with whole nodes pending for ever (22.05).
constexpr std::string_view kDeadNode =
    R"sh(# Slurm itself requeues a job of which a node died, once it has given the node up. Before that a requeue from here can
# leave the job pending for ever (reason BadConstraints).
if [ "$code" -ne 0 ] && [ "$code" -ne 75 ] && [ "$limit" -eq 0 ] && [ "$ended" -eq 0 ] &&
  ! timeout 30 ON_EACH_NODE --overlap --cpus-per-task=1 true 2>/dev/null; then
  echo 'a node does not answer: waiting until Slurm gives it up and requeues the job'
  patience=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\).*/\1/p') || true
  sleep "$((${patience:-300} + 60))" &
  wait "$!" || true
fi

)sh";

constexpr std::string_view kMayRequeue =
    R"sh(# Whether it may run again: not when three starts in a row came no step further, or it failed too often.
may_requeue() {
  local step=-1 furthest=-1 idle=0 failures=0
  [ ! -s "$restarts" ] || read -r furthest idle failures <"$restarts"
  [ ! -s "$MILLRACE_PROGRESS" ] || step=$(cat "$MILLRACE_PROGRESS")
  if [ "$step" -gt "$furthest" ]; then furthest=$step idle=0; else idle=$((idle + 1)); fi
  [ "$failed" -eq 0 ] || failures=$((failures + 1))
  echo "$furthest $idle $failures" >"$restarts"
  if [ "$step" -ge 0 ] && [ "$idle" -ge 3 ]; then
    echo "not requeued: three starts came no step further than $furthest"
    return 1
  fi
  if [ "$failures" -gt "$max_restarts" ]; then
    echo "not requeued: it failed $failures times (--max-restarts $max_restarts)"
    return 1
  fi
}
# Nodes that failed twice are left out, once the requeue is queued.
leave_out_nodes() {
  local nodes look
  nodes=$(sort "$restarts.nodes" 2>/dev/null | uniq -d | paste -sd,) || true
  [ -n "$nodes" ] || return 0
  for ((look = 0; look < 10; ++look)); do
    if scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$nodes" 2>/dev/null; then
      echo "nodes that failed twice are left out: $nodes"
      return 0
    fi
    sleep 1
  done
  echo "nodes that failed twice could not be left out: $nodes"
}
# The node of the rank that failed first; others follow it.
note_failed_node() {
  local first
  first=$(find "$MILLRACE_RANKS" -type f -name '*.*' ! -name '*.0' ! -name '*.75' ! -name '*.143' -printf '%T@ %p\n' |
    sort -n | head -n 1 | cut -d ' ' -f 2-)
  [ -z "$first" ] || cat "$first" >>"$restarts.nodes"
}

)sh";

constexpr std::string_view kRequeue =
    R"sh([ "$ended" -eq 1 ] || rm -f "$restarts.on"
if [ "$ended" -eq 0 ] && [ "$limit" -eq 0 ] && [ "$code" -ne 0 ] && [ "$code" -ne 75 ]; then
  failed=1
  note_failed_node
fi
[ ! -s "$MILLRACE_PROGRESS" ] || last_step=$(head -n 1 "$MILLRACE_PROGRESS")
[[ $last_step =~ ^[0-9]+$ ]] || last_step=null
again=0
if [ "$ended" -eq 0 ] && [ "$code" -ne 0 ]; then
  if [ "$code" -eq 75 ] || [ "$limit" -eq 1 ] || [ "$max_restarts" -gt 0 ]; then again=1; fi
fi
if [ "$again" -eq 1 ] && may_requeue; then
  echo "requeue after exit status $code, start ${SLURM_RESTART_COUNT:-0}"
  [ "$code" -eq 75 ] || echo 'not all ranks have saved: it goes on from an older checkpoint'
  rm -rf "$MILLRACE_RANKS"
  requeued=1
  trap '' TERM  # Slurm ends what is left of this start; the nodes are named first
  scontrol requeue "$SLURM_JOB_ID"
  leave_out_nodes
  exit 0
fi
[ "$ended" -eq 1 ] || rm -f "$restarts" "$restarts".*  # a preempted job may go on
)sh";

// The batch shell's own limit: Slurm may be up to a minute early with its signal, and is never late.
int64_t seconds_left(int64_t signal_s) {
  constexpr int64_t kToRequeue = 30;
  return signal_s > 4 * kToRequeue ? signal_s - kToRequeue : std::max<int64_t>(1, signal_s * 3 / 4);
}

// A trap runs only while the shell waits, and ends the wait: so wait until the step is gone.
void write_waiting(const JobSpec& spec, ScriptText& out) {
  if (tells(spec)) {
    out.lines(kMayRequeue);
    out.lines(replaced(kTraps, "SECONDS_LEFT", std::to_string(seconds_left(spec.signal_s))));
  }
  out.line("while kill -0 \"$step\" 2>/dev/null; do wait \"$step\" || true; done");
  out.line("code=0");
  out.line("wait \"$step\" || code=$?");
  if (tells(spec)) {
    out.line(fmt::format("world=$((SLURM_JOB_NUM_NODES * {}))", ranks_per_node(spec)));
    out.lines(kStatus);
    if (spec.nodes > 1) out.lines(replaced(kDeadNode, "ON_EACH_NODE", kOnEachNode));
  }
  write_followed(spec, out);
  write_kept(spec, out);
  if (tells(spec)) out.lines(kRequeue);
  if (!spec.save.empty()) out.line("[ \"$kept\" -eq 1 ] || [ \"$code\" -ne 0 ] || code=1");
  out.line("reached=1");
  out.line("exit \"$code\"");
}

}  // namespace

void write_training(const JobSpec& spec, ScriptText& out) {
  out.lines(replaced(kLeaveEnd, "LOG_FOLDER", shell_quoted(spec.log_dir)));
  write_network(spec, out);
  if (launcher_of(spec) != Launcher::kSingle) write_rendezvous(out);
  write_staging(spec, out);
  write_keeping(spec, out);
  write_restoring(spec, out);
  write_beside(spec, out);
  write_rank_functions(spec, out);
  write_step(spec, out);
  write_waiting(spec, out);
}

}  // namespace millrace::jobs
