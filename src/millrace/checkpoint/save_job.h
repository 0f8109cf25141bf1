// SPDX-License-Identifier: Apache-2.0
#pragma once

// One save of one rank, from the tensors in memory to the commit in every tier. Private to this room.
//
//   snapshot   take() copies the tensors into the image of the rank's file (snapshot/rank_file.h). A save that is
//              larger than its memory has no image: take() lends its tensors to the threads of the tiers, which read
//              them where they are (snapshot/live_tensors.h).
//   send       launch() starts a thread for each tier (tier/tier_job.h). The thread of the nearest tier hashes a piece
//              of the image and sends it before it takes the next piece: one pass (RankFile::write).
//   tier       The threads of the other tiers copy the file of the nearest tier and verify each byte
//              (tier/part_copy.h).
//   commit     In each tier rank 0 waits for the parts of all ranks and creates the manifest. The other ranks wait
//              for the manifest (tier/tier_commit.h).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/io/bounded_call.h"
#include "millrace/checkpoint/save/save.h"
#include "millrace/checkpoint/save/saver_core.h"
#include "millrace/checkpoint/snapshot/live_tensors.h"
#include "millrace/checkpoint/snapshot/rank_file.h"
#include "millrace/checkpoint/snapshot/workspace.h"

namespace millrace::checkpoint {

// A save under way and its threads, each with the number of the tier that it writes.
struct RunningSave {
  std::shared_ptr<Save> save;
  std::vector<std::pair<size_t, Thread>> threads{};
};

// Used by the thread of Saver::save(), which calls take(), launch() and await_tensors() in this order. The threads of
// the tiers outlive this object.
class SaveJob {
 public:
  // REQUIRES: `file` is the plan of the tensors that take() gets; nothing else uses `work`.
  SaveJob(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work, std::shared_ptr<const RankFile> file,
          int64_t step, Documents documents);

  // Copies the tensors, or lends them to the tiers when they are larger than the memory. Without tiers it also checks
  // whether the step may be saved. Errors: resource_exhausted (memory, space), that of `fill`, already_exists, timeout
  // (the storage does not answer). When the error concerns this rank alone, it tells the other ranks that this rank's
  // part will not come.
  [[nodiscard]] Status take(std::span<const TensorToSave> tensors, const FillImage& fill);
  // Returns whether the other ranks were told. They give up the step, so it cannot be saved again.
  bool has_told_others() const { return has_told_others_; }

  // Tells the other ranks that this rank's part will not come, so that they need not wait for it.
  void tell_others(const Error& cause);

  // Starts a thread for each tier that the step goes to. `last_of_tier` holds the last save of each tier, which must
  // end before this one. The call replaces it by this save.
  RunningSave launch(std::span<std::shared_ptr<Save>> last_of_tier);

  // Waits until no tier reads the tensors any more; returns at once unless they were lent. Errors: cancelled after
  // `stop`. The save is then whole or nowhere.
  [[nodiscard]] Status await_tensors(const std::stop_token& stop);

 private:
  [[nodiscard]] Status copy(std::span<const TensorToSave> tensors, const FillImage& fill);
  [[nodiscard]] Status lend(std::span<const TensorToSave> tensors, const FillImage& fill);
  // Copies the tensors into the image. Sets `storage_ready` to whether the step may be saved.
  [[nodiscard]] Status fill_image(std::span<const TensorToSave> tensors, const FillImage& fill, Status& storage_ready);
  // Divides the memory among the tiers that write, because they may write at the same time. Errors:
  // resource_exhausted.
  [[nodiscard]] Status share_memory(bool from_device);

  std::function<Status()> look_at_storage() const;
  std::function<void()> answered() const;
  [[nodiscard]] Status answer_of(BoundedCall& call, std::chrono::milliseconds timeout) const;
  std::shared_ptr<Save> make_save() const;

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Workspace> work_;
  const std::shared_ptr<const RankFile> file_;
  const int64_t step_;
  const std::shared_ptr<const Documents> documents_;
  bool has_told_others_ = false;
  bool is_filled_later_ = false;                 // the caller's FillImage fills the image
  std::shared_ptr<LiveTensors> live_;            // the tensors that were lent; nullptr: there is an image
  std::vector<std::span<std::byte>> through_{};  // by tier: the memory that lent tensors go through
  std::shared_ptr<Save> save_;                   // set by launch()
};

// Commits the part that save_part() wrote, on a new thread. The thread is abandoned when the storage makes no progress
// for as long as a save may wait.
RunningSave launch_commit(const std::shared_ptr<Core>& core, WrittenRecord record,
                          const std::shared_ptr<const Documents>& documents);

}  // namespace millrace::checkpoint
