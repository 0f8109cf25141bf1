// SPDX-License-Identifier: Apache-2.0
#pragma once

// One connection, which carries one exchange after another. libcurl makes the connection: names, addresses, proxies,
// TLS. The HTTP/1.1 on it is Millrace's own. So bodies are sent from and read into the caller's memory, and a request
// costs little more than its system calls: half the time of libcurl's own HTTP for 64 KiB (docs/benchmarks.md).
// Belongs to the thread of its loop.

#include <array>
#include <optional>

#include "millrace/http/detail/curl_library.h"
#include "millrace/http/detail/response_parser.h"

namespace millrace::http {

// Settings shared by all connections of a loop.
struct ConnectionSettings {
  ClientOptions options;
  std::string ca_file;  // PEM; "" leaves libcurl's own
  bool proxy_from_environment = false;
  bool tls_to_proxy = false;  // the environment's proxy is reached through TLS
  CURLSH* share = nullptr;    // TLS sessions
  curl_opensocket_callback open_socket = nullptr;
  curl_closesocket_callback close_socket = nullptr;
  void* loop = nullptr;  // the callbacks' first argument

  // Finds the first existing CA bundle, and whether a proxy is set, from the options and the environment.
  static ConnectionSettings resolve(const ClientOptions& options);
};

class Connection {
 public:
  // Opens a connection to the request's server. Connecting starts once handle() is added to a multi handle of libcurl.
  // Errors: resource_exhausted.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> open(const Curl& curl, const ConnectionSettings& settings,
                                                                const Request& request);
  ~Connection();  // REQUIRES: handle() is in no multi handle
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  CURL* handle() const { return handle_; }
  // Returns the Connection of a handle that open() made.
  static Connection& of(const Curl& curl, CURL* handle);
  // Whether it is connected to the request's server.
  bool leads_to(const Request& request) const;

  // Call when libcurl has finished connecting. Errors: those of Client, for the exchange.
  [[nodiscard]] Status take_connected(CURLcode code, const Exchange& exchange);
  int socket() const { return socket_; }  // -1: not connected yet
  // For a connection without an exchange: false when the server has closed it, or sent unrequested bytes.
  bool is_usable();

  // Starts an exchange, which must not move until release().
  void carry(Exchange& exchange);
  Exchange* exchange() const { return exchange_; }
  void release();

  enum class State {
    kWaits,      // waits until the socket is readable, or writable when wants_to_send()
    kMayGoOn,    // can continue; other connections have a turn first
    kDone,       // the exchange has its answer
    kFailed,     // see error()
    kWasClosed,  // closed before the request: another connection may carry it
  };
  // Sends and receives as much as it can without waiting. `scratch` holds bytes that do not go to the caller's memory.
  State go_on(std::span<char> scratch);
  bool wants_to_send() const { return sent_ < request_bytes_ && !send_error_; }
  const Error& error() const { return *error_; }
  // After kDone: whether it can carry another exchange.
  bool is_kept() const;

  // After kWaits: if the body goes to the caller's memory, makes the socket readable only when a large piece of a long
  // body has arrived.
  void choose_wake_bytes();

  // Bytes sent and received for the exchange so far, including bytes that wait in the socket.
  int64_t moved_bytes() const;

 private:
  // The result of one call for the socket.
  struct Moved {
    size_t size = 0;           // 0 received bytes without would_block and failed: the end
    bool would_block = false;  // no more bytes can be moved now
    bool failed = false;
    int sys_errno = 0;
    CURLcode code = CURLE_OK;  // set with TLS
  };
  static Moved moved_by(ssize_t size, size_t wanted);
  static Moved moved_by(CURLcode code, size_t size);

  Connection(const Curl& curl, const ConnectionSettings& settings) : curl_(curl), settings_(settings) {}
  template <class T>
  void set(CURLoption option, T value);
  void set_all(const Request& request);
  Error connect_error(CURLcode code, const Exchange& exchange) const;
  Error tls_error(std::string_view text, const Exchange& exchange) const;
  Moved receive(std::span<char> into);
  void send(std::span<char> scratch);
  Moved send_some(std::span<char> scratch);
  Moved send_file(std::span<char> scratch);
  Moved send_bytes(std::span<const char> bytes);
  Error transfer_error(const Moved& moved) const;
  State lose(Error why);

  const Curl& curl_;
  const ConnectionSettings& settings_;
  CURL* handle_ = nullptr;
  std::string origin_;
  bool is_tls_ = false;  // bytes go through libcurl
  bool is_direct_ = false;
  int socket_ = -1;
  int wake_bytes_ = 1;  // bytes that make the socket readable (SO_RCVLOWAT)
  std::array<char, CURL_ERROR_SIZE> error_text_{};

  Exchange* exchange_ = nullptr;
  std::optional<ResponseParser> reader_;
  std::string head_;                 // head of the request; includes a small body if that is cheaper
  std::span<const std::byte> body_;  // the rest of the body
  const FileRange* file_ = nullptr;  // file that holds the body, instead of body_
  bool reads_file_ = false;          // reads file_, because TLS or the file system rules out sendfile
  size_t sent_ = 0;                  // bytes sent of request_bytes_
  size_t request_bytes_ = 0;
  bool was_used_ = false;            // used by an earlier exchange
  std::optional<Error> send_error_;  // an answer may still have arrived
  std::optional<Error> error_;
};

}  // namespace millrace::http
