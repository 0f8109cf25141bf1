// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/thread/executor.h"
#include "millrace/checkpoint/io/chunk_reader.h"
#include "millrace/checkpoint/io/threads.h"
#include "millrace/checkpoint/io/write_window.h"
#include "millrace/checkpoint/records/boxes.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

namespace {

constexpr int kPiecesInMemory = 8;  // being filled or written

// The file as the bytes of its header and of tensors somewhere in memory.
class FileImage {
 public:
  static Result<FileImage> plan(std::span<const TensorToSave> tensors, std::map<std::string, std::string> metadata) {
    FileImage image;
    std::vector<formats::TensorInfo> infos;
    std::unordered_map<std::string_view, const std::byte*> places;
    for (const TensorToSave& tensor : tensors) {
      if (tensor.box != whole_box(tensor.global_shape))
        return fail(ErrorCode::kInvalidArgument, "tensor '{}': only whole tensors go to one file", tensor.name);
      places.emplace(tensor.name, tensor.data);
      infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.global_shape});
    }
    ASSIGN_OR_RETURN(image.layout_, formats::layout_safetensors(std::move(infos), std::move(metadata)));
    for (const formats::TensorInfo& info : image.layout_.header.tensors) image.data_.push_back(places.at(info.name));
    return image;
  }

  int64_t bytes() const { return layout_.header.data_offset + layout_.header.data_bytes; }

  // Copies the file's bytes from `begin` on.
  void copy(int64_t begin, std::span<std::byte> out) const {
    const auto& header = layout_.header_bytes;
    const auto end = begin + std::ssize(out);
    if (begin < std::ssize(header)) {
      const auto size = static_cast<size_t>(std::min(end, static_cast<int64_t>(header.size())) - begin);
      std::memcpy(out.data(), header.data() + begin, size);
    }
    const auto& infos = layout_.header.tensors;
    const int64_t data = layout_.header.data_offset;
    auto info = std::upper_bound(infos.begin(), infos.end(), begin - data,
                                 [](int64_t at, const formats::TensorInfo& tensor) { return at < tensor.end; });
    for (; info != infos.end() && data + info->begin < end; ++info) {
      const int64_t low = std::max(begin, data + info->begin), high = std::min(end, data + info->end);
      if (low >= high) continue;
      const std::byte* const source = data_[static_cast<size_t>(info - infos.begin())] + (low - data - info->begin);
      std::memcpy(out.data() + (low - begin), source, static_cast<size_t>(high - low));
    }
  }

 private:
  formats::SafetensorsLayout layout_;
  std::vector<const std::byte*> data_;  // of each tensor in the file's order
};

// The writes under way. Each keeps its buffer until it has ended.
class PieceWrites final : public CompletionQueue {
 public:
  PieceWrites(WriteWindow& window, size_t pieces) : window_(window), buffers_(pieces) {}
  void keep(size_t piece, Buffer buffer) { buffers_[piece] = std::move(buffer); }
  void push(Completion completion) override {
    buffers_[completion.tag] = Buffer();
    window_.push(std::move(completion));
  }

 private:
  WriteWindow& window_;
  std::vector<Buffer> buffers_;  // each is touched by one thread at a time
};

Status write_pieces(const FileImage& image, Storage& storage, Writer& writer, Executor& executor,
                    const std::stop_token& stop) {
  const int64_t piece = writer.part_bytes() != 0 ? writer.part_bytes() : kWriteBytes;
  const int64_t count = (image.bytes() + piece - 1) / piece;
  const int64_t buffers = std::clamp<int64_t>(count, 1, kPiecesInMemory);
  ASSIGN_OR_RETURN(const auto pool, BufferPool::reserve(*MemoryBudget::process(), "safetensors", buffers * piece));
  WriteWindow window(kPiecesInMemory);
  PieceWrites writes(window, static_cast<size_t>(count));
  parallel_for(executor, count, [&](int64_t i) {
    if (window.failed()) return;
    const int64_t begin = i * piece;
    const auto size = static_cast<size_t>(std::min(piece, image.bytes() - begin));
    auto buffer = pool->acquire(static_cast<size_t>(piece), stop);
    if (!buffer) return window.fail_with(std::move(buffer).error());
    const auto bytes = buffer->span().first(size);
    image.copy(begin, bytes);
    writes.keep(static_cast<size_t>(i), std::move(*buffer));
    window.acquire();
    const Operation write{.tag = static_cast<uint64_t>(i), .what = WriteRange{&writer, begin, bytes}, .stop = stop};
    storage.submit({&write, 1}, writes);
  });
  return window.drain();
}

// How the chunks of a tensor that is read in part get to their target.
struct SliceCopy {
  BoxCopy copy;
  int64_t tensor_offset = 0;  // in the file
  std::byte* target = nullptr;
};

class LoadPlan {
 public:
  LoadPlan(const RandomReader& file, const formats::SafetensorsHeader& header) : file_(file), header_(header) {}

  Status add(const TensorToLoad& target) {
    const formats::TensorInfo* const info = header_.find(target.name);
    if (info == nullptr) return fail(ErrorCode::kNotFound, "{}: no tensor '{}' in it", file_.name(), target.name);
    if (auto inside = check_inside(target.box, info->shape); !inside)
      return fail(ErrorCode::kInvalidArgument, "{}: tensor '{}': {}", file_.name(), target.name,
                  inside.error().message());
    if (volume(target.box.shape) == 0) return {};
    const Box whole = whole_box(info->shape);
    if (target.box == whole) {
      add_chunks(*info, {.use = ChunkRead::Use::kCopy, .out = target.data});
      return {};
    }
    const int64_t bits = formats::dtype_bits(info->dtype);
    if (bits % 8 != 0)
      return fail(ErrorCode::kUnsupported, "{}: tensor '{}' of {} is read whole only", file_.name(), target.name,
                  formats::dtype_name(info->dtype));
    slices_.push_back(
        {BoxCopy(target.box, whole, target.box, bits / 8), header_.data_offset + info->begin, target.data});
    add_chunks(*info, {.use = ChunkRead::Use::kTake, .tag = slices_.size() - 1});
    return {};
  }

  Status read(Storage& storage, Executor& executor, const std::stop_token& stop) {
    const auto take = [&](const ChunkRead& chunk, std::span<const std::byte> data) {
      const SliceCopy& slice = slices_[chunk.tag];
      slice.copy.copy(chunk.offset - slice.tensor_offset, data, slice.target);
    };
    return read_chunks(storage, std::move(chunks_), executor,
                       {.stop = stop, .progress = nullptr, .take = take, .found = {}});
  }

 private:
  void add_chunks(const formats::TensorInfo& info, ChunkRead like) {
    like.file = &file_;
    like.tensor = info.name;
    std::byte* const out = like.out;
    for (int64_t begin = 0; begin < info.end - info.begin; begin += kChunkBytes) {
      like.offset = header_.data_offset + info.begin + begin;
      like.bytes = std::min(kChunkBytes, info.end - info.begin - begin);
      like.out = out == nullptr ? nullptr : out + begin;
      const bool needed =
          like.use == ChunkRead::Use::kCopy || slices_[like.tag].copy.touches(begin, begin + like.bytes);
      if (needed) chunks_.push_back(like);
    }
  }

  const RandomReader& file_;
  const formats::SafetensorsHeader& header_;
  std::vector<ChunkRead> chunks_;
  std::deque<SliceCopy> slices_;
};

}  // namespace

Status save_tensors(const Location& at, std::span<const TensorToSave> tensors, const TensorFileOptions& options,
                    std::stop_token stop) {
  ASSIGN_OR_RETURN(const FileImage image, FileImage::plan(tensors, options.metadata));
  ASSIGN_OR_RETURN(const auto writer, at.storage->open_write(at.key, {.size_hint_bytes = image.bytes()}));
  Executor executor(helper_threads(options.threads), "mr-tensors");
  RETURN_IF_ERROR(write_pieces(image, *at.storage, *writer, executor, stop));
  ASSIGN_OR_RETURN(const ObjectInfo written, writer->commit(options.durability));
  static_cast<void>(written);
  return {};
}

Result<std::unique_ptr<TensorFile>> TensorFile::open(const Location& at) {
  ASSIGN_OR_RETURN(auto file, at.storage->open_read(at.key, {.once = local_ranks() == 1}));
  ASSIGN_OR_RETURN(auto header, formats::parse_safetensors_header(*file));
  return std::unique_ptr<TensorFile>(new TensorFile(at, std::move(file), std::move(header)));
}

Status TensorFile::load(std::span<const TensorToLoad> targets, int threads, std::stop_token stop) const {
  Executor executor(helper_threads(threads), "mr-tensors");
  LoadPlan plan(*file_, header_);
  for (const TensorToLoad& target : targets) RETURN_IF_ERROR(plan.add(target));
  return plan.read(*at_.storage, executor, stop);
}

}  // namespace millrace::checkpoint
