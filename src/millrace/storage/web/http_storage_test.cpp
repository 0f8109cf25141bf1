// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/web/http_storage.h"

#include <gmock/gmock.h>

#include <map>

#include "millrace/base/testing/helpers.h"
#include "millrace/http/testing/test_server.h"
#include "millrace/storage/url.h"

namespace millrace::http {
namespace {

using testing::HasSubstr;
using testing::Not;

// Quick enough for tests that wait for several tries.
HttpStorageOptions impatient() {
  HttpStorageOptions options;
  options.first_pause = std::chrono::milliseconds(2);
  return options;
}

std::shared_ptr<HttpStorage> open_storage(const TestServer& server) {
  return *open_http_storage(server.url(""), impatient());
}

std::string read_range(const RandomReader& reader, int64_t offset, size_t size) {
  std::string bytes(size, '.');
  const Status status = reader.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return status ? bytes : status.error().to_string();
}

Reply with_headers(Reply reply, const std::vector<std::string>& headers) {
  reply.headers.insert(reply.headers.end(), headers.begin(), headers.end());
  return reply;
}

TEST(HttpStorage, ReadsRangesOfWhatItOpened) {
  const std::string content = test_bytes(20 << 20, 4);  // three pieces
  TestServer server(
      [&](const ReceivedRequest& request) { return with_headers(serve_range(request, content), {"ETag: \"v1\""}); });
  const auto storage = open_storage(server);
  const auto reader = storage->open_read("data/shard-0.tar");
  ASSERT_TRUE(reader) << reader.error().to_string();
  EXPECT_EQ((*reader)->size(), static_cast<int64_t>(content.size()));
  EXPECT_EQ((*reader)->version(), "\"v1\"");
  EXPECT_EQ((*reader)->name(), server.url("/data/shard-0.tar"));
  EXPECT_TRUE(read_range(**reader, 0, content.size()) == content);
  EXPECT_EQ(read_range(**reader, 1000, 5), content.substr(1000, 5));
  EXPECT_EQ(read_range(**reader, 1000, 0), "");
  std::string end(2, '.');
  EXPECT_EQ((*reader)->read_at((*reader)->size() - 1, std::as_writable_bytes(std::span(end))).error().code(),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(storage->stat("data/shard-0.tar")->size, static_cast<int64_t>(content.size()));
}

TEST(HttpStorage, OperationsComeBackOneByOne) {
  const std::string content = test_bytes(100'000, 4);
  TestServer server([&](const ReceivedRequest& request) { return serve_range(request, content); });
  const auto storage = open_storage(server);
  const auto reader = storage->open_read("o");
  ASSERT_TRUE(reader);
  std::string buffer(content.size(), '.');
  const auto memory = std::as_writable_bytes(std::span(buffer));
  std::stop_source stopped;
  stopped.request_stop();
  std::vector<Operation> operations;
  for (uint64_t i = 0; i < 100; ++i) {
    const auto offset = static_cast<int64_t>(i * 1000);
    operations.push_back({.tag = i, .what = Operation::Read{reader->get(), offset, memory.subspan(i * 1000, 1000)}});
  }
  const Operation::Read first{reader->get(), 0, memory.first(1)};
  operations.push_back({.tag = 100, .what = first, .stop = stopped.get_token()});
  operations.push_back({.tag = 101, .what = first, .deadline = Clock::now()});
  operations.push_back({.tag = 102, .what = Operation::Write{}});
  operations.push_back({.tag = 103, .what = Operation::Read{reader->get(), 100'000, memory.first(1)}});
  CompletionQueue queue;
  storage->submit(operations, queue);
  std::map<uint64_t, Status> ended;
  for (size_t i = 0; i < operations.size(); ++i) {
    Completion completion = queue.wait();
    ended[completion.tag] = std::move(completion.status);
  }
  for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(ended[i]);
  EXPECT_EQ(buffer, content);
  EXPECT_EQ(ended[100].error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(ended[101].error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(ended[102].error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ended[103].error().code(), ErrorCode::kOutOfRange);
}

TEST(HttpStorage, AChangedObjectIsCorruption) {
  std::string content = test_bytes(1000, 1);
  std::string etag = "\"a\"";
  bool conditions = true;
  TestServer server([&](const ReceivedRequest& request) {
    const std::string_view wanted = request.header("if-match");
    if (conditions && !wanted.empty() && wanted != etag) return Reply{.status = 412};
    return with_headers(serve_range(request, content),
                        etag.empty() ? std::vector<std::string>{} : std::vector<std::string>{"ETag: " + etag});
  });
  const auto storage = open_storage(server);
  const auto check = [&] {
    const auto reader = storage->open_read("o");
    ASSERT_TRUE(reader);
    EXPECT_EQ(read_range(**reader, 5, 10), content.substr(5, 10));
    content += "more";
    if (!etag.empty()) etag.insert(1, "b");
    EXPECT_THAT(read_range(**reader, 5, 10), HasSubstr("changed while reading"));
  };
  check();
  conditions = false;  // a server that does not know If-Match
  check();
  etag.clear();  // nor versions
  check();
  etag = "\"z\"";
  const auto other = storage->open_read("o", {.expected_version = "\"y\""});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kCorruption);
  const int before = server.requests();
  ASSERT_TRUE(storage->open_read("o", {.expected_version = "\"z\"", .known_size = 1000}));
  EXPECT_EQ(server.requests(), before);
}

TEST(HttpStorage, WhatMayBeTriedAgainIs) {
  const std::string content = test_bytes(20 << 20, 2);
  Mutex mutex;
  std::map<std::string, int> asked;  // by range
  TestServer server([&](const ReceivedRequest& request) {
    Reply reply = serve_range(request, content);
    MutexLock lock(mutex);
    switch (asked[std::string(request.header("range"))]++) {
      case 0:
        return Reply{.status = 503, .body = std::string(100, 'E')};
      case 1:
        reply.cut_after = 0;
        return reply;
      case 2:
        reply.cut_after = static_cast<int64_t>(reply.body.size()) / 2;
        reply.reset = true;
        return reply;
      default:
        return reply;
    }
  });
  const auto reader = open_storage(server)->open_read("o");
  ASSERT_TRUE(reader) << reader.error().to_string();
  EXPECT_TRUE(read_range(**reader, 0, content.size()) == content);
}

TEST(HttpStorage, AServerThatStaysAwayIsUnavailable) {
  TestServer server([&](const ReceivedRequest&) { return Reply{.status = 500}; });
  const auto reader = open_storage(server)->open_read("o");
  ASSERT_FALSE(reader);
  EXPECT_EQ(server.requests(), 6);
  const auto known = open_storage(server)->open_read("o", {.expected_version = "\"v\"", .known_size = 100 << 20});
  ASSERT_TRUE(known);
  EXPECT_THAT(read_range(**known, 0, 100 << 20), HasSubstr("500"));
}

TEST(HttpStorage, OddServersAreToldFromMissingObjects) {
  Reply reply;
  TestServer server([&](const ReceivedRequest& request) {
    if (request.target == "/range") return serve_range(request, "");
    return reply;
  });
  const auto storage = open_storage(server);
  const auto code = [&](Reply next) {
    reply = std::move(next);
    const auto reader = storage->with_query("signature=secret")->open_read("o");
    if (reader) return std::string("opened");
    EXPECT_THAT(reader.error().to_string(), Not(HasSubstr("secret")));
    return std::string(error_code_name(reader.error().code()));
  };
  EXPECT_EQ(code({.status = 404}), "not_found");
  EXPECT_EQ(code({.status = 403, .body = "denied"}), "permission_denied");
  EXPECT_EQ(code({.status = 200, .body = "the whole of it"}), "unsupported");
  EXPECT_EQ(code({.status = 200, .body = "the whole of it", .length = Reply::Length::kChunked}), "unsupported");
  EXPECT_EQ(code({.status = 206, .headers = {"Content-Range: bytes 0-0/*"}, .body = "x"}), "unsupported");
  EXPECT_EQ(code({.status = 302}), "unsupported");
  EXPECT_EQ(code({.status = 302, .headers = {"Location: /again"}}), "unavailable");  // for ever
  EXPECT_EQ(code({.status = 200}), "opened");
  const auto empty = storage->open_read("range");
  ASSERT_TRUE(empty);
  EXPECT_EQ((*empty)->size(), 0);
  EXPECT_EQ(storage->open_read("a//b").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(storage->list("").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage->open_write("o").error().code(), ErrorCode::kUnsupported);
}

TEST(HttpStorage, FollowsRedirectsOnceAtOpening) {
  const std::string content = test_bytes(5000, 2);
  TestServer server([&](const ReceivedRequest& request) {
    if (request.target == "/resolve/main/f") return Reply{.status = 302, .headers = {"Location: /cdn/x?sig=a%2Fb"}};
    if (request.target == "/cdn/x?sig=a%2Fb") return Reply{.status = 307, .headers = {"Location: y"}};
    return request.target == "/cdn/y" ? serve_range(request, content) : Reply{.status = 404};
  });
  const auto reader = open_storage(server)->open_read("resolve/main/f");
  ASSERT_TRUE(reader) << reader.error().to_string();
  EXPECT_EQ(server.requests(), 3);
  EXPECT_EQ(read_range(**reader, 7, 100), content.substr(7, 100));
  EXPECT_EQ(server.requests(), 4);
  EXPECT_EQ((*reader)->name(), server.url("/resolve/main/f"));
}

TEST(HttpStorage, OpensByUrl) {
  TestServer server([&](const ReceivedRequest& request) {
    if (request.target == "/a/my%20file%20%C3%A9.txt?X=a/../b") return serve_range(request, "hello");
    return Reply{.status = 404};
  });
  const auto place = open_url(server.url("/a/my file%20é.txt?X=a/../b#part"));
  ASSERT_TRUE(place) << place.error().to_string();
  EXPECT_EQ(*read_object(*place->storage, place->key), "hello");
  EXPECT_EQ(place->url, server.url("/a/my file%20é.txt"));
  EXPECT_EQ(place->key, "a/my file%20é.txt");
  EXPECT_EQ(open_url(server.url("/one"))->storage, open_url(server.url("/other"))->storage);
  const auto user = open_url("https://me:secret@host/x");
  ASSERT_FALSE(user);
  EXPECT_EQ(user.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(user.error().to_string(), Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace millrace::http
