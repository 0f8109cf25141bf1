// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/connection.h"

#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "millrace/base/text/environment.h"

namespace millrace::http {
namespace {

// Sizes of the first read of an answer, which begins with a head: all of a small answer, and little of a large body,
// whose bytes would have to be copied. A head of S3 is usually below 1 KiB.
constexpr size_t kSmallBodyBytes = 16 << 10;
constexpr size_t kHeadRoomBytes = 1 << 10;
constexpr size_t kFirstReadBytes = 4 << 10;
constexpr size_t kTlsPieceBytes = 64 << 10;  // four TLS records; encrypted within the processor's cache
constexpr int kReadsInARow = 16;             // then the other connections have a turn
// For long bodies: a download of 1 GiB took a fifth less CPU than with a wake-up for each segment. Not with TLS, where
// fresh bytes are decrypted from the processor's cache.
constexpr int kWakeBytes = 256 << 10;

std::string find_ca_bundle() {
  if (std::string chosen = environment_variable("SSL_CERT_FILE"); !chosen.empty()) return chosen;
  for (const char* path : {
           "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
           "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // the same, newer
           "/etc/ssl/ca-bundle.pem",                             // SUSE
           "/etc/ssl/cert.pem",                                  // Alpine
           "/etc/pki/tls/cacert.pem",
       }) {
    if (::access(path, R_OK) == 0) return path;
  }
  return "";
}

// A system call that a signal may interrupt.
template <class Call>
ssize_t uninterrupted(Call&& call) {
  for (;;) {
    const ssize_t size = call();
    if (size >= 0 || errno != EINTR) return size;
  }
}

constexpr std::string_view kTrustHint =
    "a server with a certificate from a private authority needs a PEM file with that authority's certificate, "
    "named by AWS_CA_BUNDLE or SSL_CERT_FILE";

}  // namespace

ConnectionSettings ConnectionSettings::resolve(const ClientOptions& options) {
  ConnectionSettings settings;
  settings.options = options;
  settings.ca_file = options.ca_file.empty() ? find_ca_bundle() : options.ca_file;
  // Otherwise libcurl would read the environment for every request.
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    const std::string proxy = environment_variable(name);
    settings.proxy_from_environment |= !proxy.empty();
    settings.tls_to_proxy |= proxy.starts_with("https://") || proxy.starts_with("HTTPS://");
  }
  if (settings.options.user_agent.empty()) settings.options.user_agent = "millrace/" MILLRACE_VERSION;
  return settings;
}

Result<std::unique_ptr<Connection>> Connection::open(const Curl& curl, const ConnectionSettings& settings,
                                                     const Request& request) {
  std::unique_ptr<Connection> connection(new Connection(curl, settings));
  connection->handle_ = curl.easy_init();
  if (connection->handle_ == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory for an HTTP connection");
  connection->set_all(request);
  return connection;
}

Connection::~Connection() {
  if (handle_ != nullptr) curl_.easy_cleanup(handle_);
}

template <class T>
void Connection::set(CURLoption option, T value) {
  static_assert(std::is_pointer_v<T> || std::is_same_v<T, long>, "libcurl reads a pointer or a long");
  // An older libcurl ignores options that it does not know.
  static_cast<void>(curl_.easy_setopt(handle_, option, value));
}

void Connection::set_all(const Request& request) {
  origin_ = origin_of(request.url);
  is_direct_ = request.direct;
  is_tls_ = (origin_[4] | 0x20) == 's' || (settings_.tls_to_proxy && !is_direct_);
  set(CURLOPT_URL, (origin_ + "/").c_str());
  set(CURLOPT_CONNECT_ONLY, 1L);
  set(CURLOPT_PRIVATE, this);
  set(CURLOPT_ERRORBUFFER, error_text_.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings_.options.connect_timeout.count()));
  // Each connection resolves the name again and starts with a random address, so a service with many front ends is used
  // through many. A numeric host needs no name server.
  set(CURLOPT_DNS_CACHE_TIMEOUT, 0L);
  set(CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
  // A cancelled request must not wait for the name server.
  set(CURLOPT_QUICK_EXIT, 1L);
  set(CURLOPT_USERAGENT, settings_.options.user_agent.c_str());  // for a proxy
  // Through a proxy everything uses CONNECT, so requests are the same everywhere.
  set(CURLOPT_HTTPPROXYTUNNEL, 1L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (is_direct_ || !settings_.proxy_from_environment) set(CURLOPT_PROXY, "");
  set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
  if (!settings_.ca_file.empty()) {
    set(CURLOPT_CAINFO, settings_.ca_file.c_str());
    set(CURLOPT_PROXY_CAINFO, settings_.ca_file.c_str());
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));  // no other authority is trusted
  }
  set(CURLOPT_SHARE, settings_.share);
  set(CURLOPT_OPENSOCKETFUNCTION, settings_.open_socket);
  set(CURLOPT_OPENSOCKETDATA, settings_.loop);
  set(CURLOPT_CLOSESOCKETFUNCTION, settings_.close_socket);
  set(CURLOPT_CLOSESOCKETDATA, settings_.loop);
}

Connection& Connection::of(const Curl& curl, CURL* handle) {
  char* self = nullptr;
  curl.easy_getinfo(handle, CURLINFO_PRIVATE, &self);
  // SAFETY: set_all() stored a Connection.
  return *reinterpret_cast<Connection*>(self);
}

bool Connection::leads_to(const Request& request) const {
  return request.direct == is_direct_ && origin_of(request.url) == origin_;
}

Status Connection::take_connected(CURLcode code, const Exchange& exchange) {
  if (code != CURLE_OK) return tl::unexpected(connect_error(code, exchange));
  curl_socket_t socket = CURL_SOCKET_BAD;
  curl_.easy_getinfo(handle_, CURLINFO_ACTIVESOCKET, &socket);
  socket_ = socket;
  // The first receive marks the connection as used, so libcurl does not close it in favour of another.
  std::array<char, 1> nothing;
  size_t size = 0;
  const bool is_open =
      socket != CURL_SOCKET_BAD && curl_.easy_recv(handle_, nothing.data(), nothing.size(), &size) == CURLE_AGAIN;
  if (is_open) return {};
  return tl::unexpected(exchange.error(ErrorCode::kUnavailable, "the connection was closed at once"));
}

Error Connection::connect_error(CURLcode code, const Exchange& exchange) const {
  long sys_errno = 0;
  curl_.easy_getinfo(handle_, CURLINFO_OS_ERRNO, &sys_errno);
  const std::string_view text = error_text_[0] != '\0' ? error_text_.data() : curl_.easy_strerror(code);
  const auto error = [&](ErrorCode error_code, std::string_view message) {
    return exchange.error(error_code, message, static_cast<int>(sys_errno));
  };
  long proxy_status = 0;
  curl_.easy_getinfo(handle_, CURLINFO_HTTP_CONNECTCODE, &proxy_status);
  if (proxy_status == 407) {
    return error(ErrorCode::kPermissionDenied,
                 "the proxy wants a user's name and password (407): they stand in the proxy's URL in the environment, "
                 "as in https_proxy=http://USER:PASSWORD@HOST:PORT");
  }
  if (proxy_status >= 400 && proxy_status < 500) {
    return error(ErrorCode::kPermissionDenied, fmt::format("the proxy refuses the connection ({})", proxy_status));
  }
  switch (code) {
    case CURLE_SSL_CONNECT_ERROR:
      return tls_error(text, exchange);
    case CURLE_PEER_FAILED_VERIFICATION:
      return error(ErrorCode::kPermissionDenied,
                   fmt::format("the server's certificate is not trusted ({}); {}", text, kTrustHint));
    case CURLE_SSL_CACERT_BADFILE:
      return error(ErrorCode::kPermissionDenied, fmt::format("no certificates could be read from \"{}\" ({}); {}",
                                                             settings_.ca_file, text, kTrustHint));
    case CURLE_URL_MALFORMAT:
      return error(ErrorCode::kInvalidArgument, text);
    case CURLE_OUT_OF_MEMORY:
      return error(ErrorCode::kResourceExhausted, text);
    case CURLE_OPERATION_TIMEDOUT:  // the only timeout that libcurl knows
      return error(ErrorCode::kUnavailable,
                   fmt::format("no connection within {} ms", settings_.options.connect_timeout.count()));
    default:
      return error(ErrorCode::kUnavailable, text);
  }
}

// A handshake that was cut may succeed next time. A handshake without a common protocol never will.
Error Connection::tls_error(std::string_view text, const Exchange& exchange) const {
  const auto says = [&](auto... words) { return ((text.find(words) != text.npos) || ...); };
  if (says("wrong version number", "unknown protocol", "packet length", "http request", "unexpected TLS packet")) {
    return exchange.error(ErrorCode::kUnsupported,
                          fmt::format("the server speaks no TLS at this port: its URL begins with http:// ({})", text));
  }
  if (says("no application protocol", "no_application_protocol", "No supported application protocol")) {
    return exchange.error(ErrorCode::kUnsupported, fmt::format("the server speaks HTTP/2 only ({})", text));
  }
  return exchange.error(ErrorCode::kUnavailable, text);
}

// TLS may have bytes for itself; receive() lets it read them.
bool Connection::is_usable() {
  std::array<char, 1> nothing;
  return receive(nothing).would_block;
}

void Connection::carry(Exchange& exchange) {
  exchange_ = &exchange;
  exchange.connection = this;
  reader_.emplace(exchange);
  exchange.count_sent(0);
  send_error_.reset();
  const Request& request = exchange.request();
  head_ = head_of(request, settings_.options.user_agent);
  const int64_t bytes = body_bytes(request);
  request_bytes_ = head_.size() + static_cast<size_t>(bytes);
  file_ = bytes > 0 ? request.file : nullptr;
  reads_file_ = is_tls_;
  body_ = bytes > 0 && file_ == nullptr ? request.body : std::span<const std::byte>();
  if (is_tls_ && body_.size() <= kSmallBodyBytes) {  // one TLS record for both
    // SAFETY: bytes may be read as characters.
    head_.append(reinterpret_cast<const char*>(body_.data()), body_.size());
    body_ = {};
  }
  sent_ = 0;
}

void Connection::release() {
  was_used_ = true;
  exchange_->connection = nullptr;
  exchange_ = nullptr;
}

bool Connection::is_kept() const {
  return reader_->keeps_connection() && sent_ == request_bytes_;
}

int64_t Connection::moved_bytes() const {
  int waiting = 0;  // below SO_RCVLOWAT
  if (socket_ < 0 || ::ioctl(socket_, FIONREAD, &waiting) != 0) waiting = 0;
  return exchange_->taken_bytes() + waiting + static_cast<int64_t>(sent_);
}

void Connection::choose_wake_bytes() {
  const bool is_long = !is_tls_ && reader_->room().size() >= 2 * size_t{kWakeBytes};
  const int wanted = is_long ? kWakeBytes : 1;
  if (wanted == wake_bytes_) return;
  if (::setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) wake_bytes_ = wanted;
}

Connection::State Connection::go_on(std::span<char> scratch) {
  const bool begins = sent_ == 0;
  send(scratch);
  if (begins && !send_error_) return State::kWaits;  // no server answers this soon
  const size_t wanted = exchange_->request().out.size();
  const size_t first_read = wanted > kSmallBodyBytes ? kFirstReadBytes : kSmallBodyBytes + kHeadRoomBytes;
  for (int i = 0; i < kReadsInARow; ++i) {
    const auto room = reader_->room();
    // SAFETY: bytes may be written as characters.
    const std::span<char> into = room.empty()
                                     ? scratch.first(wanted > 0 ? std::min(scratch.size(), first_read) : scratch.size())
                                     : std::span(reinterpret_cast<char*>(room.data()), room.size());
    const Moved moved = receive(into);
    if (moved.would_block) return send_error_ ? lose(*send_error_) : State::kWaits;
    if (moved.failed) return lose(transfer_error(moved));
    if (moved.size == 0) return reader_->take_end() ? State::kDone : lose(*exchange_->failure());
    if (!room.empty()) {
      reader_->took_into_room(moved.size);
    } else if (!reader_->take({into.data(), moved.size})) {
      error_ = exchange_->failure();
      return State::kFailed;
    }
    if (reader_->done()) return State::kDone;
    if (!is_tls_ && moved.size < into.size() && !send_error_) return State::kWaits;  // the socket is empty
  }
  return State::kMayGoOn;
}

// The server may have closed a kept connection just as the request was sent. It may have acted on a body that was sent
// whole.
Connection::State Connection::lose(Error why) {
  const bool may_have_acted = sent_ == request_bytes_ && body_bytes(exchange_->request()) > 0;
  if (was_used_ && why.code() == ErrorCode::kUnavailable && !reader_->began() && !may_have_acted)
    return State::kWasClosed;
  error_ = std::move(why);
  return State::kFailed;
}

Error Connection::transfer_error(const Moved& moved) const {
  long sys_errno = moved.sys_errno;
  if (is_tls_) curl_.easy_getinfo(handle_, CURLINFO_OS_ERRNO, &sys_errno);
  const std::string text = !is_tls_                 ? std::generic_category().message(moved.sys_errno)
                           : error_text_[0] != '\0' ? error_text_.data()
                                                    : curl_.easy_strerror(moved.code);
  return exchange_->error(ErrorCode::kUnavailable, fmt::format("{} (after {})", text, exchange_->progress()),
                          static_cast<int>(sys_errno));
}

// The result of one call for the socket; fewer than `wanted` bytes mean that it would block.
Connection::Moved Connection::moved_by(ssize_t size, size_t wanted) {
  Moved moved;
  moved.would_block = size < 0 ? errno == EAGAIN || errno == EWOULDBLOCK : static_cast<size_t>(size) < wanted;
  moved.failed = size < 0 && !moved.would_block;
  if (moved.failed) moved.sys_errno = errno;
  if (size > 0) moved.size = static_cast<size_t>(size);
  return moved;
}

Connection::Moved Connection::moved_by(CURLcode code, size_t size) {
  return {.size = size,
          .would_block = code == CURLE_AGAIN,
          .failed = code != CURLE_OK && code != CURLE_AGAIN,
          .code = code};
}

Connection::Moved Connection::receive(std::span<char> into) {
  if (is_tls_) {
    size_t size = 0;
    const CURLcode code = curl_.easy_recv(handle_, into.data(), into.size(), &size);
    return moved_by(code, size);
  }
  return moved_by(uninterrupted([&] { return ::recv(socket_, into.data(), into.size(), 0); }), 0);
}

Connection::Moved Connection::send_some(std::span<char> scratch) {
  const std::string_view head = std::string_view(head_).substr(std::min(sent_, head_.size()));
  if (file_ != nullptr && head.empty()) return send_file(scratch);
  const auto body = body_.subspan(std::min(body_.size(), std::max(sent_, head_.size()) - head_.size()));
  if (is_tls_) {
    if (!head.empty()) return send_bytes(head);
    // SAFETY: bytes may be read as characters.
    return send_bytes({reinterpret_cast<const char*>(body.data()), std::min(body.size(), kTlsPieceBytes)});
  }
  // SAFETY: sendmsg only reads what it is given.
  std::array<iovec, 2> pieces{iovec{const_cast<char*>(head.data()), head.size()},
                              iovec{const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const int flags = MSG_NOSIGNAL | (file_ != nullptr ? MSG_MORE : 0);
  return moved_by(uninterrupted([&] { return ::sendmsg(socket_, &message, flags); }), head.size() + body.size());
}

// Sends from the page cache to the socket; through `scratch` where TLS or the file system rules sendfile out.
Connection::Moved Connection::send_file(std::span<char> scratch) {
  const size_t done = sent_ - head_.size();
  const size_t left = static_cast<size_t>(file_->size()) - done;
  off_t at = file_->offset() + static_cast<off_t>(done);
  if (!reads_file_) {  // SIGPIPE: a Thread takes no signals
    const ssize_t size = uninterrupted([&] { return ::sendfile(socket_, file_->descriptor(), &at, left); });
    if (size > 0 || (size < 0 && errno != EINVAL && errno != ENOSYS)) return moved_by(size, left);
    reads_file_ = true;  // unless the file has ended, which the read will show
  }
  const ssize_t got =
      uninterrupted([&] { return ::pread(file_->descriptor(), scratch.data(), std::min(left, scratch.size()), at); });
  if (got > 0) return send_bytes(scratch.first(static_cast<size_t>(got)));
  const Error why = got < 0 ? errno_error(errno, "read the file that is sent")
                            : Error(ErrorCode::kCorruption, "the file became shorter while it was sent");
  send_error_ = exchange_->error(why.code(), why.message(), why.sys_errno());
  return {.failed = true};
}

// With TLS, a repeated call must pass the same bytes.
Connection::Moved Connection::send_bytes(std::span<const char> bytes) {
  if (is_tls_) {
    size_t size = 0;
    const CURLcode code = curl_.easy_send(handle_, bytes.data(), bytes.size(), &size);
    return moved_by(code, size);
  }
  return moved_by(uninterrupted([&] { return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }),
                  bytes.size());
}

void Connection::send(std::span<char> scratch) {
  while (wants_to_send()) {
    const Moved moved = send_some(scratch);
    sent_ += moved.size;
    if (file_ != nullptr && sent_ > head_.size()) exchange_->count_sent(static_cast<int64_t>(sent_ - head_.size()));
    if (moved.failed && !send_error_) send_error_ = transfer_error(moved);
    if (moved.would_block) return;
  }
}

}  // namespace millrace::http
