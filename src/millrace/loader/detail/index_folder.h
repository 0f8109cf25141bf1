// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps indexes of shards that have none beside them, in a folder of this user on this node. When several processes
// want the same index, one of them reads the shard; the others wait and read the index that it wrote. Thread-safe.

#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::loader {

class IndexFolder {
 public:
  // Returns the IndexFolder in user_folder(), if there is one.
  static std::optional<IndexFolder> of_user();

  // Returns the index that `key` names (the shard, its size and version, and how it is indexed). If there is none yet,
  // calls `build` and keeps the result. Errors: those of `build`; cancelled.
  using Build = std::function<Result<formats::ShardIndex>()>;
  [[nodiscard]] Result<formats::ShardIndex> get(const std::string& key, int64_t shard_size, const std::stop_token& stop,
                                                const Build& build) const;

 private:
  explicit IndexFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  const std::filesystem::path folder_;
};

}  // namespace millrace::loader
