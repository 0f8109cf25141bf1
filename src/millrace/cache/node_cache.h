// SPDX-License-Identifier: Apache-2.0
#pragma once

// Blocks of remote objects on a disk of this node, shared by all of its processes without a daemon: of many processes
// that want a block, one downloads it. A block is checked when it is read, but for
// what this process checked before and finds in memory still (detail/slot_table.h). The disk space stays under a cap; a
// kill -9 at any moment leaves a cache that works (docs/design/cache.md; docs/format/cache.md).
//
// Thread-safe. Works in a child after a fork. REQUIRES: `directory` lies on a disk of this node.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"

namespace millrace::cache {

struct CacheOptions {
  std::string directory;
  int64_t cap_bytes = 0;            // of everything in `directory`; 0: half of what is free there or cached there
  int64_t block_bytes = 256 << 10;  // at most 256 KiB; all users of a directory have the same
  // How long processes trust what one of them saw when it opened an object: its size and version.
  std::chrono::milliseconds open_age = std::chrono::minutes(1);
};

// An object of one version, as the cache knows it.
struct CachedObject {
  Hash128 id;  // of storage, key, version and size: object_id
  int64_t size = 0;
};
Hash128 object_id(std::string_view storage, std::string_view key, std::string_view version, int64_t size);

class NodeCache {
 public:
  // Errors: unsupported (a network file system), invalid_argument (a cap that is too small), resource_exhausted,
  // permission_denied, unavailable, cancelled (by `stop`, while other processes use what has to change).
  [[nodiscard]] static Result<std::shared_ptr<NodeCache>> open(const CacheOptions& options,
                                                               const std::stop_token& stop = {});
  // The same, once for each directory and process; it stays open until the process ends.
  [[nodiscard]] static Result<std::shared_ptr<NodeCache>> of_process(const CacheOptions& options,
                                                                     const std::stop_token& stop = {});
  ~NodeCache();

  // How a call ends early, and what it counts.
  struct Call {
    std::stop_token stop;
    Clock::time_point deadline = Clock::time_point::max();
    Metrics* metrics = nullptr;  // may be null
  };

  // Fills `out` with bytes [offset, offset + out.size()) of the object: from the cache, else from `source`, of which
  // whole blocks are read. A cache that cannot be written (a full disk) costs speed, not the read. Errors: those of
  // `source`; cancelled, timeout (while another process downloads). REQUIRES: the range lies in the object.
  [[nodiscard]] Status read(const CachedObject& object, const RandomReader& source, int64_t offset,
                            std::span<std::byte> out, const Call& call);

  struct Opened {
    int64_t size = 0;
    std::string version;
  };
  // The result of `open` for an object; of the processes that ask within open_age, one calls it. Errors: those of
  // `open`; cancelled.
  [[nodiscard]] Result<Opened> open_once(std::string_view storage, std::string_view key, const Call& call,
                                         const std::function<Result<Opened>()>& open);

  // The next open_once of the object asks `open`, in every process: what they know is not true any more.
  void forget_opened(std::string_view storage, std::string_view key);

  // Serves the reads that a storage was given to do later. Most of them wait.
  Executor& threads();
  const CacheOptions& options() const;
  // The cap of all processes that have the cache open now.
  int64_t limit_bytes() const;

 private:
  struct Impl;
  explicit NodeCache(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cache
