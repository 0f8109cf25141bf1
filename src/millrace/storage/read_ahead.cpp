// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/read_ahead.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace millrace {

struct ReadAhead::Impl {
  // A block at rest, or on its way into `bytes`.
  struct Block {
    int64_t begin = 0;
    int64_t size = 0;  // 0: nothing
    bool under_way = false;
    std::vector<std::byte> bytes;
    bool contains(int64_t offset) const { return offset >= begin && offset < begin + size; }
  };

  Impl(Location at, std::unique_ptr<RandomReader> open_reader, int64_t bytes)
      : location(std::move(at)), reader(std::move(open_reader)), block_bytes(bytes), process(fork_generation()) {}
  // What is still being filled must stay until it is. In a child of a fork nothing is: the parent waits for it.
  ~Impl() {
    if (process != fork_generation()) return;
    for (Block& block : blocks) {
      if (block.under_way) static_cast<void>(wait());
    }
  }

  void start(Block& block, int64_t begin) {
    block.begin = begin;
    block.size = std::min(block_bytes, reader->size() - begin);
    if (block.size <= 0) {
      block.size = 0;
      return;
    }
    block.bytes.resize(static_cast<size_t>(block_bytes));
    block.under_way = true;
    Operation operation;
    operation.reader = reader.get();
    operation.offset = begin;
    operation.out = std::span(block.bytes).first(static_cast<size_t>(block.size));
    location.storage->submit(std::span<const Operation>(&operation, 1), queue);
  }

  // Only one block is under way at a time.
  Status wait() {
    Completion done = queue.wait();
    for (Block& block : blocks) {
      if (block.under_way && !done.status) block.size = 0;
      block.under_way = false;
    }
    return std::move(done.status);
  }

  Result<int64_t> read(int64_t offset, std::span<std::byte> out) {
    if (process != fork_generation()) {  // the parent's block never arrives here
      process = fork_generation();
      blocks = {};
    }
    const int64_t size = std::clamp<int64_t>(reader->size() - offset, 0, std::ssize(out));
    out = out.first(static_cast<size_t>(size));
    const bool sequential = offset == expected && offset > 0;
    expected = offset + size;
    const bool is_known = std::any_of(blocks.begin(), blocks.end(), [&](const Block& b) { return b.contains(offset); });
    if (!is_known && (!sequential || size >= block_bytes)) {
      if (size > 0) RETURN_IF_ERROR(reader->read_at(offset, out));
      return size;
    }
    for (int64_t done = 0; done < size;) {
      ASSIGN_OR_RETURN(const Block* const block, block_at(offset + done));
      const int64_t inside = offset + done - block->begin;
      const int64_t some = std::min(size - done, block->size - inside);
      std::memcpy(out.data() + done, block->bytes.data() + inside, static_cast<size_t>(some));
      done += some;
    }
    return size;
  }

  // The block with `offset`, at rest, and the one behind it under way.
  Result<const Block*> block_at(int64_t offset) {
    if (!blocks[0].contains(offset)) std::swap(blocks[0], blocks[1]);
    if (!blocks[0].contains(offset)) {
      for (const Block& block : blocks) {
        if (block.under_way) static_cast<void>(wait());  // nobody asked for it
      }
      start(blocks[0], offset);
    }
    if (blocks[0].under_way) RETURN_IF_ERROR(wait());
    Block& next = blocks[1];
    const int64_t behind = blocks[0].begin + blocks[0].size;
    if (!next.under_way && !next.contains(behind) && behind < reader->size()) start(next, behind);
    return &blocks[0];
  }

  const Location location;
  const std::unique_ptr<RandomReader> reader;
  const int64_t block_bytes;
  uint64_t process;
  int64_t expected = 0;  // where a sequential read goes on
  std::array<Block, 2> blocks;
  CompletionQueue queue;
};

ReadAhead::ReadAhead(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReadAhead::~ReadAhead() = default;

Result<std::unique_ptr<ReadAhead>> ReadAhead::open(const Location& location, int64_t block_bytes) {
  ASSIGN_OR_RETURN(auto reader, location.storage->open_read(location.key));
  return std::unique_ptr<ReadAhead>(new ReadAhead(std::make_unique<Impl>(location, std::move(reader), block_bytes)));
}

int64_t ReadAhead::size() const {
  return impl_->reader->size();
}

std::string_view ReadAhead::version() const {
  return impl_->reader->version();
}

Result<int64_t> ReadAhead::read(int64_t offset, std::span<std::byte> out) {
  return impl_->read(offset, out);
}

}  // namespace millrace
