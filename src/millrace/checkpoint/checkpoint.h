// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checkpoints: asynchronous saves, atomic commits, verified loads (docs/format/checkpoint.md,
// docs/design/checkpoint.md).
//
// Every rank has one Saver. save() copies the rank's tensors into pooled memory that is already the image of its
// safetensors file and returns; C++ threads hash that image and submit its writes, then write a part record. The
// committer (rank 0) waits for all part records of the attempt, checks that the boxes tile every tensor, and creates
// the step's manifest: from then on, and not before, the checkpoint exists. No collective is used.
//
//   ROOT/step-000000000100/manifest.json                              commits attempt ATTEMPT of step 100
//   ROOT/step-000000000100/ATTEMPT/rank-00000-of-00002.safetensors    what rank 0 wrote; any tool reads it
//   ROOT/step-000000000100/ATTEMPT/part-00000-of-00002.json           its table of tensors, boxes and hashes
//   with more than 1,000 ranks both in ATTEMPT/ranks-00000 for the first thousand, and so on
//   ROOT/latest                                                       a hint for people and scripts; never trusted
//
// A Saver and a PendingSave are thread-safe; a Checkpoint is immutable and its reads may run on many threads.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
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
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/lineage.h"
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

// Memory for the bytes [begin, begin + bytes) of a tensor without `data`, whose elements are dense and row-major.
struct ImagePlace {
  size_t tensor = 0;  // number among the tensors given to save()
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t begin = 0;
};
enum class FillMode {
  // The call begins to fill the places, as copies from a device do, and returns. The caller says by
  // PendingSave::filled() when they are full. Called once for a save, on the thread of save(), with the image of the
  // file: each place is a whole tensor.
  kBegin,
  // The call returns when the places are full. Called many times before save() returns, by any threads, each time for
  // a run of the file.
  kComplete,
};
// Fills `places`, all of which lie in `memory`. After an error nothing may write there any more.
using FillImage = std::function<Status(std::span<std::byte> memory, std::span<const ImagePlace> places, FillMode mode)>;

// Metrics that a program measured at a step, by name. Values that are not finite are never stored, so they are never
// the best.
using StepMetrics = std::map<std::string, double, std::less<>>;

// Which committed steps of a folder stay. A step stays while one of the rules holds it, and the newest always does.
// Without `last`, `best` and `young` all steps are held. No rule counts steps that were left behind
// (StepInfo::is_left). With one of `last`, `best` and `young` such a step goes when the line has come past it and it is
// no longer young. Above the quota it goes first.
struct KeepRules {
  int64_t last = 0;               // the newest steps; 0: no such rule
  int64_t every = 0;              // steps divisible by it; 0: none
  int64_t best = 0;               // the steps with the best `monitor`, of equal values the newer; 0: no such rule
  std::string monitor;            // a name in StepMetrics; REQUIRES: set when `best` is
  bool higher_is_better = false;  // a higher value of `monitor` is better
  std::chrono::seconds young{0};  // the steps committed less than this ago; 0: no such rule
  // The most bytes that all committed steps take together; 0: any. Above it steps go that a rule holds: first the
  // oldest, then those of `every`, at last those of `best`, the worst first. The newest step stays.
  int64_t quota_bytes = 0;
  bool drop_left = false;  // steps that the line left behind go, whatever the other rules say
  bool operator==(const KeepRules&) const = default;
};

// A folder of checkpoints nearer to the training than the root: a node's NVMe, a shared file system. It has the same
// files as the root, for the same attempt, and its own manifests: each tier commits by itself.
struct TierOptions {
  Location root;
  KeepRules keep{};
  int64_t save_every = 0;  // only steps divisible by it are saved here; 0: all. Not for the nearest tier
  // Each node has another folder of this name, so a rank sees only what the ranks of its node write. Such a tier gets
  // its manifests from the nearest tier that all nodes share, once that one has committed.
  bool node_local = false;
};

struct SaverOptions {
  // Agreed by all ranks at start-up: "r<restart>-<nonce>", see make_attempt.
  std::string attempt;
  int64_t rank = 0;
  int64_t world_size = 1;
  int threads = 0;  // 0: available_cpus(), at most 8
  // The most host memory that saves of all ranks of this node take together; 0: as much as one save needs. Snapshots,
  // the memory that larger saves go through and copies between tiers count, pinned or not, also those of saves that
  // hang in storage. Each rank has an equal share (of local_ranks()); with tiers a quarter of the share is for copies.
  // A save whose file is larger goes through the share, divided among the tiers. save() then returns when no tier reads
  // the tensors any more. The process's budget counts in any case.
  int64_t memory_bytes = 0;
  // How much snapshot memory create() takes and touches in the background, so that the first save stops training no
  // longer than the others: the size of this rank's file. 0: the first save takes and touches it.
  int64_t reserve_bytes = 0;
  // A save does not write tensors whose bytes are those of the save before. Its step refers to the earlier step's
  // file, which stays as long as a committed step refers to it. All ranks must set it alike. Steps are then of format
  // version 3, which builds before it refuse. A save writes all tensors when one of its tiers lacks the earlier step,
  // as the first save does. save_part() always writes all.
  bool refer_unchanged = false;
  // Pins the snapshot memory for CUDA devices, that of `reserve_bytes` in the background, if there is a driver.
  bool pin = false;
  // How long a rank whose part is durable waits for the other ranks. A rank that fails tells the others, so that they
  // end at once. save() waits for the save before it, and for storage that does not answer, no longer than the larger
  // of this and `tier_timeout`. Then it gives up the save before it.
  std::chrono::milliseconds commit_timeout{600'000};
  KeepRules keep{};  // the root's rules, applied after each commit
  // Tiers nearer than the root, nearest first. The nearest is written from the snapshot, the others from its files, or
  // from the snapshot where the nearest is a service or has failed.
  std::vector<TierOptions> tiers;
  int64_t save_every = 0;  // the root's interval, with tiers: as TierOptions::save_every
  // How long a save may get nowhere in a tier; 0: for ever. Then the save gives the tier up and goes on in the others.
  // Later saves leave the tier out until its storage answers. Without tiers a save fails when it has got nowhere for
  // the larger of this and `commit_timeout`.
  std::chrono::milliseconds tier_timeout{120'000};
};

// "r0003-9f1c2ab4": a restart count that is greater than that of every attempt found below `root`, and a random nonce.
// Called by one rank, which tells the others. With a `nonce` (1 to 32 characters 0-9a-z) of this job the attempts of
// the same nonce do not count, so that every rank finds the same name. Errors: invalid_argument (nonce), those of
// listing.
[[nodiscard]] Result<std::string> make_attempt(const Location& root, const std::string& nonce = "");
// The name of an attempt that is as new as the newest one below `root`, for a program that adds steps to a folder and
// does not train. The greatest step of both attempts then counts as the newest. Errors: those of listing.
[[nodiscard]] Result<std::string> make_equal_attempt(const Location& root);

enum class TierState {
  kPending,
  kDurable,   // committed there
  kFailed,    // the step is not there
  kNotAsked,  // save_every leaves the step out
};

// One save under way. Dropping this object does not stop the save.
class PendingSave {
 public:
  virtual ~PendingSave() = default;
  virtual int64_t step() const = 0;
  std::string folder() const;         // the step's folder below each tier: "step-000000000100"
  virtual int64_t bytes() const = 0;  // the size of this rank's file
  virtual bool done() const = 0;      // in all tiers, well or badly
  // The caller says that the places of FillMode::kBegin are full, or by an error why they never will be. The save then
  // fails with this error in every tier; wait() returns it, the next save does not. Called once for a save with a
  // FillImage. The save waits for this call without a limit; one that went through less memory does not wait for it.
  virtual void filled(Status status) = 0;
  // SaverOptions::tiers in their order, then the root: 1 without tiers.
  virtual size_t tiers() const = 0;
  virtual const std::string& tier_url(size_t tier) const = 0;
  virtual TierState state(size_t tier) const = 0;
  // Waits until the step is committed and durable in `tier`, by default in every tier that it goes to (on every rank:
  // until its manifest is). After `stop`: cancelled, the save goes on. Errors: timeout naming the ranks that are
  // missing, those of storage, corruption (boxes that do not tile), unsupported (in a child after fork: the save is the
  // parent's).
  [[nodiscard]] virtual Status wait(std::stop_token stop = {}, std::optional<size_t> tier = std::nullopt) = 0;
  // Waits until all work for the save has ended, in all tiers. wait() returns earlier, because older steps are removed
  // behind the commit. What could not be removed is a warning in the log, and the next save tries it again.
  // Errors: as wait(), after `stop` and in a child after fork.
  [[nodiscard]] virtual Status wait_removals(std::stop_token stop = {}) = 0;
  // Waits until the save has ended in `tier` (default: in all), well or badly, or `deadline` has passed; returns
  // whether it has ended. Errors: unsupported, as above.
  [[nodiscard]] virtual Result<bool> wait_until(Clock::time_point deadline,
                                                std::optional<size_t> tier = std::nullopt) = 0;
};

class Saver {
 public:
  // Starts no thread unless `reserve_bytes` is set. Errors: invalid_argument (attempt, rank, tiers),
  // resource_exhausted (`reserve_bytes` are not free).
  [[nodiscard]] static Result<std::unique_ptr<Saver>> create(Location root, const SaverOptions& options);
  // Waits for the save under way and for what it removes, at most `commit_timeout`.
  virtual ~Saver() = default;

  // Takes the snapshot and returns; the memory behind `tensors` may change afterwards. `state` is a small JSON
  // document: rank 0's becomes the manifest's, `rank_state` (may be "null") stays with the rank's part. One save is
  // under way at a time: a second call waits for the first and for what it removes, at most the larger of
  // `commit_timeout` and `tier_timeout`; then the first is given up. Space is checked before a byte is written.
  // Errors: the failure of the previous save, unless wait() has returned it; invalid_argument (names, shapes, a
  // step <= the last one of this saver), resource_exhausted (memory or space, naming what is needed and free),
  // already_exists (the step is committed by an attempt that is not older).
  // With tiers, a call waits until the snapshot of the save before is free, and while three saves are unfinished in
  // some tier. A tier that fails (no space, EIO, gone, no answer) is a warning; the save before has failed when no tier
  // has it. While storage hangs in a save, the next save takes other memory for its snapshot.
  // After `stop`: cancelled. A call that waits for the save before it has begun nothing, and that save goes on. A save
  // that is larger than `memory_bytes` is given up, and its step is whole or nowhere.
  // `metrics` are rank 0's and become the manifest's, for KeepRules::best.
  // With `fill`, tensors may come without `data`: the caller fills their places, in the image also after save() has
  // returned (FillMode).
  [[nodiscard]] virtual Result<std::shared_ptr<PendingSave>> save(int64_t step, std::span<const TensorToSave> tensors,
                                                                  std::string state, std::string rank_state,
                                                                  StepMetrics metrics = {}, std::stop_token stop = {},
                                                                  const FillImage& fill = {}) = 0;
  // A save in two halves, for callers that hear from the other ranks by themselves. save_part() is save() but for the
  // commit: its PendingSave ends when this rank's part is durable. commit() of rank 0 then commits the step, as soon as
  // the parts of all ranks are there; it ends within the same limits as a save, naming this rank and the cause. A part
  // that is not committed before the next save is removed by a later sweep.
  // Errors: as save() and PendingSave::wait(); invalid_argument (commit() without a part of this step), unsupported
  // (a Saver with tiers).
  [[nodiscard]] virtual Result<std::shared_ptr<PendingSave>> save_part(int64_t step,
                                                                       std::span<const TensorToSave> tensors,
                                                                       std::string rank_state,
                                                                       std::stop_token stop = {},
                                                                       const FillImage& fill = {}) = 0;
  [[nodiscard]] virtual Status commit(int64_t step, std::string state, StepMetrics metrics = {}) = 0;
  // For a caller that fails before it can call save(): tells the other ranks, which end with `cause` at once. The step
  // is given up, so the next one is greater. Does nothing with one rank.
  virtual void abandon(int64_t step, const Error& cause) = 0;
  // Says what the next save continues. Each later save continues the one before it. The manifests keep this line, and
  // steps that are not in it are left behind. nullopt, as at first: the manifests keep none.
  virtual void continue_from(std::optional<Lineage> line) = 0;
  // saves, write_bytes, write_seconds, stall_seconds.
  virtual const Metrics& metrics() const = 0;
  // The bytes of all tensors that this rank's saves referred to instead of writing them.
  virtual int64_t referred_bytes() const = 0;
  // The most host memory that this Saver's saves have taken at once (SaverOptions::memory_bytes).
  virtual int64_t peak_memory_bytes() const = 0;
};

// Each replicated tensor is written by one rank. Returns the writer of each tensor of `bytes`, balanced by size; every
// rank computes the same.
std::vector<int64_t> assign_writers(std::span<const int64_t> bytes, int64_t world_size);

// Removes a committed step as retention does: a reader sees all of it or none. Files that a newer attempt has written
// into it stay. Errors: not_found (no committed step), already_exists (a committed step refers to its files),
// corruption and unsupported (its manifest cannot be read), those of storage.
[[nodiscard]] Status remove_step(const Location& root, int64_t step);

// Who committed a step: rank 0's host and user, and its version of Millrace.
struct StepWriter {
  std::string host, user, version;
  bool operator==(const StepWriter&) const = default;
};

struct StepInfo {
  int64_t step = 0;
  std::string attempt;
  int64_t world_size = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // size of its own files
  StepMetrics metrics;
  std::chrono::sys_time<std::chrono::nanoseconds> committed{};
  std::optional<Lineage> line;  // the line that the commit continues; nullopt: an earlier build wrote it, or an import
  bool is_left = false;         // the newest line left it behind (LineWalk); set by list_steps and mark_left only
  // The manifest cannot be used: damage, or unsupported (a newer version wrote it). The other fields are then empty but
  // for `step`, `is_left` and `attempt`, which is the newest that has files there, if any.
  std::optional<Error> damage;
  std::optional<StepWriter> writer;  // nullopt: an earlier build wrote it
  int64_t referred_bytes = 0;        // bytes of tensors that lie in the files of earlier steps
  std::vector<Ancestor> bases;       // the steps with these files, ascending
  bool shares = false;               // later steps may refer to this one's files
  // The first file of the step that is missing or has another size than the manifest says; only where it was asked for.
  std::optional<Error> file_damage;

  const std::optional<Error>& any_damage() const { return damage ? damage : file_damage; }
};
// Sets `is_left` of each of `steps`, which come in any order. Those of several tiers may be put together; a step then
// comes once for each tier.
void mark_left(std::span<StepInfo> steps);
// The newest good step of the newest line; nullptr: none. REQUIRES: mark_left.
const StepInfo* newest_step(std::span<const StepInfo> steps);
// The verdict of the rules about a step.
struct StepVerdict {
  bool stays = true;
  std::string why;  // the rule that holds it, or why it goes
};
// One verdict for each of `steps`, which ascend. A damaged step stays and counts for no rule. A step stays when one
// that stays refers to it. Pure.
std::vector<StepVerdict> judge_steps(std::span<const StepInfo> steps, const KeepRules& rules,
                                     std::chrono::sys_time<std::chrono::nanoseconds> now);
// Lets a step stay when one that stays refers to it, for callers that have changed verdicts. `steps` ascend. Pure.
void hold_bases(std::span<const StepInfo> steps, std::span<StepVerdict> verdicts);
// Errors: invalid_argument (negative numbers, `best` without `monitor`).
[[nodiscard]] Status check_keep_rules(const KeepRules& rules);

struct ListStepsOptions {
  // Compares the sizes of each step's files with its manifest (StepInfo::file_damage). It lists each step's folder and
  // reads no file.
  bool check_sizes = false;
  bool missing_is_damage = true;  // false: for a tier that may be one node's, which has its own ranks' files only
};
// Committed steps, ascending, left behind or not. A step without a manifest is not one. Errors: those of listing, and
// of reading manifests where the storage does not answer.
[[nodiscard]] Result<std::vector<StepInfo>> list_steps(const Location& root, const ListStepsOptions& options = {});

// The steps that have a folder, ascending, committed or not. Errors: those of listing.
[[nodiscard]] Result<std::vector<int64_t>> list_step_numbers(const Location& root);

struct StepCopyOptions {
  // Only the part of this rank; rank 0 waits for the parts of the others and commits. nullopt: all parts.
  std::optional<int64_t> rank{};
  std::string attempt{};  // waits until it has committed the step; empty: the newest attempt that is there
  KeepRules keep{};       // the target's rules, applied after the copy
  std::chrono::milliseconds timeout{600'000};  // limit of all waiting together
  Progress* progress = nullptr;                // counts parts and their bytes
};
struct StepCopy {
  int64_t step = 0, parts = 0;
  int64_t copied = 0, bytes = 0;  // parts that the target did not have whole
};
// Copies a committed step into another folder of checkpoints and commits it there, durable. Each part comes from the
// first of `from` that has it whole; every byte is verified on the way. Parts that the target has whole, by their
// hashes, stay: so a step that was damaged there is mended. The steps that it refers to are copied first. Errors:
// not_found, corruption (whole in none of `from`), already_exists (a newer attempt committed it there), timeout,
// cancelled, those of storage. REQUIRES: !from.empty().
[[nodiscard]] Result<StepCopy> copy_step(std::span<const Location> from, const Location& to, int64_t step,
                                         const StepCopyOptions& options = {}, std::stop_token stop = {});

struct StoredTensor {
  std::string name;
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<int64_t> shape;  // global
  int64_t bytes = 0;
};
struct TensorToLoad {
  std::string name;
  Box box;                    // its place in the global tensor
  std::byte* data = nullptr;  // takes the box's elements, dense row-major
};

class Checkpoint {
 public:
  // Errors: not_found (no such committed step), corruption (manifest or part record), unsupported (a newer version).
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(const Location& root, int64_t step);
  // Opens the newest attempt that any of `tiers` has committed; they come nearest first. Each part is read from the
  // first tier that has it whole; what is missing, damaged or unreadable there comes from the next, with a warning in
  // the log. The hashes in the manifest say which copies are of this commit. Errors: as above. When every tier fails,
  // the error of a tier that does not answer goes before one of damage. REQUIRES: !tiers.empty().
  // A load gives up a tier that has answered nothing for `tier_timeout` and goes on from the next; when there is none,
  // timeout. Zero: it waits for ever. Manifests are read without a limit.
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(std::span<const Location> tiers, int64_t step,
                                                                std::chrono::milliseconds tier_timeout = {});
  virtual ~Checkpoint() = default;

  virtual const StepInfo& info() const = 0;
  virtual std::span<const StoredTensor> tensors() const = 0;  // by name
  virtual const StoredTensor* find(std::string_view name) const = 0;
  // The boxes that a tensor of this name was saved as, by rank. Empty: no such tensor.
  virtual std::vector<Box> boxes(std::string_view name) const = 0;
  virtual const std::string& state() const = 0;
  // The state that rank `rank` saved; nullopt when the checkpoint has fewer ranks. Errors: corruption.
  [[nodiscard]] virtual Result<std::optional<std::string>> rank_state(int64_t rank) const = 0;

  // Fills every target, whatever boxes the tensors were stored as; only the parts that are needed are opened, every
  // byte read is verified. Errors: not_found (a tensor), invalid_argument (a box outside), corruption naming file and
  // tensor.
  [[nodiscard]] virtual Status load(std::span<const TensorToLoad> targets, int threads = 0, std::stop_token stop = {},
                                    Progress* progress = nullptr) const = 0;
  // Writes the files that open() and loads of this object found damaged back into their tiers, from one that has them
  // whole, and returns how many: manifests, and the parts of ranks. Files that a tier merely lacks are left out.
  // Errors: the first failure, after trying all.
  [[nodiscard]] virtual Result<int64_t> heal(std::stop_token stop = {}) const = 0;
  // Reads and checks everything: sizes, headers, every hash, the tiling. Errors: the first damage found; with `found`,
  // all of it is reported there first.
  [[nodiscard]] virtual Status verify(int threads = 0, std::stop_token stop = {}, Progress* progress = nullptr,
                                      const std::function<void(const Error&)>& found = {}) const = 0;
};

}  // namespace millrace::checkpoint
