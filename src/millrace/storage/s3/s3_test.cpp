// SPDX-License-Identifier: Apache-2.0
// The S3 backend against a real server: MILLRACE_TEST_S3 names its endpoint (./dev test starts one).

#include "millrace/storage/s3/s3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/testing/conformance.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* test_endpoint() {
  return std::getenv("MILLRACE_TEST_S3");
}

S3Options test_options() {
  S3Options options = S3Options::from({}).value();
  options.endpoint_url = test_endpoint();
  return options;
}

// Each test has its own bucket. Buckets go with the server, or are emptied here.
std::shared_ptr<Storage> make_bucket_storage() {
  static std::atomic<int> made{0};
  static const unsigned nonce = std::random_device()();
  const std::string name = fmt::format("millrace-test-{:08x}-{}-{}", nonce, ::getpid(), made++);
  const Status bucket = make_s3_bucket(name, test_options());
  if (!bucket) {
    ADD_FAILURE() << bucket.error().to_string();
    return nullptr;
  }
  return open_s3_storage(name, test_options()).value();
}

StorageCase s3_case() {
  // tests/services/s3_probe.py finds it out. radosgw 16 compares If-Match before it writes, and not again: both of two
  // racing writes are told that they won.
  const char* const atomic = std::getenv("MILLRACE_TEST_S3_ATOMIC");
  const bool is_atomic = atomic != nullptr && std::string_view(atomic) == "1";
  return {.name = "s3",
          .missing = test_endpoint() == nullptr ? "set MILLRACE_TEST_S3 to an endpoint" : "",
          .make = make_bucket_storage,
          .shared_between_processes = true,
          .unique_versions = false,
          .reads_replaced = false,
          .loses_updates = !is_atomic};
}
INSTANTIATE_TEST_SUITE_P(S3, StorageConformance, ::testing::Values(s3_case()), conformance_name);

// Without a server: these calls send no request.
TEST(S3Storage, WhatIsTooLongForAnObjectIsRefusedBeforeAByteIsSent) {
  constexpr int64_t kMost = int64_t{5} << 40;
  const auto storage = open_s3_storage("bucket", {.endpoint_url = "http://127.0.0.1:1", .max_tries = 1}).value();
  const auto writer = storage->open_write("object", {.size_hint_bytes = kMost + 1});
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(writer.error().to_string(), HasSubstr("more than S3 keeps in an object"));
  EXPECT_TRUE(storage->open_write("object", {.size_hint_bytes = kMost}));
  const auto unknown = storage->open_write("object");
  ASSERT_TRUE(unknown);
  EXPECT_EQ((*unknown)->write_at(kMost, as_bytes("x")).error().code(), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace millrace
