// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/boxes.h"
#include "millrace/checkpoint/detail/chunk_reader.h"
#include "millrace/checkpoint/detail/commit.h"
#include "millrace/checkpoint/detail/damage.h"
#include "millrace/checkpoint/detail/first_error.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/part_copy.h"
#include "millrace/checkpoint/detail/records.h"
#include "millrace/checkpoint/detail/threads.h"

namespace millrace::checkpoint {

namespace {

constexpr int kOwnReaders = 8;                 // threads that read past those of a storage that hangs
constexpr std::chrono::seconds kHealing{600};  // for a manifest

// The answer of storage about an object that the manifest names: that it is missing, or a folder in its place, is
// damage.
template <class T>
Result<T> named_object(Result<T> answer, const Location& at) {
  if (answer) return answer;
  if (answer.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kCorruption, "{}: the manifest names it, and it is not there", at.url);
  return tl::unexpected<Error>(as_damage(std::move(answer).error(), at));
}

// A part that a load or a verification reads from.
struct OpenPart {
  std::shared_ptr<const PartRecord> record;
  std::shared_ptr<RandomReader> file;
  size_t tier = 0;  // that the file is in
};

// What reads of a tier use. Those that hang keep it.
struct TierReads {
  std::shared_ptr<Storage> storage;
  std::vector<std::shared_ptr<RandomReader>> files{};
  std::shared_ptr<Executor> readers{};
};

// The answer of `call`, which asks the storage at `url`. With a `patience` it runs on a thread that is left behind when
// no answer comes (timeout): then `call` owns all that it uses.
template <class T>
Result<T> answer_within(std::chrono::milliseconds patience, const std::string& url, std::function<Result<T>()> call) {
  if (patience.count() == 0) return call();
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<T>> answer GUARDED_BY(mutex);
  };
  const auto shared = std::make_shared<Shared>();
  Thread thread("mr-ckpt-ask", [shared, call = std::move(call)]() mutable {
    auto answer = std::exchange(call, {})();  // what it owns goes before the answer is seen
    MutexLock lock(shared->mutex);
    shared->answer = std::move(answer);
    shared->changed.notify_all();
  });
  const auto deadline = Clock::now() + patience;
  std::optional<Result<T>> answer;
  {
    MutexLock lock(shared->mutex);
    while (!shared->answer && Clock::now() < deadline)
      static_cast<void>(shared->changed.wait_until(shared->mutex, deadline));
    answer = std::move(shared->answer);
  }
  if (answer) return std::move(*answer);
  thread.detach();
  return fail(ErrorCode::kTimeout, "{}: has not answered for {:g} s", url,
              std::chrono::duration<double>(patience).count());
}

// Why several tiers do not have something. One that does not answer counts more than damage: it may have it whole.
class TierErrors {
 public:
  // Errors: `error` itself, when another tier cannot help.
  Status add(Error error) {
    const ErrorCode code = error.code();
    if (code == ErrorCode::kCancelled || code == ErrorCode::kResourceExhausted)
      return tl::unexpected<Error>(std::move(error));
    if (!first_ || (is_damage(*first_) && !is_damage(error))) first_ = std::move(error);
    return {};
  }
  bool empty() const { return !first_; }
  const Error& worst() const { return *first_; }

 private:
  std::optional<Error> first_;
};

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
                      .offset = part.record->data_offset + tensor.begin + begin,
                      .bytes = end - begin,
                      .hash = tensor.hashes[i],
                      .use = use.use,
                      .out = use.out == nullptr ? nullptr : use.out + begin,
                      .tag = use.tag});
  }
}

// The safetensors header, which other programs read: a flipped bit in it is damage too.
void add_header(std::vector<ChunkRead>& chunks, const OpenPart& part) {
  const PartRecord& record = *part.record;
  if (record.data_offset > 0)
    chunks.push_back({.file = part.file.get(), .bytes = record.data_offset, .hash = record.header_hash});
}

// What lies in one stored box and is wanted in one target.
struct Piece {
  const TensorToLoad* target = nullptr;
  const ManifestTensor* tensor = nullptr;
  const StoredBox* stored = nullptr;
  Box common;
};

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

// How the bytes of a chunk that does not go straight to its target get there.
struct Scatter {
  BoxCopy copy;
  int64_t tensor_offset = 0;  // of the stored box, in the file
  std::byte* target = nullptr;
};

class StoredCheckpoint final : public Checkpoint {
 public:
  // damaged: the tiers whose manifest of this step cannot be used.
  StoredCheckpoint(std::span<const Location> tiers, Manifest manifest, std::vector<size_t> damaged,
                   std::chrono::milliseconds patience)
      : manifest_(std::move(manifest)),
        info_(step_info(manifest_)),
        patience_(patience),
        boxes_of_part_(manifest_.parts.size()),
        hangs_(tiers.size()),
        damaged_manifests_(std::move(damaged)) {
    for (const Location& root : tiers) {
      roots_.push_back(root);
      directories_.push_back(step_location(root, manifest_.step).child(manifest_.attempt));
    }
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
  std::vector<Box> boxes(std::string_view name) const override {
    std::vector<Box> boxes;
    if (const ManifestTensor* tensor = find_tensor(name)) {
      for (const StoredBox& stored : tensor->boxes) boxes.push_back(stored.box);
    }
    return boxes;
  }
  const std::string& state() const override { return manifest_.state; }

  [[nodiscard]] Result<std::optional<std::string>> rank_state(int64_t rank) const override {
    if (rank < 0 || rank >= manifest_.world_size()) return std::nullopt;
    ASSIGN_OR_RETURN(const auto record, part_record(rank));
    return record->state;
  }

  [[nodiscard]] Status load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop,
                            Progress* progress) const override;
  [[nodiscard]] Result<int64_t> heal(std::stop_token stop) const override;
  [[nodiscard]] Status verify(int threads, std::stop_token stop, Progress* progress,
                              const std::function<void(const Error&)>& found) const override;

 private:
  using PartInTier = std::pair<int64_t, size_t>;  // rank, tier

  // Remembers damage for heal(). What a tier merely lacks is none.
  void note_damage(int64_t rank, size_t tier, const Error& error) const {
    if (!is_damage(error)) return;
    MutexLock lock(mutex_);
    damaged_.emplace(rank, tier);
  }
  // Writes the manifest of a tier anew, whose own is damaged. False: the tier has no part of this attempt.
  Result<bool> heal_manifest(size_t tier, const std::stop_token& stop) const;
  Status heal_part(const PartInTier& place, const std::stop_token& stop) const;

  // Asks a tier. Once it has not answered, it is not asked again.
  template <class T>
  Result<T> ask(size_t tier, const Location& at, std::function<Result<T>()> call) const {
    if (hangs_[tier]) return fail(ErrorCode::kTimeout, "{}: this tier does not answer", at.url);
    auto answer = answer_within<T>(patience_, at.url, std::move(call));
    if (!answer && answer.error().code() == ErrorCode::kTimeout) hangs_[tier] = true;
    return answer;
  }

  const ManifestTensor* find_tensor(std::string_view name) const {
    const auto it = std::lower_bound(manifest_.tensors.begin(), manifest_.tensors.end(), name,
                                     [](const ManifestTensor& t, std::string_view key) { return t.tensor.name < key; });
    return it == manifest_.tensors.end() || it->tensor.name != name ? nullptr : &*it;
  }

  // The record of a part, from the first tier that has it, read and held against the manifest at its first use.
  Result<std::shared_ptr<const PartRecord>> part_record(int64_t rank) const;
  Result<PartRecord> read_record(int64_t rank, size_t tier, const Location& at) const;
  // The part in the first tier from `tier` on that has it.
  Result<OpenPart> open_part(int64_t rank, bool once, size_t tier = 0) const;
  Result<std::shared_ptr<RandomReader>> open_file(const PartRecord& record, size_t tier, const Location& at,
                                                  bool once) const;
  // Opens `parts` side by side. `once`: OpenOptions::once.
  Status open_parts(std::map<int64_t, OpenPart>& parts, bool once, Executor& executor) const;
  Status check_part_tensors(const PartRecord& record, const std::string& url) const;
  // Holds the header of a rank's file against its record.
  Status check_header(const OpenPart& part) const;

  Status find_pieces(const TensorToLoad& target, std::vector<Piece>& pieces) const;
  Status plan_piece(const Piece& piece, const OpenPart& part, std::vector<ChunkRead>& chunks,
                    std::deque<Scatter>& scatters) const;

  // Reads `chunks` from the tiers of their parts. What is lost in one comes from the next.
  Status read_tiers(std::map<int64_t, OpenPart>& parts, std::vector<ChunkRead> chunks, Executor& executor,
                    const ChunkReadOptions& common) const;

  std::shared_ptr<TierReads> reads_of(size_t tier, const std::map<int64_t, OpenPart>& parts) const;

  std::string part_name(int64_t rank) const { return manifest_.places().record(rank); }

  const Manifest manifest_;
  const StepInfo info_;
  const std::chrono::milliseconds patience_;  // zero: for ever
  std::vector<Location> roots_;               // nearest first
  std::vector<Location> directories_;         // of the attempt, in each tier, nearest first
  std::vector<StoredTensor> tensors_;
  std::vector<size_t> boxes_of_part_;
  mutable Mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const PartRecord>> records_ GUARDED_BY(mutex_);
  mutable std::set<PartInTier> damaged_ GUARDED_BY(mutex_);
  mutable std::vector<std::atomic<bool>> hangs_;  // by tier: it has not answered once
  mutable std::vector<size_t> damaged_manifests_ GUARDED_BY(mutex_);
};

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
        note_damage(rank, tier, read.error());
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
      part.file_bytes != expected.file_bytes)
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

Result<std::shared_ptr<RandomReader>> StoredCheckpoint::open_file(const PartRecord& record, size_t tier,
                                                                  const Location& at, bool once) const {
  using File = std::shared_ptr<RandomReader>;
  ASSIGN_OR_RETURN(File file, ask<File>(tier, at, [at, once]() -> Result<File> {
                     return at.storage->open_read(at.key, {.once = once});
                   }));
  if (file->size() == record.file_bytes) return file;
  return fail(ErrorCode::kCorruption, "{}: it has {} bytes, {} were written", at.url, file->size(), record.file_bytes);
}

Result<OpenPart> StoredCheckpoint::open_part(int64_t rank, bool once, size_t tier) const {
  ASSIGN_OR_RETURN(auto record, part_record(rank));
  const std::string name = manifest_.places().file(rank);
  TierErrors errors;
  bool is_damaged = false;
  for (; tier < directories_.size(); ++tier) {
    const Location at = directories_[tier].child(name);
    auto file = open_file(*record, tier, at, once);
    if (file) {
      // That a tier lacks a part is usual: another node has it, or retention removed it.
      if (!errors.empty())
        log(is_damaged ? LogLevel::kWarning : LogLevel::kInfo, "checkpoint: {}; read from {}",
            errors.worst().to_string(), at.url);
      return OpenPart{std::move(record), std::move(*file), tier};
    }
    is_damaged = is_damaged || file.error().code() != ErrorCode::kNotFound;
    note_damage(rank, tier, as_damage(file.error(), at));
    auto why = named_object(std::move(file), at);
    RETURN_IF_ERROR(errors.add(std::move(why).error()));
  }
  return tl::unexpected<Error>(errors.worst());
}

Status StoredCheckpoint::open_parts(std::map<int64_t, OpenPart>& parts, bool once, Executor& executor) const {
  std::vector<std::pair<const int64_t, OpenPart>*> list;
  for (auto& part : parts) list.push_back(&part);
  FirstError error;
  parallel_for(executor, static_cast<int64_t>(list.size()), [&](int64_t i) {
    if (error.failed()) return;
    auto& [rank, part] = *list[static_cast<size_t>(i)];
    auto opened = open_part(rank, once);
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
    add_chunks(chunks, part, *stored, {.use = ChunkRead::Use::kCopy, .out = piece.target->data});
    return {};
  }
  const int64_t bits = formats::dtype_bits(tensor.dtype);
  if (bits % 8 != 0)
    return fail(ErrorCode::kUnsupported, "load step {}: tensor '{}' of {} loads only as the boxes it was saved in",
                manifest_.step, tensor.name, formats::dtype_name(tensor.dtype));
  scatters.push_back({BoxCopy(piece.common, piece.stored->box, piece.target->box, bits / 8),
                      part.record->data_offset + stored->begin, piece.target->data});
  add_chunks(chunks, part, *stored,
             {.use = ChunkRead::Use::kTake, .tag = scatters.size() - 1, .needed = &scatters.back().copy});
  return {};
}

Status StoredCheckpoint::load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop,
                              Progress* progress) const {
  Executor executor(helper_threads(threads), "mr-ckpt-load");
  std::vector<Piece> pieces;
  for (const TensorToLoad& target : targets) RETURN_IF_ERROR(find_pieces(target, pieces));
  std::map<int64_t, OpenPart> parts;
  for (const Piece& piece : pieces) parts[piece.stored->part];
  RETURN_IF_ERROR(open_parts(parts, !is_shared_load(pieces), executor));

  std::vector<ChunkRead> chunks;
  for (const auto& [rank, part] : parts) add_header(chunks, part);
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
  const ChunkReadOptions options{
      .stop = stop, .progress = progress, .take = [&](const ChunkRead& chunk, std::span<const std::byte> data) {
        const Scatter& scatter = scatters[chunk.tag];
        scatter.copy.copy(chunk.offset - scatter.tensor_offset, data, scatter.target);
      }};
  return with_context(read_tiers(parts, std::move(chunks), executor, options),
                      fmt::format("load step {}", manifest_.step));
}

Status StoredCheckpoint::read_tiers(std::map<int64_t, OpenPart>& parts, std::vector<ChunkRead> chunks,
                                    Executor& executor, const ChunkReadOptions& common) const {
  for (size_t tier = 0; tier < directories_.size() && !chunks.empty(); ++tier) {
    std::map<const RandomReader*, int64_t> ranks;  // of the files in this tier
    for (const auto& [rank, part] : parts) {
      if (part.tier == tier) ranks[part.file.get()] = rank;
    }
    const auto here = std::stable_partition(chunks.begin(), chunks.end(),
                                            [&](const ChunkRead& chunk) { return !ranks.contains(chunk.file); });
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
      OpenPart& part = parts[ranks.at(file)];
      note_damage(part.record->rank, tier, left.errors.worst());
      auto next = open_part(part.record->rank, true, tier + 1);
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

std::shared_ptr<TierReads> StoredCheckpoint::reads_of(size_t tier, const std::map<int64_t, OpenPart>& parts) const {
  auto reads = std::make_shared<TierReads>(TierReads{directories_[tier].storage});
  for (const auto& [rank, part] : parts) {
    if (part.tier == tier) reads->files.push_back(part.file);
  }
  // All folders of the node share threads, which a tier that hangs may hold.
  for (size_t i = 0; i < tier; ++i) {
    if (hangs_[i] && directories_[i].storage == reads->storage && !reads->readers)
      reads->readers = std::make_shared<Executor>(kOwnReaders, "mr-ckpt-read");
  }
  return reads;
}

Result<int64_t> StoredCheckpoint::heal(std::stop_token stop) const {
  std::set<PartInTier> damaged;
  std::vector<size_t> manifests;
  {
    MutexLock lock(mutex_);
    damaged.swap(damaged_);
    manifests.swap(damaged_manifests_);
  }
  int64_t healed = 0;
  Status first;
  const auto note = [&](Result<bool> done) {
    if (done) healed += *done ? 1 : 0;
    if (first && !done) first = tl::unexpected<Error>(std::move(done).error());
  };
  for (const size_t tier : manifests) note(heal_manifest(tier, stop));
  for (const PartInTier& place : damaged) {
    if (!hangs_[place.second]) note(heal_part(place, stop).map([] { return true; }));
  }
  if (!first) return tl::unexpected<Error>(std::move(first).error());
  return healed;
}

Result<bool> StoredCheckpoint::heal_manifest(size_t tier, const std::stop_token& stop) const {
  const std::string what = fmt::format("heal the manifest of step {} in {}", manifest_.step, roots_[tier].url);
  const auto is_there = [&](int64_t rank) {
    const Location at = directories_[tier].child(part_name(rank));
    const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
    const auto text = read_object(*at.storage, at.key, kMaxRecordBytes);
    return text && std::ssize(*text) == expected.bytes && xxh3_128(*text) == expected.hash;
  };
  const Location manifest = step_location(roots_[tier], manifest_.step).child(kManifestName);
  if (!manifest.storage->stat(manifest.key)) return false;  // removed meanwhile
  // A tier of one node has only its own parts. Without any, the damaged manifest may be another attempt's.
  int64_t rank = 0;
  while (rank < manifest_.world_size() && !is_there(rank)) ++rank;
  if (rank == manifest_.world_size()) return false;
  for (size_t other = 0; other < roots_.size(); ++other) {
    const auto stored = other == tier || hangs_[other] ? Result<StoredManifest>(fail(ErrorCode::kNotFound, "not asked"))
                                                       : read_manifest(roots_[other], manifest_.step);
    if (!stored || stored->manifest.attempt != manifest_.attempt) continue;
    const StepCommit commit{roots_[tier],           manifest_.step,          manifest_.attempt,
                            manifest_.world_size(), Clock::now() + kHealing, stop};
    ASSIGN_OR_RETURN(const bool written, with_context(adopt_manifest(commit, roots_[other]), what));
    if (written)
      log(LogLevel::kWarning, "checkpoint: the manifest of step {} in {}: written anew from {}", manifest_.step,
          roots_[tier].url, roots_[other].url);
    return written;
  }
  return fail(ErrorCode::kNotFound, "{}: no tier has it any more", what);
}

Status StoredCheckpoint::heal_part(const PartInTier& place, const std::stop_token& stop) const {
  const auto [rank, tier] = place;
  const auto is_committed = [&] {
    const auto there = read_manifest(roots_[tier], manifest_.step);
    return there && there->manifest.attempt == manifest_.attempt;
  };
  const std::string what = fmt::format("heal step {} in {}", manifest_.step, roots_[tier].url);
  if (!is_committed()) return fail(ErrorCode::kNotFound, "{}: it is not committed there", what);
  ASSIGN_OR_RETURN(const auto record, part_record(rank));
  WrittenRecord written{*record, serialize(*record)};
  const ManifestPart& expected = manifest_.parts[static_cast<size_t>(rank)];
  if (std::ssize(written.text) != expected.bytes || xxh3_128(written.text) != expected.hash)
    return fail(ErrorCode::kUnsupported, "{}: another build of Millrace wrote the record of rank {}", what, rank);
  std::vector<Location> sources;
  for (size_t other = 0; other < directories_.size(); ++other) {
    if (other != tier && !hangs_[other]) sources.push_back(directories_[other]);
  }
  if (sources.empty()) return fail(ErrorCode::kUnavailable, "{}: no other tier answers", what);
  const Location& to = directories_[tier];
  RETURN_IF_ERROR(with_context(bring_part(sources, to, written, stop), what));
  if (is_committed()) {
    log(LogLevel::kWarning, "checkpoint: {}: written anew from another tier",
        to.child(manifest_.places().file(rank)).url);
    return {};
  }
  // Retention has removed the step meanwhile: nothing may be left of it.
  return to.storage->remove(std::vector{to.child(part_name(rank)).key, to.child(manifest_.places().file(rank)).key});
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
  for (int64_t rank = 0; rank < manifest_.world_size(); ++rank) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "verify step {}: stopped", manifest_.step);
    auto part = open_part(rank, true);
    if (!part) {
      note(tl::unexpected<Error>(std::move(part).error()));
      if (!found) return first;
      continue;
    }
    parts.push_back(std::move(*part));
    note(check_header(parts.back()));
    if (!found && !first) return first;
    std::vector<ChunkRead>& chunks = in_tiers[parts.back().tier];
    for (const PartTensor& tensor : parts.back().record->tensors) {
      const size_t at = chunks.size();
      add_chunks(chunks, parts.back(), tensor, {});
      if (at < chunks.size()) chunks[at].items = 1;
      bytes += tensor.bytes;
      items += at < chunks.size() ? 1 : 0;
    }
  }
  if (progress != nullptr) progress->set_totals(bytes, items);
  for (size_t tier = 0; tier < in_tiers.size(); ++tier) {
    Status read = read_chunks(*directories_[tier].storage, std::move(in_tiers[tier]), executor,
                              {.stop = stop, .progress = progress, .found = found});
    if (first) first = std::move(read);
  }
  return with_context(std::move(first), fmt::format("verify step {}", manifest_.step));
}

}  // namespace

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
