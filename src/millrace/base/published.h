// SPDX-License-Identifier: Apache-2.0
#pragma once

// Publishes numbers of the loaders and checkpointers of a process while it runs: one page in a file that the process
// maps, without a socket, a lock or a thread (docs/format/published.md). The first number creates the file, and the
// end of the process removes it. After a kill the file stays: readers see that its process is gone, and the next
// process that begins removes the file. If no file can be made, the numbers stay in memory. Thread-safe; a forked
// child has its own file.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace {

enum class Published : int {
  kBatches,
  kSamples,
  kTokens,
  kReadBytes,
  kWaitNs,
  kQueueBatches,
  kLastBatchNs,
  kSaves,
  kStallNs,
  kWriteBytes,
  kSavesUnderWay,
  kUnwrittenBytes,
  kLastSaveNs,
  kLinks,
  kLinkSinceNs,
  kCount,
};

struct PublishedDef {
  std::string_view name;  // at most 23 bytes; readers find the number by its name
  std::string_view unit;  // "1", "bytes", "ns"
  bool grows = false;     // a counter, which begins at 0; false: a current value
  std::string_view help;
};
// The table, indexed by Published.
std::span<const PublishedDef> published_defs();

// Publishes a number. A call takes a few nanoseconds. The first call of a process creates the file.
void publish_add(Published row, int64_t amount);
void publish_set(Published row, int64_t value);
void publish_now(Published row);  // nanoseconds since 1970

// The published numbers of one process.
struct PublishedProcess {
  std::string path;
  pid_t pid = 0;
  int64_t begun_ns = 0;  // when the file was made, since 1970
  int rank = -1;         // RANK or SLURM_PROCID; -1: none
  int world_size = 0;    // WORLD_SIZE or SLURM_NTASKS; 0: unknown
  std::map<std::string, int64_t, std::less<>> values;

  int64_t value(Published row) const;  // 0 where the process does not show it
};

// Reads a file of published numbers. Errors: corruption (another kind of file, or a torn one), unsupported (a newer
// version).
[[nodiscard]] Result<PublishedProcess> read_published_file(const std::string& path);

// Returns the folders with files of published numbers: the user's own, or for root those of all users. If
// MILLRACE_RUNTIME_DIR is set, it names the only folder; if it is empty, there is none.
std::vector<std::string> published_folders();

// Reads the numbers of this node's live processes, sorted by pid. Skips files that cannot be read; `newer` counts the
// skipped files of a newer version.
std::vector<PublishedProcess> read_published(std::span<const std::string> folders, int* newer = nullptr);

}  // namespace millrace
