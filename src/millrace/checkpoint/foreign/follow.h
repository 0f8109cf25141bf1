// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies the checkpoints that another program writes, while that program runs: the folders checkpoint-N of the Hugging
// Face Trainer, including those that DeepSpeed or Isaac-GR00T writes into. One call follows one folder. Several calls
// may follow different folders at the same time.
//
// A checkpoint is complete when it has trainer_state.json, which the Trainer writes last, and the files that
// DeepSpeed's `latest` names. It must also be unchanged for a while, because other ranks may still be writing. At the
// target trainer_state.json is copied last and removed first, so a folder that has it is whole.

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
  bool is_accelerate = false;  // Accelerate wrote it, which does not mark completion
  std::string state;           // digest of its listing; unchanged while no file changes
  FileTime newest, last;       // times of its newest file and of trainer_state.json
};
// Returns the step in the name of a Trainer folder ("checkpoint-100"); nullopt for any other name.
std::optional<int64_t> trainer_step(std::string_view folder);
// Lists the Trainer's checkpoints in `root`, by step. Empty when `root` does not exist. Errors: those of listing.
[[nodiscard]] Result<std::vector<ForeignStep>> foreign_steps(const Location& root);

struct FollowEvent {
  enum class Kind { kCopied, kRemoved, kRestored, kGone };  // kGone: the program removed it while it was copied
  Kind kind = Kind::kCopied;
  ForeignStep step;
  double seconds = 0;
};

struct FollowOptions {
  int64_t keep_last = 0;  // complete checkpoints that stay at the target; 0: all
  std::chrono::milliseconds every{10'000};
  std::chrono::milliseconds settle{10'000};  // a checkpoint unchanged for this long may be complete
  bool once = false;                         // end when all complete checkpoints are copied
  std::function<void(const FollowEvent&)> on_event;
};

// Copies each complete step that the target lacks. A step that the source wrote again after its copy was made replaces
// the copy, unless the contents are equal. When the run went back, the target may hold `keep_last` newer steps that
// the source no longer has. The older steps of the source are then left out, and a log line names them.
// Ends when `stop` is set; between two copies that is not an error. A copy that fails is tried again at the next look.
// With `once` the call returns its error. Errors: cancelled (in a copy), unsupported (the folders are Accelerate's),
// those of listing and copying.
[[nodiscard]] Status follow_checkpoints(const Location& source, const Location& target, const FollowOptions& options,
                                        const std::stop_token& stop);

// Prepares `source` before the program starts again. Removes incomplete checkpoints, because the Trainer would resume
// from them. Copies the newest complete checkpoint of `target` back, unless `source` has one at least as new. Returns
// the step that the program will find. REQUIRES: the program does not run. Errors: unsupported (the folders are
// Accelerate's; nothing was removed), those of listing and copying.
[[nodiscard]] Result<std::optional<int64_t>> restore_checkpoint(const Location& source, const Location& target,
                                                                const FollowOptions& options,
                                                                const std::stop_token& stop);

}  // namespace millrace::checkpoint
