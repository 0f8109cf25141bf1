// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the newest checkpoint of a folder that training can resume from, whichever program wrote it: the Hugging Face
// Trainer (checkpoint-N), Lightning (*.ckpt), torch.distributed.checkpoint, Megatron (iter_N), DeepSpeed
// (global_stepN) and Millrace (step-N). A checkpoint is good when it is complete, its files open, and their sizes
// agree with what their headers and indexes say. Tensors are not read and pickles are not run, so a changed byte in a
// tensor is not found. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

enum class CheckpointKind { kMillrace, kTrainer, kLightning, kDcp, kMegatron, kDeepSpeed };
std::string_view kind_name(CheckpointKind kind);  // "millrace", "trainer", "lightning", "dcp", "megatron", "deepspeed"

struct FoundCheckpoint {
  std::string name;  // name of the folder or file below the root
  CheckpointKind kind = CheckpointKind::kTrainer;
  std::optional<int64_t> step;  // nullopt: neither the name nor the files tell
  std::string reason;           // reason why no training can resume; empty: it is good
};

struct LastGood {
  std::optional<FoundCheckpoint> good;
  std::vector<FoundCheckpoint> passed_over;  // newer than `good`, or all without `good`; newest first
};

// Finds the newest good checkpoint. Orders checkpoints by step, and those without a step by the time of their files.
// Errors: not_found (no folder), those of a storage that does not answer.
[[nodiscard]] Result<LastGood> find_last_good(const Location& root);

}  // namespace millrace::checkpoint
