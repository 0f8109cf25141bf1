// SPDX-License-Identifier: Apache-2.0
// A save hashes and sends its bytes in one pass: it reads a piece only after it has sent one before, and reads no piece
// again that it has sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

// Proves from the first write on when the save reads its image. The first write changes the image from `changed` on: a
// save that has hashed or sent those bytes already has the hash of other bytes in its record. Each write overwrites its
// piece when it is sent: a save that reads it again finds other bytes.
class OnePassStorage final : public WrappedStorage {
 public:
  OnePassStorage(std::shared_ptr<Storage> inner, int64_t changed, int64_t file_bytes)
      : WrappedStorage(std::move(inner)), changed_(changed), file_bytes_(file_bytes) {}

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    EXPECT_FALSE(key.ends_with(".safetensors")) << "the save reads its file back";
    return WrappedStorage::open_read(key, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    MutexLock lock(mutex_);
    for (const Operation& operation : operations) {
      const auto& write = std::get<Operation::Write>(operation.what);
      // SAFETY: the bytes lie in the image, which is memory of the save that may be written.
      auto* const piece = const_cast<std::byte*>(write.data.data());
      std::byte* const image = piece - write.offset;
      if (std::exchange(sent_bytes_, sent_bytes_ + std::ssize(write.data)) == 0)
        std::fill(image + changed_, image + file_bytes_, std::byte{0x5A});
      Status sent = perform_operation(operation);
      std::fill_n(piece, write.data.size(), std::byte{0xEE});
      queue.push({operation.tag, std::move(sent)});
    }
  }
  int64_t sent_bytes() const {
    MutexLock lock(mutex_);
    return sent_bytes_;
  }

 private:
  const int64_t changed_, file_bytes_;
  mutable Mutex mutex_;
  int64_t sent_bytes_ GUARDED_BY(mutex_) = 0;
};

// Four tensors that end with a group: what a thread hashes before it sends it. Two threads have two groups at most when
// the first write comes, so the others may be changed then.
void check_one_pass(const std::shared_ptr<Storage>& inner, int64_t group) {
  constexpr int64_t kHeader = 4096;
  Arrays arrays;
  for (int i = 0; i < 4; ++i)
    arrays["t" + std::to_string(i)] =
        make_array(formats::Dtype::kU8, {group - (i == 0 ? kHeader : 0)}, static_cast<uint64_t>(i));
  const auto storage = std::make_shared<OnePassStorage>(inner, 2 * group, 4 * group);
  EXPECT_OK(save_and_wait(*make_saver(root_of(storage)), 1, arrays));
  const auto checkpoint = Checkpoint::open(root_of(inner), 1).value();
  EXPECT_EQ(checkpoint->info().bytes, 4 * group);
  EXPECT_EQ(storage->sent_bytes(), 4 * group) << "each byte is sent once";
  EXPECT_OK(checkpoint->verify(1)) << "the hashes are of the bytes that were sent";
  for (const char* name : {"t2", "t3"}) arrays[name].bytes.assign(static_cast<size_t>(group), '\x5A');
  EXPECT_OK(load_and_compare(root_of(inner), 1, arrays));
}

TEST(OnePass, HashesAPieceAndSendsItToAFolder) {
  check_one_pass(make_memory_storage("test"), 8 << 20);
}

TEST(OnePass, HashesPartsAndSendsThemToAService) {
  const auto service = std::make_shared<PartsService>();
  service->part_bytes = 64 << 10;
  check_one_pass(make_parts_storage(service), 16 * service->part_bytes);
}

}  // namespace
}  // namespace millrace::checkpoint
