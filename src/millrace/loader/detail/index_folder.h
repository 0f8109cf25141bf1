// SPDX-License-Identifier: Apache-2.0
#pragma once

// Indexes of shards that have none beside them, kept in a folder of this user on this node: of the processes that want
// one, one reads the shard, and the others wait for it and read what it found. Thread-safe.

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
  // user_folder(), if there is one.
  static std::optional<IndexFolder> of_user();

  // The index that `key` names (the shard, its size and version, and how it is indexed), or what `build` answers, which
  // is then kept. Errors: those of `build`; cancelled.
  using Build = std::function<Result<formats::ShardIndex>()>;
  [[nodiscard]] Result<formats::ShardIndex> get(const std::string& key, int64_t shard_size, const std::stop_token& stop,
                                                const Build& build) const;

 private:
  explicit IndexFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  const std::filesystem::path folder_;
};

}  // namespace millrace::loader
