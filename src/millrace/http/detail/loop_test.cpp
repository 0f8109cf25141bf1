// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/loop.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/http/testing/test_client.h"

namespace millrace::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void start_many(Client& client, int count, const std::string& url, const std::stop_source& source, Answers& answers) {
  for (int i = 0; i < count; ++i) {
    Request request = get(url);
    request.stop = source.get_token();
    client.start(std::move(request), answers.next());
  }
}

TEST(HttpLoop, AStallIsATimeout) {
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

TEST(HttpLoop, ASlowAnswerIsNoStall) {
  // A long body sends fewer bytes in this time than the wake-up needs.
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

// Something moves all the time, and it would take for ever.
TEST(HttpLoop, ATrickleIsATimeout) {
  TestServer server(always({.body = std::string(1000, 'x'), .trickle_bytes = 1, .trickle_pause = milliseconds(20)}));
  Request request = get(server.url("/o"));
  request.slow_after = milliseconds(300);
  const auto begin = Clock::now();
  const auto answer = Client().fetch(request);
  EXPECT_FAILS(answer, ErrorCode::kTimeout);
  EXPECT_THAT(answer.error().to_string(), testing::HasSubstr("too slow"));
  EXPECT_LT(since(begin), seconds(3));
}

TEST(HttpLoop, ShortAnswersFollowLongOnes) {
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

TEST(HttpLoop, AnUploadThatNobodyReadsStalls) {
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

TEST(HttpLoop, StopTokensEndWhateverTheRequestIsDoing) {
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

TEST(HttpLoop, OneTokenStopsManyRequests) {
  TestServer server(always({.silent = true}));
  Client client({.max_connections = 4});
  std::stop_source source;
  Answers answers;
  start_many(client, 500, server.url("/o"), source, answers);
  std::this_thread::sleep_for(milliseconds(20));
  source.request_stop();
  for (const auto& answer : answers.wait(500)) EXPECT_FAILS(answer, ErrorCode::kCancelled);
  EXPECT_LE(server.connections(), 4);
}

TEST(HttpLoop, DeadlinesHoldForWhatWaits) {
  TestServer server(always({.silent = true}));
  Client client({.max_connections = 1});
  Answers answers;
  for (const int doing : {0, 1, 2, 3}) {
    Request request = get(server.url("/o"));
    // The first holds the only connection longer than the others wait for it.
    request.deadline = Clock::now() + milliseconds(doing == 0 ? 1500 : doing == 3 ? -1 : 100);
    if (doing == 1) request.not_before = Clock::now() + seconds(100);
    client.start(request, answers.next());
  }
  const auto begin = Clock::now();
  for (const auto& answer : answers.wait(4)) EXPECT_FAILS(answer, ErrorCode::kTimeout);
  EXPECT_LT(since(begin), seconds(30));
  EXPECT_EQ(server.requests(), 1);
}

TEST(HttpLoop, NotBeforeWaitsWithoutAConnection) {
  TestServer server(always({.body = "x"}));
  Client client({.max_connections = 1});
  Answers late, early;
  const auto begin = Clock::now();
  Request request = get(server.url("/late"));
  request.not_before = begin + milliseconds(1000);
  client.start(request, late.next());
  for (int i = 0; i < 20; ++i) client.start(get(server.url("/early")), early.next());
  early.wait(20);
  EXPECT_EQ(late.count(), 0u);
  ASSERT_TRUE(late.wait(1)[0]);
  EXPECT_GE(since(begin), milliseconds(1000));
  EXPECT_LT(since(begin), seconds(30));
}

TEST(HttpLoop, ManySmallRequestsShareFewConnections) {
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

TEST(HttpLoop, ManySlowRequestsAtOnceAreServedAndStoppedInTime) {
  TestServer server([](const ReceivedRequest& request) {
    return Reply{.body = request.target,
                 .delay = milliseconds(request.target == "/quick" ? 0 : 40),
                 .silent = request.target == "/silent"};
  });
  Client client({.max_connections = 100});
  Answers slow;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 50; ++i) client.start(get(server.url("/slow")), slow.next());
    const auto begin = Clock::now();
    EXPECT_EQ(client.fetch(get(server.url("/quick")))->body, "/quick");
    EXPECT_LT(since(begin), seconds(10));
    for (const auto& answer : slow.wait(50 * (static_cast<size_t>(round) + 1))) {
      ASSERT_TRUE(answer) << answer.error().to_string();
      EXPECT_EQ(answer->body, "/slow");
    }
  }
  std::stop_source source;
  Answers silent;
  start_many(client, 50, server.url("/silent"), source, silent);
  std::this_thread::sleep_for(milliseconds(50));
  const auto begin = Clock::now();
  source.request_stop();
  for (const auto& answer : silent.wait(50)) EXPECT_FAILS(answer, ErrorCode::kCancelled);
  EXPECT_LT(since(begin), seconds(1));
}

TEST(HttpLoop, RequestsWaitInTheirOrder) {
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

TEST(HttpLoop, ADoneMayStartFurtherRequests) {
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

TEST(HttpLoop, AConnectionThatTheServerClosedInTheMeantimeCostsNoRequest) {
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

TEST(HttpLoop, AnUploadThatTheServerMayHaveTakenIsNotSentAgain) {
  // The second request of a connection is taken and never answered: libcurl by itself would send it again.
  TestServer server([](const ReceivedRequest& request) {
    return request.request == 0 ? Reply{} : Reply{.cut_after = 0, .no_head = true};
  });
  Client client;
  ASSERT_TRUE(client.fetch(put(server.url("/o"), "first")));
  EXPECT_FAILS(client.fetch(put(server.url("/o"), "second")), ErrorCode::kUnavailable);
  EXPECT_EQ(server.requests(), 2);
}

TEST(HttpLoop, DroppingTheClientEndsEverything) {
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

TEST(HttpLoop, AnIdleClientGoesAtOnce) {
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

TEST(HttpLoop, AForkedChildHasItsOwnConnections) {
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

TEST(HttpLoop, AProxyOfTheEnvironmentMakesTunnels) {
  Mutex mutex;
  std::vector<std::string> seen;
  // A request behind CONNECT uses the same connection: the proxy answers it itself.
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

// Whose certificate is trusted as a server's is; what goes through the tunnel is plain HTTP.
TEST(HttpLoop, AProxyWithTlsLeadsToPlainServers) {
  const std::string content = test_bytes(1 << 20, 9);
  TestServer proxy(
      [&](const ReceivedRequest& request) {
        if (request.method == "CONNECT") return Reply{};
        return request.method == "PUT" ? Reply{.body = request.body == content ? "same" : "other"}
                                       : serve_range(request, content);
      },
      {.tls = true});
  TempDir directory;
  const std::string ca_file = directory.path() + "/ca.pem";
  std::ofstream(ca_file) << proxy.certificate();
  ASSERT_EQ(::setenv("http_proxy", proxy.url("").c_str(), 1), 0);
  Client client({.ca_file = ca_file});
  Buffer buffer(content.size());
  Request request = get("http://service.invalid/k");
  request.out = buffer.span();
  const auto answer = client.fetch(request);
  const auto sent = client.fetch(put("http://service.invalid/k", content));
  ::unsetenv("http_proxy");
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_TRUE(buffer.bytes == content);
  ASSERT_TRUE(sent) << sent.error().to_string();
  EXPECT_EQ(sent->body, "same");
}

TEST(HttpLoop, AProxyThatRefusesIsToldByItsAnswer) {
  for (const auto& [status, code, word] : {std::tuple(403, ErrorCode::kPermissionDenied, "403"),
                                           std::tuple(407, ErrorCode::kPermissionDenied, "USER:PASSWORD@"),
                                           std::tuple(502, ErrorCode::kUnavailable, "502")}) {
    TestServer proxy(always({.status = status}));
    ASSERT_EQ(::setenv("http_proxy", proxy.url("").c_str(), 1), 0);
    const auto answer = Client().fetch(get("http://service.invalid/k"));
    ::unsetenv("http_proxy");
    EXPECT_FAILS(answer, code);
    EXPECT_THAT(answer.error().to_string(), testing::HasSubstr(word));
  }
}

}  // namespace
}  // namespace millrace::http
