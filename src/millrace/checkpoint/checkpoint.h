// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checkpoints: asynchronous saves, atomic commits, verified loads (docs/format/checkpoint.md,
// docs/design/checkpoint.md).
//
// Every rank has one Saver. save() copies the rank's tensors into pooled memory that is already the image of its
// safetensors file and returns; C++ threads hash that image and submit its writes, then write a part record. The
// committer (rank 0) waits for all part records of the attempt, checks that the boxes tile every tensor, and creates
// the step's manifest. The checkpoint exists from the moment its manifest exists. No collective is used.
//
//   ROOT/step-000000000100/manifest.json                              commits attempt ATTEMPT of step 100
//   ROOT/step-000000000100/ATTEMPT/rank-00000-of-00002.safetensors    tensors of rank 0; any tool reads the file
//   ROOT/step-000000000100/ATTEMPT/part-00000-of-00002.json           part record: rank 0's tensors, boxes and hashes
//   (with more than 1,000 ranks both files of the first thousand are in ATTEMPT/ranks-00000, and so on)
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

// Memory to fill with the bytes [begin, begin + bytes) of a tensor without `data`. The tensor's elements are dense and
// row-major.
struct ImagePlace {
  size_t tensor = 0;  // number among the tensors given to save()
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t begin = 0;
};
enum class FillMode {
  // The call starts filling the places, for example with asynchronous copies from a device, and returns. The caller
  // then reports by PendingSave::filled() that they are full. Called once per save, on the thread of save(), with the
  // image of the whole file: each place is a whole tensor.
  kBegin,
  // The call returns when the places are full. Called many times before save() returns, by any thread, each time for
  // one contiguous range of the file.
  kComplete,
};
// Fills `places`, all of which are inside `memory`. After it has returned an error, nothing may write to `memory`.
using FillImage = std::function<Status(std::span<std::byte> memory, std::span<const ImagePlace> places, FillMode mode)>;

// Metrics that a program measured at a step, by name. Values that are not finite are not stored, so KeepRules::best
// never chooses them.
using StepMetrics = std::map<std::string, double, std::less<>>;

// Rules that decide which committed steps of a folder stay. A step stays while any rule holds it. The newest step
// always stays. Without `last`, `best` and `young` all steps are held. No rule counts a step that was left behind
// (StepInfo::is_left). With `last`, `best` or `young` set, such a step is removed once the line has reached its number
// and it is no longer young. Above the quota, steps left behind are removed first.
struct KeepRules {
  int64_t last = 0;               // the newest steps; 0: no such rule
  int64_t every = 0;              // steps divisible by this number; 0: no such rule
  int64_t best = 0;               // the steps with the best `monitor`, newer ones first on a tie; 0: no such rule
  std::string monitor;            // a name in StepMetrics; REQUIRES: set when `best` is
  bool higher_is_better = false;  // a higher value of `monitor` is better
  std::chrono::seconds young{0};  // the steps committed less than this long ago; 0: no such rule
  // The most bytes that all committed steps may take together; 0: no limit. Above it even steps that a rule holds are
  // removed: first the oldest, then those that `every` holds, finally those that `best` holds, the worst first. The
  // newest step stays.
  int64_t quota_bytes = 0;
  bool drop_left = false;  // remove steps that the line left behind, whatever the other rules say
  bool operator==(const KeepRules&) const = default;
};

// A folder of checkpoints nearer to the training than the root: a node's NVMe, a shared file system. It has the same
// files as the root, for the same attempt. Each tier commits on its own, so it has its own manifests.
struct TierOptions {
  Location root;
  KeepRules keep{};
  int64_t save_every = 0;  // save only steps divisible by this number here; 0: all. Not for the nearest tier
  // True: each node has its own folder of this name, so a rank sees only files that ranks of its node write. Such a
  // tier gets its manifests from the nearest tier that all nodes share, once that tier has committed.
  bool node_local = false;
};

struct SaverOptions {
  // Name that all ranks agree on at start-up: "r<restart>-<nonce>" (make_attempt).
  std::string attempt;
  int64_t rank = 0;
  int64_t world_size = 1;
  int threads = 0;  // 0: available_cpus(), at most 8
  // The most host memory that saves of all ranks of this node take together; 0: as much as one save needs. It covers
  // snapshots, the memory that larger saves go through, and copies between tiers, pinned or not, including those of
  // saves that hang in storage. The local_ranks() ranks get equal shares. With tiers, a quarter of a share is reserved
  // for copies. A save whose file is larger than the share goes through it in pieces, and the tiers divide the share
  // among them. save() then returns when no tier reads the tensors any more. The process's memory budget applies as
  // well.
  int64_t memory_bytes = 0;
  // Snapshot memory that create() takes and touches in the background: the size of this rank's file. The first save
  // then stops training no longer than later ones. 0: the first save takes and touches the memory.
  int64_t reserve_bytes = 0;
  // True: a save does not write tensors whose bytes equal those of the previous save. Its step refers to the earlier
  // step's file, which stays as long as a committed step refers to it. All ranks must set this alike. Steps are then
  // in format version 3, which older builds refuse. The first save writes all tensors, and so does a save when one of
  // its tiers lacks the earlier step. save_part() always writes all tensors.
  bool refer_unchanged = false;
  // Pins the snapshot memory for CUDA devices if there is a driver. The memory of `reserve_bytes` is pinned in the
  // background.
  bool pin = false;
  // How long a rank whose part is durable waits for the other ranks. A rank that fails tells the others, and they end
  // at once. save() waits for the previous save, and for storage that does not answer, no longer than the larger of
  // this and `tier_timeout`. Then it gives up the previous save.
  std::chrono::milliseconds commit_timeout{600'000};
  KeepRules keep{};  // the root's rules, applied after each commit
  // Tiers nearer than the root, nearest first. The nearest tier is written from the snapshot. The others are copied
  // from the nearest tier's files, or written from the snapshot when the nearest tier is a service or has failed.
  std::vector<TierOptions> tiers;
  int64_t save_every = 0;  // with tiers: the root's interval, like TierOptions::save_every
  // How long a save may make no progress in a tier; 0: for ever. Then the save gives up this tier and continues in the
  // others. Later saves leave the tier out until its storage answers. Without tiers, a save fails after the larger of
  // this and `commit_timeout` without progress.
  std::chrono::milliseconds tier_timeout{120'000};
};

// Makes the name of a new attempt, such as "r0003-9f1c2ab4": a restart count greater than that of every attempt below
// `root`, and a random nonce. One rank calls this and tells the others the name. Alternatively every rank calls it
// with the same `nonce` of this job (1 to 32 characters 0-9a-z). Attempts with that nonce are then not counted, so all
// ranks get the same name. Errors: invalid_argument (nonce), those of listing.
[[nodiscard]] Result<std::string> make_attempt(const Location& root, const std::string& nonce = "");
// Makes the name of an attempt that is as new as the newest one below `root`, for a program that adds steps to a
// folder without training. The greatest step of the two attempts then counts as the newest. Errors: those of listing.
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
  virtual bool done() const = 0;      // has ended in all tiers, well or badly
  // Reports that the places of FillMode::kBegin are full, or by an error why they never will be. With an error the
  // save fails in every tier. wait() returns that error; the next save does not. The caller calls this once for each
  // save with a FillImage. The save waits for the call without a limit, unless it was larger than its memory and went
  // through it in pieces (FillMode::kComplete).
  virtual void filled(Status status) = 0;
  // The number of tiers: SaverOptions::tiers in their order, then the root. 1 without tiers.
  virtual size_t tiers() const = 0;
  virtual const std::string& tier_url(size_t tier) const = 0;
  virtual TierState state(size_t tier) const = 0;
  // Waits until the step's manifest is durable in `tier`, by default in every tier that the step goes to. Every rank
  // waits for the manifest, not only for its part. After `stop` it returns cancelled and the save goes on. Errors:
  // timeout naming the ranks that are missing, those of storage, corruption (boxes that do not tile), unsupported (in
  // a child after fork: the save is the parent's).
  [[nodiscard]] virtual Status wait(std::stop_token stop = {}, std::optional<size_t> tier = std::nullopt) = 0;
  // Waits until all work for the save has ended, in all tiers. wait() returns earlier, because older steps are removed
  // after the commit. A removal that fails is a warning in the log, and the next save tries it again. Errors:
  // cancelled (after `stop`), unsupported (in a child after fork).
  [[nodiscard]] virtual Status wait_removals(std::stop_token stop = {}) = 0;
  // Waits until the save has ended in `tier` (default: in all), well or badly, or `deadline` has passed. Returns
  // whether it has ended. Errors: unsupported (in a child after fork).
  [[nodiscard]] virtual Result<bool> wait_until(Clock::time_point deadline,
                                                std::optional<size_t> tier = std::nullopt) = 0;
};

class Saver {
 public:
  // Starts no thread unless `reserve_bytes` is set. Errors: invalid_argument (attempt, rank, tiers),
  // resource_exhausted (`reserve_bytes` are not free).
  [[nodiscard]] static Result<std::unique_ptr<Saver>> create(Location root, const SaverOptions& options);
  // Waits for the save under way and its removals, at most `commit_timeout`.
  virtual ~Saver() = default;

  // Takes the snapshot and returns. The memory of `tensors` may change afterwards. `state` is a small JSON document;
  // the manifest stores that of rank 0. `rank_state` (may be "null") is stored with the rank's part. One save is under
  // way at a time. A second call waits for the first save and its removals, at most the larger of `commit_timeout` and
  // `tier_timeout`, and then gives up the first save. Space is checked before a byte is written.
  // Errors: the failure of the previous save, unless wait() has returned it; invalid_argument (names, shapes, a step
  // <= the last one of this saver), resource_exhausted (memory or space, naming what is needed and free),
  // already_exists (the step is committed by an attempt that is not older).
  // With tiers, a call waits until the snapshot memory of the previous save is free, and while three saves are
  // unfinished in some tier. A tier that fails (no space, EIO, gone, no answer) is a warning. The previous save counts
  // as failed only when no tier has it. While storage hangs in a save, the next save takes other memory for its
  // snapshot.
  // After `stop` the call returns cancelled. If it was waiting for the previous save, it has begun nothing, and that
  // save goes on. If its save is larger than `memory_bytes`, the save is given up, and its step is whole or nowhere.
  // The manifest stores the `metrics` of rank 0, for KeepRules::best.
  // With `fill`, tensors may come without `data`: the caller fills their places. It may fill places in the image even
  // after save() has returned (FillMode::kBegin).
  [[nodiscard]] virtual Result<std::shared_ptr<PendingSave>> save(int64_t step, std::span<const TensorToSave> tensors,
                                                                  std::string state, std::string rank_state,
                                                                  StepMetrics metrics = {}, std::stop_token stop = {},
                                                                  const FillImage& fill = {}) = 0;
  // Saves in two halves, for callers whose ranks tell each other when their parts are written. save_part() works like
  // save() without the commit: its PendingSave ends when this rank's part is durable. commit(), called on rank 0, then
  // commits the step as soon as the parts of all ranks are there. It ends within the same limits as a save; its error
  // names this rank and the cause. A part that is not committed before the next save is removed by a later sweep.
  // Errors: as save() and PendingSave::wait(); invalid_argument (commit() without a part of this step), unsupported
  // (a Saver with tiers).
  [[nodiscard]] virtual Result<std::shared_ptr<PendingSave>> save_part(int64_t step,
                                                                       std::span<const TensorToSave> tensors,
                                                                       std::string rank_state,
                                                                       std::stop_token stop = {},
                                                                       const FillImage& fill = {}) = 0;
  [[nodiscard]] virtual Status commit(int64_t step, std::string state, StepMetrics metrics = {}) = 0;
  // Tells the other ranks that this one failed before it could call save(). They end with `cause` at once. The step is
  // given up, so the next step must be greater. Does nothing with one rank.
  virtual void abandon(int64_t step, const Error& cause) = 0;
  // Sets the line that the next save continues. Each later save continues the one before it. The manifests store this
  // line, and steps that are not in it are left behind. nullopt (the initial value): the manifests store no line.
  virtual void continue_from(std::optional<Lineage> line) = 0;
  // Counts saves, write_bytes, write_seconds and stall_seconds.
  virtual const Metrics& metrics() const = 0;
  // The bytes of all tensors that this rank's saves referred to instead of writing them.
  virtual int64_t referred_bytes() const = 0;
  // The most host memory that this Saver's saves have taken at once (SaverOptions::memory_bytes).
  virtual int64_t peak_memory_bytes() const = 0;
};

// Chooses the one rank that writes each replicated tensor. Returns the writer of each tensor of `bytes`, balanced by
// size. Every rank computes the same result.
std::vector<int64_t> assign_writers(std::span<const int64_t> bytes, int64_t world_size);

// Removes a committed step the way retention does: a reader sees all of the step or none. Files that a newer attempt
// has written into the step's folder stay. Errors: not_found (no committed step), already_exists (a committed step
// refers to its files), corruption and unsupported (its manifest cannot be read), those of storage.
[[nodiscard]] Status remove_step(const Location& root, int64_t step);

// The writer that committed a step: rank 0's host and user, and its version of Millrace.
struct StepWriter {
  std::string host, user, version;
  bool operator==(const StepWriter&) const = default;
};

struct StepInfo {
  int64_t step = 0;
  std::string attempt;
  int64_t world_size = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // size of the step's own files
  StepMetrics metrics;
  std::chrono::sys_time<std::chrono::nanoseconds> committed{};
  std::optional<Lineage> line;  // the line that the commit continues; nullopt: an earlier build wrote it, or an import
  bool is_left = false;         // the newest line left it behind (LineWalk); set by list_steps and mark_left only
  // Reason why the manifest cannot be used: damage, or unsupported (a newer version wrote it). The other fields are
  // then empty, except `step`, `is_left` and `attempt`. `attempt` is then the newest attempt that has files there, if
  // any.
  std::optional<Error> damage;
  std::optional<StepWriter> writer;  // nullopt: an earlier build wrote it
  int64_t referred_bytes = 0;        // bytes of tensors that lie in the files of earlier steps
  std::vector<Ancestor> bases;       // those earlier steps, ascending
  bool shares = false;               // later steps may refer to this one's files
  // Names the first file of the step that is missing or has another size than the manifest says. Set only with
  // ListStepsOptions::check_sizes.
  std::optional<Error> file_damage;

  const std::optional<Error>& any_damage() const { return damage ? damage : file_damage; }
};
// Sets `is_left` of each of `steps`, which may be in any order. `steps` may hold the steps of several tiers; a step
// then occurs once for each tier.
void mark_left(std::span<StepInfo> steps);
// Returns the newest undamaged step of the newest line; nullptr: none. REQUIRES: mark_left.
const StepInfo* newest_step(std::span<const StepInfo> steps);
// The verdict of the rules about a step.
struct StepVerdict {
  bool stays = true;
  std::string why;  // the rule that holds the step, or why it is removed
};
// Returns one verdict for each of `steps`, which ascend. A damaged step stays, and no rule counts it. A step stays
// when another step that stays refers to it. Pure.
std::vector<StepVerdict> judge_steps(std::span<const StepInfo> steps, const KeepRules& rules,
                                     std::chrono::sys_time<std::chrono::nanoseconds> now);
// Changes verdicts so that a step stays when another step that stays refers to it, for callers that have changed
// verdicts. `steps` ascend. Pure.
void hold_bases(std::span<const StepInfo> steps, std::span<StepVerdict> verdicts);
// Checks the rules. Errors: invalid_argument (negative numbers, `best` without `monitor`).
[[nodiscard]] Status check_keep_rules(const KeepRules& rules);

struct ListStepsOptions {
  // Compares the sizes of each step's files with its manifest (StepInfo::file_damage). This lists each step's folder
  // and reads none of these files.
  bool check_sizes = false;
  bool missing_is_damage = true;  // false: for a tier that may have the files of one node's ranks only
};
// Lists the committed steps (those with a manifest), ascending, left behind or not. Errors: those of listing, and of
// reading manifests where the storage does not answer.
[[nodiscard]] Result<std::vector<StepInfo>> list_steps(const Location& root, const ListStepsOptions& options = {});

// Lists the steps that have a folder, ascending, committed or not. Errors: those of listing.
[[nodiscard]] Result<std::vector<int64_t>> list_step_numbers(const Location& root);

struct StepCopyOptions {
  // Copies only the part of this rank; rank 0 then waits for the parts of the others and commits. nullopt: all parts.
  std::optional<int64_t> rank{};
  std::string attempt{};  // waits until this attempt has committed the step; empty: copies the newest one there
  KeepRules keep{};       // the target's rules, applied after the copy
  std::chrono::milliseconds timeout{600'000};  // limit of all waiting together
  Progress* progress = nullptr;                // counts parts and their bytes
};
struct StepCopy {
  int64_t step = 0, parts = 0;
  int64_t copied = 0, bytes = 0;  // parts that the target did not have whole
};
// Copies a committed step into another folder of checkpoints and commits it there, durable. Each part comes from the
// first of `from` that has it whole, and every byte is verified on the way. Parts that the target already has whole,
// by their hashes, stay. A copy therefore also repairs a damaged step in the target. The steps that this step refers
// to are copied first. Errors: not_found, corruption (whole in none of `from`), already_exists (a newer attempt
// committed it there), timeout, cancelled, those of storage. REQUIRES: !from.empty().
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
  Box box;                    // the box to load of the global tensor
  std::byte* data = nullptr;  // receives the box's elements, dense row-major
};

class Checkpoint {
 public:
  // Errors: not_found (no such committed step), corruption (manifest or part record), unsupported (a newer version).
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(const Location& root, int64_t step);
  // Opens the newest attempt that any of `tiers` (nearest first) has committed. Each part is read from the first tier
  // that has it whole. Data that is missing, damaged or unreadable in one tier comes from the next, with a warning in
  // the log. The hashes in the manifest tell which copies belong to this commit. Errors: as above. When every tier
  // fails, the error of a tier that does not answer takes precedence over damage. REQUIRES: !tiers.empty().
  // A load gives up a tier that has not answered for `tier_timeout` and continues from the next; timeout when there is
  // none. Zero: a load waits for ever. Manifests are read without a limit.
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(std::span<const Location> tiers, int64_t step,
                                                                std::chrono::milliseconds tier_timeout = {});
  virtual ~Checkpoint() = default;

  virtual const StepInfo& info() const = 0;
  virtual std::span<const StoredTensor> tensors() const = 0;  // by name
  virtual const StoredTensor* find(std::string_view name) const = 0;
  // Returns the boxes that a tensor of this name was saved as, by rank. Empty: no such tensor.
  virtual std::vector<Box> boxes(std::string_view name) const = 0;
  virtual const std::string& state() const = 0;
  // Returns the state that rank `rank` saved; nullopt when the checkpoint has fewer ranks. Errors: corruption.
  [[nodiscard]] virtual Result<std::optional<std::string>> rank_state(int64_t rank) const = 0;

  // Fills every target, whatever boxes the tensors were stored as. Opens only the parts that are needed, and verifies
  // every byte read. Errors: not_found (a tensor), invalid_argument (a box outside), corruption naming file and
  // tensor.
  [[nodiscard]] virtual Status load(std::span<const TensorToLoad> targets, int threads = 0, std::stop_token stop = {},
                                    Progress* progress = nullptr) const = 0;
  // Repairs the files (manifests, parts of ranks) that open() and loads of this object found damaged: writes each anew
  // in its tier, from a tier that has it whole. Returns how many it wrote. Files that a tier merely lacks are left
  // out. Errors: the first failure, after trying all.
  [[nodiscard]] virtual Result<int64_t> heal(std::stop_token stop = {}) const = 0;
  // Reads and checks everything: sizes, headers, every hash, the tiling. With `found`, reports all damage there.
  // Errors: the first damage found.
  [[nodiscard]] virtual Status verify(int threads = 0, std::stop_token stop = {}, Progress* progress = nullptr,
                                      const std::function<void(const Error&)>& found = {}) const = 0;
};

}  // namespace millrace::checkpoint
