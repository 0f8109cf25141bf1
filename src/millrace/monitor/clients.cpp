// SPDX-License-Identifier: Apache-2.0
// NFS: /proc/self/mountstats, as nfs-utils' mountstats reads it. Lustre: llite.*.stats, lines of
// `name N samples [unit] min max sum`.
#include "millrace/base/io/file_text.h"
#include "millrace/monitor/counters.h"
#include "millrace/monitor/text.h"

namespace millrace::monitor {

namespace {

constexpr Series kNfsRead{"millrace_nfs_read_bytes_total", "Bytes read from the NFS server", true};
constexpr Series kNfsWritten{"millrace_nfs_written_bytes_total", "Bytes written to the NFS server", true};
constexpr Series kNfsCalls{"millrace_nfs_operations_total", "Calls to the NFS server by operation", true};
constexpr Series kNfsTime{"millrace_nfs_operation_seconds_total", "Time of these calls, with their wait in the queue",
                          true};
constexpr Series kNfsTimeouts{"millrace_nfs_timeouts_total", "Calls that the NFS server did not answer in time", true};
constexpr Series kLustreRead{"millrace_lustre_read_bytes_total", "Bytes that programs read from Lustre", true};
constexpr Series kLustreWritten{"millrace_lustre_written_bytes_total", "Bytes that programs wrote to Lustre", true};
constexpr Series kLustreCalls{"millrace_lustre_operations_total", "Calls of Lustre's client by operation", true};

void add_nfs_line(std::string_view line, const std::string& mount, Sample& sample) {
  const auto words = words_of(line);
  if (words.size() < 9) return;
  const auto number = [&](size_t at) { return to_number(words[at]).value_or(0); };
  if (words[0] == "bytes:") {
    sample.add(kNfsRead, number(5), {{"mount", mount}});
    sample.add(kNfsWritten, number(6), {{"mount", mount}});
    return;
  }
  for (const char* operation : {"READ", "WRITE", "GETATTR", "LOOKUP", "OPEN", "COMMIT", "CREATE", "REMOVE"}) {
    if (words[0] != std::string(operation) + ":") continue;
    sample.add(kNfsCalls, number(1), {{"mount", mount}, {"operation", operation}});
    sample.add(kNfsTime, number(8) / 1e3, {{"mount", mount}, {"operation", operation}});
    sample.add(kNfsTimeouts, number(3), {{"mount", mount}, {"operation", operation}});
  }
}

void read_nfs(const Roots& roots, Sample& sample) {
  const auto text = read_text(roots.proc / "self/mountstats");
  if (!text) return;
  std::string mount;
  for (const std::string_view line : lines_of(*text)) {
    if (line.starts_with("device ")) {
      const auto words = words_of(line);  // device SERVER mounted on FOLDER with fstype nfs4 ...
      const bool is_nfs = words.size() >= 8 && words[7].starts_with("nfs");
      mount = is_nfs ? std::string(words[4]) : std::string();
    } else if (!mount.empty()) {
      add_nfs_line(line, mount, sample);
    }
  }
}

void read_lustre_mount(const std::filesystem::path& file, const std::string& target, Sample& sample) {
  const auto text = read_text(file);
  if (!text) return;
  for (const std::string_view line : lines_of(*text)) {
    const auto words = words_of(line);
    if (words.size() < 3 || words[2] != "samples") continue;
    if (const auto calls = to_number(words[1])) {
      sample.add(kLustreCalls, *calls, {{"target", target}, {"operation", std::string(words[0])}});
    }
    if (words.size() < 7) continue;
    const auto sum = to_number(words[6]);
    if (sum && words[0] == "read_bytes") sample.add(kLustreRead, *sum, {{"target", target}});
    if (sum && words[0] == "write_bytes") sample.add(kLustreWritten, *sum, {{"target", target}});
  }
}

// Newer clients show the counters in debugfs, which only root reads.
void read_lustre(const Roots& roots, Sample& sample) {
  for (const auto& folder : {roots.sys / "kernel/debug/lustre/llite", roots.proc / "fs/lustre/llite"}) {
    const auto targets = names_in(folder);
    for (const std::string& target : targets) read_lustre_mount(folder / target / "stats", target, sample);
    if (!targets.empty()) return;
  }
  if (!names_in(roots.sys / "fs/lustre/llite").empty()) {
    sample.missing.push_back("Lustre: its counters are in debugfs, which only root can read");
  }
}

}  // namespace

void read_clients(const Roots& roots, Sample& sample) {
  read_nfs(roots, sample);
  read_lustre(roots, sample);
}

}  // namespace millrace::monitor
