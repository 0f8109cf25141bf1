// SPDX-License-Identifier: Apache-2.0
#pragma once

// One thread that serves many exchanges: an epoll loop over connections. libcurl's multi interface drives a connection
// while it is being made. Requests wait in the loop for their start time (not_before) and for a connection, first
// come, first served. Connections are kept for later requests to the same server. start() and load() are thread-safe;
// the rest belongs to the loop's thread.

#include <atomic>
#include <set>
#include <utility>

#include "millrace/http/detail/connection.h"

namespace millrace::http {

class Loop {
 public:
  explicit Loop(ConnectionSettings settings);
  // Cancels every exchange and waits for its `done`.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void start(Request request, Client::Done done);
  // Returns the number of exchanges that have not ended.
  int64_t load() const { return load_.load(std::memory_order_relaxed); }

 private:
  // The events registered with epoll for a socket, and the connection that waits for them.
  struct Watch {
    uint32_t registered = 0;
    Connection* connection = nullptr;  // null: libcurl waits for the socket while it connects
  };

  void run();
  [[nodiscard]] Status open();
  void close();
  bool take_arrivals();
  void take_in(std::unique_ptr<Exchange> exchange);
  void end_stopped();
  void fire_timers();
  void look_at(Exchange& exchange, Clock::time_point now);
  void set_timer(Exchange& exchange, std::optional<Clock::time_point> when);
  void begin_queued();
  void begin(Exchange& exchange);
  Connection* take_idle(const Request& request);
  [[nodiscard]] Result<Connection*> connect(Exchange& exchange);
  void run_curl_timer();
  void take_connected();
  void go_on_with(Connection& connection);
  void go_on_later();
  void drop(Connection& connection);
  void wait_for_events();
  int wait_ms();
  void wake() REQUIRES_LOCK(mutex_);
  void end(Exchange& exchange, Result<Response> result);
  void end_all(const Error* why);

  void handle_event(int fd, uint32_t events);
  void watch(int fd, uint32_t events, Connection* connection);
  static int on_socket(CURL* easy, curl_socket_t fd, int what, void* self, void* socket);
  static int on_timer(CURLM* multi, long timeout_ms, void* self);
  static curl_socket_t on_open_socket(void* self, curlsocktype purpose, curl_sockaddr* address);
  static int on_close_socket(void* self, curl_socket_t fd);

  ConnectionSettings settings_;
  std::atomic<int64_t> load_{0};

  Mutex mutex_;
  Exchanges arrived_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool asleep_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false;        // the thread accepts arrivals
  bool stops_pending_ GUARDED_BY(mutex_) = false;  // a stop token was set
  int wake_fd_ GUARDED_BY(mutex_) = -1;
  Thread thread_;

  // Used by the thread only.
  const Curl* curl_ = nullptr;
  CURLM* multi_ = nullptr;
  int epoll_fd_ = -1;
  int event_fd_ = -1;           // wake_fd_
  std::vector<Watch> watches_;  // by descriptor
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;   // connected, without an exchange; most recently used last
  std::vector<Connection*> later_;  // can continue after the others had a turn
  std::vector<char> scratch_;
  Exchanges delayed_, queued_, active_;
  std::set<std::pair<Clock::time_point, Exchange*>> timers_;
  std::optional<Clock::time_point> curl_timer_;
};

}  // namespace millrace::http
