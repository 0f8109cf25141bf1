// SPDX-License-Identifier: Apache-2.0
#pragma once

// The zip archives that torch.save writes, also those above 4 GiB (ZIP64): whether one is whole by its size, and its
// small members. Tensors are not read. Pure functions over a reader; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

struct TorchZipMember {
  std::string name;     // "archive/data.pkl"
  int64_t at = 0;       // of its local header in the file
  int64_t size = 0;     // as it lies there
  bool stored = false;  // not packed
};

// Reads the archive's directory, which its writer writes last, and holds it against the file's size. Errors: corruption
// naming file and reason (no archive, cut, zeros where the directory should be), those of read_at.
[[nodiscard]] Result<std::vector<TorchZipMember>> read_torch_zip(const RandomReader& file);

// The pickle of an archive of torch.save. Errors: not_found (it has none), unsupported (packed), resource_exhausted
// (above `limit_bytes`), corruption, those of read_at.
[[nodiscard]] Result<std::string> read_torch_pickle(const RandomReader& file,
                                                    const std::vector<TorchZipMember>& members,
                                                    int64_t limit_bytes = 64 << 20);

}  // namespace millrace::formats
