// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which tensors of a save are not written again, because a file of an earlier step has them. Free functions;
// thread-safe.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// A part refers to an eighth of a file at least: the whole file stays for it.
inline constexpr int64_t kLeastShareOfFile = 8;
// The most files that one part refers to. A load opens each of them.
inline constexpr size_t kMostSources = 16;

struct Referred {
  std::vector<PartSource> sources;
  std::vector<PartTensor> tensors;  // with their `source`
};

// The tensors of `now` that `before` has with the same bytes, by their hashes, and the files that have them. No source
// is itself a reference: `before` says where the bytes are. Pure.
Referred find_unchanged(const PartRecord& now, const PartRecord& before);

// The record of a part that was written without `referred`. Pure.
void add_referred(PartRecord& part, const Referred& referred);

// Whether the files that the part refers to lie below `root` as they were written, by their sizes. Errors: not_found
// naming the first that does not, those of storage.
[[nodiscard]] Status check_sources(const Location& root, const PartRecord& part);

// This rank's part of a commit, if later steps may refer to it and each of `roots` has it: the record by its hash, its
// file and the files that it refers to by their sizes. Else nullptr. Errors: those of reading.
[[nodiscard]] Result<std::shared_ptr<const PartRecord>> find_part(std::span<const Location> roots,
                                                                  const Ancestor& commit, int64_t rank,
                                                                  int64_t world_size);

}  // namespace millrace::checkpoint
