// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/snapshot/rank_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "millrace/base/io/stream_copy.h"
#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"
#include "millrace/checkpoint/io/write_window.h"
#include "millrace/checkpoint/records/boxes.h"

namespace millrace::checkpoint {

namespace {

// One copy task: small enough to balance the threads, large enough that handing it out costs next to nothing.
constexpr int64_t kCopyBytes = 4 << 20;
constexpr int64_t kFileAlignment = 4096;  // of the data in the file and of the image in memory

tl::unexpected<Error> went_on() {
  return fail(ErrorCode::kCancelled, "the training went on before all was written");
}

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
  std::vector<TensorToSave> planned;
  for (const TensorToSave& tensor : tensors) {
    RETURN_IF_ERROR(check_tensor(tensor));
    planned.push_back(tensor);
    planned.back().data = nullptr;
  }
  return lay_out(std::move(planned), std::vector<bool>(tensors.size(), false));
}

Result<std::shared_ptr<const RankFile>> RankFile::without(std::span<const PartTensor> left_out) const {
  std::vector<bool> flags;
  for (const TensorToSave& tensor : planned_)
    flags.push_back(std::ranges::binary_search(left_out, tensor.name, {}, &PartTensor::name));
  return lay_out(planned_, flags);
}

Result<std::shared_ptr<const RankFile>> RankFile::lay_out(std::vector<TensorToSave> tensors,
                                                          const std::vector<bool>& left_out) {
  auto file = std::make_shared<RankFile>();
  file->planned_ = std::move(tensors);
  std::vector<formats::TensorInfo> infos;
  std::unordered_map<std::string_view, size_t> places;
  for (size_t i = 0; i < file->planned_.size(); ++i) {
    if (left_out[i]) continue;
    const TensorToSave& tensor = file->planned_[i];
    places.emplace(tensor.name, i);
    infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.box.shape});
  }
  // The metadata is the same for every save, and what the loaders of Hugging Face ask for.
  ASSIGN_OR_RETURN(file->layout_, formats::layout_safetensors(std::move(infos), {{"format", "pt"}}, kFileAlignment));

  const int64_t data = file->layout_.header.data_offset;
  for (const formats::TensorInfo& info : file->layout_.header.tensors) {
    for (int64_t begin = info.begin; begin < info.end; begin += kChunkBytes)
      file->chunks_.push_back({file->order_.size(), data + begin, data + std::min(begin + kChunkBytes, info.end)});
    file->order_.push_back(places.at(info.name));
  }
  return file;
}

bool RankFile::matches(std::span<const TensorToSave> tensors) const {
  return std::equal(tensors.begin(), tensors.end(), planned_.begin(), planned_.end(),
                    [](const TensorToSave& a, const TensorToSave& b) {
                      return a.dtype == b.dtype && a.name == b.name && a.global_shape == b.global_shape &&
                             a.box == b.box;
                    });
}

void RankFile::copy_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end, std::byte* out) const {
  const auto& infos = layout_.header.tensors;
  auto info = std::upper_bound(infos.begin(), infos.end(), begin,
                               [](int64_t at, const formats::TensorInfo& tensor) { return at < tensor.end; });
  for (; info != infos.end() && info->begin < end; ++info) {
    const int64_t low = std::max(begin, info->begin), high = std::min(end, info->end);
    if (low >= high) continue;
    const std::byte* source = tensors[order_[static_cast<size_t>(info - infos.begin())]].data;
    if (source != nullptr)
      stream_copy(out + (low - begin), source + (low - info->begin), static_cast<size_t>(high - low));
  }
}

std::vector<ImagePlace> RankFile::places(std::span<const TensorToSave> tensors, int64_t begin,
                                         std::span<std::byte> memory) const {
  std::vector<ImagePlace> places;
  const auto& infos = layout_.header.tensors;
  const int64_t from = begin - layout_.header.data_offset, to = from + std::ssize(memory);  // in the data
  auto info = std::upper_bound(infos.begin(), infos.end(), from,
                               [](int64_t at, const formats::TensorInfo& tensor) { return at < tensor.end; });
  for (; info != infos.end() && info->begin < to; ++info) {
    const size_t tensor = order_[static_cast<size_t>(info - infos.begin())];
    const int64_t low = std::max(from, info->begin), high = std::min(to, info->end);
    if (tensors[tensor].data != nullptr || low >= high) continue;
    places.push_back({tensor, memory.data() + (low - from), high - low, low - info->begin});
  }
  return places;
}

void RankFile::snapshot(std::span<const TensorToSave> tensors, std::byte* image, Executor& executor) const {
  std::memcpy(image, layout_.header_bytes.data(), layout_.header_bytes.size());
  std::byte* data = image + layout_.header.data_offset;
  const int64_t total = layout_.header.data_bytes;
  parallel_for(executor, (total + kCopyBytes - 1) / kCopyBytes, [&](int64_t i) {
    const int64_t begin = i * kCopyBytes;
    copy_range(tensors, begin, std::min(begin + kCopyBytes, total), data + begin);
  });
}

void RankFile::copy_file_range(std::span<const TensorToSave> tensors, int64_t begin, int64_t end,
                               std::byte* out) const {
  const int64_t data = layout_.header.data_offset;
  if (begin < data) {
    const int64_t header_end = std::min(end, data);
    std::memcpy(out, layout_.header_bytes.data() + begin, static_cast<size_t>(header_end - begin));
    out += header_end - begin;
    begin = header_end;
  }
  if (begin < end) copy_range(tensors, begin - data, end - data, out);
}

template <class ChunkData>
void RankFile::hash_range(int64_t begin, int64_t end, Hashes& hashes, ChunkData&& chunk_data) const {
  if (begin == 0) hashes.header = xxh3_128(std::as_bytes(std::span(layout_.header_bytes)));
  const auto first = std::lower_bound(chunks_.begin(), chunks_.end(), begin,
                                      [](const Chunk& chunk, int64_t at) { return chunk.begin < at; });
  for (auto chunk = first; chunk != chunks_.end() && chunk->begin < end; ++chunk)
    hashes.chunks[static_cast<size_t>(chunk - chunks_.begin())] =
        xxh3_128({chunk_data(*chunk), static_cast<size_t>(chunk->end - chunk->begin)});
}

const std::byte* RankFile::chunk_data(std::span<const TensorToSave> live, const Chunk& chunk) const {
  return live[order_[chunk.tensor]].data +
         (chunk.begin - layout_.header.data_offset - layout_.header.tensors[chunk.tensor].begin);
}

RankFile::Hashes RankFile::hash(const std::byte* image, Executor& executor) const {
  Hashes hashes{.header = {}, .chunks = std::vector<Hash128>(chunks_.size())};
  parallel_for(executor, (bytes() + kCopyBytes - 1) / kCopyBytes, [&](int64_t i) {
    hash_range(i * kCopyBytes, (i + 1) * kCopyBytes, hashes, [&](const Chunk& chunk) { return image + chunk.begin; });
  });
  return hashes;
}

Result<RankFile::Hashes> RankFile::hash(LiveTensors& tensors, std::span<std::byte> memory, Executor& executor) const {
  Hashes hashes{.header = {}, .chunks = std::vector<Hash128>(chunks_.size())};
  if (!tensors.are_all_here()) {
    std::optional<Xxh3Stream> open;
    for (int64_t begin = 0; begin < bytes(); begin += std::ssize(memory)) {
      const auto window = memory.first(static_cast<size_t>(std::min(std::ssize(memory), bytes() - begin)));
      RETURN_IF_ERROR(fill_window(tensors, begin, window, executor));
      hash_window(begin, window, hashes, open, executor);
    }
    return hashes;
  }
  std::atomic<bool> all_read{true};
  parallel_for(executor, (bytes() + kCopyBytes - 1) / kCopyBytes, [&](int64_t i) {
    const bool was_read = tensors.read([&](std::span<const TensorToSave> live) {
      hash_range(i * kCopyBytes, (i + 1) * kCopyBytes, hashes,
                 [&](const Chunk& chunk) { return chunk_data(live, chunk); });
    });
    if (!was_read) all_read = false;
  });
  if (all_read) return hashes;
  return went_on();
}

RankFile::Hashes RankFile::hashes_of(const RankFile& whole, const Hashes& hashes) const {
  Hashes own{.header = xxh3_128(std::as_bytes(std::span(layout_.header_bytes))), .chunks = {}};
  std::vector<bool> is_here(planned_.size(), false);
  for (const size_t tensor : order_) is_here[tensor] = true;
  for (size_t c = 0; c < whole.chunks_.size(); ++c) {
    if (is_here[whole.order_[whole.chunks_[c].tensor]]) own.chunks.push_back(hashes.chunks[c]);
  }
  return own;
}

void RankFile::compact(const RankFile& whole, std::byte* image) const {
  // In the same order, behind a header that is not longer: every tensor moves down, past those that have moved.
  size_t at = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    while (whole.order_[at] != order_[i]) ++at;
    const formats::TensorInfo &to = layout_.header.tensors[i], &from = whole.layout_.header.tensors[at];
    std::memmove(image + layout_.header.data_offset + to.begin, image + whole.layout_.header.data_offset + from.begin,
                 static_cast<size_t>(to.end - to.begin));
  }
  std::memcpy(image, layout_.header_bytes.data(), layout_.header_bytes.size());
}

Result<PartRecord> RankFile::write(const std::byte* image, const Target& target, Executor& executor,
                                   std::stop_token stop, const Hashes* known) const {
  Hashes hashes{.header = {}, .chunks = std::vector<Hash128>(chunks_.size())};
  const int64_t piece = target.writer.part_bytes() != 0 ? target.writer.part_bytes() : kWriteBytes;
  WriteWindow window(writes_under_way(target.storage), [&](uint64_t) {
    if (target.alive) target.alive();
  });
  const int64_t group = piece * writes_together(target.writer);
  parallel_for(executor, (bytes() + group - 1) / group, [&](int64_t i) {
    if (window.failed()) return;
    if (stop.stop_requested()) return window.fail_with(Error(ErrorCode::kCancelled, "stopped while writing"));
    const int64_t group_end = std::min((i + 1) * group, bytes());
    if (known == nullptr)
      hash_range(i * group, group_end, hashes, [&](const Chunk& chunk) { return image + chunk.begin; });
    std::vector<Operation> writes;
    for (int64_t begin = i * group; begin < group_end; begin += piece) {
      const int64_t end = std::min(begin + piece, group_end);
      const WriteRange range{&target.writer, begin, {image + begin, static_cast<size_t>(end - begin)}};
      writes.push_back({.tag = static_cast<uint64_t>(begin), .what = range, .stop = stop});
    }
    window.acquire(static_cast<int>(writes.size()));
    target.storage.submit(writes, window);
  });
  RETURN_IF_ERROR(window.drain());
  return record(known == nullptr ? hashes : *known);
}

namespace {

// Pieces of memory that writes use in turns. Thread-safe.
class PieceSlots {
 public:
  PieceSlots(std::span<std::byte> memory, int64_t piece) : piece_(static_cast<size_t>(piece)), memory_(memory) {
    for (size_t slot = memory.size() / piece_; slot > 0; --slot) free_.push_back(slot - 1);
  }
  int count() const { return static_cast<int>(memory_.size() / piece_); }
  std::byte* data(size_t slot) const { return memory_.data() + slot * piece_; }
  // REQUIRES: one is free.
  size_t take() {
    MutexLock lock(mutex_);
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void put(size_t slot) {
    MutexLock lock(mutex_);
    free_.push_back(slot);
  }

 private:
  const size_t piece_;
  const std::span<std::byte> memory_;
  Mutex mutex_;
  std::vector<size_t> free_ GUARDED_BY(mutex_);
};

// The size of a write through `memory`: the service's, or one of which the memory holds four.
int64_t piece_through(const Writer& writer, std::span<std::byte> memory) {
  if (writer.part_bytes() != 0) return writer.part_bytes();
  const int64_t quarter = std::ssize(memory) / 4 / kFileAlignment * kFileAlignment;
  return std::clamp(quarter, kFileAlignment, kWriteBytes);
}

}  // namespace

Result<PartRecord> RankFile::write_through(LiveTensors& tensors, std::span<std::byte> memory, const Target& target,
                                           Executor& executor, std::stop_token stop) const {
  const int64_t piece = piece_through(target.writer, memory);
  if (piece > std::ssize(memory))
    return fail(ErrorCode::kResourceExhausted, "a write takes {}, memory_bytes allows {} for each tier of this rank",
                format_bytes(piece), format_bytes(std::ssize(memory)));
  if (tensors.are_all_here()) return write_here(tensors, memory, piece, target, executor, std::move(stop));
  return write_windows(tensors, memory, piece, target, executor, std::move(stop));
}

Result<PartRecord> RankFile::write_here(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                        const Target& target, Executor& executor, std::stop_token stop) const {
  Hashes hashes{.header = {}, .chunks = std::vector<Hash128>(chunks_.size())};
  PieceSlots slots(memory, piece);
  WriteWindow window(std::min(slots.count(), writes_under_way(target.storage)), [&](uint64_t slot) {
    if (target.alive) target.alive();
    slots.put(slot);
  });
  const int64_t group = piece * std::clamp(slots.count() / 4, 1, writes_together(target.writer));
  parallel_for(executor, (bytes() + group - 1) / group, [&](int64_t i) {
    if (window.failed()) return;
    if (stop.stop_requested()) return window.fail_with(Error(ErrorCode::kCancelled, "stopped while writing"));
    const int64_t group_end = std::min((i + 1) * group, bytes());
    std::vector<Operation> writes;
    const auto count = static_cast<int>((group_end - i * group + piece - 1) / piece);
    window.acquire(count);
    const bool was_read = tensors.read([&](std::span<const TensorToSave> live) {
      for (int64_t begin = i * group; begin < group_end; begin += piece) {
        const int64_t end = std::min(begin + piece, group_end);
        const size_t slot = slots.take();
        copy_file_range(live, begin, end, slots.data(slot));
        const WriteRange range{&target.writer, begin, {slots.data(slot), static_cast<size_t>(end - begin)}};
        writes.push_back({.tag = slot, .what = range, .stop = stop});
        // A chunk may end in a later piece, so it is hashed where it is whole.
        hash_range(begin, end, hashes, [&](const Chunk& chunk) { return chunk_data(live, chunk); });
      }
    });
    if (!was_read) {
      window.give_back(count);
      return window.fail_with(went_on().value());
    }
    target.storage.submit(writes, window);
  });
  RETURN_IF_ERROR(window.drain());
  return record(hashes);
}

Status RankFile::fill_window(LiveTensors& tensors, int64_t begin, std::span<std::byte> window,
                             Executor& executor) const {
  Status filled;
  const bool was_read = tensors.read([&](std::span<const TensorToSave> live) {
    const int64_t size = std::ssize(window);
    parallel_for(executor, (size + kCopyBytes - 1) / kCopyBytes, [&](int64_t i) {
      const int64_t from = i * kCopyBytes, to = std::min(from + kCopyBytes, size);
      copy_file_range(live, begin + from, begin + to, window.data() + from);
    });
    const auto wanted = places(live, begin, window);
    if (!wanted.empty()) filled = tensors.fill(window, wanted);
  });
  return was_read ? filled : Status(went_on());
}

void RankFile::hash_window(int64_t begin, std::span<const std::byte> window, Hashes& hashes,
                           std::optional<Xxh3Stream>& open, Executor& executor) const {
  const int64_t end = begin + std::ssize(window);
  if (begin == 0) hashes.header = xxh3_128(std::as_bytes(std::span(layout_.header_bytes)));
  const auto first = std::ranges::upper_bound(chunks_, begin, {}, &Chunk::end);
  const auto behind = std::ranges::lower_bound(first, chunks_.end(), end, {}, &Chunk::begin);
  const auto is_whole = [&](const Chunk& chunk) { return chunk.begin >= begin && chunk.end <= end; };
  const auto bytes_of = [&](const Chunk& chunk) {
    const int64_t from = std::max(chunk.begin, begin), to = std::min(chunk.end, end);
    return window.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
  };
  const auto hash_of = [&](const Chunk& chunk) -> Hash128& {
    return hashes.chunks[static_cast<size_t>(&chunk - chunks_.data())];
  };
  parallel_for(executor, behind - first, [&](int64_t i) {
    const Chunk& chunk = first[i];
    if (is_whole(chunk)) hash_of(chunk) = xxh3_128(bytes_of(chunk));
  });
  // The first and the last one may lie in several windows.
  for (auto chunk = first; chunk != behind; chunk = std::max(chunk + 1, behind - 1)) {
    if (is_whole(*chunk)) continue;
    if (chunk->begin >= begin) open.emplace();
    open->update(bytes_of(*chunk));
    if (chunk->end > end) continue;
    hash_of(*chunk) = open->digest();
    open.reset();
  }
}

Result<PartRecord> RankFile::write_windows(LiveTensors& tensors, std::span<std::byte> memory, int64_t piece,
                                           const Target& target, Executor& executor, std::stop_token stop) const {
  Hashes hashes{.header = {}, .chunks = std::vector<Hash128>(chunks_.size())};
  std::optional<Xxh3Stream> open;
  const int64_t pieces = std::ssize(memory) / piece, turns = std::min<int64_t>(pieces, 2);
  const int64_t size = pieces / turns * piece;
  const auto ended = [&](uint64_t) {
    if (target.alive) target.alive();
  };
  const int most = writes_under_way(target.storage);
  WriteWindow even(most, ended), odd(most, ended);  // the writes from each half
  const auto write = [&](WriteWindow& writes, int64_t begin, std::span<const std::byte> window) {
    const int64_t group = piece * writes_together(target.writer);
    for (int64_t at = 0; at < std::ssize(window) && !writes.failed(); at += group) {
      std::vector<Operation> operations;
      for (int64_t from = at; from < std::min(at + group, std::ssize(window)); from += piece) {
        const auto bytes =
            window.subspan(static_cast<size_t>(from), static_cast<size_t>(std::min(piece, std::ssize(window) - from)));
        const WriteRange range{&target.writer, begin + from, bytes};
        operations.push_back({.tag = static_cast<uint64_t>(begin + from), .what = range, .stop = stop});
      }
      writes.acquire(static_cast<int>(operations.size()));
      target.storage.submit(operations, writes);
    }
  };
  const auto one_window = [&](WriteWindow& writes, int64_t begin, std::span<std::byte> window) -> Status {
    RETURN_IF_ERROR(writes.drain());  // of what was in this half before
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while writing");
    RETURN_IF_ERROR(fill_window(tensors, begin, window, executor));
    hash_window(begin, window, hashes, open, executor);
    write(writes, begin, window);
    return {};
  };
  Status status;
  for (int64_t begin = 0, turn = 0; begin < bytes() && status; begin += size, ++turn) {
    const auto at = static_cast<size_t>(turn % turns * size);
    status = one_window(turn % turns == 0 ? even : odd, begin,
                        memory.subspan(at, static_cast<size_t>(std::min(size, bytes() - begin))));
  }
  for (WriteWindow* const writes : {&even, &odd}) {
    Status drained = writes->drain();
    if (status) status = std::move(drained);
  }
  if (!status) return tl::unexpected<Error>(std::move(status).error());
  return record(hashes);
}

PartRecord RankFile::record(const Hashes& hashes) const {
  PartRecord part{.file_bytes = bytes(), .data_offset = layout_.header.data_offset, .header_hash = hashes.header};
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
  for (size_t c = 0; c < chunks_.size(); ++c) part.tensors[chunks_[c].tensor].hashes.push_back(hashes.chunks[c]);
  std::sort(part.tensors.begin(), part.tensors.end(),
            [](const PartTensor& a, const PartTensor& b) { return a.name < b.name; });
  return part;
}

}  // namespace millrace::checkpoint
