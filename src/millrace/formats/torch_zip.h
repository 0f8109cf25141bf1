// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the zip archives that torch.save writes, including those above 4 GiB (ZIP64): checks by the size whether an
// archive is whole, and reads small members. Does not read tensors. Pure functions over a reader; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

struct TorchZipMember {
  std::string name;     // "archive/data.pkl"
  int64_t at = 0;       // offset of its local header in the file
  int64_t size = 0;     // stored size
  bool stored = false;  // not compressed
};

// Reads the archive's directory, which the writer writes last, and checks it against the file's size. Errors:
// corruption naming file and reason (no archive, cut, zeros where the directory should be), those of read_at.
[[nodiscard]] Result<std::vector<TorchZipMember>> read_torch_zip(const RandomReader& file);

// Reads the pickle in an archive of torch.save. Errors: not_found (the archive has none), unsupported (compressed),
// resource_exhausted (above `limit_bytes`), corruption, those of read_at.
[[nodiscard]] Result<std::string> read_torch_pickle(const RandomReader& file,
                                                    const std::vector<TorchZipMember>& members,
                                                    int64_t limit_bytes = 64 << 20);

}  // namespace millrace::formats
