// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/listener.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"

namespace millrace::http {

namespace {

constexpr size_t kMostHead = 16 << 10;
constexpr auto kPatience = std::chrono::seconds(5);

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// The value of a header of a request's head, without blanks around it.
std::optional<std::string> header_of(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (!equal_ignoring_case(line.substr(0, name.size()), name)) continue;
    return std::string(trimmed(line.substr(name.size() + 1), " "));
  }
  return std::nullopt;
}

}  // namespace

struct Listener::Impl {
  std::function<Answer(const Received&)> handler;
  ListenerOptions options;
  std::string bound;
  int socket = -1, stop = -1;
  Thread thread;

  ~Impl() {
    for (const int each : {socket, stop}) {
      if (each >= 0) ::close(each);
    }
  }

  [[nodiscard]] Status open(const std::string& host, const std::string& port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
      return fail(ErrorCode::kInvalidArgument, "{}:{}: {}", host, port, ::gai_strerror(code));
    }
    const int family = found->ai_family;
    socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool is_bound =
        socket >= 0 && ::bind(socket, found->ai_addr, found->ai_addrlen) == 0 && ::listen(socket, 64) == 0;
    const int code = errno;
    ::freeaddrinfo(found);
    if (!is_bound) return tl::unexpected(errno_error(code, fmt::format("listen on {}:{}", host, port)));
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    std::array<char, NI_MAXSERV> number{};
    ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, nullptr, 0, number.data(), number.size(),
                  NI_NUMERICSERV);
    bound = fmt::format("{}:{}", family == AF_INET6 ? "[" + host + "]" : host, number.data());
    stop = ::eventfd(0, EFD_CLOEXEC);
    if (stop < 0) return tl::unexpected(errno_error(errno, "eventfd"));
    return {};
  }

  // Whether `fd` is ready before `end`; false when the listener ends.
  bool is_ready(int fd, short events, Clock::time_point end) const {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) return false;
      std::array<pollfd, 2> ready{pollfd{fd, events, 0}, pollfd{stop, POLLIN, 0}};
      const int count = ::poll(ready.data(), ready.size(), static_cast<int>(left));
      if (count < 0 && errno == EINTR) continue;
      return count > 0 && ready[1].revents == 0;
    }
  }

  // False when the client is slow, gone, or sends more than `most` bytes.
  bool read_some(int connection, std::string& to, size_t most, Clock::time_point end) const {
    std::array<char, 16 << 10> piece{};
    if (to.size() > most || !is_ready(connection, POLLIN, end)) return false;
    const ssize_t got = ::recv(connection, piece.data(), piece.size(), MSG_DONTWAIT);
    if (got <= 0) return got < 0 && (errno == EINTR || errno == EAGAIN);
    to.append(piece.data(), static_cast<size_t>(got));
    return true;
  }

  void send_all(int connection, std::string_view text, Clock::time_point end) const {
    while (!text.empty() && is_ready(connection, POLLOUT, end)) {
      const ssize_t sent = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EINTR && errno != EAGAIN) return;
      if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // None where there is nobody to answer.
  std::optional<Answer> answer_to(int connection, bool& is_head, Clock::time_point end) const {
    std::string text;
    size_t head_end = 0;
    while ((head_end = text.find("\r\n\r\n")) == text.npos) {
      if (!read_some(connection, text, kMostHead, end)) return std::nullopt;
    }
    const std::string head = text.substr(0, head_end + 2);
    const std::string line = head.substr(0, head.find("\r\n"));
    Received received;
    received.method = line.substr(0, line.find(' '));
    received.target = line.substr(std::min(line.find(' ') + 1, line.size()));
    received.target = received.target.substr(0, received.target.find(' '));
    is_head = received.method == "HEAD";
    const auto length_text = header_of(head, "Content-Length");
    const auto length = length_text ? parse_whole(*length_text) : 0;
    if (!length || header_of(head, "Transfer-Encoding")) return Answer{.status = 400, .body = "no Content-Length\n"};
    if (*length > options.body_limit_bytes) return Answer{.status = 413, .body = "too much\n"};
    if (header_of(head, "Expect")) send_all(connection, "HTTP/1.1 100 Continue\r\n\r\n", end);
    received.body = text.substr(head_end + 4);
    while (static_cast<int64_t>(received.body.size()) < *length) {
      if (!read_some(connection, received.body, static_cast<size_t>(*length), end)) return std::nullopt;
    }
    return handler(received);
  }

  void serve() const {
    for (;;) {
      std::array<pollfd, 2> ready{pollfd{socket, POLLIN, 0}, pollfd{stop, POLLIN, 0}};
      if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
      if (ready[1].revents != 0) return;
      if (ready[0].revents == 0) continue;
      const int connection = ::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      const Clock::time_point end = Clock::now() + kPatience;
      bool is_head = false;
      if (const auto answer = answer_to(connection, is_head, end)) {
        send_all(connection,
                 fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                             answer->status, reason_phrase(answer->status), answer->type, answer->body.size(),
                             is_head ? "" : answer->body),
                 end);
      }
      ::close(connection);
    }
  }
};

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(impl_->stop, &one, sizeof(one));
  impl_->thread = Thread();
}

const std::string& Listener::bound() const {
  return impl_->bound;
}

Result<std::unique_ptr<Listener>> Listener::open(const std::string& address,
                                                 std::function<Answer(const Received&)> handler,
                                                 const ListenerOptions& options) {
  const size_t colon = address.rfind(':');
  std::string host = colon == std::string::npos ? "127.0.0.1" : address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
  auto impl = std::make_unique<Impl>();
  impl->handler = std::move(handler);
  impl->options = options;
  RETURN_IF_ERROR(impl->open(host, port));
  Impl* const raw = impl.get();
  std::unique_ptr<Listener> listener(new Listener(std::move(impl)));
  raw->thread = Thread(options.thread_name, [raw] { raw->serve(); });
  return listener;
}

}  // namespace millrace::http
