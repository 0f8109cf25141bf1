// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/megatron.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/formats/detail/hashed_shard.h"
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

constexpr size_t kMegatronHead = 34;

struct MegatronHead {
  size_t width = 0;  // bytes of an id
  uint64_t sequences = 0;
  uint64_t bounds = 0;  // of documents: one more than there are
};

template <class T>
T megatron_value(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Result<MegatronHead> read_megatron_head(const RandomReader& idx) {
  std::array<std::byte, kMegatronHead> head{};
  if (idx.size() < static_cast<int64_t>(head.size())) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes are no Megatron idx", idx.name(), idx.size());
  }
  RETURN_IF_ERROR(idx.read_at(0, head));
  if (!as_text(head).starts_with(kMegatronMagic)) {
    return fail(ErrorCode::kCorruption, "{}: it does not begin as a Megatron idx does", idx.name());
  }
  if (const auto version = megatron_value<uint64_t>(head, 9); version != kMegatronVersion) {
    return fail(ErrorCode::kUnsupported, "{}: Megatron idx of version {}; version {} is read", idx.name(), version,
                kMegatronVersion);
  }
  const auto type = megatron_value<uint8_t>(head, 17);
  if (type != kUint16 && type != kInt32) {
    return fail(ErrorCode::kUnsupported, "{}: ids of Megatron's type {}; 8 (uint16) and 4 (int32) are read", idx.name(),
                type);
  }
  return MegatronHead{type == kUint16 ? sizeof(uint16_t) : sizeof(int32_t), megatron_value<uint64_t>(head, 18),
                      megatron_value<uint64_t>(head, 26)};
}

// One sequence a document, and nothing behind the bounds: what preprocess_data.py writes without --split-sentences.
Status check_megatron_layout(const MegatronHead& head, const RandomReader& idx) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (head.sequences >= kMost || head.bounds > kMost) {
    return fail(ErrorCode::kCorruption, "{}: it counts {} sequences", idx.name(), head.sequences);
  }
  if (head.bounds != head.sequences + 1) {
    return fail(ErrorCode::kUnsupported,
                "{}: {} sequences in {} documents; files with one sequence a document are read (preprocess_data.py "
                "without --split-sentences)",
                idx.name(), head.sequences, head.bounds - std::min<uint64_t>(1, head.bounds));
  }
  const int64_t expected = megatron_index_bytes(static_cast<int64_t>(head.sequences));
  if (idx.size() == expected + static_cast<int64_t>(head.sequences)) {
    return fail(ErrorCode::kUnsupported, "{}: it has a mode for each sequence (multimodal); such files are not read",
                idx.name());
  }
  if (idx.size() == expected) return {};
  return fail(ErrorCode::kCorruption, "{}: {} bytes, and its {} sequences take {}: cut, or damaged", idx.name(),
              idx.size(), head.sequences, expected);
}

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
  return static_cast<int64_t>(kMegatronHead) + 12 * documents + 8 * (documents + 1);
}

Status check_megatron_index(const RandomReader& file, int64_t documents, size_t width,
                            const VisitTokens& visit_tokens) {
  ComparingSink sink(file);
  RETURN_IF_ERROR(write_megatron_index(sink, documents, width, visit_tokens));
  return sink.finish();
}

Result<ShardIndex> index_megatron(const RandomReader& shard, const RandomReader& idx) {
  ASSIGN_OR_RETURN(const MegatronHead head, read_megatron_head(idx));
  RETURN_IF_ERROR(check_megatron_layout(head, idx));
  const auto documents = static_cast<int64_t>(head.sequences);
  ShardIndex index;
  index.kind = SampleExtentKind::kIds;
  index.shard_size = shard.size();
  index.ids_field = head.width == sizeof(uint16_t) ? "u16" : "u32";
  index.tokens.resize(head.sequences);
  RETURN_IF_ERROR(idx.read_at(kMegatronHead, std::as_writable_bytes(std::span(index.tokens))));
  RETURN_IF_ERROR(check_megatron_index(
      idx, documents, head.width, [&](const auto& visit) { return visit(std::span<const uint32_t>(index.tokens)); }));
  const int64_t bytes = index.total_tokens() * static_cast<int64_t>(head.width);
  if (bytes != shard.size()) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes, and {} counts {}: cut, or another file", shard.name(),
                shard.size(), idx.name(), bytes);
  }
  detail::HashedShard content(shard);
  uint64_t at = 0;
  for (const uint32_t tokens : index.tokens) {
    const uint64_t size = uint64_t{tokens} * head.width;
    ASSIGN_OR_RETURN(const auto extent, content.extent(static_cast<int64_t>(at), static_cast<int64_t>(at + size)));
    index.offset.push_back(at);
    index.size.push_back(size);
    index.hash.push_back(xxh3_64(extent));
    at += size;
  }
  ASSIGN_OR_RETURN(index.shard_hash, content.finish());
  return index;
}

}  // namespace millrace::formats
