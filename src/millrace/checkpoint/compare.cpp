// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/ranges.h"

namespace millrace::checkpoint {

namespace {

using formats::Dtype;

constexpr int64_t kBufferPage = 4096;

template <class T>
double read_number(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

double read_bf16(const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
}

// IEEE half precision: 1 sign, 5 exponent, 10 fraction bits.
double read_f16(const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(1024 + fraction, exponent - 25);
}

using ReadNumber = double (*)(const std::byte*);

// Null for dtypes without a plain value.
ReadNumber reader_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      return read_number<uint8_t>;
    case Dtype::kI8:
      return read_number<int8_t>;
    case Dtype::kI16:
      return read_number<int16_t>;
    case Dtype::kU16:
      return read_number<uint16_t>;
    case Dtype::kI32:
      return read_number<int32_t>;
    case Dtype::kU32:
      return read_number<uint32_t>;
    case Dtype::kI64:
      return read_number<int64_t>;
    case Dtype::kU64:
      return read_number<uint64_t>;
    case Dtype::kF32:
      return read_number<float>;
    case Dtype::kF64:
      return read_number<double>;
    case Dtype::kF16:
      return read_f16;
    case Dtype::kBF16:
      return read_bf16;
    default:
      return nullptr;
  }
}

// Adds the elements of one piece to what is known of a tensor. The norms are squares until the end.
void add_piece(std::span<const std::byte> a, std::span<const std::byte> b, size_t element_bytes,
               TensorDifference& difference) {
  const bool same = std::memcmp(a.data(), b.data(), a.size()) == 0;
  const ReadNumber read = reader_of(difference.a->dtype);
  for (size_t at = 0; at < a.size(); at += element_bytes) {
    if (!same && std::memcmp(a.data() + at, b.data() + at, element_bytes) != 0) ++difference.changed;
    if (read == nullptr) continue;
    const double left = read(a.data() + at), right = same ? left : read(b.data() + at);
    difference.norms->a += left * left;
    difference.norms->b += right * right;
    difference.norms->difference += (right - left) * (right - left);
  }
}

// Two checkpoints and the memory for a piece of each.
class Comparison {
 public:
  Comparison(const Checkpoint& a, const Checkpoint& b, int threads, std::stop_token stop, Progress* progress)
      : a_(a), b_(b), threads_(threads), stop_(std::move(stop)), progress_(progress) {}

  Status reserve(int64_t bytes) {
    int64_t largest = 1;
    for (const StoredTensor& tensor : a_.tensors()) largest = std::max(largest, tensor.bytes);
    // Whole pages, as the pool gives memory out.
    const int64_t most = std::max<int64_t>(bytes / 2 / kBufferPage, 1) * kBufferPage;
    half_bytes_ = std::min((largest + kBufferPage - 1) / kBufferPage * kBufferPage, most);
    ASSIGN_OR_RETURN(pool_, BufferPool::reserve(*MemoryBudget::process(), "ckpt diff", 2 * half_bytes_));
    ASSIGN_OR_RETURN(buffer_a_, pool_->acquire(static_cast<size_t>(half_bytes_), stop_));
    ASSIGN_OR_RETURN(buffer_b_, pool_->acquire(static_cast<size_t>(half_bytes_), stop_));
    return {};
  }

  // REQUIRES: both are there, of one dtype and shape.
  Status compare(TensorDifference& difference) {
    const StoredTensor& tensor = *difference.a;
    if (reader_of(tensor.dtype) != nullptr) difference.norms = TensorDifference::Norms();
    const int64_t bits = formats::dtype_bits(tensor.dtype);
    if (bits % 8 != 0 && tensor.bytes > half_bytes_)
      return fail(ErrorCode::kUnsupported, "tensor '{}' of {} is larger than the buffer", tensor.name,
                  formats::dtype_name(tensor.dtype));
    const int64_t size = std::max<int64_t>(bits / 8, 1);
    for (int64_t begin = 0; begin < tensor.bytes; begin += half_bytes_) {
      const int64_t end = std::min(begin + half_bytes_, tensor.bytes);
      RETURN_IF_ERROR(load(a_, tensor, begin, end, size, buffer_a_.data()));
      RETURN_IF_ERROR(load(b_, tensor, begin, end, size, buffer_b_.data()));
      const auto bytes = static_cast<size_t>(end - begin);
      add_piece(buffer_a_.span().first(bytes), buffer_b_.span().first(bytes), static_cast<size_t>(size), difference);
      if (progress_ != nullptr) progress_->add(end - begin, 0);
    }
    if (difference.norms) {
      for (double* norm : {&difference.norms->a, &difference.norms->b, &difference.norms->difference})
        *norm = std::sqrt(*norm);
    }
    difference.kind = difference.changed > 0 ? TensorDifference::Kind::kChanged : TensorDifference::Kind::kEqual;
    return {};
  }

 private:
  Status load(const Checkpoint& from, const StoredTensor& tensor, int64_t begin, int64_t end, int64_t size,
              std::byte* to) const {
    std::vector<TensorToLoad> targets;
    if (begin == 0 && end == tensor.bytes) {
      targets.push_back({tensor.name, whole_box(tensor.shape), to});
    } else {
      for (Box& box : boxes_of_range(tensor.shape, begin / size, end / size)) {
        const int64_t bytes = volume(box.shape) * size;
        targets.push_back({tensor.name, std::move(box), to});
        to += bytes;
      }
    }
    return from.load(targets, threads_, stop_);
  }

  const Checkpoint& a_;
  const Checkpoint& b_;
  const int threads_;
  const std::stop_token stop_;
  Progress* const progress_;
  int64_t half_bytes_ = 0;
  std::unique_ptr<BufferPool> pool_;
  Buffer buffer_a_, buffer_b_;
};

}  // namespace

Status compare_checkpoints(const Checkpoint& a, const Checkpoint& b, const CompareOptions& options,
                           const std::function<void(const TensorDifference&)>& found, std::stop_token stop,
                           Progress* progress) {
  using Kind = TensorDifference::Kind;
  std::vector<TensorDifference> differences;
  int64_t bytes = 0;
  for (const StoredTensor& tensor : a.tensors()) {
    const StoredTensor* other = b.find(tensor.name);
    const bool alike = other != nullptr && other->dtype == tensor.dtype && other->shape == tensor.shape;
    differences.push_back({.kind = other == nullptr ? Kind::kOnlyA
                                   : alike          ? Kind::kEqual
                                                    : Kind::kOther,
                           .name = tensor.name,
                           .a = &tensor,
                           .b = other});
    bytes += alike ? tensor.bytes : 0;
  }
  for (const StoredTensor& tensor : b.tensors()) {
    if (a.find(tensor.name) == nullptr)
      differences.push_back({.kind = Kind::kOnlyB, .name = tensor.name, .b = &tensor});
  }
  std::sort(differences.begin(), differences.end(), [](const auto& x, const auto& y) { return x.name < y.name; });
  if (progress != nullptr) progress->set_totals(bytes, 0);
  Comparison comparison(a, b, options.threads, stop, progress);
  RETURN_IF_ERROR(comparison.reserve(options.buffer_bytes));
  for (TensorDifference& difference : differences) {
    if (difference.kind == Kind::kEqual) RETURN_IF_ERROR(comparison.compare(difference));
    found(difference);
  }
  return {};
}

}  // namespace millrace::checkpoint
