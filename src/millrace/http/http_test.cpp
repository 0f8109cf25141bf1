// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/http.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "millrace/base/testing/helpers.h"
#include "millrace/http/testing/test_client.h"
#include "millrace/http/uri_encode.h"

namespace millrace::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

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

class OpenRange final : public FileRange {
 public:
  OpenRange(int descriptor, int64_t offset, int64_t size) : descriptor_(descriptor), offset_(offset), size_(size) {}
  int descriptor() const override { return descriptor_; }
  int64_t offset() const override { return offset_; }
  int64_t size() const override { return size_; }
  Status check_unchanged() const override { return {}; }

 private:
  const int descriptor_;
  const int64_t offset_, size_;
};

// A file, open to be sent.
class SentFile {
 public:
  explicit SentFile(const std::string& content) {
    std::ofstream(path(), std::ios::binary) << content;
    descriptor_ = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(descriptor_, 0);
  }
  ~SentFile() { ::close(descriptor_); }
  SentFile(const SentFile&) = delete;
  SentFile& operator=(const SentFile&) = delete;
  std::string path() const { return directory_.path() + "/file"; }
  std::unique_ptr<FileRange> range(int64_t offset, int64_t size) const {
    return std::make_unique<OpenRange>(descriptor_, offset, size);
  }

 private:
  const TempDir directory_;
  int descriptor_ = -1;
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
    EXPECT_THAT(answer.error().code(),
                testing::AnyOf(ErrorCode::kUnavailable, ErrorCode::kUnsupported, ErrorCode::kCorruption))
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
  // An address reserved for documentation: no host answers, or the system says at once that there is no route.
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

  // Another host name than the certificate's.
  std::string other = server.url("/o");
  other.replace(other.find("127.0.0.1"), 9, "localhost");
  EXPECT_FAILS(client.fetch(get(other)), ErrorCode::kPermissionDenied);
}

TEST(FormDecode, TakesEscapesAndPluses) {
  EXPECT_EQ(form_decode("a%2Fb+c%c3%B6"), "a/b c\u00f6");
  EXPECT_EQ(form_decode("%"), "%");
  EXPECT_EQ(form_decode("%2"), "%2");
  EXPECT_EQ(form_decode("%2x%x2%%41"), "%2x%x2%A");
}

}  // namespace
}  // namespace millrace::http
