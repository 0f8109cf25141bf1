// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "millrace/base/testing/helpers.h"

namespace millrace::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Connects, sends `text`, and reads until the server closes.
std::string talk(const std::string& bound, std::string_view text, bool closes = true) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(bound.substr(bound.rfind(':') + 1).c_str())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  if (closes) ::shutdown(fd, SHUT_WR);
  std::string answer;
  char piece[4096];
  for (ssize_t got = 0; (got = ::recv(fd, piece, sizeof(piece), 0)) > 0;)
    answer.append(piece, static_cast<size_t>(got));
  ::close(fd);
  return answer;
}

TEST(Listener, AnswersWhatItsHandlerSays) {
  Received last;
  const auto listener = *Listener::open("127.0.0.1:0", [&](const Received& received) {
    last = received;
    return Answer{.status = 200, .body = "told"};
  });
  const std::string answer =
      talk(listener->bound(), "POST /notices?a=b HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\nhello", false);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\ntold"));
  EXPECT_EQ(last.method, "POST");
  EXPECT_EQ(last.target, "/notices?a=b");
  EXPECT_EQ(last.body, "hello");
  EXPECT_THAT(talk(listener->bound(), "HEAD / HTTP/1.1\r\n\r\n"), ::testing::Not(HasSubstr("told")));
}

TEST(Listener, RefusesWhatItCannotTake) {
  const auto listener = *Listener::open("0", [](const Received&) { return Answer{}; }, {.body_limit_bytes = 10});
  EXPECT_THAT(talk(listener->bound(), "POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(talk(listener->bound(), "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(talk(listener->bound(), "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  // Half a request, and an endless head: no answer, and the next client is served.
  EXPECT_EQ(talk(listener->bound(), "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc"), "");
  EXPECT_EQ(talk(listener->bound(), "GET / HTTP/1.1\r\n" + std::string(30'000, 'x')), "");
  EXPECT_THAT(talk(listener->bound(), "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(Listener, ATakenPortIsAnError) {
  const auto listener = *Listener::open("0", [](const Received&) { return Answer{}; });
  EXPECT_FALSE(Listener::open(listener->bound(), [](const Received&) { return Answer{}; }));
  EXPECT_EQ(code_of(Listener::open("no such host:1", [](const Received&) { return Answer{}; })),
            ErrorCode::kInvalidArgument);
}

TEST(Listener, EndsWhileAClientIsSilent) {
  auto listener = *Listener::open("0", [](const Received&) { return Answer{}; });
  const std::string bound = listener->bound();
  Thread client("client", [&] { talk(bound, "GET / HTTP/1.1\r\n", false); });
  const Clock::time_point began = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  listener.reset();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(4));
}

}  // namespace
}  // namespace millrace::http
