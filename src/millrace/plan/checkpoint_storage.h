// SPDX-License-Identifier: Apache-2.0
#pragma once

// The storage that carries checkpoints: what to ask of gp3 volumes, FSx for Lustre and S3 for a size, a time and a
// number of kept steps, within their limits. Bytes are decimal, GiB and TiB as AWS sells them. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct StorageDemand {
  double bytes = 0;    // of one checkpoint, of all ranks; > 0
  int64_t ranks = 1;   // that write a file each
  int64_t nodes = 1;   // that share the ranks evenly
  int64_t keep = 2;    // steps that stay; one more lies there while it is written
  double write_s = 0;  // in which a checkpoint is to be written; > 0
};

// One way to carry the demand.
struct StorageChoice {
  std::string name;                            // "gp3", "PERSISTENT_2 500", "S3"
  std::string what;                            // the settings, as one types them
  int64_t gib = 0;                             // of one volume or file system; 0: no such setting
  int64_t iops = 0;                            // of a gp3 volume
  double bytes_per_s = 0;                      // of all nodes together
  double write_s = 0;                          // of one checkpoint at that rate
  int64_t stripe_count = 0, stripe_bytes = 0;  // of a rank's file on Lustre
  bool carries = true;                         // false: within its limits it cannot
  std::string note;
};

struct StoragePlan {
  double bytes_per_s = 0;  // that the demand needs
  double space_bytes = 0;
  std::vector<StorageChoice> choices;
  Why why;
};
// Errors: invalid_argument (a number that is not positive).
[[nodiscard]] Result<StoragePlan> plan_checkpoint_storage(const StorageDemand& demand);

}  // namespace millrace::plan
