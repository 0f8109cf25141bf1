// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a pickle as far as possible without running it: looks up no class and calls nothing. For torch.save's data.pkl
// and the .metadata of torch.distributed.checkpoint. Pure functions over bytes; thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::formats {

// Bytes [offset, offset + length) of a file of a torch.distributed checkpoint (_StorageInfo).
struct PickledRange {
  std::string file;
  int64_t offset = 0;
  int64_t length = 0;
};

struct PickleContent {
  std::map<std::string, int64_t, std::less<>> numbers;  // integers in the outermost dict, by key
  std::vector<PickledRange> ranges;
};

// Reads a pickle of protocol 0 to 5. Errors: corruption naming `source` (cut, or not a pickle).
[[nodiscard]] Result<PickleContent> read_pickle(std::string_view pickle, std::string_view source);

}  // namespace millrace::formats
