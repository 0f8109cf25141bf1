// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/io/chunk_reader.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/io/threads.h"
#include "millrace/checkpoint/load/stored_checkpoint.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

namespace {

constexpr int kOwnReaders = 8;  // threads that read past those of a storage that hangs

// The answer of storage about an object that the manifest names: that it is missing, or a folder in its place, is
// damage.
template <class T>
Result<T> named_object(Result<T> answer, const Location& at) {
  if (answer) return answer;
  if (answer.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kCorruption, "{}: the manifest names it, and it is not there", at.url);
  return tl::unexpected<Error>(as_damage(std::move(answer).error(), at));
}

// What is done with the chunks of one stored box.
struct ChunkUse {
  ChunkRead::Use use = ChunkRead::Use::kCheckOnly;
  std::byte* out = nullptr;         // kCopy: where the box goes
  size_t tag = 0;                   // kTake
  const BoxCopy* needed = nullptr;  // kTake: chunks that it does not touch are left out
};

void add_chunks(std::vector<ChunkRead>& chunks, const OpenPart& part, const PartTensor& tensor, const ChunkUse& use) {
  for (size_t i = 0; i < tensor.hashes.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * part.record->chunk_bytes;
    const int64_t end = std::min(begin + part.record->chunk_bytes, tensor.bytes);
    if (use.needed != nullptr && !use.needed->touches(begin, end)) continue;
    chunks.push_back({.file = part.file.get(),
                      .tensor = tensor.name,
                      .offset = part.data_offset() + tensor.begin + begin,
                      .bytes = end - begin,
                      .hash = tensor.hashes[i],
                      .use = use.use,
                      .out = use.out == nullptr ? nullptr : use.out + begin,
                      .tag = use.tag});
  }
}

// The safetensors header, which other programs read: a flipped bit in it is damage too.
void add_header(std::vector<ChunkRead>& chunks, const OpenPart& part) {
  if (part.data_offset() > 0)
    chunks.push_back({.file = part.file.get(), .bytes = part.data_offset(), .hash = part.header_hash()});
}

// Whether other processes of this node load the same bytes now, as data-parallel replicas do: then one of them should
// read each byte from the disk and all of them from the page cache.
bool is_shared_load(std::span<const Piece> pieces) {
  if (local_ranks() == 1) return false;
  int64_t whole = 0, all = 0;
  for (const Piece& piece : pieces) {
    const int64_t elements = volume(piece.common.shape);
    all += elements;
    if (piece.target->box == whole_box(piece.tensor->tensor.shape)) whole += elements;
  }
  return whole > all / 2;
}

// Chunks that a tier does not have whole, by file. add() is thread-safe.
class LostChunks {
 public:
  struct Left {
    std::vector<ChunkRead> chunks;
    TierErrors errors;
  };
  // False: no other tier can help.
  bool add(const ChunkRead& chunk, const Error& error) {
    MutexLock lock(mutex_);
    Left& left = by_file_[chunk.file];
    if (!left.errors.add(error)) return false;
    left.chunks.push_back(chunk);
    return true;
  }
  std::map<const RandomReader*, Left> take() {
    MutexLock lock(mutex_);
    return std::move(by_file_);
  }

 private:
  Mutex mutex_;
  std::map<const RandomReader*, Left> by_file_ GUARDED_BY(mutex_);
};

}  // namespace

Result<std::shared_ptr<const PartRecord>> StoredCheckpoint::part_record(int64_t rank) const {
  {
    MutexLock lock(mutex_);
    if (const auto known = records_.find(rank); known != records_.end()) return known->second;
  }
  TierErrors errors;
  for (size_t tier = 0; tier < directories_.size(); ++tier) {
    const Location at = directories_[tier].child(part_name(rank));
    auto read = read_record(rank, tier, at);
    if (!read) {
      if (is_damage(read.error()) && ask<ObjectInfo>(tier, at, [at] { return at.storage->stat(at.key); }))
        note_damage({rank}, tier, read.error());
      RETURN_IF_ERROR(errors.add(std::move(read).error()));
      continue;
    }
    MutexLock lock(mutex_);
    return records_.try_emplace(rank, std::make_shared<const PartRecord>(std::move(*read))).first->second;
  }
  return tl::unexpected<Error>(errors.worst());
}

Result<PartRecord> StoredCheckpoint::read_record(int64_t rank, size_t tier, const Location& at) const {
  const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
  auto answer = ask<std::string>(tier, at, [at] { return read_object(*at.storage, at.key, kMaxRecordBytes); });
  ASSIGN_OR_RETURN(const std::string text, named_object(std::move(answer), at));
  if (static_cast<int64_t>(text.size()) != expected.bytes || xxh3_128(text) != expected.hash)
    return fail(ErrorCode::kCorruption, "{}: its {} bytes do not match size and hash in the manifest", at.url,
                text.size());
  ASSIGN_OR_RETURN(PartRecord part, parse_part(text, at.url));
  if (part.step != manifest_.step || part.attempt != manifest_.attempt || part.rank != rank ||
      part.world_size != manifest_.world_size() || part.in_folders != manifest_.in_folders ||
      part.shares != manifest_.shares || part.file_bytes != expected.file_bytes)
    return fail(ErrorCode::kCorruption, "{}: it is not the part that the manifest names", at.url);
  RETURN_IF_ERROR(check_part_tensors(part, at.url));
  return part;
}

// Both tables must agree: every box of the part is in the manifest, and the manifest has no other box of this part.
Status StoredCheckpoint::check_part_tensors(const PartRecord& record, const std::string& url) const {
  for (const PartTensor& tensor : record.tensors) {
    const ManifestTensor* known = find_tensor(tensor.name);
    const StoredBox* box = known == nullptr ? nullptr : known->find_box(record.rank);
    if (box == nullptr || box->box != tensor.box || known->tensor.dtype != tensor.dtype ||
        known->tensor.shape != tensor.shape)
      return fail(ErrorCode::kCorruption, "{}: tensor '{}' is not in the manifest, or not as here", url, tensor.name);
  }
  if (record.tensors.size() != boxes_of_part_[static_cast<size_t>(record.rank)])
    return fail(ErrorCode::kCorruption, "{}: the manifest has more tensors of this part", url);
  return {};
}

Result<std::shared_ptr<RandomReader>> StoredCheckpoint::open_file(int64_t bytes, size_t tier, const Location& at,
                                                                  bool once) const {
  using File = std::shared_ptr<RandomReader>;
  ASSIGN_OR_RETURN(File file, ask<File>(tier, at, [at, once]() -> Result<File> {
                     return at.storage->open_read(at.key, {.once = once});
                   }));
  if (file->size() == bytes) return file;
  return fail(ErrorCode::kCorruption, "{}: it has {} bytes, {} were written", at.url, file->size(), bytes);
}

Location StoredCheckpoint::place_of(const PartRecord& record, const PartFile& file, size_t tier) const {
  const std::string name = manifest_.places().file(file.rank);
  if (!file.source) return directories_[tier].child(name);
  const PartSource& source = record.sources[*file.source];
  return step_location(roots_[tier], source.step).child(source.attempt).child(name);
}

Result<OpenPart> StoredCheckpoint::open_part(const PartFile& of, bool once, size_t tier) const {
  ASSIGN_OR_RETURN(auto record, part_record(of.rank));
  const int64_t bytes = of.source ? record->sources[*of.source].file_bytes : record->file_bytes;
  TierErrors errors;
  bool is_damaged = false;
  for (; tier < directories_.size(); ++tier) {
    const Location at = place_of(*record, of, tier);
    auto file = open_file(bytes, tier, at, once);
    if (file) {
      // That a tier lacks a part is usual: another node has it, or retention removed it.
      if (!errors.empty())
        log(is_damaged ? LogLevel::kWarning : LogLevel::kInfo, "checkpoint: {}; read from {}",
            errors.worst().to_string(), at.url);
      return OpenPart{std::move(record), of, std::move(*file), tier};
    }
    is_damaged = is_damaged || file.error().code() != ErrorCode::kNotFound;
    note_damage(of, tier, as_damage(file.error(), at));
    auto why = named_object(std::move(file), at);
    RETURN_IF_ERROR(errors.add(std::move(why).error()));
  }
  return tl::unexpected<Error>(errors.worst());
}

Status StoredCheckpoint::open_parts(std::span<Piece> pieces, std::map<PartFile, OpenPart>& parts, bool once,
                                    Executor& executor) const {
  std::map<int64_t, std::shared_ptr<const PartRecord>> records;
  for (const Piece& piece : pieces) records[piece.stored->part];
  const auto side_by_side = [&](auto& wanted, auto&& get) {
    std::vector<typename std::remove_reference_t<decltype(wanted)>::value_type*> list;
    for (auto& each : wanted) list.push_back(&each);
    return parallel_try(executor, std::ssize(list), [&](int64_t i) -> Status {
      auto& [key, value] = *list[static_cast<size_t>(i)];
      ASSIGN_OR_RETURN(value, get(key));
      return {};
    });
  };
  RETURN_IF_ERROR(side_by_side(records, [&](int64_t rank) { return part_record(rank); }));
  for (Piece& piece : pieces) {
    const int64_t rank = piece.stored->part;
    piece.file = {rank,
                  records.at(rank)->find(piece.tensor->tensor.name)->source};  // check_part_tensors found it there
    parts[piece.file];
  }
  return side_by_side(parts, [&](const PartFile& file) { return open_part(file, once); });
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
      pieces.push_back({&target, tensor, &stored, std::move(*common), {}});
  }
  return {};
}

Status StoredCheckpoint::plan_piece(const Piece& piece, const OpenPart& part, std::vector<ChunkRead>& chunks,
                                    std::deque<Scatter>& scatters) const {
  const StoredTensor& tensor = piece.tensor->tensor;
  const PartTensor* stored = part.record->find(tensor.name);  // there: check_part_tensors has held both tables together
  if (piece.stored->box == piece.target->box) {
    add_chunks(chunks, part, *stored, {.use = ChunkRead::Use::kCopy, .out = piece.target->data});
    return {};
  }
  const int64_t bits = formats::dtype_bits(tensor.dtype);
  if (bits % 8 != 0)
    return fail(ErrorCode::kUnsupported, "load step {}: tensor '{}' of {} loads only as the boxes it was saved in",
                manifest_.step, tensor.name, formats::dtype_name(tensor.dtype));
  scatters.push_back({BoxCopy(piece.common, piece.stored->box, piece.target->box, bits / 8),
                      part.data_offset() + stored->begin, piece.target->data});
  add_chunks(chunks, part, *stored,
             {.use = ChunkRead::Use::kTake, .tag = scatters.size() - 1, .needed = &scatters.back().copy});
  return {};
}

Status StoredCheckpoint::load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop,
                              Progress* progress) const {
  Executor executor(helper_threads(threads), "mr-ckpt-load");
  std::vector<Piece> pieces;
  for (const TensorToLoad& target : targets) RETURN_IF_ERROR(find_pieces(target, pieces));
  std::map<PartFile, OpenPart> parts;
  RETURN_IF_ERROR(open_parts(pieces, parts, !is_shared_load(pieces), executor));

  std::vector<ChunkRead> chunks;
  for (const auto& [file, part] : parts) add_header(chunks, part);
  std::deque<Scatter> scatters;
  int64_t bytes = 0, items = 0;
  const TensorToLoad* counted = nullptr;
  for (const Piece& piece : pieces) {
    const size_t first = chunks.size();
    RETURN_IF_ERROR(plan_piece(piece, parts[piece.file], chunks, scatters));
    for (size_t i = first; i < chunks.size(); ++i) bytes += chunks[i].bytes;
    if (std::exchange(counted, piece.target) != piece.target) chunks[first].items = 1;
    items += chunks[first].items;
  }
  if (progress != nullptr) progress->set_totals(bytes, items);
  const ChunkReadOptions options{
      .stop = stop, .progress = progress, .take = [&](const ChunkRead& chunk, std::span<const std::byte> data) {
        const Scatter& scatter = scatters[chunk.tag];
        scatter.copy.copy(chunk.offset - scatter.tensor_offset, data, scatter.target);
      }};
  return with_context(read_tiers(parts, std::move(chunks), executor, options),
                      fmt::format("load step {}", manifest_.step));
}

Status StoredCheckpoint::read_tiers(std::map<PartFile, OpenPart>& parts, std::vector<ChunkRead> chunks,
                                    Executor& executor, const ChunkReadOptions& common) const {
  for (size_t tier = 0; tier < directories_.size() && !chunks.empty(); ++tier) {
    std::map<const RandomReader*, PartFile> files;  // in this tier
    for (const auto& [of, part] : parts) {
      if (part.tier == tier) files[part.file.get()] = of;
    }
    const auto here = std::stable_partition(chunks.begin(), chunks.end(),
                                            [&](const ChunkRead& chunk) { return !files.contains(chunk.file); });
    std::vector<ChunkRead> now(here, chunks.end());
    chunks.erase(here, chunks.end());
    LostChunks lost;
    ChunkReadOptions options = common;
    const bool is_last = tier + 1 == directories_.size();
    options.lost = [&](const ChunkRead& chunk, const Error& error) {
      if (error.code() == ErrorCode::kTimeout) hangs_[tier] = true;
      return !is_last && lost.add(chunk, error);
    };
    const auto reads = reads_of(tier, parts);
    options.patience = patience_;
    options.needed = reads;
    options.readers = reads->readers;
    RETURN_IF_ERROR(read_chunks(*reads->storage, std::move(now), executor, options));
    for (auto& [file, left] : lost.take()) {
      OpenPart& part = parts[files.at(file)];
      note_damage(part.of, tier, left.errors.worst());
      auto next = open_part(part.of, true, tier + 1);
      if (!next) {
        RETURN_IF_ERROR(left.errors.add(std::move(next).error()));
        return tl::unexpected<Error>(left.errors.worst());
      }
      log(LogLevel::kWarning, "checkpoint: {}; {} of the file read from {}", left.errors.worst().to_string(),
          left.chunks.size() == 1 ? "this block" : fmt::format("{} such blocks", left.chunks.size()),
          next->file->name());
      part = std::move(*next);
      for (ChunkRead& chunk : left.chunks) {
        chunk.file = part.file.get();
        chunks.push_back(chunk);
      }
    }
  }
  return {};
}

std::shared_ptr<TierReads> StoredCheckpoint::reads_of(size_t tier, const std::map<PartFile, OpenPart>& parts) const {
  auto reads = std::make_shared<TierReads>(TierReads{directories_[tier].storage});
  for (const auto& [of, part] : parts) {
    if (part.tier == tier) reads->files.push_back(part.file);
  }
  // All folders of the node share threads, which a tier that hangs may hold.
  for (size_t i = 0; i < tier; ++i) {
    if (hangs_[i] && directories_[i].storage == reads->storage && !reads->readers)
      reads->readers = std::make_shared<Executor>(kOwnReaders, "mr-ckpt-read");
  }
  return reads;
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
  size_t own = 0;
  for (const PartTensor& tensor : part.record->tensors) {
    if (tensor.source) continue;
    ++own;
    const formats::TensorInfo* info = header.find(tensor.name);
    if (info == nullptr || info->dtype != tensor.dtype || info->shape != tensor.box.shape ||
        info->begin != tensor.begin)
      return bad(fmt::format("tensor '{}' is not where its record says", tensor.name));
  }
  if (header.tensors.size() != own) return bad("its header has other tensors than its record");
  return {};
}

Status StoredCheckpoint::verify(int threads, std::stop_token stop, Progress* progress,
                                const std::function<void(const Error&)>& found) const {
  Executor executor(helper_threads(threads), "mr-ckpt-verify");
  Status first;
  const auto note = [&](Status status) {
    if (status) return;
    if (found) found(status.error());
    if (first) first = std::move(status);
  };
  std::deque<OpenPart> parts;
  std::vector<std::vector<ChunkRead>> in_tiers(directories_.size());
  int64_t bytes = 0, items = 0;
  const auto add_file = [&](const PartFile& file) {
    auto part = open_part(file, true);
    if (!part) return note(tl::unexpected<Error>(std::move(part).error()));
    parts.push_back(std::move(*part));
    std::vector<ChunkRead>& chunks = in_tiers[parts.back().tier];
    if (file.source)
      add_header(chunks, parts.back());  // the tensors in it are those of its own step, which may be gone
    else
      note(check_header(parts.back()));
    for (const PartTensor& tensor : parts.back().record->tensors) {
      if (tensor.source != file.source) continue;
      const size_t at = chunks.size();
      add_chunks(chunks, parts.back(), tensor, {});
      if (at < chunks.size()) chunks[at].items = 1;
      bytes += tensor.bytes;
      items += at < chunks.size() ? 1 : 0;
    }
  };
  for (int64_t rank = 0; rank < manifest_.world_size(); ++rank) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "verify step {}: stopped", manifest_.step);
    add_file({rank});
    const auto record = part_record(rank);  // without one add_file() has said why
    for (size_t source = 0; record && source < (*record)->sources.size(); ++source) add_file({rank, source});
    if (!found && !first) return first;
  }
  if (progress != nullptr) progress->set_totals(bytes, items);
  for (size_t tier = 0; tier < in_tiers.size(); ++tier) {
    Status read = read_chunks(*directories_[tier].storage, std::move(in_tiers[tier]), executor,
                              {.stop = stop, .progress = progress, .found = found});
    if (first) first = std::move(read);
  }
  return with_context(std::move(first), fmt::format("verify step {}", manifest_.step));
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const Location& root, int64_t step) {
  return open(std::span(&root, 1), step);
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(std::span<const Location> tiers, int64_t step,
                                                     std::chrono::milliseconds tier_timeout) {
  std::optional<Manifest> newest;
  TierErrors errors;
  std::vector<size_t> damaged;
  for (size_t tier = 0; tier < tiers.size(); ++tier) {
    const Location& root = tiers[tier];
    auto stored = read_manifest(root, step);
    if (stored) {
      if (!newest || *restart_of(stored->manifest.attempt) > *restart_of(newest->attempt))
        newest = std::move(stored->manifest);
      continue;
    }
    Error error = std::move(stored).error();
    if (error.code() == ErrorCode::kUnsupported) return tl::unexpected<Error>(std::move(error));
    if (is_damage(error)) damaged.push_back(tier);
    if (error.code() != ErrorCode::kNotFound) RETURN_IF_ERROR(errors.add(std::move(error)));
  }
  if (!newest) {
    if (!errors.empty()) return tl::unexpected<Error>(errors.worst());
    return fail(ErrorCode::kNotFound, "{}: no committed step {}", tiers.back().url, step);
  }
  if (!errors.empty())
    log(LogLevel::kWarning, "checkpoint: {}; step {} is read from other tiers", errors.worst().to_string(), step);
  for (const ManifestTensor& tensor : newest->tensors)
    RETURN_IF_ERROR(with_context(check_tiling(tensor), fmt::format("manifest of step {}", step)));
  return std::make_unique<StoredCheckpoint>(tiers, std::move(*newest), std::move(damaged), tier_timeout);
}

}  // namespace millrace::checkpoint
