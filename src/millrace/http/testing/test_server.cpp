// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/testing/test_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <list>
#include <stdexcept>

#include "millrace/base/text/strings.h"
#include "millrace/base/thread/sync.h"
#include "millrace/http/testing/test_tls.h"

namespace millrace::http {
namespace {

// Bytes that a connection has received and not used yet.
class Incoming {
 public:
  explicit Incoming(Stream& stream) : stream_(stream) {}

  // One line without its end; empty at the end of the connection.
  std::optional<std::string> line() {
    size_t end = 0;
    while ((end = buffer_.find("\r\n", used_)) == buffer_.npos) {
      if (!more()) return std::nullopt;
    }
    std::string text = buffer_.substr(used_, end - used_);
    used_ = end + 2;
    return text;
  }

  std::optional<std::string> bytes(size_t count) {
    while (buffer_.size() - used_ < count) {
      if (!more()) return std::nullopt;
    }
    std::string text = buffer_.substr(used_, count);
    used_ += count;
    return text;
  }

  // Until the client goes.
  void drain() {
    do buffer_.clear(), used_ = 0;
    while (more());
  }

 private:
  bool more() {
    buffer_.erase(0, std::exchange(used_, 0));
    return stream_.read_some(buffer_);
  }

  Stream& stream_;
  std::string buffer_;
  size_t used_ = 0;
};

std::optional<ReceivedRequest> read_head(Incoming& incoming) {
  const std::optional<std::string> first = incoming.line();
  if (!first) return std::nullopt;
  ReceivedRequest request;
  const size_t space = first->find(' ');
  const size_t last = first->rfind(' ');
  if (space == first->npos || last == space) return std::nullopt;
  request.method = first->substr(0, space);
  request.target = first->substr(space + 1, last - space - 1);
  for (;;) {
    const std::optional<std::string> line = incoming.line();
    if (!line) return std::nullopt;
    if (line->empty()) return request;
    const size_t colon = std::min(line->find(':'), line->size());
    std::string name = lower_case(line->substr(0, colon));
    const size_t value = std::min(line->find_first_not_of(' ', std::min(colon + 1, line->size())), line->size());
    request.headers.emplace_back(std::move(name), line->substr(value));
  }
}

std::string head_of(const Reply& reply, bool head_only) {
  std::string head = reply.before + fmt::format("HTTP/1.1 {} Scripted\r\n", reply.status);
  for (const std::string& header : reply.headers) head += header + "\r\n";
  if (reply.close || reply.length == Reply::Length::kNone) head += "Connection: close\r\n";
  if (reply.length == Reply::Length::kChunked) head += "Transfer-Encoding: chunked\r\n";
  const bool no_body = reply.status == 204 || reply.status == 304;
  if (reply.length == Reply::Length::kKnown && (!no_body || head_only)) {
    const auto size = reply.announced >= 0 ? reply.announced : static_cast<int64_t>(reply.body.size());
    head += fmt::format("Content-Length: {}\r\n", size);
  }
  return head + "\r\n";
}

}  // namespace

struct TestServer::Impl {
  Impl(Handler handler_, TestServerOptions options_) : handler(std::move(handler_)), options(std::move(options_)) {
    if (options.tls) identity = std::make_unique<TlsIdentity>();
    listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    // SAFETY: every sockaddr begins alike; that is how the calls take them.
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, any, size) != 0 || ::listen(listener, 512) != 0 || ::getsockname(listener, any, &size) != 0) {
      throw std::runtime_error("test server: no port to listen on");
    }
    port = ntohs(address.sin_port);
    acceptor = Thread("test-accept", [this] { accept_all(); });
  }

  ~Impl() {
    stopping = true;
    ::shutdown(listener, SHUT_RDWR);
    acceptor = Thread();
    ::close(listener);
    close_all();
    std::list<Thread> ending;
    {
      MutexLock lock(mutex);
      ending.swap(threads);
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 && stopping) return;
      if (fd < 0) continue;  // a connection that was given up before it was taken
      const int no_delay = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay);
      const int number = accepted++;
      auto stream = std::make_shared<Stream>(fd, identity.get());
      MutexLock lock(mutex);
      streams.push_back(stream);
      threads.emplace_back("test-server", [this, stream = std::move(stream), number]() mutable {
        serve(*stream, number);
        MutexLock ended(mutex);
        streams.remove(stream);
        stream.reset();
      });
    }
  }

  void close_all() {
    MutexLock lock(mutex);
    for (const auto& stream : streams) stream->shut_down();
  }

  void serve(Stream& stream, int number) {
    Incoming incoming(stream);
    for (int count = 0; !stopping; ++count) {
      std::optional<ReceivedRequest> request = read_head(incoming);
      if (!request) return;
      request->connection = number;
      request->request = count;
      ++received;
      if (options.early) {
        if (const std::optional<Reply> reply = options.early(*request)) {
          // The connection cannot be used further: the body is still on its way.
          if (answer(stream, incoming, *request, *reply)) incoming.drain();
          return;
        }
      }
      const std::string length(request->header("content-length"));
      std::optional<std::string> body = incoming.bytes(length.empty() ? 0 : std::stoul(length));
      if (!body) return;
      request->body = *std::move(body);
      const Reply reply = handler(*request);
      if (!answer(stream, incoming, *request, reply)) return;
    }
  }

  // False when the connection is to end.
  bool answer(Stream& stream, Incoming& incoming, const ReceivedRequest& request, const Reply& reply) {
    pause(reply.delay);
    if (reply.silent) incoming.drain();
    if (reply.reset) stream.reset_on_close();
    if (reply.silent || reply.no_head) return false;
    const bool head_only = request.method == "HEAD";
    std::string_view body = reply.body;
    if (head_only) body = {};
    const int64_t stop_at = std::max(reply.cut_after, reply.stall_after);
    if (stop_at >= 0) body = body.substr(0, static_cast<size_t>(stop_at));
    if (!stream.write_all(head_of(reply, head_only)) || !send_body(stream, reply, body)) return false;
    if (reply.stall_after >= 0) incoming.drain();
    if (stop_at >= 0) return false;
    if (!head_only && reply.length == Reply::Length::kChunked && !stream.write_all("0\r\nx-trailer: end\r\n\r\n")) {
      return false;
    }
    return !reply.close && reply.length != Reply::Length::kNone;
  }

  bool send_body(Stream& stream, const Reply& reply, std::string_view body) {
    const size_t piece_bytes = reply.trickle_bytes > 0 ? static_cast<size_t>(reply.trickle_bytes) : size_t{256} << 10;
    while (!body.empty()) {
      const std::string_view piece = body.substr(0, piece_bytes);
      const bool chunked = reply.length == Reply::Length::kChunked;
      if (chunked && !stream.write_all(fmt::format("{:x}\r\n", piece.size()))) return false;
      if (!stream.write_all(piece) || (chunked && !stream.write_all("\r\n"))) return false;
      body.remove_prefix(piece.size());
      pause(reply.trickle_pause);
    }
    return true;
  }

  // Not beyond the server's end.
  void pause(std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    while (!stopping && Clock::now() < end) {
      std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), std::chrono::milliseconds(20)));
    }
  }

  const Handler handler;
  const TestServerOptions options;
  std::unique_ptr<TlsIdentity> identity;
  int listener = -1;
  int port = 0;
  std::atomic<bool> stopping{false};
  std::atomic<int> accepted{0};
  std::atomic<int> received{0};
  mutable Mutex mutex;
  std::list<std::shared_ptr<Stream>> streams GUARDED_BY(mutex);
  std::list<Thread> threads GUARDED_BY(mutex);
  Thread acceptor;
};

std::string_view ReceivedRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

TestServer::TestServer(Handler handler, TestServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(handler), std::move(options))) {}

TestServer::~TestServer() = default;

int TestServer::port() const {
  return impl_->port;
}
std::string TestServer::url(std::string_view path) const {
  return fmt::format("http{}://127.0.0.1:{}{}", impl_->identity ? "s" : "", impl_->port, path);
}
const std::string& TestServer::certificate() const {
  return impl_->identity->certificate();
}
int TestServer::connections() const {
  return impl_->accepted;
}
int TestServer::requests() const {
  return impl_->received;
}
int TestServer::open_connections() const {
  MutexLock lock(impl_->mutex);
  return static_cast<int>(impl_->streams.size());
}
void TestServer::close_connections() {
  impl_->close_all();
}

Reply serve_range(const ReceivedRequest& request, std::string_view content) {
  const std::string range(request.header("range"));
  size_t first = 0, last = 0;
  Reply reply;
  if (std::sscanf(range.c_str(), "bytes=%zu-%zu", &first, &last) != 2) {
    reply.body = content;
    return reply;
  }
  if (first >= content.size()) {
    reply.status = 416;
    reply.body = "no such range";
    reply.headers = {fmt::format("Content-Range: bytes */{}", content.size())};
    return reply;
  }
  last = std::min(last, content.size() - 1);
  reply.status = 206;
  reply.body = content.substr(first, last - first + 1);
  reply.headers = {fmt::format("Content-Range: bytes {}-{}/{}", first, last, content.size())};
  return reply;
}

}  // namespace millrace::http
