// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/megatron.h"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/formats/detail/raw_bytes.h"

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kMegatronVersion = 1;
constexpr uint8_t kInt32 = 4, kUint16 = 8;  // Megatron's codes of dtypes

constexpr size_t kBlock = 1 << 20;

// Hands on what it is given in blocks of about 1 MiB.
class Blocks {
 public:
  explicit Blocks(ByteSink& out) : out_(out) {}
  template <class T>
  [[nodiscard]] Status add(T value) {
    put(block_, value);
    return block_.size() < kBlock ? Status() : flush();
  }
  [[nodiscard]] Status flush() {
    RETURN_IF_ERROR(out_.append(as_bytes(block_)));
    block_.clear();
    return {};
  }

 private:
  ByteSink& out_;
  std::string block_;
};

// Holds what it is given against a file.
class ComparingSink final : public ByteSink {
 public:
  explicit ComparingSink(const RandomReader& file) : file_(file) {}
  Status append(std::span<const std::byte> bytes) override {
    there_.resize(std::min(bytes.size(), static_cast<size_t>(file_.size() - at_)));
    RETURN_IF_ERROR(file_.read_at(at_, there_));
    const auto [ours, theirs] = std::mismatch(bytes.begin(), bytes.end(), there_.begin(), there_.end());
    at_ += theirs - there_.begin();
    return ours == bytes.end() ? Status() : differs();
  }
  [[nodiscard]] Status finish() const { return at_ == file_.size() ? Status() : differs(); }

 private:
  tl::unexpected<Error> differs() const {
    return fail(ErrorCode::kCorruption,
                "{}: from byte {} on it is not the idx of its shard: damaged, cut or of another", file_.name(), at_);
  }
  const RandomReader& file_;
  int64_t at_ = 0;
  std::vector<std::byte> there_;
};

}  // namespace

Status write_megatron_index(ByteSink& out, int64_t documents, size_t width, const VisitTokens& visit_tokens) {
  std::string head(kMegatronMagic);
  put(head, kMegatronVersion);
  put(head, width == 2 ? kUint16 : kInt32);
  put(head, static_cast<uint64_t>(documents));
  put(head, static_cast<uint64_t>(documents) + 1);  // bounds of documents
  RETURN_IF_ERROR(out.append(as_bytes(head)));
  Blocks blocks(out);
  const auto add_counts = [&](std::span<const uint32_t> tokens) -> Status {
    for (const uint32_t count : tokens) RETURN_IF_ERROR(blocks.add(static_cast<int32_t>(count)));
    return {};
  };
  int64_t offset = 0;
  const auto add_offsets = [&](std::span<const uint32_t> tokens) -> Status {
    for (const uint32_t count : tokens) {
      RETURN_IF_ERROR(blocks.add(offset));
      offset += static_cast<int64_t>(count * width);
    }
    return {};
  };
  RETURN_IF_ERROR(visit_tokens(add_counts));
  RETURN_IF_ERROR(visit_tokens(add_offsets));
  for (int64_t i = 0; i <= documents; ++i) RETURN_IF_ERROR(blocks.add(i));
  return blocks.flush();
}

int64_t megatron_index_bytes(int64_t documents) {
  constexpr int64_t kHead = 34;
  return kHead + 12 * documents + 8 * (documents + 1);
}

Status check_megatron_index(const RandomReader& file, int64_t documents, size_t width,
                            const VisitTokens& visit_tokens) {
  ComparingSink sink(file);
  RETURN_IF_ERROR(write_megatron_index(sink, documents, width, visit_tokens));
  return sink.finish();
}

}  // namespace millrace::formats
