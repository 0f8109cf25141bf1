// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a pickle holds, as far as it can be told without running it: no class is looked up and nothing is called. For
// torch.save's data.pkl and the .metadata of torch.distributed.checkpoint. Pure functions over bytes; thread-safe.

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
  std::map<std::string, int64_t, std::less<>> numbers;  // whole numbers in the outermost dict, by their key
  std::vector<PickledRange> ranges;
};

// Protocols 0 to 5. Errors: corruption naming `source`: cut, or no pickle.
[[nodiscard]] Result<PickleContent> read_pickle(std::string_view pickle, std::string_view source);

}  // namespace millrace::formats
