// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/sqs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "millrace/base/testing/helpers.h"
#include "millrace/base/thread/sync.h"
#include "millrace/http/testing/test_server.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A queue whose answers the test chooses. That signatures are right is held against moto's server by
// tests/e2e/test_link_notices.py.
class SqsQueueTest : public ::testing::Test {
 protected:
  SqsQueueTest() : server_([this](const http::ReceivedRequest& request) { return answer(request); }) {
    for (const auto& [name, value] :
         {std::pair("AWS_ACCESS_KEY_ID", "key"), {"AWS_SECRET_ACCESS_KEY", "SeCrEt"}, {"AWS_REGION", "eu-west-1"}}) {
      const char* const before = std::getenv(name);
      before_.emplace_back(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
      ::setenv(name, value, 1);
    }
  }
  ~SqsQueueTest() override {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

  http::Reply answer(const http::ReceivedRequest& request) {
    const MutexLock lock(mutex_);
    asked_.push_back(request);
    http::Reply reply = replies_.front();
    if (replies_.size() > 1) replies_.erase(replies_.begin());
    return reply;
  }
  void will_answer(std::vector<http::Reply> replies) {
    const MutexLock lock(mutex_);
    replies_ = std::move(replies);
  }
  std::vector<http::ReceivedRequest> asked() {
    const MutexLock lock(mutex_);
    return asked_;
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> before_;  // of the environment
  Mutex mutex_;
  std::vector<http::Reply> replies_ GUARDED_BY(mutex_){{}};
  std::vector<http::ReceivedRequest> asked_ GUARDED_BY(mutex_);
  http::TestServer server_;
};

TEST_F(SqsQueueTest, ReceivesAndRemoves) {
  const std::string url = server_.url("/123/queue");
  const auto queue = *SqsQueue::open(url);
  will_answer({{.body = R"({"Messages":[{"MessageId":"1","ReceiptHandle":"h1","Body":"one"},
                                        {"MessageId":"2","ReceiptHandle":"h2","Body":"two"}]})"},
               {.body = R"({"Successful":[{"Id":"0"},{"Id":"1"}],"Failed":[]})"},
               {.body = "{}"}});
  const auto messages = *queue->receive(60s, {});
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[1].body, "two");
  EXPECT_TRUE(queue->remove(messages, {}));
  EXPECT_TRUE(queue->receive(1s, {})->empty());
  const auto requests = asked();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].target, "/");
  EXPECT_EQ(requests[0].header("x-amz-target"), "AmazonSQS.ReceiveMessage");
  EXPECT_EQ(requests[0].header("content-type"), "application/x-amz-json-1.0");
  EXPECT_THAT(std::string(requests[0].header("authorization")), HasSubstr("/eu-west-1/sqs/aws4_request"));
  EXPECT_EQ(nlohmann::json::parse(requests[0].body),
            (nlohmann::json{
                {"QueueUrl", url}, {"MaxNumberOfMessages", 10}, {"WaitTimeSeconds", 20}, {"VisibilityTimeout", 60}}));
  EXPECT_EQ(requests[1].header("x-amz-target"), "AmazonSQS.DeleteMessageBatch");
  EXPECT_EQ(nlohmann::json::parse(requests[1].body)["Entries"],
            nlohmann::json::parse(R"([{"Id":"0","ReceiptHandle":"h1"},{"Id":"1","ReceiptHandle":"h2"}])"));
}

TEST_F(SqsQueueTest, RemovesInTens) {
  const auto queue = *SqsQueue::open(server_.url("/123/queue"));
  will_answer({{.body = "{}"}});
  EXPECT_TRUE(queue->remove(std::vector<SqsMessage>(21, SqsMessage{"", "h"}), {}));
  const auto requests = asked();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(nlohmann::json::parse(requests[2].body)["Entries"].size(), 1U);
}

TEST_F(SqsQueueTest, RefusalsAreNamed) {
  const auto queue = *SqsQueue::open(server_.url("/123/queue"));
  const auto code_for = [&](int status, const std::string& body) {
    will_answer({{.status = status, .body = body}});
    const auto got = queue->receive(1s, {});
    EXPECT_FALSE(got);
    EXPECT_EQ(got.error().to_string().find("SeCrEt"), std::string::npos);
    return got.error().code();
  };
  EXPECT_EQ(code_for(400, R"({"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"no such queue"})"),
            ErrorCode::kNotFound);
  EXPECT_EQ(code_for(403, "<ErrorResponse/>"), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_for(503, ""), ErrorCode::kUnavailable);
  EXPECT_EQ(code_for(200, "a page of a proxy"), ErrorCode::kUnavailable);
  will_answer({{.body = R"({"Failed":[{"Id":"0","Message":"kept"}]})"}});
  const Status removed = queue->remove({{"", "h"}}, {});
  ASSERT_FALSE(removed);
  EXPECT_THAT(removed.error().to_string(), HasSubstr("kept 1 messages"));
}

TEST(SqsRegion, IsThatOfTheHost) {
  EXPECT_EQ(sqs_region("sqs.us-west-2.amazonaws.com"), "us-west-2");
  EXPECT_EQ(sqs_region("sqs.cn-north-1.amazonaws.com.cn"), "cn-north-1");
  EXPECT_EQ(sqs_region("eu-west-1.queue.amazonaws.com"), "eu-west-1");
  EXPECT_EQ(sqs_region("queue.amazonaws.com"), "");
  EXPECT_EQ(sqs_region("127.0.0.1:9324"), "");
}

TEST(SqsUrl, OfNoQueueIsRefused) {
  for (const char* url : {"", "queue", "https://", "https://host", "https://host/", "ftp://host/q",
                          "https://user@host/q", "https://host/q?a=b"}) {
    const auto opened = SqsQueue::open(url);
    ASSERT_FALSE(opened) << url;
    EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::link
