// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies the checkpoints that another program writes, while it goes on: the folders checkpoint-N of the Hugging Face
// Trainer (also where DeepSpeed or Isaac-GR00T writes into them). One call follows one folder; several calls may follow
// others.
//
// A checkpoint is complete when it has trainer_state.json, which the Trainer writes last, what DeepSpeed's file
// `latest` names, and has not changed for a while, as other ranks may still write. At the target trainer_state.json
// arrives last and leaves first, so a folder that has it is whole there.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/file_time.h"
#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct ForeignStep {
  int64_t step = 0;
  int64_t files = 0, bytes = 0;
  bool is_complete = false;    // judged by the names of its files
  bool is_accelerate = false;  // Accelerate wrote it, which marks no end
  std::string state;           // equal while nothing in it changes
  FileTime newest, last;       // times of its newest file and of trainer_state.json
};
// The step in the name of a folder of the Trainer ("checkpoint-100"); nullopt for any other name.
std::optional<int64_t> trainer_step(std::string_view folder);
// The Trainer's checkpoints in `root`, by step. Empty where there is no such folder. Errors: those of listing.
[[nodiscard]] Result<std::vector<ForeignStep>> foreign_steps(const Location& root);

struct FollowEvent {
  enum class Kind { kCopied, kRemoved, kRestored, kGone };  // kGone: the program removed it while it was copied
  Kind kind = Kind::kCopied;
  ForeignStep step;
  double seconds = 0;
};

struct FollowOptions {
  int64_t keep_last = 0;  // complete ones that stay at the target; 0: all
  std::chrono::milliseconds every{10'000};
  std::chrono::milliseconds settle{10'000};  // without a change
  bool once = false;                         // end when all that is complete is copied
  std::function<void(const FollowEvent&)> on_event;
};

// Copies each complete step that the target lacks. A step that the source wrote again after its copy was made replaces
// the copy, unless the contents are equal. A log line names steps that are left out because `keep_last` newer ones are
// at the target only: the run went back.
// Ends when `stop` is set, which is no error between two copies. A copy that fails is tried again at the next look,
// and is the answer of a call with `once`. Errors: cancelled (in a copy), unsupported (the folders are Accelerate's),
// those of listing and copying.
[[nodiscard]] Status follow_checkpoints(const Location& source, const Location& target, const FollowOptions& options,
                                        const std::stop_token& stop);

// Before the program starts again: removes from `source` the checkpoints that are not complete, which the Trainer would
// resume from, and copies the newest complete one of `target` back, unless `source` has one as new. Returns the step
// that the program will find. REQUIRES: the program does not run. Errors: unsupported (the folders are Accelerate's;
// nothing was removed), those of listing and copying.
[[nodiscard]] Result<std::optional<int64_t>> restore_checkpoint(const Location& source, const Location& target,
                                                                const FollowOptions& options,
                                                                const std::stop_token& stop);

}  // namespace millrace::checkpoint
