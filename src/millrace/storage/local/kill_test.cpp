// SPDX-License-Identifier: Apache-2.0
// A process that writes objects is killed with -9 at random moments: every object that is visible is whole, and what it
// left is found and aborted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "millrace/base/hash/hash.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"

namespace millrace {
namespace {

using ::testing::IsEmpty;

constexpr int kKills = 30;

// Content that proves itself: its hash, then bytes.
std::string sealed(const std::string& bytes) {
  return to_hex(xxh3_128(bytes)) + bytes;
}
bool is_whole(const std::string& content) {
  return content.size() > 32 && content == sealed(content.substr(32));
}

[[noreturn]] void write_until_killed(const std::string& dir, uint64_t seed) {
  const auto storage = *open_local_storage(dir);
  std::mt19937_64 random(seed);
  for (;;) {
    const std::string content = sealed(test_bytes(1 + random() % 300'000, random()));
    const auto writer = storage->open_write("run/" + std::to_string(random() % 20),
                                            {.size_hint_bytes = static_cast<int64_t>(content.size())});
    if (!writer) ::_exit(1);
    for (size_t at = 0; at < content.size(); at += 10'000) {
      if (!(*writer)->append(as_bytes(std::string_view(content).substr(at, 10'000)))) ::_exit(1);
    }
    if (!(*writer)->commit(random() % 4 == 0 ? Durability::kDurable : Durability::kVisible)) ::_exit(1);
  }
}

TEST(Kill, WhatIsVisibleIsWholeAndWhatIsLeftIsFound) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  TempDir dir;
  const auto storage = *open_local_storage(dir.path());
  size_t leftovers = 0, objects = 0;
  // On a busy machine children may all be killed before they write: further ones until some did.
  for (int i = 0; i < kKills || ((objects == 0 || leftovers == 0) && i < 20 * kKills); ++i) {
    const uint64_t child_seed = random();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(dir.path(), child_seed);
    std::this_thread::sleep_for(std::chrono::microseconds(1'000 + random() % 30'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed before it was killed";

    const Status whole = for_each_object(*storage, "", [&](const ObjectInfo& object) -> Status {
      ++objects;
      ASSIGN_OR_RETURN(const std::string content, read_object(*storage, object.key));
      if (!is_whole(content)) return fail(ErrorCode::kCorruption, "{} is not whole", object.key);
      return {};
    });
    ASSERT_TRUE(whole) << whole.error().to_string();
    const auto uploads = storage->list_uploads("");
    ASSERT_TRUE(uploads) << uploads.error().to_string();
    leftovers += uploads->size();
    ASSERT_TRUE(storage->abort_uploads(*uploads));
    ASSERT_THAT(*storage->list_uploads(""), IsEmpty());
  }
  EXPECT_GT(objects, 0u) << "no child lived long enough to write anything";
  EXPECT_GT(leftovers, 0u) << "no child was killed while it was writing";
}

}  // namespace
}  // namespace millrace
