// SPDX-License-Identifier: Apache-2.0
#pragma once

// Distributes the nodes of one cluster over several models, as near to their weights' shares as minima, multiples and
// spares allow. Exact: the sum of squared distances to the shares is minimal. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct ModelWish {
  std::string name;
  double weight = 1;  // > 0
  int64_t min_nodes = 1;
  int64_t max_nodes = 0;  // 0: no limit
  int64_t multiple = 1;   // nodes come in groups of this size
};

struct NodesOptions {
  int64_t nodes = 0;
  int64_t spares = 0;  // kept free, to replace failed nodes
  int64_t gpus_per_node = 8;
  std::vector<ModelWish> models;
  int64_t model_parallel = 1;  // tensor x pipeline x context: GPUs that hold one copy
  int64_t global_batch = 0;    // samples per step of each model; 0: not asked
};

struct ModelNodes {
  std::string name;
  int64_t nodes = 0;
  int64_t gpus = 0;
  double share = 0;                   // nodes by the weight alone
  std::optional<bool> batch_divides;  // the global batch is a multiple of the data-parallel ranks
  std::optional<bool> model_fits;     // its GPUs hold whole copies of the model
};

struct NodesPlan {
  std::vector<ModelNodes> models;  // in the order of the wishes
  int64_t idle = 0;                // left over because of maxima and multiples
  int64_t spares = 0;
  Why why;
};
// Plans nodes for models. Prefers a plan that uses more nodes; of equal distances, one that gives more to earlier
// models. Errors: invalid_argument (no models, a weight or a count out of range, more than 20,000 nodes or 1,000
// models, constraints that need more nodes than there are).
[[nodiscard]] Result<NodesPlan> plan_nodes(const NodesOptions& options);

}  // namespace millrace::plan
