// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/http/http.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "millrace/storage/http/test_server.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/testing.h"

namespace millrace::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

std::span<const std::byte> as_body(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Buffer {
  explicit Buffer(size_t size) : bytes(size, '.') {}
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(bytes)); }
  std::string bytes;
};

Request get(std::string url) {
  return Request{.url = std::move(url)};
}

Request put(std::string url, std::string_view body) {
  return Request{.method = Method::kPut, .url = std::move(url), .body = as_body(body)};
}

TestServer::Handler always(Reply reply) {
  return [reply = std::move(reply)](const ReceivedRequest&) { return reply; };
}

// Answers to many requests, in the order in which they end.
class Answers {
 public:
  Client::Done next() {
    return [this](Result<Response> result) {
      MutexLock lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notify_all();
    };
  }
  size_t count() {
    MutexLock lock(mutex_);
    return results_.size();
  }
  std::vector<Result<Response>> wait(size_t count) {
    MutexLock lock(mutex_);
    while (results_.size() < count) changed_.wait(mutex_);
    return results_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Result<Response>> results_ GUARDED_BY(mutex_);
};

// Until it is so, at most ten seconds.
bool eventually(const std::function<bool()>& so) {
  const auto end = Clock::now() + seconds(10);
  while (!so()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

#define EXPECT_FAILS(result, error_code)                              \
  do {                                                                \
    const Result<Response> r = (result);                              \
    ASSERT_FALSE(r.has_value());                                      \
    EXPECT_EQ(r.error().code(), error_code) << r.error().to_string(); \
  } while (false)

TEST(HttpClient, SendsTheRequestAsItIs) {
  ReceivedRequest seen;
  TestServer server([&](const ReceivedRequest& request) {
    seen = request;
    return Reply{.headers = {"X-Two: b  ", "ETag: \"abc\""}, .body = "hello"};
  });
  Client client;
  Request request = get(server.url("/a/../b//c/%2f%2e%2E%20+=*~/%C3%A9?list-type=2&prefix=%2Fx&empty="));
  request.headers = {"x-amz-date: 20260101T000000Z", "x-amz-meta-empty:", "Range: bytes=0-4", "Host: bucket.example"};
  const auto answer = client.fetch(request);
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(seen.method, "GET");
  EXPECT_EQ(seen.target, "/a/../b//c/%2f%2e%2E%20+=*~/%C3%A9?list-type=2&prefix=%2Fx&empty=");
  EXPECT_EQ(seen.header("x-amz-date"), "20260101T000000Z");
  EXPECT_EQ(seen.header("host"), "bucket.example");
  EXPECT_EQ(seen.header("range"), "bytes=0-4");
  EXPECT_THAT(std::string(seen.header("user-agent")), testing::StartsWith("millrace/"));
  EXPECT_EQ(seen.header("content-type"), "");
  const auto empty = std::find_if(seen.headers.begin(), seen.headers.end(),
                                  [](const auto& header) { return header.first == "x-amz-meta-empty"; });
  ASSERT_NE(empty, seen.headers.end());
  EXPECT_EQ(empty->second, "");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(answer->received_bytes, 0);
  EXPECT_EQ(answer->header("etag"), "\"abc\"");
  EXPECT_EQ(answer->header("x-two"), "b");
  EXPECT_EQ(answer->header("missing"), "");
}

TEST(HttpClient, EveryMethodArrivesWithItsBody) {
  TestServer server([](const ReceivedRequest& request) {
    EXPECT_EQ(request.header("expect"), "");
    return Reply{.body = request.method + " " + std::string(request.header("content-length")) + " " + request.body};
  });
  Client client;
  // One handle after the other serves them, so each must take back what the one before was.
  for (int round = 0; round < 2; ++round) {
    Request request = put(server.url("/k"), "abc");
    EXPECT_EQ(client.fetch(request)->body, "PUT 3 abc");
    request.method = Method::kPost;
    EXPECT_EQ(client.fetch(request)->body, "POST 3 abc");
    request.method = Method::kDelete;
    EXPECT_EQ(client.fetch(request)->body, "DELETE  ");
    request.method = Method::kHead;
    const auto head = client.fetch(request);
    EXPECT_EQ(head->body, "");
    EXPECT_EQ(head->header("content-length"), "6");
    EXPECT_EQ(client.fetch(put(server.url("/k"), ""))->body, "PUT 0 ");
    request.method = Method::kPost;
    request.body = {};
    EXPECT_EQ(client.fetch(request)->body, "POST 0 ");
    EXPECT_EQ(client.fetch(get(server.url("/k")))->body, "GET  ");
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, BodiesOf64MiBArriveWholeBothWays) {
  const std::string content = test_bytes(64 << 20, 7);
  std::string stored;
  for (const Reply::Length length : {Reply::Length::kKnown, Reply::Length::kChunked, Reply::Length::kNone}) {
    TestServer server([&](const ReceivedRequest& request) {
      if (request.method == "PUT") {
        stored = request.body;
        return Reply{};
      }
      return Reply{.body = content, .length = length};
    });
    Client client;
    if (length == Reply::Length::kKnown) {
      const auto sent = client.fetch(put(server.url("/o"), content));
      ASSERT_TRUE(sent) << sent.error().to_string();
      EXPECT_TRUE(stored == content);
    }
    Buffer buffer(content.size());
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    const auto answer = client.fetch(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->received_bytes, static_cast<int64_t>(content.size()));
    EXPECT_TRUE(buffer.bytes == content);
    EXPECT_EQ(answer->body, "");
    EXPECT_EQ(answer->header("x-trailer"), "");
  }
}

// A file, open to be sent.
class SentFile {
 public:
  explicit SentFile(const std::string& content) {
    const auto storage = open_local_storage(directory_.path()).value();
    EXPECT_TRUE(write_object(*storage, "file", content));
    reader_ = storage->open_read("file").value();
  }
  std::string path() const { return directory_.path() + "/file"; }
  std::unique_ptr<FileRange> range(int64_t offset, int64_t size) const { return reader_->file_range(offset, size); }

 private:
  const TempDir directory_;
  std::unique_ptr<RandomReader> reader_;
};

Request put_file(std::string url, const FileRange& file, Progress* progress = nullptr) {
  return Request{.method = Method::kPut, .url = std::move(url), .file = &file, .file_progress = progress};
}

TEST(HttpClient, AFileIsSentAsItIsAndCountedWhenItIsTaken) {
  const std::string content = test_bytes(20'000'003, 6);
  const SentFile file(content);
  std::atomic<int> refusals = 0;
  TestServer server([&](const ReceivedRequest& request) {
    if (refusals-- > 0) return Reply{.status = 503, .body = "later"};
    return Reply{.body = content.substr(4096, request.body.size()) == request.body ? "same" : "other"};
  });
  Client client;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{70'000}, std::ssize(content) - 4096}) {
    SCOPED_TRACE(size);
    const auto range = file.range(4096, size);
    Progress progress;
    refusals = 1;
    const auto refused = client.fetch(put_file(server.url("/o"), *range, &progress));
    ASSERT_TRUE(refused) << refused.error().to_string();
    EXPECT_EQ(refused->status, 503);
    EXPECT_EQ(progress.snapshot().bytes, 0);
    const auto answer = client.fetch(put_file(server.url("/o"), *range, &progress));
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->body, "same");
    EXPECT_EQ(progress.snapshot().bytes, size);
  }
}

TEST(HttpClient, AFileThatBecameShorterIsCorruption) {
  const SentFile file(test_bytes(20'000'000, 7));
  TestServer server(always({.body = "taken"}));
  Client client;
  ASSERT_TRUE(client.fetch(put(server.url("/o"), "a connection that is kept")));
  const auto range = file.range(0, 20'000'000);
  std::filesystem::resize_file(file.path(), 12'345'678);
  Progress progress;
  EXPECT_FAILS(client.fetch(put_file(server.url("/o"), *range, &progress)), ErrorCode::kCorruption);
  EXPECT_EQ(progress.snapshot().bytes, 0);
  EXPECT_TRUE(client.fetch(put(server.url("/o"), "others go on")));
}

TEST(HttpClient, RangesGoWhereTheyBelong) {
  const std::string content = test_bytes(1 << 20, 3);
  TestServer server([&](const ReceivedRequest& request) { return serve_range(request, content); });
  Client client;
  Buffer buffer(content.size());
  Answers answers;
  constexpr size_t kPiece = 64 << 10;
  for (size_t offset = 0; offset < content.size(); offset += kPiece) {
    Request request = get(server.url("/o"));
    request.headers = {fmt::format("Range: bytes={}-{}", offset, offset + kPiece - 1)};
    request.out = buffer.span().subspan(offset, kPiece);
    client.start(request, answers.next());
  }
  for (const auto& answer : answers.wait(content.size() / kPiece)) {
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->status, 206);
    EXPECT_EQ(answer->received_bytes, static_cast<int64_t>(kPiece));
  }
  EXPECT_TRUE(buffer.bytes == content);
}

TEST(HttpClient, ABodyOfAnErrorNeverLandsInOut) {
  for (const int status : {204, 301, 304, 400, 403, 404, 412, 416, 500, 503}) {
    TestServer server(
        always({.status = status, .body = status == 204 || status == 304 ? "" : "<Error>SlowDown</Error>"}));
    Client client;
    Buffer buffer(64);
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    const auto answer = client.fetch(request);
    ASSERT_TRUE(answer) << status << answer.error().to_string();
    EXPECT_EQ(answer->status, status);
    EXPECT_EQ(answer->received_bytes, 0);
    EXPECT_EQ(answer->body, status == 204 || status == 304 ? "" : "<Error>SlowDown</Error>");
    EXPECT_EQ(buffer.bytes, std::string(64, '.')) << status;
  }
}

TEST(HttpClient, A503WithABodyKeepsTheConnection) {
  TestServer server([](const ReceivedRequest& request) {
    if (request.request % 2 == 0) return Reply{.status = 503, .headers = {"Retry-After: 1"}, .body = "slow down"};
    return Reply{.body = "fine"};
  });
  Client client;
  for (int i = 0; i < 10; ++i) {
    const auto answer = client.fetch(get(server.url("/o")));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, i % 2 == 0 ? 503 : 200);
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, AnAnswerMayComeBeforeTheBodyWasSent) {
  TestServer server(always({}), {.early = [](const ReceivedRequest&) { return Reply{.status = 503, .body = "busy"}; }});
  Client client;
  const std::string body = test_bytes(32 << 20, 1);
  const auto answer = client.fetch(put(server.url("/o"), body));
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "busy");
}

TEST(HttpClient, InterimAnswersAreNoAnswer) {
  TestServer server(always({.headers = {"X-Final: 1"},
                            .body = "x",
                            .before = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"}));
  Client client;
  const auto answer = client.fetch(put(server.url("/o"), "abc"));
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->header("x-final"), "1");
  EXPECT_EQ(answer->header("x-early"), "");
}

TEST(HttpClient, RedirectsAreTheCallersBusiness) {
  TestServer server([](const ReceivedRequest& request) {
    if (request.target != "/a") return Reply{.body = "followed"};
    return Reply{.status = 307, .headers = {"Location: /b"}};
  });
  Client client;
  const auto answer = client.fetch(get(server.url("/a")));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 307);
  EXPECT_EQ(answer->header("location"), "/b");
  EXPECT_EQ(server.requests(), 1);
}

TEST(HttpClient, ABodyLongerThanOutIsCorruption) {
  for (const Reply::Length length : {Reply::Length::kKnown, Reply::Length::kChunked, Reply::Length::kNone}) {
    TestServer server(always({.status = 206, .body = std::string(101, 'x'), .length = length}));
    Client client;
    Buffer buffer(200);
    Request request = get(server.url("/o"));
    request.out = buffer.span().first(100);
    EXPECT_FAILS(client.fetch(request), ErrorCode::kCorruption);
    EXPECT_EQ(buffer.bytes.substr(100), std::string(100, '.'));
  }
}

TEST(HttpClient, AShorterBodyIsSaid) {
  for (const Reply::Length length : {Reply::Length::kKnown, Reply::Length::kChunked, Reply::Length::kNone}) {
    TestServer server(always({.body = std::string(70, 'x'), .length = length}));
    Client client;
    Buffer buffer(100);
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    const auto answer = client.fetch(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->received_bytes, 70);
    EXPECT_EQ(buffer.bytes, std::string(70, 'x') + std::string(30, '.'));
  }
}

TEST(HttpClient, BodiesThatAreNotForOutHaveALimit) {
  for (const Reply::Length length : {Reply::Length::kKnown, Reply::Length::kChunked}) {
    TestServer server(always({.status = 500, .body = std::string(1001, 'x'), .length = length}));
    Client client;
    Request request = get(server.url("/o"));
    request.body_limit_bytes = 1000;
    EXPECT_FAILS(client.fetch(request), ErrorCode::kResourceExhausted);
    request.body_limit_bytes = 1001;
    EXPECT_EQ(client.fetch(request)->body.size(), 1001u);
  }
}

TEST(HttpClient, ACutAnswerIsUnavailable) {
  for (const bool reset : {false, true}) {
    for (const int64_t after : {0, 1, 300'000}) {
      for (const Reply::Length length : {Reply::Length::kKnown, Reply::Length::kChunked}) {
        TestServer server(
            always({.body = std::string(1 << 20, 'x'), .length = length, .cut_after = after, .reset = reset}));
        Client client;
        Buffer buffer(1 << 20);
        Request request = get(server.url("/o"));
        request.out = buffer.span();
        EXPECT_FAILS(client.fetch(request), ErrorCode::kUnavailable);
        EXPECT_EQ(server.requests(), 1);
      }
    }
  }
}

TEST(HttpClient, NoAnswerIsUnavailable) {
  for (const bool reset : {false, true}) {
    TestServer server(always({.cut_after = 0, .no_head = true, .reset = reset}));
    Client client;
    EXPECT_FAILS(client.fetch(get(server.url("/o"))), ErrorCode::kUnavailable);
    EXPECT_FAILS(client.fetch(put(server.url("/o"), std::string(100'000, 'x'))), ErrorCode::kUnavailable);
    EXPECT_EQ(server.requests(), 2);
  }
}

TEST(HttpClient, NonsenseIsUnavailable) {
  for (const char* nonsense :
       {"SSH-2.0-OpenSSH_9\r\n\r\n", "HTTP/9.9 what\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"}) {
    TestServer server(always({.before = nonsense, .close = true}));
    Client client;
    Buffer buffer(100);
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    request.stall_timeout = seconds(2);
    const auto answer = client.fetch(request);
    ASSERT_FALSE(answer) << nonsense;
    EXPECT_THAT(answer.error().code(), testing::AnyOf(ErrorCode::kUnavailable, ErrorCode::kCorruption))
        << answer.error().to_string();
  }
}

TEST(HttpClient, NoServerIsUnavailable) {
  std::string url;
  {
    TestServer server(always({}));
    url = server.url("/bucket/key?X-Amz-Signature=secret");
  }
  Client client;
  const auto answer = client.fetch(get(url));
  EXPECT_FAILS(answer, ErrorCode::kUnavailable);
  EXPECT_THAT(answer.error().to_string(), HasSubstr("/bucket/key"));
  EXPECT_THAT(answer.error().to_string(), Not(HasSubstr("secret")));
  EXPECT_FAILS(client.fetch(get("http://no-such-host.invalid/")), ErrorCode::kUnavailable);
}

TEST(HttpClient, AServerThatNeverAcceptsIsUnavailableAfterTheConnectTimeout) {
  Client client({.connect_timeout = milliseconds(200)});
  const auto begin = Clock::now();
  // An address that documentation owns: nobody answers, or the system says at once that there is no way.
  EXPECT_FAILS(client.fetch(get("http://192.0.2.1:81/")), ErrorCode::kUnavailable);
  EXPECT_LT(since(begin), seconds(5));
}

TEST(HttpClient, RequestsThatCannotBeSentAreRefused) {
  Client client;
  for (const char* url : {"", "/path", "ftp://host/x", "file:///etc/passwd", "http://", "http:///x",
                          "http://u:secret@h/", "http://h/a b", "http://h/a\r\nX: y"}) {
    const auto answer = client.fetch(get(url));
    EXPECT_FAILS(answer, ErrorCode::kInvalidArgument);
    EXPECT_THAT(answer.error().to_string(), Not(HasSubstr("secret")));
  }
  for (const std::string& header : {std::string("A: b\r\nC: d"), std::string("no colon"), std::string("A: \0", 4)}) {
    Request request = get("http://127.0.0.1:1/");
    request.headers = {header};
    EXPECT_FAILS(client.fetch(request), ErrorCode::kInvalidArgument);
  }
}

TEST(HttpClient, AStallIsATimeout) {
  std::atomic<int> mode = 0;
  TestServer server([&](const ReceivedRequest&) {
    if (mode == 0) return Reply{.silent = true};
    return Reply{.body = std::string(1000, 'x'), .stall_after = 500};
  });
  Client client;
  for (mode = 0; mode < 2; ++mode) {
    Buffer buffer(1000);
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    request.stall_timeout = milliseconds(200);
    const auto begin = Clock::now();
    EXPECT_FAILS(client.fetch(request), ErrorCode::kTimeout);
    EXPECT_GE(since(begin), milliseconds(190));
    EXPECT_LT(since(begin), seconds(3));
  }
}

TEST(HttpClient, ASlowAnswerIsNoStall) {
  // Of a long one, more has to come than does in that time before anybody is told.
  for (const int64_t piece : {int64_t{1}, int64_t{16} << 10}) {
    const std::string content(static_cast<size_t>(piece) * 40, 'x');
    TestServer server(always({.body = content, .trickle_bytes = piece, .trickle_pause = milliseconds(20)}));
    Client client;
    Buffer buffer(content.size());
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    request.stall_timeout = milliseconds(200);
    const auto answer = client.fetch(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_TRUE(buffer.bytes == content);
    request.deadline = Clock::now() + milliseconds(200);
    EXPECT_FAILS(client.fetch(request), ErrorCode::kTimeout);
  }
}

TEST(HttpClient, ShortAnswersFollowLongOnes) {
  const std::string content = test_bytes(3 << 20, 4);
  TestServer server([&](const ReceivedRequest& request) { return serve_range(request, content); });
  Client client({.max_connections = 1});
  for (int i = 0; i < 60; ++i) {
    Buffer buffer(i % 2 == 0 ? content.size() : 100);
    Request request = get(server.url("/o"));
    request.headers = {fmt::format("Range: bytes=0-{}", buffer.bytes.size() - 1)};
    request.out = buffer.span();
    request.stall_timeout = seconds(5);
    ASSERT_TRUE(client.fetch(request)) << i;
    ASSERT_TRUE(content.starts_with(buffer.bytes)) << i;
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, AnUploadThatNobodyReadsStalls) {
  std::atomic<bool> hold = true;
  TestServer server(always({}), {.early = [&](const ReceivedRequest&) -> std::optional<Reply> {
                      EXPECT_TRUE(eventually([&] { return !hold; }));
                      return Reply{.cut_after = 0, .no_head = true};
                    }});
  Client client;
  const std::string body = test_bytes(64 << 20, 1);
  Request request = put(server.url("/o"), body);
  request.stall_timeout = milliseconds(300);
  EXPECT_FAILS(client.fetch(request), ErrorCode::kTimeout);
  hold = false;
}

TEST(HttpClient, StopTokensEndWhateverTheRequestIsDoing) {
  TestServer server(always({.silent = true}));
  Client client({.max_connections = 1});
  for (const int doing : {0, 1, 2, 3}) {
    SCOPED_TRACE(doing);
    std::stop_source source;
    if (doing == 0) source.request_stop();
    Answers blocker;
    std::stop_source blocked;
    if (doing == 3) {  // another has the only connection
      Request request = get(server.url("/first"));
      request.stop = blocked.get_token();
      client.start(request, blocker.next());
    }
    const int before = server.requests();
    Answers answers;
    Request request = get(server.url("/o"));
    request.stop = source.get_token();
    if (doing == 1) request.not_before = Clock::now() + seconds(100);
    client.start(request, answers.next());
    if (doing == 2) {
      EXPECT_TRUE(eventually([&] { return server.requests() > before; }));
    }
    std::this_thread::sleep_for(milliseconds(20));
    const auto begin = Clock::now();
    source.request_stop();
    EXPECT_FAILS(answers.wait(1)[0], ErrorCode::kCancelled);
    EXPECT_LT(since(begin), seconds(1));
    blocked.request_stop();
    if (doing == 3) blocker.wait(1);
  }
  EXPECT_TRUE(eventually([&] { return server.open_connections() == 0; }));
}

TEST(HttpClient, OneTokenStopsManyRequests) {
  TestServer server(always({.silent = true}));
  Client client({.max_connections = 4});
  std::stop_source source;
  Answers answers;
  for (int i = 0; i < 500; ++i) {
    Request request = get(server.url("/o"));
    request.stop = source.get_token();
    client.start(request, answers.next());
  }
  std::this_thread::sleep_for(milliseconds(20));
  source.request_stop();
  for (const auto& answer : answers.wait(500)) EXPECT_FAILS(answer, ErrorCode::kCancelled);
  EXPECT_LE(server.connections(), 4);
}

TEST(HttpClient, DeadlinesHoldForWhatWaits) {
  TestServer server(always({.silent = true}));
  Client client({.max_connections = 1});
  Answers answers;
  for (const int doing : {0, 1, 2, 3}) {
    Request request = get(server.url("/o"));
    // The first holds the only connection longer than the others wait for it.
    request.deadline = Clock::now() + milliseconds(doing == 0 ? 300 : doing == 3 ? -1 : 100);
    if (doing == 1) request.not_before = Clock::now() + seconds(100);
    client.start(request, answers.next());
  }
  const auto begin = Clock::now();
  for (const auto& answer : answers.wait(4)) EXPECT_FAILS(answer, ErrorCode::kTimeout);
  EXPECT_LT(since(begin), seconds(3));
  EXPECT_EQ(server.requests(), 1);
}

TEST(HttpClient, NotBeforeWaitsWithoutAConnection) {
  TestServer server(always({.body = "x"}));
  Client client({.max_connections = 1});
  Answers late, early;
  const auto begin = Clock::now();
  Request request = get(server.url("/late"));
  request.not_before = begin + milliseconds(300);
  client.start(request, late.next());
  for (int i = 0; i < 20; ++i) client.start(get(server.url("/early")), early.next());
  early.wait(20);
  EXPECT_EQ(late.count(), 0u);
  ASSERT_TRUE(late.wait(1)[0]);
  EXPECT_GE(since(begin), milliseconds(300));
  EXPECT_LT(since(begin), seconds(3));
}

TEST(HttpClient, ManySmallRequestsShareFewConnections) {
  TestServer server([](const ReceivedRequest& request) { return Reply{.body = request.target}; });
  for (const int threads : {1, 3}) {
    const int before = server.connections();
    Client client({.threads = threads, .max_connections = 4});
    std::atomic<int> right = 0;
    Answers answers;
    for (int i = 0; i < 1000; ++i) {
      const std::string path = fmt::format("/{}", i);
      client.start(get(server.url(path)), [&, path, next = answers.next()](Result<Response> answer) {
        if (answer && answer->body == path) ++right;
        next(std::move(answer));
      });
    }
    answers.wait(1000);
    EXPECT_EQ(right, 1000);
    EXPECT_LE(server.connections() - before, threads * 4);
  }
}

TEST(HttpClient, RequestsWaitInTheirOrder) {
  Mutex mutex;
  std::vector<std::string> order;
  TestServer server([&](const ReceivedRequest& request) {
    MutexLock lock(mutex);
    order.push_back(request.target);
    return Reply{};
  });
  Client client({.max_connections = 1});
  Answers answers;
  std::vector<std::string> expected;
  for (int i = 0; i < 100; ++i) {
    expected.push_back(fmt::format("/{}", i));
    client.start(get(server.url(expected.back())), answers.next());
  }
  answers.wait(100);
  EXPECT_EQ(order, expected);
}

TEST(HttpClient, ADoneMayStartFurtherRequests) {
  TestServer server(always({.body = "x"}));
  Client client({.max_connections = 2});
  Answers answers;
  std::atomic<int> left = 50;
  std::function<void(Result<Response>)> again = [&](Result<Response> answer) {
    EXPECT_TRUE(answer);
    if (--left == 0) return answers.next()(std::move(answer));
    client.start(get(server.url("/o")), again);
  };
  client.start(get(server.url("/o")), again);
  answers.wait(1);
  EXPECT_EQ(server.requests(), 50);
}

TEST(HttpClient, AConnectionThatTheServerClosedInTheMeantimeCostsNoRequest) {
  TestServer server([](const ReceivedRequest& request) { return Reply{.body = request.body}; });
  Client client;
  for (int i = 0; i < 5; ++i) {
    const auto answer = client.fetch(i % 2 == 0 ? get(server.url("/o")) : put(server.url("/o"), "abc"));
    ASSERT_TRUE(answer) << answer.error().to_string();
    server.close_connections();
    EXPECT_TRUE(eventually([&] { return server.open_connections() == 0; }));
  }
  EXPECT_EQ(server.requests(), 5);
}

TEST(HttpClient, AnUploadThatTheServerMayHaveTakenIsNotSentAgain) {
  // The second request of a connection is taken and never answered: libcurl by itself would send it again.
  TestServer server([](const ReceivedRequest& request) {
    return request.request == 0 ? Reply{} : Reply{.cut_after = 0, .no_head = true};
  });
  Client client;
  ASSERT_TRUE(client.fetch(put(server.url("/o"), "first")));
  EXPECT_FAILS(client.fetch(put(server.url("/o"), "second")), ErrorCode::kUnavailable);
  EXPECT_EQ(server.requests(), 2);
}

TEST(HttpClient, DroppingTheClientEndsEverything) {
  TestServer server(always({.silent = true}));
  Answers answers;
  {
    Client client({.threads = 2, .max_connections = 2});
    for (int i = 0; i < 20; ++i) {
      Request request = get(server.url("/o"));
      if (i % 4 == 0) request.not_before = Clock::now() + seconds(100);
      client.start(request, answers.next());
    }
    EXPECT_TRUE(eventually([&] { return server.requests() == 4; }));
  }
  ASSERT_EQ(answers.count(), 20u);
  for (const auto& answer : answers.wait(20)) EXPECT_FAILS(answer, ErrorCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return server.open_connections() == 0; }));
}

TEST(HttpClient, AnIdleClientGoesAtOnce) {
  TestServer server(always({.body = "x"}));
  const auto begin = Clock::now();
  for (int i = 0; i < 20; ++i) {
    Client client;
    if (i % 2 == 0) {
      ASSERT_TRUE(client.fetch(get(server.url("/o"))));
    }
  }
  EXPECT_LT(since(begin), seconds(5));
}

TEST(HttpClient, AForkedChildHasItsOwnConnections) {
  TestServer server([](const ReceivedRequest& request) {
    return Reply{.body = request.target, .delay = milliseconds(request.target == "/slow" ? 300 : 0)};
  });
  Client client;
  ASSERT_TRUE(client.fetch(get(server.url("/before"))));
  Answers answers;
  client.start(get(server.url("/slow")), answers.next());
  EXPECT_TRUE(eventually([&] { return server.requests() == 2; }));
  EXPECT_TRUE(succeeds_in_child([&] {
    for (int i = 0; i < 3; ++i) {
      const auto answer = client.fetch(get(server.url("/child")));
      if (!answer || answer->body != "/child") return false;
    }
    return true;
  }));
  ASSERT_TRUE(answers.wait(1)[0]);
  EXPECT_EQ(answers.wait(1)[0]->body, "/slow");
  EXPECT_EQ(client.fetch(get(server.url("/after")))->body, "/after");
  EXPECT_EQ(server.connections(), 2);  // one of each process
}

TEST(HttpClient, AProxyOfTheEnvironmentMakesTunnels) {
  Mutex mutex;
  std::vector<std::string> seen;
  // What is asked for behind CONNECT goes through the same connection: the proxy answers it itself.
  TestServer proxy([&](const ReceivedRequest& request) {
    MutexLock lock(mutex);
    seen.push_back(request.method + " " + request.target);
    return Reply{.body = request.method == "CONNECT" ? "" : "through"};
  });
  ASSERT_EQ(::setenv("http_proxy", proxy.url("").c_str(), 1), 0);
  Client client;
  for (int i = 0; i < 2; ++i) {
    const auto answer = client.fetch(get("http://service.invalid/k?x=y"));
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->body, "through");
  }
  EXPECT_THAT(seen, testing::ElementsAre("CONNECT service.invalid:80", "GET /k?x=y", "GET /k?x=y"));
  seen.clear();
  Request direct = get(proxy.url("/direct"));
  direct.direct = true;
  EXPECT_TRUE(client.fetch(direct));
  ASSERT_EQ(::setenv("no_proxy", "127.0.0.1", 1), 0);
  EXPECT_TRUE(client.fetch(get(proxy.url("/excepted"))));
  ::unsetenv("http_proxy");
  ::unsetenv("no_proxy");
  EXPECT_THAT(seen, testing::ElementsAre("GET /direct", "GET /excepted"));
}

TEST(HttpClient, AProxyThatRefusesIsUnavailable) {
  TestServer proxy(always({.status = 403}));
  ASSERT_EQ(::setenv("http_proxy", proxy.url("").c_str(), 1), 0);
  const auto answer = Client().fetch(get("http://service.invalid/k"));
  ::unsetenv("http_proxy");
  EXPECT_FAILS(answer, ErrorCode::kUnavailable);
}

TEST(HttpClient, TlsTrustsOnlyWhatItWasTold) {
  const std::string content = test_bytes(4 << 20, 5);
  const SentFile file(content);
  TestServer server(
      [&](const ReceivedRequest& request) {
        return request.method == "PUT" ? Reply{.body = request.body == content ? "same" : "other"}
                                       : serve_range(request, content);
      },
      {.tls = true});
  TempDir directory;
  const std::string ca_file = directory.path() + "/ca.pem";
  std::ofstream(ca_file) << server.certificate();

  const auto refused = Client().fetch(get(server.url("/o?secret")));
  EXPECT_FAILS(refused, ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("AWS_CA_BUNDLE"));
  EXPECT_THAT(refused.error().to_string(), Not(HasSubstr("secret")));
  EXPECT_FAILS(Client({.ca_file = directory.path() + "/missing.pem"}).fetch(get(server.url("/o"))),
               ErrorCode::kPermissionDenied);

  Client client({.ca_file = ca_file});
  Buffer buffer(content.size());
  for (int i = 0; i < 3; ++i) {
    Request request = get(server.url("/o"));
    request.out = buffer.span();
    const auto answer = client.fetch(request);
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_TRUE(buffer.bytes == content);
    EXPECT_EQ(client.fetch(put(server.url("/o"), content))->body, "same");
    const auto range = file.range(0, std::ssize(content));
    EXPECT_EQ(client.fetch(put_file(server.url("/o"), *range))->body, "same");
  }

  ASSERT_EQ(::setenv("SSL_CERT_FILE", ca_file.c_str(), 1), 0);
  EXPECT_TRUE(Client().fetch(get(server.url("/o"))));
  ::unsetenv("SSL_CERT_FILE");

  // Of another name than the certificate's.
  std::string other = server.url("/o");
  other.replace(other.find("127.0.0.1"), 9, "localhost");
  EXPECT_FAILS(client.fetch(get(other)), ErrorCode::kPermissionDenied);
}

}  // namespace
}  // namespace millrace::http
