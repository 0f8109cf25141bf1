// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans the storage for checkpoints: the settings of gp3 volumes, FSx for Lustre and S3, within their limits, for a
// size, a time and a number of kept steps. Bytes are decimal, GiB and TiB as AWS sells them. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct StorageDemand {
  double bytes = 0;    // one checkpoint of all ranks together; > 0
  int64_t ranks = 1;   // each writes one file
  int64_t nodes = 1;   // share the ranks evenly
  int64_t keep = 2;    // kept steps; one more takes space while it is written
  double write_s = 0;  // allowed time to write a checkpoint; > 0
};

// One storage for the demand.
struct StorageChoice {
  std::string name;                            // "gp3", "PERSISTENT_2 500", "S3"
  std::string what;                            // the settings, ready to type
  int64_t gib = 0;                             // size of one volume or file system; 0: no such setting
  int64_t iops = 0;                            // of a gp3 volume
  double bytes_per_s = 0;                      // all nodes together
  double write_s = 0;                          // time for one checkpoint at that rate
  int64_t stripe_count = 0, stripe_bytes = 0;  // for a rank's file on Lustre
  bool carries = true;                         // false: cannot meet the demand within its limits
  std::string note;
};

struct StoragePlan {
  double bytes_per_s = 0;  // rate that the demand needs
  double space_bytes = 0;
  std::vector<StorageChoice> choices;
  Why why;
};
// Plans the storage. Errors: invalid_argument (a number that is not positive).
[[nodiscard]] Result<StoragePlan> plan_checkpoint_storage(const StorageDemand& demand);

}  // namespace millrace::plan
