// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/detail/rank_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "millrace/base/stream_copy.h"
#include "millrace/base/utf8.h"
#include "millrace/checkpoint/detail/boxes.h"
#include "millrace/checkpoint/detail/first_error.h"

namespace millrace::checkpoint {

namespace {

constexpr int64_t kCopyBytes =
    4 << 20;  // one copy task: small enough to balance threads, large enough to forget its cost
constexpr int64_t kExtentBytes = kChunkBytes;  // one write: small chunks are gathered up to this
constexpr int64_t kFileAlignment = 4096;       // of the data in the file and of the image in memory

Status check_tensor(const TensorToSave& tensor) {
  const auto bad = [&](std::string_view reason) {
    return fail(ErrorCode::kInvalidArgument, "tensor '{}': {}", tensor.name, reason);
  };
  if (!is_utf8(tensor.name)) return fail(ErrorCode::kInvalidArgument, "a tensor's name is not UTF-8");
  if (tensor.name.empty()) return fail(ErrorCode::kInvalidArgument, "a tensor without a name");
  if (auto bytes = formats::tensor_bytes(tensor.dtype, tensor.global_shape); !bytes)
    return bad(bytes.error().message());
  if (auto inside = check_inside(tensor.box, tensor.global_shape); !inside) return bad(inside.error().message());
  return {};
}

}  // namespace

Result<std::shared_ptr<const RankFile>> RankFile::plan(std::span<const TensorToSave> tensors) {
  auto file = std::make_shared<RankFile>();
  std::vector<formats::TensorInfo> infos;
  std::unordered_map<std::string_view, size_t> places;
  for (const TensorToSave& tensor : tensors) {
    RETURN_IF_ERROR(check_tensor(tensor));
    places.emplace(tensor.name, infos.size());
    infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.box.shape});
    file->planned_.push_back(tensor);
    file->planned_.back().data = nullptr;
  }
  // The metadata is the same for every save, and what the loaders of Hugging Face ask for.
  ASSIGN_OR_RETURN(file->layout_, formats::layout_safetensors(std::move(infos), {{"format", "pt"}}, kFileAlignment));

  int64_t extent_begin = 0;
  for (const formats::TensorInfo& info : file->layout_.header.tensors) {
    for (int64_t begin = info.begin; begin < info.end; begin += kChunkBytes) {
      const int64_t end = std::min(begin + kChunkBytes, info.end);
      if (file->extents_.empty() || end - extent_begin > kExtentBytes) {
        file->extents_.push_back({file->chunks_.size(), file->chunks_.size()});
        extent_begin = begin;
      }
      file->chunks_.push_back({file->order_.size(), begin, end});
      ++file->extents_.back().end_chunk;
    }
    file->order_.push_back(places.at(info.name));
  }
  if (file->extents_.empty()) file->extents_.push_back({});  // the header alone
  return file;
}

bool RankFile::matches(std::span<const TensorToSave> tensors) const {
  return std::equal(tensors.begin(), tensors.end(), planned_.begin(), planned_.end(),
                    [](const TensorToSave& a, const TensorToSave& b) {
                      return a.dtype == b.dtype && a.name == b.name && a.global_shape == b.global_shape &&
                             a.box == b.box;
                    });
}

void RankFile::copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* data) const {
  const auto& infos = layout_.header.tensors;
  auto info = std::upper_bound(infos.begin(), infos.end(), begin,
                               [](int64_t at, const formats::TensorInfo& tensor) { return at < tensor.end; });
  for (; info != infos.end() && info->begin < end; ++info) {
    const int64_t low = std::max(begin, info->begin), high = std::min(end, info->end);
    if (low >= high) continue;
    const std::byte* source = tensors[order_[static_cast<size_t>(info - infos.begin())]].data;
    stream_copy(data + low, source + (low - info->begin), static_cast<size_t>(high - low));
  }
}

void RankFile::snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor,
                        const std::function<void()>& beside) const {
  std::memcpy(image, layout_.header_bytes.data(), layout_.header_bytes.size());
  std::byte* data = image + layout_.header.data_offset;
  const int64_t total = layout_.header.data_bytes;
  parallel_for(executor, 1 + (total + kCopyBytes - 1) / kCopyBytes, [&](int64_t i) {
    if (i == 0) return beside();
    copy_range(tensors, (i - 1) * kCopyBytes, std::min(i * kCopyBytes, total), data);
  });
}

std::span<const std::byte> RankFile::extent_bytes(const Extent& extent, const std::byte* image) const {
  // The first extent begins with the header.
  const int64_t begin = extent.first_chunk == 0 ? 0 : layout_.header.data_offset + chunks_[extent.first_chunk].begin;
  const int64_t end = layout_.header.data_offset + (extent.end_chunk == 0 ? 0 : chunks_[extent.end_chunk - 1].end);
  return {image + begin, static_cast<size_t>(end - begin)};
}

Result<PartRecord> RankFile::write(const std::byte* image, Writer& writer, Executor& executor,
                                   std::stop_token stop) const {
  std::vector<Hash128> hashes(chunks_.size());
  const std::span header(image, static_cast<size_t>(layout_.header.data_offset));
  Hash128 header_hash;
  FirstError error;
  parallel_for(executor, static_cast<int64_t>(extents_.size()), [&](int64_t i) {
    if (error.failed()) return;
    if (stop.stop_requested()) return error.set(Error(ErrorCode::kCancelled, "stopped while writing"));
    const Extent& extent = extents_[static_cast<size_t>(i)];
    if (extent.first_chunk == 0) header_hash = xxh3_128(header);
    for (size_t c = extent.first_chunk; c < extent.end_chunk; ++c) {
      const auto [tensor, begin, end] = chunks_[c];
      hashes[c] = xxh3_128({image + layout_.header.data_offset + begin, static_cast<size_t>(end - begin)});
    }
    if (writer.part_bytes() != 0) return;
    const auto image_bytes = extent_bytes(extent, image);
    if (auto status = writer.write_at(image_bytes.data() - image, image_bytes); !status)
      error.set(std::move(status).error());
  });
  RETURN_IF_ERROR(error.status());
  if (const int64_t part = writer.part_bytes(); part != 0) {
    parallel_for(executor, (bytes() + part - 1) / part, [&](int64_t i) {
      if (error.failed()) return;
      if (stop.stop_requested()) return error.set(Error(ErrorCode::kCancelled, "stopped while writing"));
      const std::span data(image + i * part, static_cast<size_t>(std::min(part, bytes() - i * part)));
      if (auto status = writer.write_at(i * part, data); !status) error.set(std::move(status).error());
    });
    RETURN_IF_ERROR(error.status());
  }
  return record(hashes, header_hash);
}

PartRecord RankFile::record(std::span<const Hash128> hashes, Hash128 header_hash) const {
  PartRecord part{.file_bytes = bytes(), .data_offset = layout_.header.data_offset, .header_hash = header_hash};
  for (size_t i = 0; i < order_.size(); ++i) {
    const formats::TensorInfo& info = layout_.header.tensors[i];
    const TensorToSave& tensor = planned_[order_[i]];
    part.tensors.push_back({.name = tensor.name,
                            .dtype = tensor.dtype,
                            .shape = tensor.global_shape,
                            .box = tensor.box,
                            .begin = info.begin,
                            .bytes = info.end - info.begin});
  }
  for (size_t c = 0; c < chunks_.size(); ++c) part.tensors[chunks_[c].tensor].hashes.push_back(hashes[c]);
  std::sort(part.tensors.begin(), part.tensors.end(),
            [](const PartTensor& a, const PartTensor& b) { return a.name < b.name; });
  return part;
}

}  // namespace millrace::checkpoint
