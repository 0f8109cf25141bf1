// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/response_parser.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "millrace/base/testing/helpers.h"

namespace millrace::http {
namespace {

// The parsed answer; nullopt when it is refused.
struct Taken {
  std::optional<ErrorCode> refused;
  bool is_done = false;  // before the connection ended
  bool is_kept = false;
  int status = 0;
  std::string body;
  bool operator==(const Taken&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Taken& taken) {
  if (taken.refused) return out << "refused: " << static_cast<int>(*taken.refused);
  return out << taken.status << (taken.is_done ? " done" : "") << (taken.is_kept ? " kept" : "") << " \"" << taken.body
             << "\"";
}

// In pieces that end at `cuts`, which rise, and into memory of the caller's where that is asked for.
Taken take(Request request, std::string_view answer, std::span<const size_t> cuts, size_t out_bytes = 0) {
  std::string out(out_bytes, '.');
  request.url = "http://host/";
  request.out = std::as_writable_bytes(std::span(out));
  Exchange exchange(request, nullptr);
  ResponseParser reader(exchange);
  const auto refused = [&] { return Taken{.refused = exchange.failure()->code()}; };
  size_t at = 0;
  for (size_t i = 0; i <= cuts.size() && !reader.done(); ++i) {
    for (const size_t end = i < cuts.size() ? cuts[i] : answer.size(); at < end && !reader.done();) {
      const auto room = reader.room();
      const std::string_view piece = answer.substr(at, room.empty() ? end - at : std::min(end - at, room.size()));
      if (!room.empty()) {
        std::memcpy(room.data(), piece.data(), piece.size());
        reader.took_into_room(piece.size());
      } else if (!reader.take(piece)) {
        return refused();
      }
      at += piece.size();
    }
  }
  const bool is_done = reader.done();
  if (!is_done && !reader.take_end()) return refused();
  const bool is_kept = reader.keeps_connection();
  const Response response = exchange.take_response();
  return {.is_done = is_done,
          .is_kept = is_kept,
          .status = response.status,
          .body = response.body + out.substr(0, static_cast<size_t>(response.received_bytes))};
}

struct Case {
  std::string answer;
  Taken expected;
  Method method = Method::kGet;
};

const std::vector<Case>& cases() {
  const auto done = [](int status, std::string body) { return Taken{{}, true, true, status, std::move(body)}; };
  const auto last = [](int status, std::string body) { return Taken{{}, true, false, status, std::move(body)}; };
  const auto with_end = [](int status, std::string body) { return Taken{{}, false, false, status, std::move(body)}; };
  const Taken refused{.refused = ErrorCode::kUnavailable}, foreign{.refused = ErrorCode::kUnsupported};
  static const std::vector<Case> all{
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", done(200, "hello")},
      {"HTTP/1.1 200\r\nCONTENT-LENGTH:5 \r\n\r\nhello", done(200, "hello")},
      {"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", done(200, "hello")},
      {"HTTP/1.1 206 P\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello", done(206, "hello")},
      {"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", done(503, "")},
      {"HTTP/1.1 204 No\r\nContent-Length: 7\r\n\r\n", done(204, "")},
      {"HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", done(304, "")},
      {"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", done(200, ""), Method::kHead},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", done(200, ""), Method::kHead},
      {"HTTP/1.1 100 Go\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", done(200, "ok")},
      {"HTTP/1.1 200 OK\r\nConnection: keep-alive, Close\r\nContent-Length: 2\r\n\r\nok", last(200, "ok")},
      {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", last(200, "ok")},
      {"HTTP/1.1 200 OK\r\n\r\nto the end", with_end(200, "to the end")},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n0A \r\n0123456789\r\n0\r\n\r\n",
       done(200, "hello0123456789")},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 9\r\nA: b\r\n\r\n",
       done(200, "x")},
      {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
       last(200, "ok")},
      {"", refused},
      {"HTTP/1.1 2", refused},
      {"SSH-2.0-OpenSSH_9\r\n\r\n", foreign},
      {"HTTP/2 200 OK\r\n\r\n", foreign},
      {"\x15\x03\x01 an alert of TLS that has no end of a line", foreign},
      {std::string("\0\0\x12\x04\0\0\0\0\0 settings", 18), foreign},
      {"HTTP/1.1 2000 OK\r\n\r\n", refused},
      {"HTTP/1.1 -20 OK\r\n\r\n", refused},
      {"HTTP/1.1 101 Switching\r\n\r\n", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", refused},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", refused},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", refused},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", refused},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxyz\r\n0\r\n\r\n", refused},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", refused},
  };
  return all;
}

TEST(ResponseParser, TakesAnswersApartWhereverTheyAreCut) {
  for (const auto& [answer, expected, method] : cases()) {
    SCOPED_TRACE(answer);
    std::vector<size_t> everywhere;
    for (size_t i = 1; i < answer.size(); ++i) {
      everywhere.push_back(i);
      EXPECT_EQ(take({.method = method}, answer, std::span(&everywhere.back(), 1)), expected) << "cut at " << i;
    }
    EXPECT_EQ(take({.method = method}, answer, {}), expected);
    EXPECT_EQ(take({.method = method}, answer, everywhere), expected) << "byte by byte";
    EXPECT_EQ(take({.method = method}, answer, everywhere, 100), expected) << "byte by byte, into the caller's memory";
    EXPECT_EQ(take({.method = method}, answer, {}, 100), expected) << "into the caller's memory";
  }
}

TEST(ResponseParser, MoreThanThereIsRoomForIsCorruption) {
  const Taken corrupt{.refused = ErrorCode::kCorruption};
  EXPECT_EQ(take({}, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", {}, 4), corrupt);
  EXPECT_EQ(take({}, "HTTP/1.1 200 OK\r\n\r\nhello", {}, 4), corrupt);
  EXPECT_EQ(take({}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", {}, 4),
            corrupt);
}

TEST(ResponseParser, NothingGrowsWithoutEnd) {
  const Taken refused{.refused = ErrorCode::kResourceExhausted};
  EXPECT_EQ(take({}, "HTTP/1.1 200 OK\r\nX: " + std::string(1 << 20, 'x'), {}), refused);
  std::string interim;
  for (int i = 0; i < 16; ++i) interim += "HTTP/1.1 100 Continue\r\n\r\n";
  EXPECT_EQ(take({}, interim + "HTTP/1.1 204 No\r\n\r\n", {}), Taken{.refused = ErrorCode::kUnsupported});
  std::string answer = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 200; ++i) answer += "X: " + std::string(10'000, 'x') + "\r\n";
  EXPECT_EQ(take({}, answer, {}), refused);
  EXPECT_EQ(take({.body_limit_bytes = 4}, "HTTP/1.1 200 OK\r\n\r\nhello", {}), refused);
  EXPECT_EQ(take({.body_limit_bytes = 4}, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", {}), refused);
  answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (int i = 0; i < 200; ++i) answer += "X: " + std::string(10'000, 'x') + "\r\n";
  EXPECT_EQ(take({}, answer, {}).refused, ErrorCode::kUnavailable);
}

TEST(ResponseParser, WhatComesBehindAnAnswerEndsTheConnection) {
  const Taken taken = take({}, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", {});
  EXPECT_EQ(taken, (Taken{{}, true, false, 200, "ok"}));
}

// Damaged answers too: the result does not depend on where the bytes are cut.
TEST(ResponseParser, RandomChangesAreTakenTheSameWayHoweverTheyAreCut) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  constexpr std::string_view kLetters = "\r\n :;,0123456789afHTP/x";
  int taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Case& base = cases()[random() % cases().size()];
    std::string answer = base.answer;
    for (uint64_t change = random() % 4; change > 0 && !answer.empty(); --change) {
      const size_t at = random() % answer.size();
      if (random() % 2 == 0) answer.erase(at, 1 + random() % 3);
      if (random() % 2 == 0) answer.insert(std::min(at, answer.size()), 1, kLetters[random() % kLetters.size()]);
    }
    std::vector<size_t> cuts;
    for (size_t at = random() % 8; at < answer.size(); at += 1 + random() % 8) cuts.push_back(at);
    const size_t out_bytes = random() % 2 * (random() % 20);
    const Taken whole = take({.method = base.method}, answer, {}, out_bytes);
    EXPECT_EQ(take({.method = base.method}, answer, cuts, out_bytes).refused, whole.refused)
        << answer << " MILLRACE_TEST_SEED=" << seed;
    if (whole.refused) continue;
    ++taken;
    Taken cut = take({.method = base.method}, answer, cuts, out_bytes);
    cut.is_kept = whole.is_kept;  // what comes behind the answer may not have been seen
    EXPECT_EQ(cut, whole) << answer << " MILLRACE_TEST_SEED=" << seed;
  }
  EXPECT_GT(taken, 1000);
}

TEST(RequestHead, IsWhatRfc9112Wants) {
  Request request{.method = Method::kPut,
                  .url = "https://bucket.example:443/a/../b%2f?x=y#part",
                  .headers = {"X-Empty:", "Range: bytes=0-4"}};
  EXPECT_EQ(head_of(request, "millrace/1"),
            "PUT /a/../b%2f?x=y HTTP/1.1\r\nHost: bucket.example\r\nUser-Agent: millrace/1\r\nAccept: */*\r\n"
            "X-Empty:\r\nRange: bytes=0-4\r\nContent-Length: 0\r\n\r\n");
  request = {.url = "HTTP://[::1]:8080?list", .headers = {"hOsT: other", "Accept: a/b"}};
  EXPECT_EQ(head_of(request, "m"), "GET /?list HTTP/1.1\r\nUser-Agent: m\r\nhOsT: other\r\nAccept: a/b\r\n\r\n");
  request = {.method = Method::kDelete, .url = "http://h:443"};
  EXPECT_EQ(head_of(request, "m"), "DELETE / HTTP/1.1\r\nHost: h:443\r\nUser-Agent: m\r\nAccept: */*\r\n\r\n");
}

}  // namespace
}  // namespace millrace::http
