// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "millrace/base/executor.h"
#include "millrace/base/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/boxes.h"
#include "millrace/checkpoint/detail/chunk_reader.h"
#include "millrace/checkpoint/detail/first_error.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/records.h"

namespace millrace::checkpoint {

namespace {

constexpr int kMaxLoadThreads = 8;

int executor_threads(int threads) {
  const int wanted = threads > 0 ? threads : std::min(available_cpus(), kMaxLoadThreads);
  return std::max(wanted - 1, 1);  // parallel_for's caller is one more
}

// A part that a load or a verification reads from.
struct OpenPart {
  std::shared_ptr<const PartRecord> record;
  std::unique_ptr<RandomReader> file;
};

void add_chunks(std::vector<ChunkRead>& chunks, const OpenPart& part, const PartTensor& tensor, std::byte* out,
                size_t tag, const BoxCopy* needed) {
  for (size_t i = 0; i < tensor.hashes.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * part.record->chunk_bytes;
    const int64_t end = std::min(begin + part.record->chunk_bytes, tensor.bytes);
    if (needed != nullptr && !needed->touches(begin, end)) continue;
    chunks.push_back({.file = part.file.get(),
                      .tensor = tensor.name,
                      .offset = part.record->data_offset + tensor.begin + begin,
                      .bytes = end - begin,
                      .hash = tensor.hashes[i],
                      .out = out == nullptr ? nullptr : out + begin,
                      .tag = tag});
  }
}

// What lies in one stored box and is wanted in one target.
struct Piece {
  const TensorToLoad* target = nullptr;
  const ManifestTensor* tensor = nullptr;
  const StoredBox* stored = nullptr;
  Box common;
};

// How the bytes of a chunk that does not go straight to its target get there.
struct Scatter {
  BoxCopy copy;
  int64_t tensor_offset = 0;  // of the stored box, in the file
  std::byte* target = nullptr;
};

class StoredCheckpoint final : public Checkpoint {
 public:
  StoredCheckpoint(const Location& root, Manifest manifest)
      : manifest_(std::move(manifest)),
        info_(step_info(manifest_)),
        directory_(step_location(root, manifest_.step).child(manifest_.attempt)),
        boxes_of_part_(manifest_.parts.size()) {
    for (const ManifestTensor& tensor : manifest_.tensors) {
      tensors_.push_back(tensor.tensor);
      for (const StoredBox& box : tensor.boxes) ++boxes_of_part_[static_cast<size_t>(box.part)];
    }
  }

  const StepInfo& info() const override { return info_; }
  std::span<const StoredTensor> tensors() const override { return tensors_; }
  const StoredTensor* find(std::string_view name) const override {
    const ManifestTensor* tensor = find_tensor(name);
    return tensor == nullptr ? nullptr : &tensor->tensor;
  }
  const std::string& state() const override { return manifest_.state; }

  [[nodiscard]] Result<std::optional<std::string>> rank_state(int64_t rank) const override {
    if (rank < 0 || rank >= manifest_.world_size()) return std::nullopt;
    ASSIGN_OR_RETURN(const auto record, part_record(rank));
    return record->state;
  }

  [[nodiscard]] Status load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop,
                            Progress* progress) const override;
  [[nodiscard]] Status verify(int threads, std::stop_token stop, Progress* progress,
                              const std::function<void(const Error&)>& found) const override;

 private:
  const ManifestTensor* find_tensor(std::string_view name) const {
    const auto it = std::lower_bound(manifest_.tensors.begin(), manifest_.tensors.end(), name,
                                     [](const ManifestTensor& t, std::string_view key) { return t.tensor.name < key; });
    return it == manifest_.tensors.end() || it->tensor.name != name ? nullptr : &*it;
  }

  // The record of a part, read and held against the manifest at its first use.
  Result<std::shared_ptr<const PartRecord>> part_record(int64_t rank) const;
  Result<OpenPart> open_part(int64_t rank) const;
  // Opens `parts` side by side.
  Status open_parts(std::map<int64_t, OpenPart>& parts, Executor& executor) const;
  Status check_part_tensors(const PartRecord& record) const;
  // Holds the header of a rank's file against its record.
  Status check_header(const OpenPart& part) const;

  Status find_pieces(const TensorToLoad& target, std::vector<Piece>& pieces) const;
  Status plan_piece(const Piece& piece, const OpenPart& part, std::vector<ChunkRead>& chunks,
                    std::deque<Scatter>& scatters) const;

  std::string part_name(int64_t rank) const { return part_record_name(rank, manifest_.world_size()); }

  const Manifest manifest_;
  const StepInfo info_;
  const Location directory_;
  std::vector<StoredTensor> tensors_;
  std::vector<size_t> boxes_of_part_;
  mutable Mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const PartRecord>> records_ GUARDED_BY(mutex_);
};

Result<std::shared_ptr<const PartRecord>> StoredCheckpoint::part_record(int64_t rank) const {
  {
    MutexLock lock(mutex_);
    if (const auto known = records_.find(rank); known != records_.end()) return known->second;
  }
  const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
  const Location at = directory_.child(part_name(rank));
  auto text = read_object(*at.storage, at.key, kMaxRecordBytes);
  if (!text && text.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kCorruption, "{}: the manifest names it, and it is not there", at.key);
  if (!text) return tl::unexpected<Error>(std::move(text).error());
  if (static_cast<int64_t>(text->size()) != expected.bytes || xxh3_128(*text) != expected.hash)
    return fail(ErrorCode::kCorruption, "{}: its {} bytes do not match size and hash in the manifest", at.key,
                text->size());
  ASSIGN_OR_RETURN(PartRecord part, parse_part(*text, at.key));
  if (part.step != manifest_.step || part.attempt != manifest_.attempt || part.rank != rank ||
      part.world_size != manifest_.world_size() || part.file_bytes != expected.file_bytes)
    return fail(ErrorCode::kCorruption, "{}: it is not the part that the manifest names", at.key);
  RETURN_IF_ERROR(check_part_tensors(part));
  MutexLock lock(mutex_);
  return records_.try_emplace(rank, std::make_shared<const PartRecord>(std::move(part))).first->second;
}

// Both tables must tell the same: every box of the part is in the manifest, and the manifest has no other for this
// part.
Status StoredCheckpoint::check_part_tensors(const PartRecord& record) const {
  const std::string key = directory_.child(part_name(record.rank)).key;
  for (const PartTensor& tensor : record.tensors) {
    const ManifestTensor* known = find_tensor(tensor.name);
    const StoredBox* box = known == nullptr ? nullptr : known->find_box(record.rank);
    if (box == nullptr || box->box != tensor.box || known->tensor.dtype != tensor.dtype ||
        known->tensor.shape != tensor.shape)
      return fail(ErrorCode::kCorruption, "{}: tensor '{}' is not in the manifest, or not as here", key, tensor.name);
  }
  if (record.tensors.size() != boxes_of_part_[static_cast<size_t>(record.rank)])
    return fail(ErrorCode::kCorruption, "{}: the manifest has more tensors of this part", key);
  return {};
}

Result<OpenPart> StoredCheckpoint::open_part(int64_t rank) const {
  ASSIGN_OR_RETURN(auto record, part_record(rank));
  const Location at = directory_.child(rank_file_name(rank, manifest_.world_size()));
  auto file = at.storage->open_read(at.key);
  if (!file && file.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kCorruption, "{}: the manifest names it, and it is not there", at.key);
  if (!file) return tl::unexpected<Error>(std::move(file).error());
  if ((*file)->size() != record->file_bytes)
    return fail(ErrorCode::kCorruption, "{}: it has {} bytes, {} were written", at.key, (*file)->size(),
                record->file_bytes);
  return OpenPart{std::move(record), std::move(*file)};
}

Status StoredCheckpoint::open_parts(std::map<int64_t, OpenPart>& parts, Executor& executor) const {
  std::vector<std::pair<const int64_t, OpenPart>*> list;
  for (auto& part : parts) list.push_back(&part);
  FirstError error;
  parallel_for(executor, static_cast<int64_t>(list.size()), [&](int64_t i) {
    if (error.failed()) return;
    auto& [rank, part] = *list[static_cast<size_t>(i)];
    auto opened = open_part(rank);
    if (!opened) return error.set(std::move(opened).error());
    part = std::move(*opened);
  });
  return error.status();
}

Status StoredCheckpoint::find_pieces(const TensorToLoad& target, std::vector<Piece>& pieces) const {
  const ManifestTensor* tensor = find_tensor(target.name);
  if (tensor == nullptr)
    return fail(ErrorCode::kNotFound, "load step {}: no tensor '{}' in it", manifest_.step, target.name);
  if (auto inside = check_inside(target.box, tensor->tensor.shape); !inside)
    return fail(ErrorCode::kInvalidArgument, "load step {}: tensor '{}': {}", manifest_.step, target.name,
                inside.error().message());
  const int64_t elements = volume(target.box.shape);
  if (elements == 0) return {};
  if (target.data == nullptr)
    return fail(ErrorCode::kInvalidArgument, "load step {}: tensor '{}' has nowhere to go", manifest_.step,
                target.name);
  for (const StoredBox& stored : tensor->boxes) {
    const bool empty = std::find(stored.box.shape.begin(), stored.box.shape.end(), 0) != stored.box.shape.end();
    if (auto common = empty ? std::nullopt : intersect(stored.box, target.box))
      pieces.push_back({&target, tensor, &stored, std::move(*common)});
  }
  return {};
}

Status StoredCheckpoint::plan_piece(const Piece& piece, const OpenPart& part, std::vector<ChunkRead>& chunks,
                                    std::deque<Scatter>& scatters) const {
  const StoredTensor& tensor = piece.tensor->tensor;
  const PartTensor* stored = part.record->find(tensor.name);  // there: check_part_tensors has held both tables together
  if (piece.stored->box == piece.target->box) {
    add_chunks(chunks, part, *stored, piece.target->data, 0, nullptr);
    return {};
  }
  const int64_t bits = formats::dtype_bits(tensor.dtype);
  if (bits % 8 != 0)
    return fail(ErrorCode::kUnsupported, "load step {}: tensor '{}' of {} loads only as the boxes it was saved in",
                manifest_.step, tensor.name, formats::dtype_name(tensor.dtype));
  scatters.push_back({BoxCopy(piece.common, piece.stored->box, piece.target->box, bits / 8),
                      part.record->data_offset + stored->begin, piece.target->data});
  add_chunks(chunks, part, *stored, nullptr, scatters.size() - 1, &scatters.back().copy);
  return {};
}

Status StoredCheckpoint::load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop,
                              Progress* progress) const {
  Executor executor(executor_threads(threads), "mr-ckpt-load");
  std::vector<Piece> pieces;
  for (const TensorToLoad& target : targets) RETURN_IF_ERROR(find_pieces(target, pieces));
  std::map<int64_t, OpenPart> parts;
  for (const Piece& piece : pieces) parts[piece.stored->part];
  RETURN_IF_ERROR(open_parts(parts, executor));

  std::vector<ChunkRead> chunks;
  std::deque<Scatter> scatters;
  int64_t bytes = 0, items = 0;
  const TensorToLoad* counted = nullptr;
  for (const Piece& piece : pieces) {
    const size_t first = chunks.size();
    RETURN_IF_ERROR(plan_piece(piece, parts[piece.stored->part], chunks, scatters));
    for (size_t i = first; i < chunks.size(); ++i) bytes += chunks[i].bytes;
    if (std::exchange(counted, piece.target) != piece.target) chunks[first].items = 1;
    items += chunks[first].items;
  }
  if (progress != nullptr) progress->set_totals(bytes, items);
  return with_context(read_chunks(std::move(chunks), executor,
                                  {.stop = stop,
                                   .progress = progress,
                                   .take =
                                       [&](const ChunkRead& chunk, std::span<const std::byte> data) {
                                         const Scatter& scatter = scatters[chunk.tag];
                                         scatter.copy.copy(chunk.offset - scatter.tensor_offset, data, scatter.target);
                                       }}),
                      fmt::format("load step {}", manifest_.step));
}

Status StoredCheckpoint::check_header(const OpenPart& part) const {
  const auto bad = [&](std::string_view reason) {
    return fail(ErrorCode::kCorruption, "{}: {}", part.file->name(), reason);
  };
  ASSIGN_OR_RETURN(const formats::SafetensorsHeader header, formats::parse_safetensors_header(*part.file));
  if (header.data_offset != part.record->data_offset) return bad("its header is not as long as the record says");
  std::vector<std::byte> bytes(static_cast<size_t>(header.data_offset));
  RETURN_IF_ERROR(part.file->read_at(0, bytes));
  if (xxh3_128(bytes) != part.record->header_hash) return bad("its header does not match its hash");
  if (header.tensors.size() != part.record->tensors.size()) return bad("its header has other tensors than its record");
  for (const PartTensor& tensor : part.record->tensors) {
    const formats::TensorInfo* info = header.find(tensor.name);
    if (info == nullptr || info->dtype != tensor.dtype || info->shape != tensor.box.shape ||
        info->begin != tensor.begin)
      return bad(fmt::format("tensor '{}' is not where its record says", tensor.name));
  }
  return {};
}

Status StoredCheckpoint::verify(int threads, std::stop_token stop, Progress* progress,
                                const std::function<void(const Error&)>& found) const {
  Executor executor(executor_threads(threads), "mr-ckpt-verify");
  Status first;
  const auto note = [&](Status status) {
    if (status) return;
    if (found) found(status.error());
    if (first) first = std::move(status);
  };
  std::deque<OpenPart> parts;
  std::vector<ChunkRead> chunks;
  int64_t bytes = 0, items = 0;
  for (int64_t rank = 0; rank < manifest_.world_size(); ++rank) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "verify step {}: stopped", manifest_.step);
    auto part = open_part(rank);
    if (!part) {
      note(tl::unexpected<Error>(std::move(part).error()));
      if (!found) return first;
      continue;
    }
    parts.push_back(std::move(*part));
    note(check_header(parts.back()));
    if (!found && !first) return first;
    for (const PartTensor& tensor : parts.back().record->tensors) {
      const size_t at = chunks.size();
      add_chunks(chunks, parts.back(), tensor, nullptr, 0, nullptr);
      if (at < chunks.size()) chunks[at].items = 1;
      bytes += tensor.bytes;
      items += at < chunks.size() ? 1 : 0;
    }
  }
  if (progress != nullptr) progress->set_totals(bytes, items);
  Status read = read_chunks(std::move(chunks), executor, {.stop = stop, .progress = progress, .found = found});
  return with_context(first ? std::move(read) : std::move(first), fmt::format("verify step {}", manifest_.step));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const Location& root, int64_t step) {
  auto stored = read_manifest(root, step);
  if (!stored && stored.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kNotFound, "{}: no committed step {}", root.url, step);
  if (!stored) return tl::unexpected<Error>(std::move(stored).error());
  for (const ManifestTensor& tensor : stored->manifest.tensors)
    RETURN_IF_ERROR(with_context(check_tiling(tensor), fmt::format("manifest of step {}", step)));
  return std::make_unique<StoredCheckpoint>(root, std::move(stored->manifest));
}

}  // namespace millrace::checkpoint
