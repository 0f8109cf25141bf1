// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace millrace::plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxNodes = 20'000, kMaxModels = 1'000, kMaxWork = 50'000'000;

// The fewest and the most nodes that a wish can have.
struct Bounds {
  int64_t low, high;
};

Bounds bounds_of(const ModelWish& wish, int64_t available) {
  const auto up = [&](int64_t value) { return (value + wish.multiple - 1) / wish.multiple * wish.multiple; };
  const int64_t most = wish.max_nodes == 0 ? available : std::min(available, wish.max_nodes);
  return {up(wish.min_nodes), most / wish.multiple * wish.multiple};
}

Status check_nodes(const NodesOptions& options) {
  if (options.nodes < 1 || options.nodes > kMaxNodes)
    return fail(ErrorCode::kInvalidArgument, "there are 1 to {} nodes", kMaxNodes);
  if (options.spares < 0 || options.spares >= options.nodes)
    return fail(ErrorCode::kInvalidArgument, "{} spares of {} nodes leave none", options.spares, options.nodes);
  if (options.models.empty() || static_cast<int64_t>(options.models.size()) > kMaxModels)
    return fail(ErrorCode::kInvalidArgument, "there are 1 to {} models", kMaxModels);
  if (options.gpus_per_node < 1 || options.gpus_per_node > 100'000 || options.model_parallel < 1 ||
      options.global_batch < 0)
    return fail(ErrorCode::kInvalidArgument, "a node has 1 to 100,000 GPUs, a copy of a model takes 1 or more");
  const int64_t available = options.nodes - options.spares;
  int64_t least = 0;
  std::string needs;
  for (const ModelWish& wish : options.models) {
    if (!(wish.weight > 0) || !std::isfinite(wish.weight))
      return fail(ErrorCode::kInvalidArgument, "{}: a weight is more than 0", wish.name);
    if (wish.multiple < 1 || wish.multiple > kMaxNodes || wish.min_nodes < 0 || wish.min_nodes > kMaxNodes ||
        wish.max_nodes < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: counts of nodes are whole and not negative, a multiple is 1 or more", wish.name);
    }
    const Bounds bounds = bounds_of(wish, available);
    if (wish.max_nodes > 0 && bounds.low > bounds.high && bounds.low <= available) {
      return fail(ErrorCode::kInvalidArgument, "{}: no multiple of {} lies between {} and {} nodes", wish.name,
                  wish.multiple, wish.min_nodes, wish.max_nodes);
    }
    least += bounds.low;
    needs += fmt::format("{}{} {}", needs.empty() ? "" : " + ", wish.name, bounds.low);
  }
  if (least > available) {
    return fail(ErrorCode::kInvalidArgument, "the minima need {} nodes ({}), and {} nodes less {} spares are {}", least,
                needs, options.nodes, options.spares, available);
  }
  return {};
}

// best[i][n]: the least sum of squared distances when the models from i on use exactly n nodes. A share of a model is
// tried for every n, so the answer is exact; models x nodes x nodes / multiple steps.
class Allocation {
 public:
  Allocation(const std::vector<ModelWish>& wishes, int64_t available) : wishes_(wishes), available_(available) {
    double weights = 0;
    for (const ModelWish& wish : wishes) weights += wish.weight;
    for (const ModelWish& wish : wishes) shares_.push_back(static_cast<double>(available) * wish.weight / weights);
    best_.assign(wishes.size() + 1, std::vector<double>(static_cast<size_t>(available) + 1, kNever));
    best_.back()[0] = 0;
    for (size_t i = wishes.size(); i-- > 0;) fill(i);
  }

  double share(size_t i) const { return shares_[i]; }

  // As many nodes as can be used, then the least distance, then more for earlier models.
  std::vector<int64_t> counts() const {
    int64_t left = available_;
    while (best_[0][static_cast<size_t>(left)] == kNever) --left;
    std::vector<int64_t> counts;
    for (size_t i = 0; i < wishes_.size(); ++i) {
      const double wanted = best_[i][static_cast<size_t>(left)];
      const Bounds bounds = bounds_of(wishes_[i], left);
      for (int64_t n = bounds.high; n >= bounds.low; n -= wishes_[i].multiple) {
        if (cost(i, n, left) > wanted + 1e-9 * (1 + wanted)) continue;
        counts.push_back(n);
        left -= n;
        break;
      }
    }
    return counts;
  }

 private:
  double cost(size_t i, int64_t n, int64_t total) const {
    const double off = static_cast<double>(n) - shares_[i];
    return off * off + best_[i + 1][static_cast<size_t>(total - n)];
  }

  void fill(size_t i) {
    for (int64_t total = 0; total <= available_; ++total) {
      const Bounds bounds = bounds_of(wishes_[i], total);
      double& least = best_[i][static_cast<size_t>(total)];
      for (int64_t n = bounds.low; n <= bounds.high; n += wishes_[i].multiple)
        least = std::min(least, cost(i, n, total));
    }
  }

  const std::vector<ModelWish>& wishes_;
  const int64_t available_;
  std::vector<double> shares_;
  std::vector<std::vector<double>> best_;
};

void explain_nodes(const NodesOptions& options, const std::vector<int64_t>& counts, NodesPlan& plan) {
  Why& why = plan.why;
  const auto models = static_cast<int64_t>(options.models.size());
  const int64_t available = options.nodes - options.spares;
  why.formulas = {"share = (nodes - spares) x weight / sum of weights",
                  "counts = whole numbers within minima, maxima and multiples that use the most nodes, then have the "
                  "least sum of (count - share)^2"};
  why.terms = {{"nodes", Range::point(static_cast<double>(options.nodes)), "", kGiven},
               {"spares", Range::point(static_cast<double>(options.spares)), "", kGiven},
               {"GPUs a node", Range::point(static_cast<double>(options.gpus_per_node)), "", kGiven}};
  const bool equal = std::all_of(options.models.begin(), options.models.end(), [&](const ModelWish& wish) {
    return wish.weight == options.models[0].weight && wish.multiple == 1;
  });
  if (equal && models > 1 && available % models != 0) {
    why.notes.push_back(
        fmt::format("{} = {} x {} + {}: equal weights give the {} left over to {} models, one each ({}); one model "
                    "gets all of them only with its own weight, {}:{} here",
                    available, models, available / models, available % models, available % models, available % models,
                    fmt::join(counts, ", "), available / models + available % models, available / models));
  }
  if (options.spares == 0)
    why.notes.emplace_back("no spares: a node that fails stops its model until it is back; 1 or 2 spares are usual");
  if (plan.idle > 0)
    why.notes.push_back(fmt::format("{} nodes stay idle: maxima and multiples allow no more", plan.idle));
  for (const ModelNodes& model : plan.models) {
    if (model.model_fits == false)
      why.notes.push_back(fmt::format("{}: {} GPUs hold no whole number of copies of {} GPUs", model.name, model.gpus,
                                      options.model_parallel));
    if (model.batch_divides == false) {
      why.notes.push_back(fmt::format("{}: a batch of {} does not divide by {} data-parallel ranks", model.name,
                                      options.global_batch, model.gpus / options.model_parallel));
    }
  }
}

}  // namespace

Result<NodesPlan> plan_nodes(const NodesOptions& options) {
  RETURN_IF_ERROR(check_nodes(options));
  const int64_t available = options.nodes - options.spares;
  int64_t work = 0;
  for (const ModelWish& wish : options.models) work += available * (available / wish.multiple + 1);
  if (work > kMaxWork)
    return fail(ErrorCode::kInvalidArgument,
                "{} models over {} nodes take too long; plan in groups of nodes (multiple=)", options.models.size(),
                available);
  const Allocation allocation(options.models, available);
  const std::vector<int64_t> counts = allocation.counts();
  NodesPlan plan{.spares = options.spares};
  for (size_t i = 0; i < counts.size(); ++i) {
    ModelNodes model{.name = options.models[i].name,
                     .nodes = counts[i],
                     .gpus = counts[i] * options.gpus_per_node,
                     .share = allocation.share(i)};
    if (options.model_parallel > 1) model.model_fits = model.gpus % options.model_parallel == 0;
    const int64_t ranks = model.gpus / options.model_parallel;
    if (options.global_batch > 0 && ranks > 0) model.batch_divides = options.global_batch % ranks == 0;
    plan.models.push_back(std::move(model));
  }
  plan.idle = available - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  explain_nodes(options, counts, plan);
  return plan;
}

}  // namespace millrace::plan
