// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two JSON documents of a checkpoint, in memory and as text (docs/format/checkpoint.md). Each carries a hash of its
// own text, so a parser sees only bytes that were written. Values; thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

// Bytes that one hash covers in files that this build writes. A loaded chunk of this size is still in the processor's
// cache when it is hashed and copied. The 35 bytes of JSON for each chunk are negligible.
inline constexpr int64_t kChunkBytes = 4 << 20;
inline constexpr int64_t kMaxChunkBytes = 16 << 20;    // in files of earlier builds
inline constexpr int64_t kMaxRecordBytes = 1LL << 30;  // most bytes of a part record or manifest
inline constexpr int64_t kMaxWorldSize = 1'000'000;

// A file of an earlier step that holds tensors of a part. The same rank wrote it, with the same number of ranks.
struct PartSource {
  int64_t step = 0;
  std::string attempt;
  int64_t file_bytes = 0;
  int64_t data_offset = 0;
  Hash128 header_hash;
};

// One tensor's box in a rank's file.
struct PartTensor {
  std::string name;
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<int64_t> shape;  // global
  Box box;
  int64_t begin = 0;  // in the file's data buffer
  int64_t bytes = 0;
  std::vector<Hash128> hashes;     // one for each chunk of chunk_bytes; the last may be shorter
  std::optional<size_t> source{};  // index in PartRecord::sources; nullopt: the part's own file
};

struct PartRecord {
  int64_t step = 0;
  std::string attempt;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t file_bytes = 0;
  int64_t data_offset = 0;  // where the file's data buffer starts
  Hash128 header_hash;      // hash of the file's bytes [0, data_offset)
  int64_t chunk_bytes = kChunkBytes;
  std::vector<PartTensor> tensors;  // by name
  std::string state;
  bool in_folders = false;  // same as in the manifest
  bool shares = false;      // same as in the manifest
  std::vector<PartSource> sources;

  RankPlaces places() const { return {world_size, in_folders}; }
  const PartTensor* find(std::string_view name) const;
  int64_t referred_bytes() const;  // bytes of tensors in other steps' files
};
std::string serialize(const PartRecord& part);
// Errors: corruption naming `source` and the reason; unsupported (version).
[[nodiscard]] Result<PartRecord> parse_part(std::string_view text, std::string_view source);

// A part as its rank wrote it.
struct WrittenRecord {
  PartRecord part;
  std::string text;
};

// Returns the steps of `sources`, each once, ascending.
std::vector<Ancestor> bases_of(std::span<const PartSource> sources);

struct ManifestPart {
  int64_t bytes = 0;       // size of the part record
  Hash128 hash;            // hash of the part record's text
  int64_t file_bytes = 0;  // size of the safetensors file
  int64_t referred_bytes = 0;
};

struct StoredBox {
  int64_t part = 0;
  Box box;
};
struct ManifestTensor {
  StoredTensor tensor;
  std::vector<StoredBox> boxes;  // by part, at most one box per part

  const StoredBox* find_box(int64_t part) const;
};

struct Manifest {
  int64_t step = 0;
  std::string attempt;
  std::chrono::sys_time<std::chrono::nanoseconds> created{};
  std::vector<ManifestPart> parts;      // one per rank, in order
  std::vector<ManifestTensor> tensors;  // by name
  std::string state;
  StepMetrics metrics;
  std::optional<Lineage> line;       // nullopt: the manifest does not say
  std::optional<StepWriter> writer;  // nullopt: the manifest does not say
  bool in_folders = false;           // RankPlaces::in_folders: format version 2
  // Format version 3: tensors may be in files of earlier steps, and files of this step may hold tensors of later
  // steps.
  bool shares = false;
  std::vector<Ancestor> bases;  // steps whose files the parts refer to, ascending

  int64_t world_size() const { return static_cast<int64_t>(parts.size()); }
  RankPlaces places() const { return {world_size(), in_folders}; }
};
StepInfo step_info(const Manifest& manifest);
std::string serialize(const Manifest& manifest);
// Parses the text and checks everything except the tiling. Errors: corruption naming `source` and the reason;
// unsupported (version).
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, std::string_view source);

// Checks that the boxes tile the tensor. Errors: corruption naming the tensor.
[[nodiscard]] Status check_tiling(const ManifestTensor& tensor);

// A committed manifest and the version of its object.
struct StoredManifest {
  Manifest manifest;
  std::string version;  // version of the manifest's object
};
// Reads the manifest of `step`. Errors: not_found, those of parse_manifest, those of storage; corruption when the
// manifest is another step's.
[[nodiscard]] Result<StoredManifest> read_manifest(const Location& root, int64_t step);

}  // namespace millrace::checkpoint
