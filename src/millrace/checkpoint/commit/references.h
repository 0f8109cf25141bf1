// SPDX-License-Identifier: Apache-2.0
#pragma once

// Chooses the tensors of a save that are not written again, because a file of an earlier step has them. Free
// functions; thread-safe.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// A part refers to a file only for at least an eighth of its bytes, because the reference keeps the whole file.
inline constexpr int64_t kLeastShareOfFile = 8;
// The most files that one part refers to. A load opens each of them.
inline constexpr size_t kMostSources = 16;

struct Referred {
  std::vector<PartSource> sources;
  std::vector<PartTensor> tensors;  // with their `source`
};

// Finds the tensors of `now` that `before` has with the same bytes (by hash), and the files that hold them. Each
// source is the file with the bytes, never a part that refers to another file. Pure.
Referred find_unchanged(const PartRecord& now, const PartRecord& before);

// Adds the `referred` tensors to the record of a part that was written without them. Pure.
void add_referred(PartRecord& part, const Referred& referred);

// Checks that the files that the part refers to exist below `root` with the sizes they were written with. Errors:
// not_found naming the first that does not, those of storage.
[[nodiscard]] Status check_sources(const Location& root, const PartRecord& part);

// Returns the part of `rank` in a commit, if later steps may refer to it and each of `roots` has it; else nullptr.
// Checks the record by its hash, and its file and the files that it refers to by their sizes. Errors: those of
// reading.
[[nodiscard]] Result<std::shared_ptr<const PartRecord>> find_part(std::span<const Location> roots,
                                                                  const Ancestor& commit, int64_t rank,
                                                                  int64_t world_size);

}  // namespace millrace::checkpoint
