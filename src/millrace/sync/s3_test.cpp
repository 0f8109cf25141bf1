// SPDX-License-Identifier: Apache-2.0
// Copies to, from and inside a real S3 server: MILLRACE_TEST_S3 names its endpoint (./dev test starts one).
#include "millrace/storage/s3/s3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::IsEmpty;

class TransferS3 : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* endpoint = std::getenv("MILLRACE_TEST_S3");
    if (endpoint == nullptr) GTEST_SKIP() << "MILLRACE_TEST_S3 names no server";
    std::cout << "MILLRACE_TEST_SEED=" << seed_ << "\n";
    first_ = bucket(endpoint);
    second_ = bucket(endpoint);
  }

  static Side bucket(const char* endpoint) {
    static const unsigned nonce = std::random_device()();
    static int made = 0;
    S3Options options = *S3Options::from({});
    options.endpoint_url = endpoint;
    const std::string name = fmt::format("millrace-transfer-{:08x}-{}-{}", nonce, ::getpid(), made++);
    const Status there = make_s3_bucket(name, options);
    EXPECT_TRUE(there) << there.error().to_string();
    return {.storage = *open_s3_storage(name, options)};
  }

  TransferReport copied(const Location& from, const Location& to, const TransferOptions& options = {}) {
    const auto report = engine_->copy(from, *from.storage->stat(from.key), to, options);
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *report : TransferReport();
  }

  const uint64_t seed_ = test_seed();
  std::unique_ptr<TransferEngine> engine_ = *TransferEngine::create();
  Side local_ = local_side(), first_, second_;
};

TEST_F(TransferS3, EverySizeGoesUpOverAndDown) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, kBlockBytes, kBlockBytes + 1, 3 * kBlockBytes + 12'345}) {
    SCOPED_TRACE(std::to_string(size) + " bytes");
    const std::string content = content_of(size, seed_ + static_cast<uint64_t>(size));
    put(local_.at("x"), content);
    const TransferReport up = copied(local_.at("x"), first_.at("dir/x"));
    EXPECT_EQ(up.moved_bytes, size);
    EXPECT_EQ(up.hash, xxh3_128(content));
    EXPECT_EQ(load_sidecar(*first_.storage, *first_.storage->stat("dir/x")).value().has_value(), size > kBlockBytes);
    const TransferReport over = copied(first_.at("dir/x"), second_.at("y"));
    EXPECT_EQ(over.copied_bytes, size);
    EXPECT_EQ(load_sidecar(*second_.storage, *second_.storage->stat("y")).value().has_value(), size > kBlockBytes);
    const TransferReport down = copied(second_.at("y"), local_.at("down"));
    EXPECT_EQ(down.moved_bytes, size);
    EXPECT_TRUE(get(local_.at("down")) == content);
    ASSERT_TRUE(local_.storage->remove(std::vector<std::string>{"down"}));
    EXPECT_THAT(*first_.storage->list_uploads(""), IsEmpty());
    EXPECT_THAT(*second_.storage->list_uploads(""), IsEmpty());
  }
}

TEST_F(TransferS3, OneChangedByteMovesOneBlock) {
  std::string content = content_of(5 * kBlockBytes + 7, seed_);
  put(local_.at("x"), content);
  copied(local_.at("x"), first_.at("x"));
  copied(first_.at("x"), local_.at("down"));
  EXPECT_TRUE(copied(local_.at("x"), first_.at("x")).unchanged);
  for (const int64_t at : {int64_t{0}, 2 * kBlockBytes + 1, 5 * kBlockBytes + 6}) {
    content[static_cast<size_t>(at)] ^= 1;
    const int64_t block = std::min(kBlockBytes, 5 * kBlockBytes + 7 - at / kBlockBytes * kBlockBytes);
    put(local_.at("x"), content);
    EXPECT_EQ(copied(local_.at("x"), first_.at("x")).moved_bytes, block);
    EXPECT_EQ(copied(first_.at("x"), local_.at("down")).moved_bytes, block);
    EXPECT_TRUE(get(local_.at("down")) == content);
  }
}

TEST_F(TransferS3, WhatWasLeftIsGoneOnWith) {
  const std::string content = content_of(6 * kBlockBytes + 1, seed_);
  put(local_.at("x"), content);
  leave_unfinished(*engine_, local_.at("x"), first_.at("x"), 4);
  const TransferReport report = copied(local_.at("x"), first_.at("x"));
  EXPECT_GE(report.resumed_bytes, 3 * kBlockBytes + 1);
  EXPECT_EQ(report.resumed_bytes + report.moved_bytes, 6 * kBlockBytes + 1);
  EXPECT_TRUE(get(first_.at("x")) == content);
  EXPECT_THAT(*first_.storage->list_uploads(""), IsEmpty());
}

TEST_F(TransferS3, AKilledUploadIsGoneOnWith) {
  std::mt19937_64 random(seed_);
  int64_t resumed = 0;
  // A kill may come before the first part is there, or after the last one: further kills, in the middle, until one
  // leaves something to go on with.
  for (int i = 0; i < 4 || (resumed == 0 && i < 50); ++i) {
    const std::string content = content_of(8 * kBlockBytes + 1, random());
    put(local_.at("x"), content);
    const auto any = static_cast<int64_t>(random() % static_cast<uint64_t>(8 * kBlockBytes));
    const auto later = std::chrono::microseconds(random() % 9'000);
    const int64_t done = i < 4 ? copy_until_killed(local_.at("x"), first_.at("x"), any, later)
                               : copy_until_killed(local_.at("x"), first_.at("x"), (2 + i % 4) * kBlockBytes, {});
    const TransferReport report = copied(local_.at("x"), first_.at("x"));
    EXPECT_TRUE(get(first_.at("x")) == content);
    resumed += report.resumed_bytes;
    // No more than what was under way is sent again. Of all of it the server may be done between two of our questions.
    const int64_t most = done <= 8 * kBlockBytes ? 8 * kBlockBytes + 1 - done + 5 * kBlockBytes : INT64_MAX;
    EXPECT_LE(report.moved_bytes, most);
    EXPECT_THAT(*first_.storage->list_uploads(""), IsEmpty());
  }
  EXPECT_GT(resumed, 0) << "no kill left a part to go on with";
}

// By another process, or for one that was killed and did not hear of it.
TEST_F(TransferS3, WhatTheServerCompletesMeanwhileIsNotSentAgain) {
  const std::string content = content_of(3 * kBlockBytes + 1, seed_);
  put(local_.at("x"), content);
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kCommit, .error = Error(ErrorCode::kUnavailable, "the end")});
  const Location broken{make_fault_storage(first_.storage, plan), "x", "s3"};
  ASSERT_FALSE(engine_->copy(local_.at("x"), *local_.storage->stat("x"), broken));
  const auto uploads = first_.storage->list_uploads("x");
  ASSERT_EQ(uploads->size(), 1U);
  const auto bent = std::make_shared<BentStorage>(first_.storage);
  bent->on_resume = [&] {
    EXPECT_TRUE((*first_.storage->resume_write(uploads->front(), {.size_hint_bytes = std::ssize(content)}))->commit());
  };
  EXPECT_TRUE(copied(local_.at("x"), located(bent, "x")).unchanged);
  EXPECT_TRUE(get(first_.at("x")) == content);
  EXPECT_TRUE(load_sidecar(*first_.storage, *first_.storage->stat("x")).value());
  EXPECT_THAT(*first_.storage->list_uploads(""), IsEmpty());
}

TEST_F(TransferS3, PartsThatTakeHalfOfTheMemoryAreSent) {
  const auto engine = *TransferEngine::create({.memory_bytes = 4 * kBlockBytes});
  const auto bent = std::make_shared<BentStorage>(first_.storage);
  bent->part_bytes = 2 * kBlockBytes;
  const Side memory = memory_side();
  const std::string content = content_of(3 * kBlockBytes + 1, seed_);
  put(memory.at("x"), content);
  const auto report = engine->copy(memory.at("x"), *memory.storage->stat("x"), located(bent, "x"));
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->hash, xxh3_128(content));
  EXPECT_TRUE(get(first_.at("x")) == content);
}

// As an object of another tool is, or one of ours that was killed before it left block hashes.
TEST_F(TransferS3, AnEtagProvesWhatHasNoBlockHashes) {
  for (const int64_t size : {3 * kBlockBytes + 5, 2 * kBlockBytes}) {
    const std::string content = content_of(size, seed_);
    put(local_.at("x"), content);
    copied(local_.at("x"), first_.at("x"), {.sidecar = false});
    const TransferReport again = copied(local_.at("x"), first_.at("x"));
    EXPECT_TRUE(again.unchanged);
    EXPECT_EQ(again.hash, xxh3_128(content));
    EXPECT_TRUE(load_sidecar(*first_.storage, *first_.storage->stat("x")).value()) << "the next copy has it easier";
    std::string other = content;
    other.back() ^= 1;
    put(local_.at("x"), other);
    EXPECT_FALSE(copied(local_.at("x"), first_.at("x"), {.sidecar = false}).unchanged);
    EXPECT_TRUE(get(first_.at("x")) == other);
  }
  // A small one only where a listing told of it: to ask would cost as much as to send it.
  put(local_.at("s"), "small");
  copied(local_.at("s"), first_.at("s"));
  EXPECT_FALSE(copied(local_.at("s"), first_.at("s")).unchanged);
  TransferOptions listed;
  listed.target = *first_.storage->stat("s");
  EXPECT_TRUE(copied(local_.at("s"), first_.at("s"), listed).unchanged);
  put(local_.at("s"), "smell");
  EXPECT_FALSE(copied(local_.at("s"), first_.at("s"), listed).unchanged);
  EXPECT_EQ(get(first_.at("s")), "smell");
}

TEST_F(TransferS3, AnEtagWithPartsOfAnotherToolIsUnderstood) {
  for (const int64_t part_mib : {5, 15, 16, 25}) {
    SCOPED_TRACE(std::to_string(part_mib) + " MiB");
    const int64_t part = part_mib << 20;
    const std::string content = content_of(2 * part + 77, seed_);
    const auto writer = first_.storage->open_write("x", {.size_hint_bytes = std::ssize(content), .part_bytes = part});
    ASSERT_TRUE(writer);
    ASSERT_EQ((*writer)->part_bytes(), part);
    for (int64_t at = 0; at < std::ssize(content); at += part) {
      const auto piece = std::string_view(content).substr(static_cast<size_t>(at), static_cast<size_t>(part));
      ASSERT_TRUE((*writer)->write_at(at, std::as_bytes(std::span<const char>(piece))));
    }
    ASSERT_TRUE((*writer)->commit());
    put(local_.at("x"), content);
    EXPECT_TRUE(copied(local_.at("x"), first_.at("x"), {.sidecar = false}).unchanged);
  }
}

// Parts that the server copies, and parts that pass through this process.
TEST_F(TransferS3, AnUploadOfPartsHasHeadersMetadataAndTags) {
  const ObjectHeaders headers{.content_type = "text/x-q",
                              .content_encoding = "x-none",
                              .content_language = "de",
                              .content_disposition = "inline",
                              .cache_control = "no-store",
                              .expires = "Tue, 01 Jan 2030 00:00:00 GMT"};
  const std::map<std::string, std::string> metadata{{"run", "7"}};
  const ObjectTags tags{{"a b", "c=d"}, {"e", ""}};
  const std::string content = content_of(2 * kBlockBytes + 5, seed_);
  put(first_.at("x"), content);
  const auto reader = first_.storage->open_read("x");
  ASSERT_TRUE(reader);
  const auto writer = first_.storage->open_write("y", {.size_hint_bytes = std::ssize(content),
                                                       .part_bytes = kBlockBytes,
                                                       .metadata = metadata,
                                                       .headers = headers,
                                                       .tags = tags});
  ASSERT_TRUE(writer);
  for (int64_t at = 0; at < std::ssize(content); at += kBlockBytes) {
    const int64_t size = std::min<int64_t>(kBlockBytes, std::ssize(content) - at);
    const Status part = (*writer)->copy_range(**reader, at, size, at);
    ASSERT_TRUE(part) << part.error().to_string();
  }
  ASSERT_TRUE((*writer)->commit());

  S3Options options = *S3Options::from({});
  options.endpoint_url = std::getenv("MILLRACE_TEST_S3");
  options.max_tries = 9;  // so that it is another service
  const std::string name(second_.storage->name().substr(std::string_view("s3://").size()));
  Side other{.storage = *open_s3_storage(name, options)};
  ASSERT_FALSE(other.storage->copies_from(*first_.storage));
  copied(first_.at("y"), other.at("z"));

  for (const auto& [storage, key] : {std::pair(first_.storage, "y"), std::pair(other.storage, "z")}) {
    SCOPED_TRACE(key);
    const auto there = storage->stat(key);
    ASSERT_TRUE(there);
    EXPECT_EQ(*there->headers, headers);
    EXPECT_EQ(there->metadata, metadata);
    EXPECT_EQ(storage->tags(key).value(), tags);
    EXPECT_NE(there->version.find('-'), std::string::npos) << "of a multipart upload";
  }
  EXPECT_TRUE(get(other.at("z")) == content);
}

TEST(Etag, PartSizesThatFit) {
  const std::string md5(32, 'a');
  EXPECT_EQ(possible_part_bytes(md5, 100), std::vector<int64_t>{0});
  EXPECT_THAT(possible_part_bytes(md5 + "-3", 17 << 20), ::testing::ElementsAre(8 << 20, 6 << 20));
  EXPECT_THAT(possible_part_bytes(md5 + "-1", 1), ::testing::Contains(8 << 20));
  EXPECT_THAT(possible_part_bytes(md5 + "-10000", 17), IsEmpty());
}

}  // namespace
}  // namespace millrace::sync
