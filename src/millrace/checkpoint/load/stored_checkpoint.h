// SPDX-License-Identifier: Apache-2.0
#pragma once

// An opened committed step and its copies in several tiers. loader.cpp reads it; heal.cpp repairs it.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/io/bounded_call.h"
#include "millrace/checkpoint/io/chunk_reader.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

// A file that holds tensors of a part.
struct PartFile {
  int64_t rank = 0;
  std::optional<size_t> source{};  // index in PartRecord::sources; nullopt: the part's own file
  auto operator<=>(const PartFile&) const = default;
};

// A file that a load or a verification has opened.
struct OpenPart {
  std::shared_ptr<const PartRecord> record;
  PartFile of;
  std::shared_ptr<RandomReader> file;
  size_t tier = 0;  // the tier that has the file

  const PartSource* source() const { return of.source ? &record->sources[*of.source] : nullptr; }
  int64_t data_offset() const { return source() == nullptr ? record->data_offset : source()->data_offset; }
  Hash128 header_hash() const { return source() == nullptr ? record->header_hash : source()->header_hash; }
};

// Shared by the reads of a tier. Reads that hang keep it alive.
struct TierReads {
  std::shared_ptr<Storage> storage;
  std::vector<std::shared_ptr<RandomReader>> files{};
  std::shared_ptr<Executor> readers{};
};

// Returns the answer of `call`, which asks the storage at `url`. Without `patience` (zero) it runs `call` here.
// Otherwise `call` runs on a thread that is abandoned when no answer comes in time (timeout), so `call` must own all
// that it uses.
template <class T>
[[nodiscard]] Result<T> answer_within(std::chrono::milliseconds patience, const std::string& url,
                                      std::function<Result<T>()> call) {
  if (patience.count() == 0) return call();
  const auto answer = std::make_shared<std::optional<Result<T>>>();  // read only after the call has returned
  BoundedCall asking(
      [answer, call = std::move(call)]() mutable -> Status {
        *answer = std::exchange(call, {})();  // destroys all that `call` owns before the answer is seen
        return {};
      },
      [] {});
  if (asking.wait(patience, [] {})) return std::move(**answer);
  return fail(ErrorCode::kTimeout, "{}: has not answered for {:g} s", url,
              std::chrono::duration<double>(patience).count());
}

// Collects why several tiers could not give an object. A tier that does not answer takes precedence over damage,
// because it may have the object whole.
class TierErrors {
 public:
  // Adds the error of one tier. Errors: `error` itself, when another tier cannot help.
  [[nodiscard]] Status add(Error error) {
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

// The elements that one target takes from one stored box.
struct Piece {
  const TensorToLoad* target = nullptr;
  const ManifestTensor* tensor = nullptr;
  const StoredBox* stored = nullptr;
  Box common;
  PartFile file;
};

// Copies the bytes of a chunk to its target, when the chunk cannot be read straight into it.
struct Scatter {
  BoxCopy copy;
  int64_t tensor_offset = 0;  // offset of the stored box in the file
  std::byte* target = nullptr;
};

class StoredCheckpoint final : public Checkpoint {
 public:
  // `damaged`: the tiers whose manifest of this step cannot be used.
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
  using FileInTier = std::pair<PartFile, size_t>;

  // Remembers a damaged file for heal(). A file that a tier merely lacks is not damaged.
  void note_damage(const PartFile& file, size_t tier, const Error& error) const {
    if (!is_damage(error)) return;
    MutexLock lock(mutex_);
    damaged_.emplace(file, tier);
  }
  // Writes the manifest of a tier anew, to replace the damaged one. False: the tier has no part of this attempt.
  [[nodiscard]] Result<bool> heal_manifest(size_t tier, const std::stop_token& stop) const;
  [[nodiscard]] Status heal_part(int64_t rank, size_t tier, const std::stop_token& stop) const;
  // Repairs a file of an earlier step, as a part of that step.
  [[nodiscard]] Status heal_source(const FileInTier& place, const std::stop_token& stop) const;

  // Asks a tier. After one question without an answer the tier is not asked again.
  template <class T>
  [[nodiscard]] Result<T> ask(size_t tier, const Location& at, std::function<Result<T>()> call) const {
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

  // Returns the record of a part. The first use reads it from the first tier that has it and checks it against the
  // manifest.
  [[nodiscard]] Result<std::shared_ptr<const PartRecord>> part_record(int64_t rank) const;
  [[nodiscard]] Result<PartRecord> read_record(int64_t rank, size_t tier, const Location& at) const;
  // Opens the file in the first tier that has it, starting at `tier`.
  [[nodiscard]] Result<OpenPart> open_part(const PartFile& file, bool once, size_t tier = 0) const;
  [[nodiscard]] Result<std::shared_ptr<RandomReader>> open_file(int64_t bytes, size_t tier, const Location& at,
                                                                bool once) const;
  Location place_of(const PartRecord& record, const PartFile& file, size_t tier) const;
  // Finds the files that hold the `pieces`, and opens them in parallel. `once`: OpenOptions::once.
  [[nodiscard]] Status open_parts(std::span<Piece> pieces, std::map<PartFile, OpenPart>& parts, bool once,
                                  Executor& executor) const;
  [[nodiscard]] Status check_part_tensors(const PartRecord& record, const std::string& url) const;
  // Checks the header of a rank's file against its record.
  [[nodiscard]] Status check_header(const OpenPart& part) const;

  [[nodiscard]] Status find_pieces(const TensorToLoad& target, std::vector<Piece>& pieces) const;
  [[nodiscard]] Status plan_piece(const Piece& piece, const OpenPart& part, std::vector<ChunkRead>& chunks,
                                  std::deque<Scatter>& scatters) const;

  // Reads `chunks` from the tiers of their parts. A chunk that cannot be read in one tier comes from the next.
  [[nodiscard]] Status read_tiers(std::map<PartFile, OpenPart>& parts, std::vector<ChunkRead> chunks,
                                  Executor& executor, const ChunkReadOptions& common) const;

  std::shared_ptr<TierReads> reads_of(size_t tier, const std::map<PartFile, OpenPart>& parts) const;

  std::string part_name(int64_t rank) const { return manifest_.places().record(rank); }

  const Manifest manifest_;
  const StepInfo info_;
  const std::chrono::milliseconds patience_;  // zero: waits for ever
  std::vector<Location> roots_;               // nearest first
  std::vector<Location> directories_;         // folder of the attempt in each tier, nearest first
  std::vector<StoredTensor> tensors_;
  std::vector<size_t> boxes_of_part_;
  mutable Mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const PartRecord>> records_ GUARDED_BY(mutex_);
  mutable std::set<FileInTier> damaged_ GUARDED_BY(mutex_);
  mutable std::vector<std::atomic<bool>> hangs_;  // by tier: a question got no answer
  mutable std::vector<size_t> damaged_manifests_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
