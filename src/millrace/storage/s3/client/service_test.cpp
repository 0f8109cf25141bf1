// SPDX-License-Identifier: Apache-2.0
// The backend against answers that no server gives on demand: AWS's documented ones, and faulty ones.

#include "millrace/storage/s3/client/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/hash/crc64nvme.h"
#include "millrace/base/metrics.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/http/testing/test_server.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/s3/client/digest.h"

namespace millrace::s3 {
namespace {

using http::ReceivedRequest;
using http::Reply;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Reply error_reply(int status, const std::string& code) {
  return {.status = status, .body = "<Error><Code>" + code + "</Code><Message>said so</Message></Error>"};
}

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

// A bucket with as much of S3 as the tests need. What `bend` answers comes before.
class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    set("AWS_ACCESS_KEY_ID", "AKID");
    set("AWS_SECRET_ACCESS_KEY", "SeCrEt");
    server_.emplace([this](const ReceivedRequest& request) { return answer(request); });
  }

  ~ServiceTest() override {
    for (const auto& [name, value] : before_) {
      if (value)
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
    }
  }

  void set(const std::string& name, const std::string& value) {
    const char* there = std::getenv(name.c_str());
    before_[name] = there != nullptr ? std::optional<std::string>(there) : std::nullopt;
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::shared_ptr<Storage> storage(int max_tries = 10, std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    S3Options options;
    options.endpoint_url = server_->url("");
    options.max_tries = max_tries;
    options.timeout = timeout;
    return open_s3_storage("bucket", options).value();
  }

  Reply answer(const ReceivedRequest& request) {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    if (bend_) {
      if (auto bent = bend_(request)) return *bent;
    }
    const std::string path = request.target.substr(0, request.target.find('?'));
    if (request.method == "PUT") {
      const std::string_view said = request.header("x-amz-checksum-crc32c");
      if (!said.empty() && said != base64_crc32c(crc32c(as_bytes(request.body)))) return error_reply(400, "BadDigest");
      const auto md5 = md5_hex(as_bytes(request.body));
      if (request.target.find("partNumber=") == std::string::npos) objects_[path] = {request.body, md5};
      return {.headers = {"ETag: \"" + md5 + "\""}};
    }
    if (request.method == "POST" && request.target.find("uploads") != std::string::npos)
      return {.body = "<InitiateMultipartUploadResult><UploadId>up</UploadId></InitiateMultipartUploadResult>"};
    if (request.method == "POST") return complete(request.body);
    if (request.method == "DELETE") return {.status = 204};
    const auto found = objects_.find(path);
    if (found == objects_.end()) return error_reply(404, "NoSuchKey");
    Reply reply = serve_range(request, found->second.first);
    reply.headers.push_back("ETag: \"" + found->second.second + "\"");
    return reply;
  }

  // As S3 does: the ETag is made of those of the parts that the request names.
  static Reply complete(const std::string& body) {
    std::vector<std::string> etags;
    const std::string tag = "<ETag>\"";
    for (size_t at = body.find(tag); at != body.npos; at = body.find(tag, at + 1)) {
      etags.push_back(body.substr(at + tag.size(), 32));
    }
    return {.body = "<CompleteMultipartUploadResult><ETag>\"" + multipart_etag(etags) +
                    "\"</ETag></CompleteMultipartUploadResult>"};
  }

  // The next `times` requests that `match` get this answer.
  void bend(int times, std::function<bool(const ReceivedRequest&)> match, Reply reply) {
    MutexLock lock(mutex_);
    bend_ = [=, left = times](const ReceivedRequest& request) mutable -> std::optional<Reply> {
      if (left == 0 || !match(request)) return std::nullopt;
      --left;
      return reply;
    };
  }
  static bool any(const ReceivedRequest&) { return true; }
  static bool is_get(const ReceivedRequest& request) { return request.method == "GET"; }
  static bool is_put(const ReceivedRequest& request) { return request.method == "PUT"; }
  static bool is_complete(const ReceivedRequest& request) {
    return request.method == "POST" && request.target.find("uploadId") != std::string::npos;
  }

  std::vector<ReceivedRequest> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }

  std::map<std::string, std::optional<std::string>> before_;  // of the environment
  Mutex mutex_;
  std::function<std::optional<Reply>(const ReceivedRequest&)> bend_ GUARDED_BY(mutex_);
  std::vector<ReceivedRequest> requests_ GUARDED_BY(mutex_);
  std::map<std::string, std::pair<std::string, std::string>> objects_ GUARDED_BY(mutex_);
  std::optional<http::TestServer> server_;
};

TEST_F(ServiceTest, WhatMayPassIsTriedAgain) {
  const auto bucket = storage();
  const std::string content = test_bytes(100'000, 1);
  ASSERT_TRUE(write_object(*bucket, "k", content));
  Reply unwell = error_reply(500, "InternalError");
  unwell.body.resize(content.size(), ' ');  // as long as what is read
  Reply slow = error_reply(503, "SlowDown");
  Reply cut{.headers = {"ETag: \"" + md5_hex(as_bytes(content)) + "\"", "Content-Range: bytes 0-99999/100000"},
            .body = content};
  cut.status = 206;
  cut.cut_after = 50'000;
  Reply reset = cut;
  reset.reset = true;
  for (const Reply& reply : {unwell, slow, cut, reset}) {
    const int64_t retries = process_metrics().count(Metric::kRetries);
    const int64_t slow_downs = process_metrics().count(Metric::kSlowDowns);
    bend(3, is_get, reply);
    EXPECT_TRUE(*read_object(*bucket, "k") == content) << reply.status;
    EXPECT_EQ(process_metrics().count(Metric::kRetries) - retries, 3);
    EXPECT_EQ(process_metrics().count(Metric::kSlowDowns) - slow_downs, reply.status == 503 ? 3 : 0);
  }
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
      const auto range = as_local_file(*file)->file_range(at, size);
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

TEST_F(ServiceTest, ItGivesUpAndSaysHowOftenItTried) {
  bend(100, any, error_reply(500, "InternalError"));
  const auto failed = storage(3)->list("");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(failed.error().to_string(), AllOf(HasSubstr("s3://bucket"), HasSubstr("500 InternalError: said so")));
  EXPECT_EQ(requests().size(), 3U);
}

TEST_F(ServiceTest, WhatCannotHelpIsNotTriedAgain) {
  bend(100, any, error_reply(403, "AccessDenied"));
  const auto refused = storage()->list("p");
  EXPECT_EQ(refused.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.error().to_string(), AllOf(HasSubstr("list s3://bucket/p"), HasSubstr("403 AccessDenied"),
                                                 Not(HasSubstr("SeCrEt")), Not(HasSubstr("AKID"))));
  EXPECT_EQ(requests().size(), 1U);
}

// As S3 says it: with a header, or in the body, or, where there is no body, with a header alone.
TEST_F(ServiceTest, ABucketOfAnotherRegionIsFound) {
  const auto bucket = storage();
  ASSERT_TRUE(write_object(*bucket, "k", "x"));
  const auto reader = bucket->open_read("k");
  const auto header = [](Reply reply, const std::string& region) {
    reply.headers.push_back("x-amz-bucket-region: " + region);
    return reply;
  };
  Reply malformed{.status = 400};
  malformed.body =
      "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message>"
      "<Region>eu-west-3</Region></Error>";
  const std::vector<std::pair<std::string, Reply>> answers{
      {"eu-west-1", header(error_reply(301, "PermanentRedirect"), "eu-west-1")},
      {"eu-west-2", header(error_reply(307, "TemporaryRedirect"), "eu-west-2")},
      {"eu-west-3", malformed},
      {"eu-west-4", header({.status = 400, .announced = 0}, "eu-west-4")},
      {"eu-west-5", header({.status = 301, .announced = 0}, "eu-west-5")},
  };
  for (const auto& [region, answer] : answers) {
    const bool has_body = !answer.body.empty();
    const size_t before = requests().size();
    bend(1, any, answer);
    std::byte byte{};
    EXPECT_TRUE(has_body ? (*reader)->read_at(0, {&byte, 1}).has_value() : bucket->stat("k").has_value()) << region;
    EXPECT_THAT(std::string(requests()[before + 1].header("authorization")), HasSubstr("/" + region + "/s3/"));
    const size_t learned = requests().size();
    EXPECT_TRUE(bucket->stat("k"));
    EXPECT_EQ(requests().size(), learned + 1) << "it is remembered";
    EXPECT_THAT(std::string(requests().back().header("authorization")), HasSubstr("/" + region + "/s3/"));
  }
  // Two that send us to each other are no reason to ask for ever.
  bend(100, any, header({.status = 301, .announced = 0}, "eu-west-9"));
  const size_t before = requests().size();
  EXPECT_FALSE(bucket->stat("k"));
  EXPECT_EQ(requests().size(), before + 2);
}

// However often it is tried, and whether the server is silent, slow to answer or has too much to do.
TEST_F(ServiceTest, ADeadlineHoldsForARequestAndAllItsTries) {
  const auto bucket = storage();
  const std::string content = test_bytes(100'000, 1);
  ASSERT_TRUE(write_object(*bucket, "k", content));
  const auto reader = bucket->open_read("k");
  ASSERT_TRUE(reader);
  Reply stalled{.status = 206, .headers = {"ETag: \"" + md5_hex(as_bytes(content)) + "\""}, .body = content};
  stalled.stall_after = 10;
  for (const Reply& reply : {Reply{.silent = true}, stalled, error_reply(503, "SlowDown"), error_reply(500, "Oops")}) {
    bend(1000, is_get, reply);
    std::string out(content.size(), '.');
    CompletionQueue queue;
    const auto begin = Clock::now();
    const Operation read{.what = Operation::Read{reader->get(), 0, std::as_writable_bytes(std::span(out))},
                         .deadline = begin + std::chrono::milliseconds(300)};
    bucket->submit(std::span(&read, 1), queue);
    const Completion ended = queue.wait();
    EXPECT_FALSE(ended.status) << reply.status;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5)) << reply.status;
    const bool timed_out = ended.status.error().code() == ErrorCode::kTimeout;
    EXPECT_TRUE(timed_out || ended.status.error().code() == ErrorCode::kUnavailable)
        << ended.status.error().to_string();
    bend(0, any, {});
    EXPECT_EQ(*read_object(*bucket, "k"), content) << "what comes later does not suffer";
  }
}

// Anything that keeps a request from its answer. Later requests do not wait as long again.
TEST_F(ServiceTest, NothingIsTriedForLongerThanTheTimeout) {
  using std::chrono::milliseconds;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  };
  Reply asks_to_wait = error_reply(503, "SlowDown");
  asks_to_wait.headers.push_back("Retry-After: 3600");
  Reply trickle{.body = std::string(1000, 'x'), .trickle_bytes = 1, .trickle_pause = milliseconds(20)};
  int64_t timeout_ms = 600;
  for (const Reply& reply : {Reply{.silent = true}, trickle, error_reply(503, "SlowDown"), asks_to_wait}) {
    const auto bucket = storage(1000, milliseconds(++timeout_ms));  // a separate service for each timeout
    bend(100'000, any, reply);
    auto begin = Clock::now();
    const auto listed = bucket->list("");
    ASSERT_FALSE(listed);
    EXPECT_LT(since(begin), milliseconds(3000)) << listed.error().to_string();
    const size_t before = requests().size();
    begin = Clock::now();
    EXPECT_FALSE(bucket->list(""));
    EXPECT_LT(since(begin), milliseconds(1500));
    EXPECT_EQ(requests().size(), before + 1) << "the server is away: it is tried once";
    bend(0, any, {});
    EXPECT_TRUE(write_object(*bucket, "k", "x"));
    bend(1, any, error_reply(500, "InternalError"));
    EXPECT_TRUE(bucket->stat("k")) << "it has answered: it is tried again";
  }
}

TEST_F(ServiceTest, RetryAfterIsObeyed) {
  Reply busy = error_reply(503, "SlowDown");
  busy.headers.push_back("Retry-After: 1");
  bend(1, any, busy);
  const auto begin = Clock::now();
  EXPECT_TRUE(write_object(*storage(), "k", "x"));
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(1));
}

// One that a server may name is part of a host's name.
TEST_F(ServiceTest, ARegionIsNoHost) {
  for (const char* region : {"evil.example/", "eu-west-1.example.com", "a b", "@host", "-x", "EU"}) {
    const auto bucket = storage();
    Reply moved = error_reply(301, "PermanentRedirect");
    moved.headers.push_back(std::string("x-amz-bucket-region: ") + region);
    bend(100, any, moved);
    const size_t before = requests().size();
    EXPECT_FALSE(bucket->stat("k"));
    EXPECT_EQ(requests().size(), before + 1) << region;
  }
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

// Dates that no nanosecond counts to are none.
TEST(HttpTime, EndsWhereNanosecondsDo) {
  using namespace std::chrono;
  EXPECT_EQ(http::parse_time("Sat, 21 Nov 2026 11:33:55 GMT"), sys_days(2026y / 11 / 21) + 11h + 33min + 55s);
  for (const char* text : {"Mon, 01 Jan 9999 00:00:00 GMT", "Mon, 01 Jan 1600 00:00:00 GMT", "soon", ""}) {
    EXPECT_EQ(http::parse_time(text), http::Time()) << text;
  }
}

// A stop ends each wait: for an answer, for the next try, or for a free slot.
TEST_F(ServiceTest, AStopEndsWhatWaitsForASilentServer) {
  const auto bucket = storage();
  ASSERT_TRUE(write_object(*bucket, "k", test_bytes(100'000, 1)));
  for (const Reply& reply : {Reply{.silent = true}, error_reply(503, "SlowDown")}) {
    std::stop_source stop;
    const auto stoppable = bucket->with_stop(stop.get_token());
    const auto reader = stoppable->open_read("k");
    ASSERT_TRUE(reader);
    const auto writer = stoppable->open_write("w");
    ASSERT_TRUE((*writer)->append(as_bytes(std::string(20 << 20, 'x'))));
    bend(100'000, any, reply);
    std::vector<std::function<Status()>> calls;
    std::array<std::byte, 10> few;
    std::vector<std::byte> many(50'000);
    calls.emplace_back([&] { return (*reader)->read_at(0, few); });
    calls.emplace_back([&] { return (*reader)->read_at(0, many); });
    calls.emplace_back([&] { return stoppable->stat("k").map([](const auto&) {}); });
    calls.emplace_back([&] { return stoppable->list("").map([](const auto&) {}); });
    calls.emplace_back([&] { return stoppable->remove(std::vector<std::string>{"k"}); });
    calls.emplace_back([&] { return (*writer)->commit().map([](const auto&) {}); });
    std::vector<Status> ended(calls.size());
    {
      std::vector<Thread> threads;
      for (size_t i = 0; i < calls.size(); ++i) {
        threads.emplace_back("call", [&, i] { ended[i] = calls[i](); });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      stop.request_stop();
      const auto begin = Clock::now();
      threads.clear();
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
    }
    for (const Status& status : ended) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code(), ErrorCode::kCancelled) << status.error().to_string();
    }
    bend(0, any, {});
    EXPECT_TRUE(bucket->stat("k")) << "who was not stopped goes on";
  }
}

TEST_F(ServiceTest, AWrongClockIsCorrected) {
  const auto bucket = storage();
  ASSERT_TRUE(write_object(*bucket, "k", "x"));
  Reply skewed = error_reply(403, "RequestTimeTooSkewed");
  skewed.headers = {"Date: Fri, 01 Jan 2038 12:00:00 GMT"};
  bend(1, any, skewed);
  EXPECT_EQ(*read_object(*bucket, "k"), "x");
  EXPECT_THAT(std::string(requests().back().header("x-amz-date")), HasSubstr("20380101T1"));
}

TEST_F(ServiceTest, RefusedCredentialsAreAskedForOnceMore) {
  const auto bucket = storage();
  ASSERT_TRUE(write_object(*bucket, "k", "x"));
  bend(1, is_get, error_reply(400, "ExpiredToken"));
  EXPECT_EQ(*read_object(*bucket, "k"), "x");
  bend(100, is_get, error_reply(400, "ExpiredToken"));
  EXPECT_THAT(read_object(*bucket, "k").error().to_string(), HasSubstr("ExpiredToken"));
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

TEST_F(ServiceTest, AListingAdvancesOrEnds) {
  const auto bucket = storage();
  const auto page = [](const std::string& token, const std::string& keys) {
    return Reply{.body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>" + token +
                         "</NextContinuationToken>" + keys + "</ListBucketResult>"};
  };
  const std::string keys =
      "<Contents><Key>a</Key><Size>1</Size></Contents><Contents><Key>b</Key><Size>1</Size></Contents>";
  const auto walk = [&] { return for_each_object(*bucket, "", [](const ObjectInfo&) { return Status(); }); };
  bend(1000, any, page("again", keys));
  EXPECT_THAT(walk().error().to_string(), HasSubstr("does not advance"));
  for (const std::string& content : {keys, std::string()}) {
    {
      MutexLock lock(mutex_);
      bend_ = [&, content, i = 0](const ReceivedRequest&) mutable { return page(std::to_string(++i), content); };
    }
    EXPECT_THAT(walk().error().to_string(), HasSubstr("does not advance"));
  }
  bend(1000, any,
       {.body = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
                "<NextUploadIdMarker>1</NextUploadIdMarker></ListMultipartUploadsResult>"});
  EXPECT_THAT(bucket->list_uploads("").error().to_string(), HasSubstr("does not advance"));
}

TEST_F(ServiceTest, AListingIsWholeOrAnError) {
  const auto bucket = storage(2);
  bend(1, any,
       {.body = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key><Size>1</Size></Contents>"
                "</ListBucketResult>"});
  EXPECT_THAT(bucket->list("").error().to_string(), HasSubstr("continues, but not where"));
  for (const char* body : {"", "<html>proxy</html>", "<ListBucketResult><Contents><Key>a</Key>",
                           "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>"}) {
    bend(1, any, {.body = body});
    const auto page = bucket->list("");
    ASSERT_FALSE(page) << body;
    EXPECT_EQ(page.error().code(), ErrorCode::kUnavailable) << body;
  }
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

TEST(ConcurrencyLimiter, ShrinksOnceForABurstAndGrowsAgain) {
  ConcurrencyLimiter limiter({.max_under_way = 10});
  int begun = 0;
  for (int i = 0; i < 12; ++i) limiter.enter(0, [&](Clock::time_point) { ++begun; });
  EXPECT_EQ(begun, 10);
  for (int i = 0; i < 5; ++i) limiter.slow_down();
  EXPECT_DOUBLE_EQ(limiter.window(), 6) << "answers to one burst count once";
  for (int i = 0; i < 4; ++i) limiter.leave();
  EXPECT_EQ(begun, 10) << "as many as the smaller window are still under way";
  for (int i = 0; i < 2; ++i) limiter.leave();
  EXPECT_EQ(begun, 12);
  for (int i = 0; i < 200; ++i) {
    limiter.enter(0, [](Clock::time_point) {});
    limiter.leave();
  }
  EXPECT_DOUBLE_EQ(limiter.window(), 10);
}

TEST(ConcurrencyLimiter, KeepsTheLimitsOfTheUser) {
  ConcurrencyLimiter limiter({.max_under_way = 1000, .requests_per_second = 100, .bytes_per_second = 1e6});
  Clock::time_point last{};
  const auto begin = Clock::now();
  for (int i = 0; i < 101; ++i) limiter.enter(0, [&](Clock::time_point at) { last = at; });
  EXPECT_GE(last - begin, std::chrono::milliseconds(850)) << "100 a second, after a burst of a tenth";
  for (int i = 0; i < 3; ++i) limiter.enter(1'000'000, [&](Clock::time_point at) { last = at; });
  EXPECT_GE(last - begin, std::chrono::milliseconds(1'850));
}

}  // namespace
}  // namespace millrace::s3
