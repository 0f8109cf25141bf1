// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/checkpoint_bench.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/bench/workplace.h"

namespace millrace::bench {

namespace {

using formats::Dtype;

double checkpoint_seconds(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

double process_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median_seconds(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Weights in bfloat16, both moments and the 4-byte step of AdamW, layer by layer: 10 bytes a parameter.
std::vector<checkpoint::StoredTensor> adamw_tensors(int64_t bytes) {
  // A row is not a power of two, so that few tensors begin at a page boundary.
  constexpr int64_t kRow = 4097, kBytesOfParameter = 10;
  const int64_t rows = std::max<int64_t>(1, bytes / kBytesOfParameter / kRow);
  constexpr int64_t kLayerRows = 4096;
  std::vector<checkpoint::StoredTensor> tensors;
  for (int64_t row = 0; row < rows; row += kLayerRows) {
    const std::vector<int64_t> shape{std::min(kLayerRows, rows - row), kRow};
    const std::string name = fmt::format("layers.{:05}.", row / kLayerRows);
    tensors.push_back({name + "weight", Dtype::kBF16, shape});
    tensors.push_back({name + "exp_avg", Dtype::kF32, shape});
    tensors.push_back({name + "exp_avg_sq", Dtype::kF32, shape});
    tensors.push_back({name + "step", Dtype::kF32, {}});
  }
  return tensors;
}

// A state in memory, and memory to load one into.
class State {
 public:
  explicit State(std::vector<checkpoint::StoredTensor> tensors) : tensors_(std::move(tensors)) {
    for (checkpoint::StoredTensor& tensor : tensors_) {
      tensor.bytes = formats::tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
      bytes_ += (tensor.bytes + 63) / 64 * 64;
    }
    data_.resize(static_cast<size_t>(bytes_));
    room_.resize(static_cast<size_t>(bytes_));
    change(1);
  }

  int64_t bytes() const { return bytes_; }
  int64_t tensors() const { return std::ssize(tensors_); }
  // Changes every number.
  void change(uint64_t seed) {
    uint64_t value = seed * 0x9e3779b97f4a7c15;
    for (size_t at = 0; at + sizeof value <= data_.size(); at += sizeof value) {
      value ^= value << 13;
      value ^= value >> 7;
      value ^= value << 17;
      std::memcpy(data_.data() + at, &value, sizeof value);
    }
  }
  void copy() { std::memcpy(room_.data(), data_.data(), data_.size()); }
  void clear_room() { std::fill(room_.begin(), room_.end(), std::byte{0}); }

  std::vector<checkpoint::TensorToSave> to_save() const {
    std::vector<checkpoint::TensorToSave> list;
    each([&](const checkpoint::StoredTensor& tensor, size_t at) {
      list.push_back({tensor.name, tensor.dtype, tensor.shape, whole(tensor), data_.data() + at});
    });
    return list;
  }
  std::vector<checkpoint::TensorToLoad> to_load() {
    std::vector<checkpoint::TensorToLoad> list;
    each([&](const checkpoint::StoredTensor& tensor, size_t at) {
      list.push_back({tensor.name, whole(tensor), room_.data() + at});
    });
    return list;
  }
  bool is_loaded() const {
    bool equal = true;
    each([&](const checkpoint::StoredTensor& tensor, size_t at) {
      equal = equal && std::memcmp(data_.data() + at, room_.data() + at, static_cast<size_t>(tensor.bytes)) == 0;
    });
    return equal;
  }

 private:
  template <class Visit>
  void each(Visit&& visit) const {
    size_t at = 0;
    for (const checkpoint::StoredTensor& tensor : tensors_) {
      visit(tensor, at);
      at += static_cast<size_t>((tensor.bytes + 63) / 64 * 64);
    }
  }
  static checkpoint::Box whole(const checkpoint::StoredTensor& tensor) {
    return {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape};
  }

  std::vector<checkpoint::StoredTensor> tensors_;
  int64_t bytes_ = 0;
  std::vector<std::byte> data_, room_;
};

}  // namespace

Result<CheckpointBenchResult> bench_checkpoint(const CheckpointBenchConfig& config, const std::stop_token& stop) {
  if (config.folders.empty() || config.rounds < 1 || (config.tensors.empty() && config.bytes < 1))
    return fail(ErrorCode::kInvalidArgument,
                "bench checkpoint needs a folder, at least one round and at least one byte");
  ASSIGN_OR_RETURN(Workplace workplace, Workplace::make(config.folders));
  std::vector<Location> places;
  for (const std::string& folder : workplace.folders()) {
    ASSIGN_OR_RETURN(places.emplace_back(), open_url(folder));
  }
  State state(config.tensors.empty() ? adamw_tensors(config.bytes) : config.tensors);
  checkpoint::SaverOptions options{.attempt = "r0000-bench", .threads = config.threads};
  options.reserve_bytes = config.reserve ? state.bytes() + (state.tensors() + 4) * 1024 : 0;
  options.keep.last = 1;
  for (size_t i = 0; i + 1 < places.size(); ++i) options.tiers.push_back({.root = places[i], .keep = options.keep});
  ASSIGN_OR_RETURN(const auto saver, checkpoint::Saver::create(places.back(), options));
  // Stands for the training before the first save.
  if (config.reserve && !sleep_until(Clock::now() + std::chrono::seconds(3), stop))
    return fail(ErrorCode::kCancelled, "stopped");

  CheckpointBenchResult result{.bytes = state.bytes(), .tensors = state.tensors()};
  std::vector<double> stops, cpus, copies, loads;
  std::vector<std::vector<double>> durable(places.size());
  for (int round = 0; round <= config.rounds; ++round) {
    state.change(static_cast<uint64_t>(round) + 1);
    Clock::time_point begun = Clock::now();
    if (round > 0) {
      state.copy();
      copies.push_back(checkpoint_seconds(begun));
    }
    const double cpu = process_cpu_s();
    begun = Clock::now();
    ASSIGN_OR_RETURN(const auto save, saver->save(round + 1, state.to_save(), "{}", "null"));
    const double stopped = checkpoint_seconds(begun);
    std::vector<double> ended(places.size());
    for (size_t tier = 0; tier < places.size(); ++tier) {
      RETURN_IF_ERROR(save->wait(stop, tier));
      ended[tier] = checkpoint_seconds(begun);
    }
    // The removals of the previous round are part of its cost, and use this folder.
    RETURN_IF_ERROR(save->wait_removals(stop));
    if (round == 0) {
      result.first_stop_s = stopped;
    } else {
      stops.push_back(stopped);
      cpus.push_back(process_cpu_s() - cpu);
      for (size_t tier = 0; tier < places.size(); ++tier) durable[tier].push_back(ended[tier]);
    }
    state.clear_room();
    const auto targets = state.to_load();
    begun = Clock::now();
    ASSIGN_OR_RETURN(const auto loaded, checkpoint::Checkpoint::open(places, round + 1));
    RETURN_IF_ERROR(loaded->load(targets, config.threads, stop));
    if (round > 0) loads.push_back(checkpoint_seconds(begun));
    if (!state.is_loaded())
      return fail(ErrorCode::kInternal, "bench checkpoint: the loaded bytes differ from the saved ones");
  }
  result.stop_s = median_seconds(std::move(stops));
  result.cpu_s = median_seconds(std::move(cpus));
  result.copy_s = median_seconds(std::move(copies));
  result.load_s = median_seconds(std::move(loads));
  for (std::vector<double>& each : durable) result.durable_s.push_back(median_seconds(std::move(each)));
  RETURN_IF_ERROR(workplace.remove());
  return result;
}

}  // namespace millrace::bench
