// SPDX-License-Identifier: Apache-2.0
// Objects read and written, against answers that no server gives on demand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <future>
#include <map>
#include <optional>

#include "millrace/base/hash/crc64nvme.h"
#include "millrace/base/metrics.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/s3/client/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::s3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string base64_crc64(std::string_view content) {
  const uint64_t crc = crc64nvme(as_bytes(content));
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(crc >> shift);
  std::string text;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  bytes += '\0';  // 9 bytes are 12 digits
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) three = three << 8 | static_cast<unsigned char>(bytes[i + k]);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63];
  }
  text.back() = '=';
  return text;
}

// AWS keeps a checksum of every object, and tells it with a GET of the whole.
TEST_F(ServiceTest, WhatComesIsHeldAgainstWhatTheServerKeeps) {
  const auto bucket = storage();
  const std::string content = test_bytes(100'000, 1);
  ASSERT_TRUE(write_object(*bucket, "k", content));
  std::string bent = content;
  bent[50'000] ^= 4;
  const std::string etag = "ETag: \"" + md5_hex(as_bytes(content)) + "\"";
  const std::string crc32c = "x-amz-checksum-crc32c: " + base64_crc32c(millrace::crc32c(as_bytes(content)));
  for (const std::string& kept : {crc32c, std::string("x-amz-checksum-crc64nvme: ") + base64_crc64(content)}) {
    bend(2, is_get, {.headers = {etag, kept}, .body = bent});
    EXPECT_TRUE(*read_object(*bucket, "k") == content) << "two bad ones, then a good one";
    bend(3, is_get, {.headers = {etag, kept}, .body = bent});
    const auto failed = read_object(*bucket, "k");
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(failed.error().to_string(), AllOf(HasSubstr("s3://bucket/k"), HasSubstr("the server keeps")));
  }
  EXPECT_EQ(requests().back().header("x-amz-checksum-mode"), "ENABLED");
  // A checksum of parts, of another kind, or not base64: no comparison is possible.
  for (const char* other : {"x-amz-checksum-crc32c: AAAAAA==-2\r\nx-amz-checksum-type: COMPOSITE",
                            "x-amz-checksum-sha1: 2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "x-amz-checksum-crc32c: ????"}) {
    bend(1, is_get, {.headers = {etag, other}, .body = bent});
    EXPECT_TRUE(*read_object(*bucket, "k") == bent) << other;
  }
  // A part of it has no checksum, and is not asked for one.
  const auto reader = bucket->open_read("k");
  std::string half(50'000, '.');
  ASSERT_TRUE((*reader)->read_at(0, std::as_writable_bytes(std::span(half))));
  for (const auto& request : requests()) {
    EXPECT_EQ(request.header("x-amz-checksum-mode").empty(), !request.header("range").empty() || !is_get(request));
  }
}

TEST_F(ServiceTest, PartsFromAFileCarryTheirChecksumAndAreSentAgain) {
  constexpr int64_t kPart = 5 << 20;
  const std::string content = test_bytes(kPart + 1'000'000, 1);
  const TempDir dir;
  const auto files = *open_local_storage(dir.path());
  ASSERT_TRUE(write_object(*files, "file", content));
  const auto file = *files->open_read("file");
  const auto bucket = storage(3);
  ASSERT_TRUE(bucket->capabilities().sends_files && bucket->capabilities().file_checksums);
  const auto writer = *bucket->open_write("k", {.size_hint_bytes = std::ssize(content), .part_bytes = kPart});
  bend(
      2, [](const ReceivedRequest& request) { return request.target.find("partNumber=") != std::string::npos; },
      error_reply(503, "SlowDown"));
  const int64_t retries = process_metrics().count(Metric::kRetries);
  Progress progress;
  CompletionQueue queue;
  for (const bool is_right : {true, false}) {
    for (const auto& [at, size] : {std::pair{int64_t{0}, kPart}, std::pair{kPart, int64_t{1'000'000}}}) {
      const auto range = file->local_file()->file_range(at, size);
      const uint32_t crc = crc32c(as_bytes(content).subspan(static_cast<size_t>(at), static_cast<size_t>(size)));
      const Operation write{.what =
                                Operation::Send{writer.get(), at, range.get(), is_right ? crc : crc + 1, &progress}};
      bucket->submit(std::span(&write, 1), queue);
      const Status status = queue.wait().status;
      EXPECT_EQ(status.has_value(), is_right);
      EXPECT_THAT(status ? "BadDigest" : status.error().to_string(), HasSubstr("BadDigest"));
    }
    EXPECT_EQ(progress.snapshot().bytes, std::ssize(content));
  }
  EXPECT_EQ(process_metrics().count(Metric::kRetries) - retries, 2 + 2 * 2) << "what came damaged is sent again too";
}

TEST_F(ServiceTest, AChecksumOfTheWholeIsAskedFor) {
  const auto bucket = storage();
  ASSERT_TRUE(write_object(*bucket, "k", "123456789"));
  const ObjectInfo object = *bucket->stat("k");
  EXPECT_EQ(*bucket->checksum(object), std::nullopt);
  const auto is_head = [](const ReceivedRequest& request) { return request.method == "HEAD"; };
  const std::vector<std::string> facts{"ETag: \"" + object.version + "\"",
                                       "x-amz-checksum-crc64nvme: " + base64_crc64("123456789")};
  bend(1, is_head, {.headers = facts, .announced = 9});
  EXPECT_EQ(*bucket->checksum(object), (ContentChecksum{ContentChecksum::Kind::kCrc64Nvme, "ae8b14860a799888"}));
  bend(1, is_head, {.headers = {"ETag: \"other\""}, .announced = 9});
  EXPECT_EQ(bucket->checksum(object).error().code(), ErrorCode::kCorruption);
}

// A server that does not answer the CRC-32C is held to the MD5 that its ETag is, and is sent that too.
TEST_F(ServiceTest, WhatAPutStoredIsHeldAgainstWhatWasSent) {
  const std::string content = test_bytes(9 << 20, 3);
  const auto with = [](const std::string& header) { return Reply{.headers = {header}}; };
  const std::string other = "ETag: \"" + md5_hex(as_bytes("other")) + "\"";
  Reply encrypted = with(other);
  encrypted.headers.push_back("x-amz-server-side-encryption: aws:kms");
  Reply echoed = with(other);
  echoed.headers.push_back("x-amz-checksum-crc32c: " + base64_crc32c(crc32c(as_bytes("small"))));
  Reply other_crc = with(other);
  other_crc.headers.push_back("x-amz-checksum-crc32c: " + base64_crc32c(1));
  struct Case {
    Reply reply;
    bool is_good, sends_md5;
  };
  for (const auto& [reply, is_good, sends_md5] :
       {Case{with(other), false, true}, Case{other_crc, false, true}, Case{encrypted, true, true},
        Case{with("ETag: \"opaque\""), true, true}, Case{echoed, true, false}}) {
    const auto bucket = storage();
    bend(1, is_put, reply);
    const auto put = write_object(*bucket, "k", "small");
    EXPECT_EQ(put.has_value(), is_good) << reply.headers[0];
    EXPECT_EQ(put ? ErrorCode::kCorruption : put.error().code(), ErrorCode::kCorruption);
    EXPECT_EQ(requests().back().header("content-md5"), base64_md5(as_bytes("small")));
    ASSERT_TRUE(write_object(*bucket, "k", "next"));
    EXPECT_EQ(!requests().back().header("content-md5").empty(), sends_md5);
  }
  const auto bucket = storage();
  bend(1, is_put, with(other));
  const auto parts = write_object(*bucket, "k", content);
  ASSERT_FALSE(parts);
  EXPECT_THAT(parts.error().to_string(), HasSubstr("stored something else"));
}

// Each has its own MD5, and a wrong one is told from the others. An upload that cannot begin is asked for once.
TEST_F(ServiceTest, PartsGivenTogetherAreProvenOneByOne) {
  constexpr int64_t kPart = 5 << 20, kParts = 4;  // the last one is smaller
  const std::string content = test_bytes(kPart * (kParts - 1) + 1234, 5);
  for (const std::string damaged : {"none", "partNumber=3", "uploads="}) {
    const auto bucket = storage();
    const auto before = std::ssize(requests());
    const auto hits = [damaged](const auto& request) { return request.target.find(damaged) != request.target.npos; };
    const Reply wrong{.headers = {"ETag: \"" + md5_hex({}) + "\""}};
    bend(100, hits, damaged == "uploads=" ? error_reply(403, "AccessDenied") : wrong);
    const auto writer = bucket->open_write("k", {.size_hint_bytes = std::ssize(content), .part_bytes = kPart}).value();
    std::vector<Operation> writes;
    for (int64_t i = 0; i < kParts; ++i) {
      const auto part = as_bytes(content).subspan(static_cast<size_t>(i * kPart));
      writes.push_back({.tag = static_cast<uint64_t>(i),
                        .what = WriteRange{writer.get(), i * kPart, part.first(std::min<size_t>(part.size(), kPart))}});
    }
    CompletionQueue queue;
    bucket->submit(writes, queue);
    for (int64_t i = 0; i < kParts; ++i) {
      const Completion done = queue.wait();
      EXPECT_EQ(done.status.has_value(), damaged == "none" || (damaged != "uploads=" && done.tag != 2)) << done.tag;
    }
    auto ours = requests();
    ours.erase(ours.begin(), ours.begin() + before);
    EXPECT_EQ(std::ssize(ours), damaged == "uploads=" ? 1 : kParts + 1);
    for (const auto& each : ours)
      EXPECT_EQ(each.header("content-md5"), is_put(each) ? base64_md5(as_bytes(each.body)) : "");
    EXPECT_EQ(writer->commit(Durability::kDurable).has_value(), damaged == "none") << damaged;
  }
}

// Parts that the server lost, or took from elsewhere.
// As a wrapper does that knows nothing of S3. Its only thread is held up all the while.
TEST_F(ServiceTest, ReadsAndPartsNeedNoThreadOfTheStorageThatSubmitsThem) {
  const auto bucket = storage();
  const auto plan = std::make_shared<FaultPlan>();
  const auto wrapper = make_fault_storage(make_memory_storage("test"), plan, 1);
  const std::string content = test_bytes(16 << 20, 3);
  {
    MutexLock lock(mutex_);
    objects_["/bucket/k"] = {content, md5_hex(as_bytes(content))};
  }
  ASSERT_TRUE(write_object(*wrapper, "held", "x"));
  std::promise<void> free;
  plan->add({.call = FaultCall::kRead, .before = [held = free.get_future().share()] { held.wait(); }});
  CompletionQueue held_queue, queue;
  std::byte byte{};
  const auto held = *wrapper->open_read("held");
  wrapper->submit(std::vector<Operation>{{.what = Operation::Read{held.get(), 0, {&byte, 1}}}}, held_queue);

  const auto reader = *bucket->open_read("k");
  const auto writer = *bucket->open_write("copy", {.size_hint_bytes = 16 << 20, .part_bytes = 8 << 20});
  std::string out(content.size(), '.');
  wrapper->submit(
      std::vector<Operation>{{.what = Operation::Read{reader.get(), 0, std::as_writable_bytes(std::span(out))}},
                             {.what = Operation::Write{writer.get(), 8 << 20, as_bytes(content).subspan(8 << 20)}},
                             {.what = Operation::Write{writer.get(), 0, as_bytes(content).first(8 << 20)}}},
      queue);
  queue.wait_for(3, Clock::now() + std::chrono::seconds(60));
  for (int i = 0; i < 3; ++i) {
    const auto ended = queue.try_pop();
    ASSERT_TRUE(ended && ended->status);
  }
  EXPECT_EQ(held_queue.try_pop(), std::nullopt);
  free.set_value();
  EXPECT_TRUE(held_queue.wait().status);
  EXPECT_TRUE(out == content);
  EXPECT_TRUE(writer->commit());
}

TEST_F(ServiceTest, WhatACompletionPutTogetherIsHeldAgainstWhatWasSent) {
  const std::string content = test_bytes(9 << 20, 4);
  const std::string first = md5_hex(as_bytes(content).first(8 << 20));
  for (const std::string& etag : {first + "-1", first + "-2", std::string("opaque")}) {
    const auto bucket = storage();
    {
      MutexLock lock(mutex_);
      objects_["/bucket/k"] = {content.substr(0, 8 << 20), etag};
    }
    bend(1, is_complete,
         {.body = "<CompleteMultipartUploadResult><ETag>\"" + etag + "\"</ETag></CompleteMultipartUploadResult>"});
    const auto written = write_object(*bucket, "k", content);
    ASSERT_FALSE(written) << etag;
    EXPECT_EQ(written.error().code(), ErrorCode::kCorruption) << written.error().to_string();
  }
}

TEST_F(ServiceTest, ACompletionMayFailBehindA200) {
  const auto bucket = storage();
  const int64_t retries = process_metrics().count(Metric::kRetries);
  bend(2, is_complete, {.body = "<?xml version=\"1.0\"?>\n  <Error><Code>InternalError</Code></Error>"});
  const auto written = write_object(*bucket, "k", std::string(9 << 20, 'x'));
  ASSERT_TRUE(written) << written.error().to_string();
  EXPECT_THAT(written->version, ::testing::EndsWith("-2"));
  EXPECT_EQ(process_metrics().count(Metric::kRetries) - retries, 2);
}

TEST_F(ServiceTest, ACompletionWhoseAnswerWasLostIsLookedUp) {
  const auto bucket = storage();
  const std::string content = test_bytes(9 << 20, 2);
  const std::vector<std::string> etags{md5_hex(as_bytes(content).first(8 << 20)),
                                       md5_hex(as_bytes(content).subspan(8 << 20))};
  for (const bool ours : {true, false}) {
    {
      MutexLock lock(mutex_);
      bend_ = [&, ours, tries = 0](const ReceivedRequest& request) mutable -> std::optional<Reply> {
        if (!is_complete(request)) return std::nullopt;
        objects_["/bucket/k"] = {content, ours ? multipart_etag(etags) : "of-somebody-else"};
        if (++tries > 1) return error_reply(404, "NoSuchUpload");
        return Reply{.cut_after = 0, .no_head = true};
      };
    }
    const auto written = write_object(*bucket, "k", content);
    ASSERT_EQ(written.has_value(), ours);
    EXPECT_EQ(ours ? written->version : "", ours ? multipart_etag(etags) : "");
  }
}

TEST_F(ServiceTest, AConditionWonByATryWhoseAnswerWasLostIsWon) {
  const auto bucket = storage();
  {
    MutexLock lock(mutex_);
    bend_ = [this, tries = 0](const ReceivedRequest& request) mutable -> std::optional<Reply> {
      if (!is_put(request)) return std::nullopt;
      if (++tries > 1) return error_reply(412, "PreconditionFailed");
      objects_["/bucket/k"] = {request.body, md5_hex(as_bytes(request.body))};
      return Reply{.cut_after = 0, .no_head = true};
    };
  }
  const WriteOptions if_absent{.condition = WriteOptions::Condition::kIfAbsent};
  const auto won = write_object(*bucket, "k", "mine", if_absent);
  EXPECT_TRUE(won) << won.error().to_string();
  {
    MutexLock lock(mutex_);
    objects_.clear();
    bend_ = [this](const ReceivedRequest& request) -> std::optional<Reply> {
      if (!is_put(request)) return std::nullopt;
      objects_["/bucket/k"] = {"theirs", md5_hex(as_bytes("theirs"))};
      return error_reply(412, "PreconditionFailed");
    };
  }
  EXPECT_EQ(write_object(*bucket, "k", "mine", if_absent).error().code(), ErrorCode::kAlreadyExists);
}

TEST_F(ServiceTest, ARangeIsWhatWasAskedForOrAnError) {
  const auto bucket = storage(2);
  ASSERT_TRUE(write_object(*bucket, "k", "0123456789"));
  const auto reader = bucket->open_read("k");
  ASSERT_TRUE(reader);
  std::string out(4, ' ');
  const auto read = [&] { return (*reader)->read_at(2, std::as_writable_bytes(std::span<char>(out))); };
  ASSERT_TRUE(read());
  EXPECT_EQ(out, "2345");
  bend(9, is_get, {.body = "0123"});  // a whole answer of the right length
  EXPECT_EQ(read().error().code(), ErrorCode::kUnsupported);
  const std::string etag = "ETag: \"" + md5_hex(as_bytes("0123456789")) + "\"", another = "ETag: \"another\"";
  const std::string right = "Content-Range: bytes 2-5/10";
  struct Case {
    std::vector<std::string> headers;
    const char *body, *reason;
  };
  for (const auto& [headers, body, reason] : std::vector<Case>{
           {{right, another}, "abcd", "changed while reading: version another came"},
           {{right}, "abcd", "does not say of which version"},
           {{etag}, "abcd", "does not say which bytes"},
           {{etag, "Content-Range: 2-5/10"}, "abcd", "does not say which bytes"},
           {{etag, "Content-Range: bytes */10"}, "abcd", "does not say which bytes"},
           {{etag, "Content-Range: bytes 2-5/*"}, "abcd", "does not say which bytes"},
           {{etag, "Content-Range: bytes 3-6/10"}, "3456", "the bytes [3, 7) came"},
           {{etag, "Content-Range: bytes 2-4/10"}, "2345", "the bytes [2, 5) came"},
           {{etag, "Content-Range: bytes 2-5/11"}, "2345", "it has 11 bytes now, not 10"},
           {{etag, right}, "abc", "3 bytes arrived"},
           {{etag, right}, "abcdef", "6 bytes where 4"},
       }) {
    bend(9, is_get, {.status = 206, .headers = headers, .body = body});
    const Status came = read();
    ASSERT_FALSE(came) << reason;
    EXPECT_THAT(came.error().to_string(), HasSubstr(reason));
  }
  // The size of HEAD must be that of the bodies.
  bend(1, [](const ReceivedRequest& request) { return request.method == "HEAD"; },
       {.headers = {etag}, .body = "012345678"});
  const auto shorter = bucket->open_read("k");
  ASSERT_TRUE(shorter);
  ASSERT_EQ((*shorter)->size(), 9);
  EXPECT_THAT((*shorter)->read_at(2, std::as_writable_bytes(std::span<char>(out))).error().to_string(),
              HasSubstr("it has 10 bytes now, not 9"));
}

// Where little memory waits for answers, it waits for many small ones.
TEST_F(ServiceTest, AReadIsAsManyRequestsAsKeepALinkBusy) {
  const std::string content = test_bytes(42 * kMiB, 1), etag = "e";
  const auto bucket = storage();
  {
    MutexLock lock(mutex_);
    bend_ = [&](const ReceivedRequest& request) -> std::optional<Reply> {
      if (!is_get(request)) return std::nullopt;
      Reply reply = serve_range(request, content);
      reply.headers.push_back("ETag: \"" + etag + "\"");
      reply.delay = std::chrono::milliseconds(300);
      return reply;
    };
  }
  // The sizes of the GETs for reads of these MiB, begun one after another.
  const auto asked = [&](Storage& from, const std::vector<size_t>& reads) {
    const auto reader = *from.open_read("k", {.expected_version = etag, .known_size = std::ssize(content)});
    const size_t before = requests().size();
    std::string out(content.size(), '.');
    CompletionQueue queue;
    size_t offset = 1;
    for (const size_t mib : reads) {
      const auto into = std::as_writable_bytes(std::span(out)).subspan(offset, mib * kMiB);
      const Operation read{.what = Operation::Read{reader.get(), static_cast<int64_t>(offset), into}};
      from.submit(std::span(&read, 1), queue);
      offset += mib * kMiB;
    }
    for (size_t i = 0; i < reads.size(); ++i) EXPECT_TRUE(queue.wait().status);
    EXPECT_TRUE(std::string_view(out).substr(1, offset - 1) == std::string_view(content).substr(1, offset - 1));
    std::map<size_t, size_t> sizes;
    const auto received = requests();
    for (const ReceivedRequest& request : std::span(received).subspan(before)) {
      size_t first = 0, last = 0;
      EXPECT_EQ(std::sscanf(std::string(request.header("range")).c_str(), "bytes=%zu-%zu", &first, &last), 2);
      ++sizes[(last + 1 - first) / kMiB];
    }
    return sizes;
  };
  using Sizes = std::map<size_t, size_t>;
  EXPECT_EQ(asked(*bucket, {8}), (Sizes{{2, 4}}));
  EXPECT_EQ(asked(*bucket, {8, 8, 8, 8, 8}), (Sizes{{2, 20}}));
  EXPECT_EQ(asked(*bucket, {40}), (Sizes{{2, 20}}));
  EXPECT_EQ(asked(*bucket, {32, 8}), (Sizes{{2, 20}}));
  EXPECT_EQ(asked(*bucket, {16, 16, 6, 3}), (Sizes{{2, 19}, {3, 1}})) << "19 and 1 are enough";
  // Where each request counts they are few.
  S3Options options{.endpoint_url = server_->url(""), .requests_per_second = 1000};
  EXPECT_EQ(asked(**open_s3_storage("bucket", options), {8, 4}), (Sizes{{4, 1}, {8, 1}}));
  EXPECT_EQ(asked(*bucket, {8}), (Sizes{{2, 4}}));
}

}  // namespace
}  // namespace millrace::s3
