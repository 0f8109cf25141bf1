// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps blocks of remote objects on a disk of this node. All processes of the node share them without a daemon: if
// many processes want a block, one of them downloads it. A block is checked when it is read, unless this process
// checked it before and it is still in memory (detail/slot_table.h). The disk space stays under a cap. A kill -9 at
// any moment leaves a working cache (docs/design/cache.md; docs/format/cache.md).
//
// Thread-safe. Works in a child after a fork. REQUIRES: `directory` is on a disk of this node.

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
  int64_t cap_bytes = 0;            // cap for `directory`; 0: half of its free and cached bytes together
  int64_t block_bytes = 256 << 10;  // at most 256 KiB; the same for all users of a directory
  // How long processes trust the size and version that one of them saw when it opened an object.
  std::chrono::milliseconds open_age = std::chrono::minutes(1);
};

// One version of an object, as the cache knows it.
struct CachedObject {
  Hash128 id;  // object_id() of storage, key, version and size
  int64_t size = 0;
};
Hash128 object_id(std::string_view storage, std::string_view key, std::string_view version, int64_t size);

class NodeCache {
 public:
  // Errors: unsupported (a network file system), invalid_argument (a cap that is too small), resource_exhausted,
  // permission_denied, unavailable, cancelled (by `stop`, while waiting for other processes that use the files).
  [[nodiscard]] static Result<std::shared_ptr<NodeCache>> open(const CacheOptions& options,
                                                               const std::stop_token& stop = {});
  // Opens a cache once for each directory and process. It stays open until the process ends.
  [[nodiscard]] static Result<std::shared_ptr<NodeCache>> of_process(const CacheOptions& options,
                                                                     const std::stop_token& stop = {});
  ~NodeCache();

  // The conditions that end a call early, and its counters.
  struct Call {
    std::stop_token stop;
    Clock::time_point deadline = Clock::time_point::max();
    Metrics* metrics = nullptr;  // may be null
  };

  // Fills `out` with bytes [offset, offset + out.size()) of the object: from the cache, else from `source`, in whole
  // blocks. If the cache cannot be written (a full disk), the read is slower but succeeds. Errors: those of `source`;
  // cancelled, timeout (while another process downloads). REQUIRES: the range lies in the object.
  [[nodiscard]] Status read(const CachedObject& object, const RandomReader& source, int64_t offset,
                            std::span<std::byte> out, const Call& call);

  struct Opened {
    int64_t size = 0;
    std::string version;
  };
  // Returns the result of `open` for an object. Among the processes that ask within open_age, only one calls `open`.
  // Errors: those of `open`; cancelled.
  [[nodiscard]] Result<Opened> open_once(std::string_view storage, std::string_view key, const Call& call,
                                         const std::function<Result<Opened>()>& open);

  // Makes the next open_once() of the object call `open`, in every process. Call it when the known size and version
  // are no longer true.
  void forget_opened(std::string_view storage, std::string_view key);

  // The threads for reads that were submitted to a storage. Most of these reads wait.
  Executor& threads();
  const CacheOptions& options() const;
  // Returns the cap that applies to all processes that have the cache open now.
  int64_t limit_bytes() const;

 private:
  struct Impl;
  explicit NodeCache(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::cache
