// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers that the tests of this room share: arrays that differ from seed to seed, saves of them, and loads that are
// checked against a plain reference. For tests only; functions are thread-safe.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"

namespace millrace::checkpoint {

inline Location root_of(std::shared_ptr<Storage> storage, std::string key = "run") {
  return {std::move(storage), key, "test://" + key};
}
inline Location memory_root() {
  return root_of(make_memory_storage("test"));
}
inline Location local_root(const std::string& directory) {
  return root_of(open_local_storage(directory).value());
}

// Forwards all calls to another storage, for tests that change or watch some of the calls.
class WrappedStorage : public Storage {
 public:
  explicit WrappedStorage(std::shared_ptr<Storage> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    return inner_->open_read(key, options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    return inner_->open_write(key, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    inner_->submit(operations, queue);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override { return inner_->stat(key); }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    return inner_->list(prefix, options);
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override { return inner_->remove(keys); }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    return inner_->list_uploads(prefix);
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    return inner_->abort_uploads(uploads);
  }
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override { return inner_->make_durable(keys); }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override { return inner_->free_space(prefix); }

 private:
  const std::shared_ptr<Storage> inner_;
};

// Remembers the ranges that were submitted.
class WatchedStorage final : public WrappedStorage {
 public:
  using WrappedStorage::WrappedStorage;
  struct Range {
    int64_t offset = 0;
    int64_t size = 0;
    bool in_pages = false;  // the memory begins at a page
  };
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    {
      MutexLock lock(mutex_);
      for (const Operation& operation : operations) {
        if (const auto* write = std::get_if<Operation::Write>(&operation.what))
          writes_.push_back(range(write->offset, write->data));
        if (const auto* read = std::get_if<Operation::Read>(&operation.what))
          reads_.push_back(range(read->offset, read->out));
      }
    }
    WrappedStorage::submit(operations, queue);
  }
  // Returns the writes, sorted by offset.
  std::vector<Range> writes() const {
    MutexLock lock(mutex_);
    return sorted(writes_);
  }
  std::vector<Range> reads() const {
    MutexLock lock(mutex_);
    return sorted(reads_);
  }

 private:
  static Range range(int64_t offset, std::span<const std::byte> bytes) {
    return {offset, std::ssize(bytes), reinterpret_cast<uintptr_t>(bytes.data()) % 4096 == 0};
  }
  static std::vector<Range> sorted(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
    return ranges;
  }
  mutable Mutex mutex_;
  std::vector<Range> writes_ GUARDED_BY(mutex_), reads_ GUARDED_BY(mutex_);
};

// Makes a storage hang until release(), like a file system whose server is gone.
class Hang {
 public:
  ~Hang() { release(); }
  std::function<void()> hook() {
    return [state = state_] {  // an abandoned thread may use the state for longer than the test
      MutexLock lock(state->mutex);
      while (!state->released) state->changed.wait(state->mutex);
    };
  }
  void release() {
    MutexLock lock(state_->mutex);
    state_->released = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    bool released GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Array {
  formats::Dtype dtype = formats::Dtype::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Arrays = std::map<std::string, Array>;

inline Array make_array(formats::Dtype dtype, std::vector<int64_t> shape, uint64_t seed) {
  const auto bytes = static_cast<size_t>(formats::tensor_bytes(dtype, shape).value());
  return {dtype, std::move(shape), test_bytes(bytes, seed)};
}

// Makes a few tensors with every kind of shape: matrix, vector, scalar, empty, one-byte elements.
inline Arrays small_arrays(uint64_t seed) {
  using formats::Dtype;
  return {{"layer.0.weight", make_array(Dtype::kBF16, {6, 8}, seed)},
          {"layer.0.bias", make_array(Dtype::kF32, {8}, seed + 1)},
          {"optim.step", make_array(Dtype::kI64, {}, seed + 2)},
          {"empty", make_array(Dtype::kF32, {0, 4}, seed + 3)},
          {"mask \"x\" \xC3\xA9", make_array(Dtype::kBool, {3, 5, 2}, seed + 4)}};
}

// Makes arrays whose contents differ for each step.
inline Arrays arrays_of(int64_t step) {
  return small_arrays(static_cast<uint64_t>(step) * 1'000);
}

inline Box box_of_all(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

// Makes the state of a training run that changes little: `base.` tensors of 48 KiB that stay equal for a `period` of
// steps, and a few other tensors that differ at each step.
inline Arrays adapter_arrays(int64_t step, int64_t period = 1'000) {
  using formats::Dtype;
  const auto base = static_cast<uint64_t>(step / period) * 1'000'000, own = static_cast<uint64_t>(step) * 1'000;
  return {{"base.weight", make_array(Dtype::kBF16, {64, 256}, base + 1)},
          {"base.embed", make_array(Dtype::kF32, {16, 256}, base + 2)},
          {"adapter.a", make_array(Dtype::kF32, {4, 8}, own + 3)},
          {"adapter.b", make_array(Dtype::kBF16, {8, 4}, own + 4)},
          {"adapter.step", make_array(Dtype::kI64, {}, own + 5)},
          {"empty", make_array(Dtype::kF32, {0, 4}, own + 6)}};
}
inline constexpr int64_t kAdapterBaseBytes = 48 << 10;  // all `base.` tensors together

// Returns the box's bytes, copied element by element: slow and simple.
inline std::string cut(const Array& array, const Box& box) {
  if (box == box_of_all(array.shape)) return array.bytes;
  const int64_t size = formats::dtype_bits(array.dtype) / 8;
  int64_t elements = 1;
  for (const int64_t dimension : box.shape) elements *= dimension;
  std::string bytes;
  for (int64_t i = 0; i < elements; ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = box.shape.size(); d-- > 0; rest /= box.shape[d]) {
      at += (box.offset[d] + rest % box.shape[d]) * stride;
      stride *= array.shape[d];
    }
    bytes.append(array.bytes, static_cast<size_t>(at * size), static_cast<size_t>(size));
  }
  return bytes;
}

// The pieces that one rank saves, and their memory.
class RankTensors {
 public:
  void add(const std::string& name, const Array& array, const Box& box) {
    bytes_.push_back(std::make_unique<std::string>(cut(array, box)));
    // SAFETY: std::byte may alias any object.
    const auto* data = reinterpret_cast<const std::byte*>(bytes_.back()->data());
    tensors_.push_back({name, array.dtype, array.shape, box, data});
  }
  void scribble() {
    for (auto& bytes : bytes_) bytes->assign(bytes->size(), '#');
  }
  const std::vector<TensorToSave>& tensors() const { return tensors_; }

 private:
  std::vector<std::unique_ptr<std::string>> bytes_;
  std::vector<TensorToSave> tensors_;
};

inline RankTensors whole_tensors(const Arrays& arrays) {
  RankTensors tensors;
  for (const auto& [name, array] : arrays) tensors.add(name, array, box_of_all(array.shape));
  return tensors;
}

// Cuts each tensor into one band per rank, along a random dimension. Some ranks may get empty bands.
inline std::vector<RankTensors> sharded_tensors(const Arrays& arrays, int64_t world_size, std::mt19937_64& random) {
  std::vector<RankTensors> ranks(static_cast<size_t>(world_size));
  for (const auto& [name, array] : arrays) {
    if (array.shape.empty()) {
      ranks[random() % ranks.size()].add(name, array, box_of_all(array.shape));
      continue;
    }
    const size_t d = random() % array.shape.size();
    std::vector<int64_t> cuts{0, array.shape[d]};
    for (int64_t r = 1; r < world_size; ++r)
      cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(array.shape[d] + 1)));
    std::sort(cuts.begin(), cuts.end());
    for (size_t r = 0; r < ranks.size(); ++r) {
      Box box = box_of_all(array.shape);
      box.offset[d] = cuts[r];
      box.shape[d] = cuts[r + 1] - cuts[r];
      ranks[r].add(name, array, box);
    }
  }
  return ranks;
}

inline std::unique_ptr<Saver> make_saver(const Location& root, SaverOptions options = {}) {
  if (options.attempt.empty()) options.attempt = "r0000-test";
  if (options.threads == 0) options.threads = 2;
  auto saver = Saver::create(root, options);
  EXPECT_TRUE(saver) << saver.error().to_string();
  return std::move(*saver);
}

// Waits for the save and for the removal of older steps, so that a test sees the steps that stay.
[[nodiscard]] inline Status wait_for_all(PendingSave& save) {
  RETURN_IF_ERROR(save.wait_removals());
  return save.wait();
}

[[nodiscard]] inline Status save_and_wait(Saver& saver, int64_t step, const Arrays& arrays,
                                          const std::string& state = "{}") {
  const RankTensors tensors = whole_tensors(arrays);
  ASSIGN_OR_RETURN(const auto pending, saver.save(step, tensors.tensors(), state, "null"));
  return wait_for_all(*pending);
}

// Loads boxes of `arrays` and compares the bytes. Errors: those of load; internal when content differs.
[[nodiscard]] inline Status load_and_compare(const Checkpoint& checkpoint, const Arrays& arrays,
                                             const std::map<std::string, Box>& boxes) {
  std::map<std::string, std::string> loaded;
  std::vector<TensorToLoad> targets;
  for (const auto& [name, box] : boxes) {
    const Array& array = arrays.at(name);
    std::string& bytes = loaded[name];
    bytes.assign(static_cast<size_t>(formats::tensor_bytes(array.dtype, box.shape).value()), '?');
    // SAFETY: std::byte may alias any object.
    targets.push_back({name, box, reinterpret_cast<std::byte*>(bytes.data())});
  }
  RETURN_IF_ERROR(checkpoint.load(targets, 2));
  for (const auto& [name, box] : boxes) {
    if (loaded[name] != cut(arrays.at(name), box)) return fail(ErrorCode::kInternal, "tensor '{}' differs", name);
  }
  return {};
}

[[nodiscard]] inline Status load_and_compare(const Location& root, int64_t step, const Arrays& arrays) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(root, step));
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  return load_and_compare(*checkpoint, arrays, boxes);
}

inline std::vector<int64_t> committed_steps(const Location& root) {
  std::vector<int64_t> steps;
  const auto infos = list_steps(root);
  EXPECT_TRUE(infos);
  for (const StepInfo& info : *infos) steps.push_back(info.step);
  return steps;
}

inline std::vector<std::string> keys_below(const Location& location) {
  std::vector<std::string> keys;
  const Status listed = for_each_object(*location.storage, location.key + "/", [&](const ObjectInfo& object) {
    keys.push_back(object.key.substr(location.key.size() + 1));
    return Status();
  });
  EXPECT_TRUE(listed);
  return keys;
}

// Returns a Status or Result as text for gtest.
template <class T>
std::string explain(const Result<T>& result) {
  return result ? "ok" : std::string(error_code_name(result.error().code())) + ": " + result.error().to_string();
}

template <class T>
testing::AssertionResult is_ok(const Result<T>& result) {
  return (result ? testing::AssertionSuccess() : testing::AssertionFailure()) << explain(result);
}
template <class T>
testing::AssertionResult fails_with(const Result<T>& result, ErrorCode code) {
  const bool as_expected = !result && result.error().code() == code;
  return (as_expected ? testing::AssertionSuccess() : testing::AssertionFailure()) << explain(result);
}

}  // namespace millrace::checkpoint

#define EXPECT_OK(expression) EXPECT_TRUE(::millrace::checkpoint::is_ok(expression))
#define EXPECT_CODE(expression, code) EXPECT_TRUE(::millrace::checkpoint::fails_with((expression), (code)))
