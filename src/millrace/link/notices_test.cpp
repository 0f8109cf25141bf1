// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/notices.h"

#include <gtest/gtest.h>

#include "millrace/base/testing/helpers.h"

namespace millrace::link {
namespace {

// As Ceph 16.2.15 and AWS send them, shortened.
constexpr std::string_view kCeph =
    R"({"Records":[{"eventSource":"ceph:s3","eventName":"ObjectCreated:Put","opaqueData":"shared",
    "s3":{"bucket":{"name":"b"},"object":{"key":"data/a+b%20 ä.txt","size":3,"eTag":"x","sequencer":"5951"}}}]})";
constexpr std::string_view kAws =
    R"({"Records":[{"eventSource":"aws:s3","eventName":"ObjectRemoved:Delete",
    "s3":{"bucket":{"name":"b"},"object":{"key":"data/a%2Bb+c%C3%A9.txt"}}},
    {"eventSource":"aws:s3","s3":{"bucket":{"name":"other"},"object":{"key":"100%"}}}]})";

TEST(Notices, KeysAreReadAsTheirSenderWritesThem) {
  const auto ceph = *parse_notices(kCeph);
  ASSERT_EQ(ceph.size(), 1U);
  EXPECT_EQ(ceph[0].key, "data/a+b%20 \xc3\xa4.txt");
  EXPECT_EQ(ceph[0].secret, "shared");
  const auto aws = *parse_notices(kAws);
  ASSERT_EQ(aws.size(), 2U);
  EXPECT_EQ(aws[0].key, "data/a+b c\xc3\xa9.txt");
  EXPECT_EQ(aws[1].key, "100%");
}

TEST(Notices, AMessageOfSnsAndATestEventAreKnown) {
  const std::string wrapped =
      R"({"Type":"Notification","Message":"{\"Records\":[{\"eventSource\":\"aws:s3\",\"s3\":{\"bucket\":{\"name\":\"b\"},)"
      R"(\"object\":{\"key\":\"k\"}}}]}"})";
  EXPECT_EQ((*parse_notices(wrapped))[0].key, "k");
  EXPECT_TRUE(parse_notices(R"({"Service":"Amazon S3","Event":"s3:TestEvent"})")->empty());
}

TEST(Notices, WhatIsNoNoticeIsAnError) {
  for (const char* text : {"", "[]", "null", "{}", R"({"Records":1})", R"({"Records":[1]})",
                           R"({"Records":[{"s3":{}}]})", R"({"Message":"x"})"}) {
    EXPECT_EQ(code_of(parse_notices(text)), ErrorCode::kCorruption) << text;
  }
}

TEST(NoticeBoard, TellsTheLinkOfThePrefix) {
  NoticeBoard board;
  std::vector<std::string> seen;
  board.subscribe("b", "data/", [&](const std::string& path) { seen.push_back("1 " + path); });
  board.subscribe("b", "", [&](const std::string& path) { seen.push_back("2 " + path); });
  board.post({"b", "data/x", ""});
  board.post({"b", "database", ""});
  board.post({"c", "data/x", ""});
  EXPECT_EQ(seen, (std::vector<std::string>{"1 x", "2 data/x", "2 database"}));
}

}  // namespace
}  // namespace millrace::link
