// SPDX-License-Identifier: Apache-2.0
// What is decided about whole steps: who writes what, which steps go, which are there.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <random>
#include <utility>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/records.h"

namespace millrace::checkpoint {

Result<std::string> make_attempt(const Location& root) {
  ASSIGN_OR_RETURN(const auto steps, list_step_directories(root));
  int64_t restart = 0;
  for (const int64_t step : steps) {
    ASSIGN_OR_RETURN(const Level level, list_level(step_location(root, step)));
    for (const std::string& name : level.directories) restart = std::max(restart, restart_of(name).value_or(-1) + 1);
  }
  return fmt::format("r{:04}-{:08x}", restart, std::random_device()());
}

std::vector<int64_t> assign_writers(std::span<const int64_t> bytes, int64_t world_size) {
  std::vector<size_t> largest_first(bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });

  using Load = std::pair<int64_t, int64_t>;  // bytes so far, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (int64_t rank = 0; rank < world_size; ++rank) lightest.emplace(0, rank);
  std::vector<int64_t> writers(bytes.size());
  for (const size_t i : largest_first) {
    const auto [load, rank] = lightest.top();
    lightest.pop();
    writers[i] = rank;
    lightest.emplace(load + bytes[i], rank);
  }
  return writers;
}

std::vector<int64_t> steps_to_remove(std::span<const int64_t> steps, int64_t keep_last, int64_t keep_every) {
  std::vector<int64_t> removed;
  if (keep_last <= 0) return removed;
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < steps.size(); ++i) {
    if (keep_every <= 0 || steps[i] % keep_every != 0) removed.push_back(steps[i]);
  }
  return removed;
}

StepInfo step_info(const Manifest& manifest) {
  StepInfo info{.step = manifest.step,
                .attempt = manifest.attempt,
                .world_size = manifest.world_size(),
                .tensors = static_cast<int64_t>(manifest.tensors.size()),
                .committed = manifest.created};
  for (const ManifestPart& part : manifest.parts) info.bytes += part.file_bytes;
  return info;
}

Result<std::vector<StepInfo>> list_steps(const Location& root) {
  ASSIGN_OR_RETURN(const auto steps, list_step_directories(root));
  std::vector<StepInfo> infos;
  for (const int64_t step : steps) {
    auto stored = read_manifest(root, step);
    if (stored) {
      infos.push_back(step_info(stored->manifest));
    } else if (stored.error().code() != ErrorCode::kNotFound) {
      infos.push_back({.step = step, .damage = std::move(stored).error()});
    }
  }
  return infos;
}

}  // namespace millrace::checkpoint
