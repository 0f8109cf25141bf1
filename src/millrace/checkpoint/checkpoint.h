// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checkpoints: asynchronous saves, atomic commits, verified loads (docs/format/checkpoint.md,
// docs/design/checkpoint.md).
//
// Every rank has one Saver. save() copies the rank's tensors into pooled memory that is already the image of its
// safetensors file and returns; C++ threads hash and write that image, then a part record. The committer (rank 0) waits
// for all part records of the attempt, checks that the boxes tile every tensor, and creates the step's manifest: from
// then on, and not before, the checkpoint exists. No collective is used.
//
//   ROOT/step-000000000100/manifest.json                              commits attempt ATTEMPT of step 100
//   ROOT/step-000000000100/ATTEMPT/rank-00000-of-00002.safetensors    what rank 0 wrote; any tool reads it
//   ROOT/step-000000000100/ATTEMPT/part-00000-of-00002.json           its table of tensors, boxes and hashes
//   ROOT/latest                                                       a hint for people and scripts; never trusted
//
// A Saver and a PendingSave are thread-safe; a Checkpoint is immutable and its reads may run on many threads.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/formats/safetensors.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// A dense, row-major box of a global tensor: elements [offset, offset + shape) in every dimension.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  bool operator==(const Box&) const = default;
};

struct TensorToSave {
  std::string name;
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<int64_t> global_shape;
  Box box;                          // a whole tensor: offset all 0, shape == global_shape
  const std::byte* data = nullptr;  // the box's elements, dense row-major; read during save() only
};

struct SaverOptions {
  // Agreed by all ranks at start-up: "r<restart>-<nonce>", see make_attempt.
  std::string attempt;
  int64_t rank = 0;
  int64_t world_size = 1;
  int threads = 0;           // 0: available_cpus(), at most 8
  int64_t memory_bytes = 0;  // cap of the snapshot memory; 0: as much as one save needs, inside the process's budget
  std::chrono::milliseconds commit_timeout{600'000};  // how long to wait for the other ranks of a step
  int64_t keep_last = 0;                              // committed steps kept; 0 keeps all
  int64_t keep_every = 0;                             // steps divisible by it are kept for ever; 0: none
};

// "r0003-9f1c2ab4": a restart count that is greater than that of every attempt found below `root`, and a random nonce.
// Called by one rank, which tells the others. Errors: those of listing.
[[nodiscard]] Result<std::string> make_attempt(const Location& root);

// One save on its way. Dropping it does not stop the save.
class PendingSave {
 public:
  virtual ~PendingSave() = default;
  virtual int64_t step() const = 0;
  virtual int64_t bytes() const = 0;  // of this rank's file
  virtual bool done() const = 0;
  // Waits until the step is committed and durable (on every rank: until its manifest is). After `stop`: cancelled, the
  // save goes on. Errors: timeout naming the ranks that are missing, those of storage, corruption (boxes that do not
  // tile).
  [[nodiscard]] virtual Status wait(std::stop_token stop = {}) = 0;
};

class Saver {
 public:
  // Starts no thread. Errors: invalid_argument (attempt, rank).
  [[nodiscard]] static Result<std::unique_ptr<Saver>> create(Location root, const SaverOptions& options);
  // Waits for the save under way, at most `commit_timeout`.
  virtual ~Saver() = default;

  // Takes the snapshot and returns; the memory behind `tensors` may change afterwards. `state` is a small JSON
  // document: rank 0's becomes the manifest's, `rank_state` (may be "null") stays with the rank's part. One save is
  // under way at a time: a second call waits for the first. Space is checked before a byte is written. Errors: the
  // failure of the save before, if nobody waited for it; invalid_argument (names, shapes, a step <= the last one of
  // this saver), resource_exhausted (memory or space, naming what is needed and free), already_exists (the step is
  // committed by an attempt that is not older).
  [[nodiscard]] virtual Result<std::shared_ptr<PendingSave>> save(int64_t step, std::span<const TensorToSave> tensors,
                                                                  std::string state, std::string rank_state) = 0;
  // saves, write_bytes, write_seconds, stall_seconds.
  virtual const Metrics& metrics() const = 0;
};

// What a plain (replicated) tensor costs is written once: which rank writes which of `bytes` (one entry a tensor),
// balanced by size, the same on every rank. Answers the writer of each.
std::vector<int64_t> assign_writers(std::span<const int64_t> bytes, int64_t world_size);

// Steps to delete under the two rules, oldest first; `steps` ascending. The newest is never among them.
std::vector<int64_t> steps_to_remove(std::span<const int64_t> steps, int64_t keep_last, int64_t keep_every);

struct StepInfo {
  int64_t step = 0;
  std::string attempt;
  int64_t world_size = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::chrono::sys_time<std::chrono::nanoseconds> committed{};
  std::optional<Error> damage;  // the manifest cannot be used; the other fields but `step` are then empty
};
// Committed steps, ascending. A step without a manifest is not one. Errors: those of listing.
[[nodiscard]] Result<std::vector<StepInfo>> list_steps(const Location& root);

struct StoredTensor {
  std::string name;
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<int64_t> shape;  // global
  int64_t bytes = 0;
};
struct TensorToLoad {
  std::string name;
  Box box;                    // of the global tensor
  std::byte* data = nullptr;  // takes the box's elements, dense row-major
};

class Checkpoint {
 public:
  // Errors: not_found (no such committed step), corruption (manifest or part record), unsupported (a newer version).
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(const Location& root, int64_t step);
  virtual ~Checkpoint() = default;

  virtual const StepInfo& info() const = 0;
  virtual std::span<const StoredTensor> tensors() const = 0;  // by name
  virtual const StoredTensor* find(std::string_view name) const = 0;
  virtual const std::string& state() const = 0;
  // Of the rank that saved; nothing when the checkpoint has fewer ranks. Errors: corruption.
  [[nodiscard]] virtual Result<std::optional<std::string>> rank_state(int64_t rank) const = 0;

  // Fills every target, whatever boxes the tensors were stored as; only the parts that are needed are opened, every
  // byte read is verified. Errors: not_found (a tensor), invalid_argument (a box outside), corruption naming file and
  // tensor.
  [[nodiscard]] virtual Status load(std::span<const TensorToLoad> targets, int threads = 0, std::stop_token stop = {},
                                    Progress* progress = nullptr) const = 0;
  // Reads and checks everything: sizes, headers, every hash, the tiling. Errors: the first damage found; with `found`,
  // all of it is reported there first.
  [[nodiscard]] virtual Status verify(int threads = 0, std::stop_token stop = {}, Progress* progress = nullptr,
                                      const std::function<void(const Error&)>& found = {}) const = 0;
};

}  // namespace millrace::checkpoint
