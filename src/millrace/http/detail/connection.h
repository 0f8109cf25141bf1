// SPDX-License-Identifier: Apache-2.0
#pragma once

// One connection, which carries one exchange after the other. libcurl makes it: names, addresses, proxies and TLS are
// its business. What goes through it is ours, so that bodies are sent from and read into the caller's memory and a
// request costs no more than its system calls: half of what libcurl's own HTTP takes for 64 KiB. Belongs to its loop's
// thread.

#include <array>
#include <optional>

#include "millrace/http/detail/curl_library.h"
#include "millrace/http/detail/response_parser.h"

namespace millrace::http {

// What all connections of a loop have in common.
struct ConnectionSettings {
  ClientOptions options;
  std::string ca_file;  // PEM; "" leaves libcurl's own
  bool proxy_from_environment = false;
  bool tls_to_proxy = false;  // one of the proxies that the environment names is spoken to with TLS
  CURLSH* share = nullptr;    // TLS sessions
  curl_opensocket_callback open_socket = nullptr;
  curl_closesocket_callback close_socket = nullptr;
  void* loop = nullptr;  // the callbacks' first argument

  // From the options and the environment: the first CA bundle that is there, whether a proxy is set.
  static ConnectionSettings resolve(const ClientOptions& options);
};

class Connection {
 public:
  // To where the request goes; begins once handle() is in a multi handle of libcurl's. Errors: resource_exhausted.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> open(const Curl& curl, const ConnectionSettings& settings,
                                                                const Request& request);
  ~Connection();  // REQUIRES: no multi handle has it any more
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  CURL* handle() const { return handle_; }
  // The Connection of a handle that open() made.
  static Connection& of(const Curl& curl, CURL* handle);
  // Whether it leads to where the request goes.
  bool leads_to(const Request& request) const;

  // libcurl is done with connecting. Errors: as of Client, for the exchange.
  [[nodiscard]] Status take_connected(CURLcode code, const Exchange& exchange);
  int socket() const { return socket_; }  // -1: not connected yet
  // While no exchange is carried: false when the server has closed it, or says something unasked.
  bool is_usable();

  // The exchange stays where it is until release().
  void carry(Exchange& exchange);
  Exchange* exchange() const { return exchange_; }
  void release();

  enum class State {
    kWaits,      // for the socket: to be readable, and writable where wants_to_send()
    kMayGoOn,    // others come first
    kDone,       // the exchange has its answer
    kFailed,     // see error()
    kWasClosed,  // before the request: another connection may carry it
  };
  // Sends and receives what goes without waiting. `scratch` is for what does not go to the caller's memory.
  State go_on(std::span<char> scratch);
  bool wants_to_send() const { return sent_ < request_bytes_ && !send_error_; }
  const Error& error() const { return *error_; }
  // After kDone: whether it can carry another exchange.
  bool is_kept() const;

  // After kWaits: a long body that goes to the caller's memory is told of only when much of it has come.
  void choose_wake_bytes();

  // Bytes sent and received for the exchange so far, with those that wait in the socket.
  int64_t moved_bytes() const;

 private:
  // What came of one call for the socket.
  struct Moved {
    size_t size = 0;           // received 0, and neither of the two: the end
    bool would_block = false;  // there is no more for now
    bool failed = false;
    int sys_errno = 0;
    CURLcode code = CURLE_OK;  // with TLS
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
  bool is_tls_ = false;  // what the socket carries goes through libcurl
  bool is_direct_ = false;
  int socket_ = -1;
  int wake_bytes_ = 1;  // so many make the socket readable (SO_RCVLOWAT)
  std::array<char, CURL_ERROR_SIZE> error_text_{};

  Exchange* exchange_ = nullptr;
  std::optional<ResponseParser> reader_;
  std::string head_;                 // of the request; with a small body, where that costs less
  std::span<const std::byte> body_;  // and the rest, or
  const FileRange* file_ = nullptr;  // the file that holds it
  bool reads_file_ = false;          // since TLS, or its file system, lets the kernel not send from it
  size_t sent_ = 0;                  // of request_bytes_, head and body
  size_t request_bytes_ = 0;
  bool was_used_ = false;            // for an exchange before
  std::optional<Error> send_error_;  // an answer may have come all the same
  std::optional<Error> error_;
};

}  // namespace millrace::http
