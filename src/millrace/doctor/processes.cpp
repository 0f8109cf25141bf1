// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <set>
#include <thread>

#include "millrace/base/command.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/doctor/facts.h"
#include "millrace/monitor/text.h"

namespace millrace::doctor {

namespace {

namespace fs = std::filesystem;
using monitor::names_in;

struct ProcStat {
  char state = '?';
  pid_t parent = 0;
  double cpu_s = 0;
};

// /proc/PID/stat: the name stands in brackets and may hold anything.
std::optional<ProcStat> read_stat(const fs::path& folder) {
  const auto text = read_text(folder / "stat");
  if (!text) return std::nullopt;
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const auto words = monitor::words_of(std::string_view(*text).substr(name_end + 1));
  constexpr size_t kUser = 11, kSystem = 12;  // behind the name
  if (words.size() <= kSystem || words[0].empty()) return std::nullopt;
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcStat stat;
  stat.state = words[0][0];
  stat.parent = static_cast<pid_t>(parse_whole(words[1]).value_or(0));
  stat.cpu_s = (monitor::to_number(words[kUser]).value_or(0) + monitor::to_number(words[kSystem]).value_or(0)) / ticks;
  return stat;
}

std::vector<pid_t> all_pids(const std::string& proc) {
  std::vector<pid_t> pids;
  for (const std::string& name : names_in(proc)) {
    if (const auto pid = parse_whole(name)) pids.push_back(static_cast<pid_t>(*pid));
  }
  return pids;
}

// The value of a variable in the environment that the process was started with.
std::string variable_of(const fs::path& folder, const std::string& name) {
  const auto text = read_text(folder / "environ");
  if (!text) return {};
  std::string_view rest = *text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view entry = rest.substr(0, end);
    if (entry.starts_with(name + "=")) return std::string(entry.substr(name.size() + 1));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

std::string command_of(const fs::path& folder) {
  std::string text = read_text(folder / "cmdline").value_or("");
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\0' || c == '\n'; }, ' ');
  constexpr size_t kLongest = 120;
  return text.substr(0, std::min(text.find_last_not_of(' ') + 1, kLongest));
}

// A tool on PATH, or beside this program.
std::string tool_named(const std::string& name) {
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  return !error && access(beside.c_str(), X_OK) == 0 ? beside.string() : name;
}

constexpr size_t kMostFrames = 12;

// The frames of the thread that py-spy names first (the main one), the innermost first.
std::string frames_of_spy(const std::string& out) {
  std::string frames;
  size_t count = 0;
  bool in_thread = false;  // before it the command stands, which may have several lines
  for (const std::string_view line : monitor::lines_of(out)) {
    if (line.starts_with("Thread ") && in_thread) break;
    in_thread = in_thread || line.starts_with("Thread ");
    if (!in_thread || !line.starts_with("    ") || ++count > kMostFrames) continue;
    frames += (frames.empty() ? "" : " < ") + std::string(line.substr(4));
  }
  return frames;
}

// "#0  0x... in read () from /lib/libc.so.6" of gdb's last thread, which is the main one.
std::string frames_of_gdb(const std::string& out) {
  std::string frames;
  size_t count = 0;
  for (const std::string_view line : monitor::lines_of(out)) {
    if (line.starts_with("Thread ")) frames.clear(), count = 0;
    if (!line.starts_with("#") || ++count > kMostFrames) continue;
    const size_t name = line.find(" in ");
    const size_t begin = name == std::string_view::npos ? std::min(line.find(' '), line.size()) : name + 4;
    const std::string_view frame = line.substr(begin);
    frames += (frames.empty() ? "" : " < ") + std::string(frame.substr(0, frame.find(" (")));
  }
  return frames;
}

// Stopped processes can be looked at with --nonblocking only, and others are not held up by it.
void add_stack(ProcessFacts& process, const std::stop_token& stop) {
  constexpr std::chrono::seconds kLimit{10};
  const std::string pid = std::to_string(process.pid);
  const auto spy = run_command({tool_named("py-spy"), "dump", "--nonblocking", "--pid", pid}, kLimit, stop);
  if (spy && spy->ok) process.stack = frames_of_spy(spy->out);
  if (!process.stack.empty()) return;
  const auto gdb = run_command({"gdb", "-p", pid, "-batch", "-nx", "-ex", "thread apply all bt 12"}, kLimit, stop);
  if (gdb && gdb->ok) process.stack = frames_of_gdb(gdb->out);
  if (!process.stack.empty()) return;
  const bool has_tool = spy || gdb || spy.error().code() != ErrorCode::kNotFound;
  process.no_stack = has_tool ? "py-spy and gdb may not look at it (root, or ptrace_scope 0, is needed)"
                              : "neither py-spy nor gdb is installed";
}

}  // namespace

Result<std::vector<ProcessFacts>> watch_processes(std::span<const pid_t> pids, const WatchOptions& options,
                                                  const std::stop_token& stop) {
  const fs::path proc = options.proc;
  std::set<pid_t> wanted(pids.begin(), pids.end());
  std::map<pid_t, pid_t> parents;
  for (const pid_t pid : all_pids(options.proc)) {
    if (const auto stat = read_stat(proc / std::to_string(pid))) parents[pid] = stat->parent;
  }
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [pid, parent] : parents) {
      if (wanted.contains(parent) && wanted.insert(pid).second) grew = true;
    }
  }
  std::vector<ProcessFacts> processes;
  std::map<pid_t, double> first_cpu;
  std::map<std::string, PublishedProcess> first_shown;
  for (auto& process : read_published(options.published)) first_shown[process.path] = std::move(process);
  const Clock::time_point shown = Clock::now();
  const Clock::time_point begun = Clock::now();
  const auto pause = std::chrono::duration_cast<Clock::duration>(options.watch) / std::max(1, options.looks - 1);
  for (int look = 0; look < options.looks; ++look) {
    if (look > 0 && !sleep_until(Clock::now() + pause, stop)) {
      return fail(ErrorCode::kCancelled, "stopped while watching processes");
    }
    for (const pid_t pid : wanted) {
      const auto stat = read_stat(proc / std::to_string(pid));
      if (!stat) continue;
      auto found = std::find_if(processes.begin(), processes.end(), [&](const auto& each) { return each.pid == pid; });
      if (found == processes.end()) {
        if (look > 0) continue;
        processes.push_back({.pid = pid, .parent = stat->parent});
        found = processes.end() - 1;
        first_cpu[pid] = stat->cpu_s;
      }
      found->states += stat->state;
      found->cpu_s = stat->cpu_s - first_cpu[pid];
      found->watched_s = std::chrono::duration<double>(Clock::now() - begun).count();
    }
  }
  const double shown_s = std::chrono::duration<double>(Clock::now() - shown).count();
  for (auto& last : read_published(options.published)) {
    const auto found = std::ranges::find(processes, last.pid, &ProcessFacts::pid);
    const auto first = first_shown.find(last.path);
    if (found == processes.end() || first == first_shown.end()) continue;
    found->rank = last.rank;
    found->shown_s = shown_s;
    found->shown_first = std::move(first->second);
    found->shown = std::move(last);
  }
  // One that ended meanwhile, or has, tells nothing.
  std::erase_if(processes, [&](const ProcessFacts& each) {
    return static_cast<int>(each.states.size()) < options.looks || each.states.find('Z') != std::string::npos;
  });
  for (ProcessFacts& process : processes) {
    const fs::path folder = proc / std::to_string(process.pid);
    process.wait = read_text(folder / "wchan").value_or("");
    if (process.wait == "0") process.wait.clear();
    // Memory of a process that hangs in the kernel may be locked, and reading its command would hang too.
    if (process.states.back() == 'D') continue;
    process.command = command_of(folder);
    for (const char* name : {"RANK", "SLURM_PROCID"}) {
      const auto rank = parse_whole(variable_of(folder, name));
      if (rank && process.rank < 0) process.rank = static_cast<int>(*rank);
    }
    if (options.stacks) add_stack(process, stop);
  }
  return processes;
}

std::vector<pid_t> processes_of_record(const std::string& folder, const std::string& proc) {
  std::error_code error;
  const std::string prefix = fs::weakly_canonical(folder, error).string() + "/";
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids(proc)) {
    const fs::path open_files = fs::path(proc) / std::to_string(pid) / "fd";
    for (const std::string& name : names_in(open_files)) {
      const std::string target = fs::read_symlink(open_files / name, error).string();
      if (error || !target.starts_with(prefix) || !target.ends_with(".run.jsonl")) continue;
      found.push_back(pid);
      break;
    }
  }
  return found;
}

std::vector<pid_t> processes_of_job(const std::string& job, const std::string& proc) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids(proc)) {
    const fs::path folder = fs::path(proc) / std::to_string(pid);
    const auto stat = read_stat(folder);
    if (stat && stat->state != 'D' && pid != getpid() && variable_of(folder, "SLURM_JOB_ID") == job) {
      found.push_back(pid);
    }
  }
  return found;
}

Result<MountFacts> read_mount(const std::string& path) {
  struct statvfs figures{};
  if (statvfs(path.c_str(), &figures) != 0) return tl::unexpected(errno_error(errno, "statvfs " + path));
  const double block = static_cast<double>(figures.f_frsize);
  return MountFacts{.path = path,
                    .bytes = static_cast<double>(figures.f_blocks) * block,
                    .free_bytes = static_cast<double>(figures.f_bavail) * block,
                    .files = static_cast<double>(figures.f_files),
                    .free_files = static_cast<double>(figures.f_favail)};
}

}  // namespace millrace::doctor
