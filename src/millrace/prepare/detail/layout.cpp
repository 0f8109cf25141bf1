// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/layout.h"

#include <fmt/format.h>

#include <cassert>

#include "millrace/base/text/units.h"
#include "millrace/formats/megatron.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/tar.h"
#include "millrace/formats/token_file.h"

namespace millrace::prepare {

namespace {

// A block ends here even if it has not its documents yet, so that memory does not depend on them.
constexpr size_t kMaxBlockBytes = 16 << 20;

std::vector<uint64_t> back_to_back(std::span<const Sample> samples, uint64_t at) {
  std::vector<uint64_t> offsets;
  offsets.reserve(samples.size());
  for (const Sample& sample : samples) {
    offsets.push_back(at);
    at += sample.size;
  }
  return offsets;
}

// Samples are whole members.
class TarLayout final : public ShardLayout {
 public:
  Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) override {
    return Placement{bytes, back_to_back(samples, at)};
  }
  Result<std::string> end(int64_t) override {
    std::string end;
    formats::append_tar_end(end);
    return end;
  }
};

// The ids of many documents in one member, and how many each has in another.
class BlockLayout final : public ShardLayout {
 public:
  BlockLayout(int64_t task, int64_t documents, size_t width)
      : task_(task), documents_(static_cast<size_t>(documents)), width_(width) {}

  Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) override {
    out_.clear();
    Placement placement;
    for (const Sample& sample : samples) {
      if (tokens_.empty()) first_document_ = sample.document;
      // The block's own header and that of its array come before its ids.
      placement.offsets.push_back(at + out_.size() + formats::kTarBlock + formats::kNpyHeaderBytes + ids_.size());
      ids_.append(bytes.substr(0, sample.size));
      bytes.remove_prefix(sample.size);
      tokens_.push_back(sample.tokens);
      if (tokens_.size() == documents_ || ids_.size() >= kMaxBlockBytes) RETURN_IF_ERROR(end_block());
    }
    placement.bytes = out_;
    return placement;
  }

  Result<std::string> end(int64_t) override {
    out_.clear();
    if (!tokens_.empty()) RETURN_IF_ERROR(end_block());
    formats::append_tar_end(out_);
    return std::move(out_);
  }

 private:
  Status end_block() {
    const std::string key = fmt::format("{:05}-{:09}.", task_, first_document_);
    array_.clear();
    formats::append_npy_header(array_, ids_.size() / width_, width_);
    assert(array_.size() == formats::kNpyHeaderBytes);
    array_ += ids_;
    RETURN_IF_ERROR(formats::append_tar_member(out_, key + "block.ids.npy", as_bytes(array_)));
    array_.clear();
    formats::append_npy_u32(array_, tokens_);
    RETURN_IF_ERROR(formats::append_tar_member(out_, key + "block.lengths.npy", as_bytes(array_)));
    ids_.clear();
    tokens_.clear();
    return {};
  }

  const int64_t task_;
  const size_t documents_, width_;
  int64_t first_document_ = 0;
  std::string ids_;               // of the block that is open
  std::vector<uint32_t> tokens_;  // of its documents
  std::string array_, out_;
};

// The layout of a Megatron shard: ids alone.
class BareLayout final : public ShardLayout {
 public:
  Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) override {
    return Placement{bytes, back_to_back(samples, at)};
  }
  Result<std::string> end(int64_t) override { return std::string(); }
};

class TokenFileLayout final : public ShardLayout {
 public:
  explicit TokenFileLayout(size_t width) : width_(width) {}
  size_t head_bytes() const override { return formats::kTokenFileHead; }
  std::string head(int64_t tokens) const override { return formats::token_file_head(tokens, width_); }
  Result<Placement> add(std::string_view bytes, std::span<const Sample> samples, uint64_t at) override {
    return Placement{bytes, back_to_back(samples, at)};
  }
  Result<std::string> end(int64_t tokens) override {
    if (tokens > formats::kMaxTokenFileTokens) {
      return fail(ErrorCode::kResourceExhausted,
                  "a token file counts its tokens in 32 bits, and here are {}; give a shard size",
                  format_count(tokens));
    }
    return std::string();
  }

 private:
  const size_t width_;
};

}  // namespace

std::unique_ptr<ShardLayout> make_layout(const SampleFormat& format) {
  if (format.options.format == OutputFormat::kMegatron) return std::make_unique<BareLayout>();
  if (format.options.format == OutputFormat::kTokens) return std::make_unique<TokenFileLayout>(format.id_width);
  if (format.options.block_documents == 0) return std::make_unique<TarLayout>();
  return std::make_unique<BlockLayout>(format.task, format.options.block_documents, format.id_width);
}

std::string_view shard_suffix(OutputFormat format) {
  return format == OutputFormat::kWebDataset ? ".tar" : ".bin";
}

std::string side_file_name(std::string_view shard) {
  return std::string(shard.substr(0, shard.size() - 4)) + std::string(formats::kMegatronIndexSuffix);
}

}  // namespace millrace::prepare
