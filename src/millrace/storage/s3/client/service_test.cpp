// SPDX-License-Identifier: Apache-2.0
// Requests and their tries, against answers that no server gives on demand.

#include "millrace/storage/s3/client/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "millrace/base/metrics.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/s3/client/testing.h"

namespace millrace::s3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace millrace::s3
