// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/commit/references.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

namespace {

// The place of a file in `before`: 0 is its own, then its sources in their order.
size_t file_of(const PartTensor& tensor) {
  return tensor.source ? *tensor.source + 1 : 0;
}

PartSource source_of(const PartRecord& part, size_t file) {
  if (file > 0) return part.sources[file - 1];
  return {.step = part.step,
          .attempt = part.attempt,
          .file_bytes = part.file_bytes,
          .data_offset = part.data_offset,
          .header_hash = part.header_hash};
}

bool is_same(const PartTensor& a, const PartTensor& b) {
  return a.bytes > 0 && a.dtype == b.dtype && a.shape == b.shape && a.box == b.box && a.hashes == b.hashes;
}

// The files that are worth it, the one with the most bytes first.
std::vector<size_t> worthy_files(const PartRecord& before, const std::map<size_t, int64_t>& bytes_of) {
  std::vector<std::pair<int64_t, size_t>> worthy;
  for (const auto& [file, bytes] : bytes_of) {
    if (bytes >= source_of(before, file).file_bytes / kLeastShareOfFile) worthy.emplace_back(-bytes, file);
  }
  std::ranges::sort(worthy);
  worthy.resize(std::min(worthy.size(), kMostSources));
  std::vector<size_t> files;
  for (const auto& [bytes, file] : worthy) files.push_back(file);
  return files;
}

}  // namespace

Referred find_unchanged(const PartRecord& now, const PartRecord& before) {
  if (!before.shares || before.step >= now.step || before.chunk_bytes != now.chunk_bytes || before.rank != now.rank ||
      before.world_size != now.world_size)
    return {};
  std::vector<std::pair<const PartTensor*, const PartTensor*>> same;
  std::map<size_t, int64_t> bytes_of;
  for (const PartTensor& tensor : now.tensors) {
    const PartTensor* const known = before.find(tensor.name);
    if (known == nullptr || !is_same(tensor, *known)) continue;
    same.emplace_back(&tensor, known);
    bytes_of[file_of(*known)] += tensor.bytes;
  }
  const std::vector<size_t> files = worthy_files(before, bytes_of);
  Referred referred;
  for (const size_t file : files) referred.sources.push_back(source_of(before, file));
  for (const auto& [tensor, known] : same) {
    const auto at = std::ranges::find(files, file_of(*known));
    if (at == files.end()) continue;
    referred.tensors.push_back(*tensor);
    referred.tensors.back().begin = known->begin;
    referred.tensors.back().source = static_cast<size_t>(at - files.begin());
  }
  return referred;
}

void add_referred(PartRecord& part, const Referred& referred) {
  part.sources = referred.sources;
  part.tensors.insert(part.tensors.end(), referred.tensors.begin(), referred.tensors.end());
  std::ranges::sort(part.tensors, {}, &PartTensor::name);
}

Status check_sources(const Location& root, const PartRecord& part) {
  for (const PartSource& source : part.sources) {
    const Location file = step_location(root, source.step).child(source.attempt).child(part.places().file(part.rank));
    const auto there = file.storage->stat(file.key);
    if (there && there->size == source.file_bytes) continue;
    if (!there && there.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(there.error());
    return fail(ErrorCode::kNotFound, "step {} refers to {}, which {}; the next save writes all", part.step, file.url,
                there ? "has another size now" : "is not there any more");
  }
  return {};
}

Result<std::shared_ptr<const PartRecord>> find_part(std::span<const Location> roots, const Ancestor& commit,
                                                    int64_t rank, int64_t world_size) {
  std::shared_ptr<const PartRecord> part;
  for (const Location& root : roots) {
    ASSIGN_OR_RETURN(const StoredManifest stored, read_manifest(root, commit.step));
    const Manifest& manifest = stored.manifest;
    if (manifest.attempt != commit.attempt || !manifest.shares || manifest.world_size() != world_size) return nullptr;
    const Location folder = step_location(root, commit.step).child(commit.attempt);
    const Location at = folder.child(manifest.places().record(rank));
    ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key, kMaxRecordBytes));
    const ManifestPart& expected = manifest.parts[static_cast<size_t>(rank)];
    if (std::ssize(text) != expected.bytes || xxh3_128(text) != expected.hash) return nullptr;
    if (!part) {
      ASSIGN_OR_RETURN(PartRecord parsed, parse_part(text, at.url));
      part = std::make_shared<const PartRecord>(std::move(parsed));
    }
    const Location file = folder.child(manifest.places().file(rank));
    ASSIGN_OR_RETURN(const ObjectInfo there, file.storage->stat(file.key));
    if (there.size != part->file_bytes || part->rank != rank) return nullptr;
    RETURN_IF_ERROR(check_sources(root, *part));
  }
  return part;
}

}  // namespace millrace::checkpoint
