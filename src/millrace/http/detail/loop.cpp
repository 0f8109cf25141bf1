// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace millrace::http {
namespace {

using std::chrono::milliseconds;

// A stall is noticed after stall_timeout and at most a fifth of it more.
constexpr int kLooksPerStall = 5;
constexpr size_t kScratchBytes = 64 << 10;  // stays in the processor's cache while it is parsed

milliseconds look_interval(const Request& request) {
  milliseconds shortest = request.stall_timeout;
  if (request.slow_after.count() > 0) shortest = std::min(shortest, request.slow_after);
  return std::max(shortest / kLooksPerStall, milliseconds(1));
}

}  // namespace

Loop::Loop(ConnectionSettings settings) : settings_(std::move(settings)) {
  settings_.loop = this;
  settings_.open_socket = &Loop::on_open_socket;
  settings_.close_socket = &Loop::on_close_socket;
}

Loop::~Loop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake();
  }
  thread_ = Thread();
  MutexLock lock(mutex_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Loop::start(Request request, Client::Done done) {
  Exchanges one;
  one.push_back(std::make_unique<Exchange>(std::move(request), std::move(done)));
  load_.fetch_add(1, std::memory_order_relaxed);
  one.front()->watch_stop([this] {
    MutexLock lock(mutex_);
    stops_pending_ = true;
    wake();
  });
  MutexLock lock(mutex_);
  arrived_.splice(arrived_.end(), one);
  if (running_) {
    wake();
    return;
  }
  if (wake_fd_ < 0) wake_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  running_ = true;
  thread_ = Thread("mr-http", [this] { run(); });  // a thread that gave up before no longer takes the lock
}

void Loop::wake() {
  if (!asleep_) return;
  asleep_ = false;
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_fd_, &one, sizeof one));  // fails only when the eventfd is readable already
}

void Loop::run() {
  if (const Status ready = open(); !ready) {
    close();
    for (;;) {
      {
        MutexLock lock(mutex_);
        running_ = !arrived_.empty();
        if (!running_) return;  // the next request starts a new thread
      }
      static_cast<void>(take_arrivals());
      end_all(&ready.error());
    }
  }
  while (take_arrivals()) {
    fire_timers();
    begin_queued();
    run_curl_timer();
    take_connected();
    wait_for_events();
    take_connected();
    go_on_later();
  }
  end_all(nullptr);
  // Requests that a `done` started in the meantime.
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (arrived_.empty()) break;
    }
    static_cast<void>(take_arrivals());
    end_all(nullptr);
  }
  close();
}

Status Loop::open() {
  {
    MutexLock lock(mutex_);
    event_fd_ = wake_fd_;
  }
  ASSIGN_OR_RETURN(curl_, Curl::open());
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_fd_;
  if (epoll_fd_ < 0 || event_fd_ < 0 || ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, event_fd_, &event) != 0) {
    return tl::unexpected(errno_error(errno, "wait for HTTP connections"));
  }
  scratch_.resize(kScratchBytes);
  multi_ = curl_->multi_init();
  settings_.share = curl_->share_init();
  if (multi_ == nullptr || settings_.share == nullptr) {
    return fail(ErrorCode::kResourceExhausted, "no memory for HTTP connections");
  }
  // Without locks: only this thread uses it.
  curl_->share_setopt(settings_.share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
  curl_->multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &Loop::on_socket);
  curl_->multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl_->multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &Loop::on_timer);
  curl_->multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
  curl_->multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(settings_.options.max_connections));
  return {};
}

void Loop::close() {
  while (!connections_.empty()) drop(*connections_.back());
  if (multi_ != nullptr) curl_->multi_cleanup(multi_);
  if (settings_.share != nullptr) curl_->share_cleanup(settings_.share);
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
  multi_ = nullptr;
  settings_.share = nullptr;
  epoll_fd_ = -1;
}

// False when the loop is to end.
bool Loop::take_arrivals() {
  Exchanges arrived;
  bool stopping = false;
  bool stops_pending = false;
  {
    MutexLock lock(mutex_);
    arrived.swap(arrived_);
    stopping = stopping_;
    stops_pending = std::exchange(stops_pending_, false);
  }
  while (!arrived.empty()) {
    std::unique_ptr<Exchange> exchange = std::move(arrived.front());
    arrived.pop_front();
    take_in(std::move(exchange));
  }
  if (stops_pending) end_stopped();
  return !stopping;
}

void Loop::take_in(std::unique_ptr<Exchange> owned) {
  Exchange& exchange = *owned;
  const Request& request = exchange.request();
  exchange.state = request.not_before > Clock::now() ? ExchangeState::kDelayed : ExchangeState::kQueued;
  Exchanges& list = exchange.state == ExchangeState::kDelayed ? delayed_ : queued_;
  exchange.position = list.insert(list.end(), std::move(owned));
  if (request.stop.stop_requested())
    return end(exchange, tl::unexpected(exchange.error(ErrorCode::kCancelled, "stopped")));
  if (const Status fine = check_request(request); !fine) return end(exchange, tl::unexpected(fine.error()));
  const Clock::time_point look =
      exchange.state == ExchangeState::kDelayed ? std::min(request.not_before, request.deadline) : request.deadline;
  if (look != Clock::time_point::max()) set_timer(exchange, look);
}

void Loop::end_stopped() {
  std::vector<Exchange*> stopped;
  for (const Exchanges* list : {&delayed_, &queued_, &active_}) {
    for (const auto& exchange : *list) {
      if (exchange->request().stop.stop_requested()) stopped.push_back(exchange.get());
    }
  }
  for (Exchange* exchange : stopped) {
    end(*exchange, tl::unexpected(exchange->error(ErrorCode::kCancelled, "stopped")));
  }
}

void Loop::fire_timers() {
  if (timers_.empty()) return;
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) look_at(*timers_.begin()->second, now);
}

void Loop::look_at(Exchange& exchange, Clock::time_point now) {
  const Request& request = exchange.request();
  if (now >= request.deadline) {
    const std::string_view when = exchange.state == ExchangeState::kActive ? "" : " before it began";
    return end(exchange,
               tl::unexpected(exchange.error(ErrorCode::kTimeout, fmt::format("the deadline passed{}", when))));
  }
  if (exchange.state == ExchangeState::kDelayed) {
    queued_.splice(queued_.end(), delayed_, exchange.position);
    exchange.state = ExchangeState::kQueued;
    return set_timer(exchange, request.deadline);
  }
  if (exchange.state == ExchangeState::kQueued) return set_timer(exchange, std::nullopt);
  const int64_t moved = exchange.connection->moved_bytes();
  if (moved != exchange.moved_bytes) {
    exchange.moved_bytes = moved;
    exchange.moved = now;
  } else if (now - exchange.moved >= request.stall_timeout) {
    return end(exchange, tl::unexpected(exchange.error(
                             ErrorCode::kTimeout, fmt::format("no byte moved for {} ms (after {} answered)",
                                                              request.stall_timeout.count(), exchange.progress()))));
  }
  const auto slow_for = std::chrono::duration<double>(now - exchange.begun - request.slow_after).count();
  if (request.slow_after.count() > 0 && static_cast<double>(moved) < slow_for * kLowestRate) {
    const auto seconds = std::chrono::duration<double>(now - exchange.begun).count();
    return end(exchange,
               tl::unexpected(exchange.error(ErrorCode::kTimeout,
                                             fmt::format("too slow: {} bytes moved in {:.0f} s, fewer than {} a second",
                                                         moved, seconds, kLowestRate))));
  }
  set_timer(exchange, std::min(now + look_interval(request), request.deadline));
}

void Loop::set_timer(Exchange& exchange, std::optional<Clock::time_point> when) {
  if (when == Clock::time_point::max()) when.reset();
  if (exchange.timer) {
    auto node = timers_.extract({*exchange.timer, &exchange});
    if (when) {
      node.value().first = *when;
      timers_.insert(std::move(node));
    }
  } else if (when) {
    timers_.emplace(*when, &exchange);
  }
  exchange.timer = when;
}

void Loop::begin_queued() {
  while (!queued_.empty() && static_cast<int>(active_.size()) < settings_.options.max_connections) {
    begin(*queued_.front());
  }
}

void Loop::begin(Exchange& exchange) {
  active_.splice(active_.end(), queued_, exchange.position);
  exchange.state = ExchangeState::kActive;
  exchange.begun = exchange.moved = Clock::now();
  const Request& request = exchange.request();
  Connection* connection = take_idle(request);
  if (connection == nullptr) {
    auto made = connect(exchange);
    if (!made) return end(exchange, tl::unexpected(std::move(made).error()));
    connection = *made;
  }
  connection->carry(exchange);
  exchange.moved_bytes = 0;
  if (request.stall_timeout.count() > 0) {
    set_timer(exchange, std::min(exchange.moved + look_interval(request), request.deadline));
  }
  if (connection->socket() >= 0) go_on_with(*connection);
}

// An idle connection to the request's server, or null.
Connection* Loop::take_idle(const Request& request) {
  for (size_t i = idle_.size(); i-- > 0;) {
    Connection* const connection = idle_[i];
    if (!connection->leads_to(request)) continue;
    idle_.erase(idle_.begin() + static_cast<ptrdiff_t>(i));
    if (connection->is_usable()) return connection;
    drop(*connection);
  }
  return nullptr;
}

Result<Connection*> Loop::connect(Exchange& exchange) {
  if (std::ssize(connections_) >= settings_.options.max_connections && !idle_.empty()) drop(*idle_.front());
  ASSIGN_OR_RETURN(auto made, Connection::open(*curl_, settings_, exchange.request()));
  const CURLMcode code = curl_->multi_add_handle(multi_, made->handle());
  if (code != CURLM_OK)
    return tl::unexpected(exchange.error(ErrorCode::kInternal, fmt::format("curl_multi_add_handle: {}", int{code})));
  return connections_.emplace_back(std::move(made)).get();
}

void Loop::drop(Connection& connection) {
  if (connection.exchange() != nullptr) connection.release();
  std::erase(idle_, &connection);
  std::erase(later_, &connection);
  if (const int fd = connection.socket(); fd >= 0) {  // libcurl before 7.85 closes it only at cleanup
    watch(fd, 0, nullptr);
    ::shutdown(fd, SHUT_RDWR);
  }
  curl_->multi_remove_handle(multi_, connection.handle());
  std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
}

void Loop::run_curl_timer() {
  // A handle that was just added waits for this call, by a timer of 0 ms.
  while (curl_timer_ && *curl_timer_ <= Clock::now()) {
    curl_timer_.reset();
    int running = 0;
    curl_->multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
  }
}

void Loop::take_connected() {
  int left = 0;
  while (CURLMsg* message = curl_->multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    Connection& connection = Connection::of(*curl_, message->easy_handle);
    Exchange& exchange = *connection.exchange();
    if (const Status connected = connection.take_connected(message->data.result, exchange); !connected) {
      drop(connection);
      end(exchange, tl::unexpected(connected.error()));
    } else {
      go_on_with(connection);
    }
  }
}

void Loop::go_on_with(Connection& connection) {
  Exchange& exchange = *connection.exchange();
  std::erase(later_, &connection);
  switch (connection.go_on(scratch_)) {
    case Connection::State::kWaits:
      connection.choose_wake_bytes();
      return watch(connection.socket(), EPOLLIN | (connection.wants_to_send() ? uint32_t{EPOLLOUT} : 0), &connection);
    case Connection::State::kMayGoOn:
      later_.push_back(&connection);
      return;
    case Connection::State::kDone:
      if (connection.is_kept()) {
        connection.release();
        watch(connection.socket(), EPOLLIN, &connection);
        idle_.push_back(&connection);
      } else {
        drop(connection);
      }
      return end(exchange, exchange.take_response());
    case Connection::State::kFailed: {
      Error why = connection.error();
      drop(connection);
      return end(exchange, tl::unexpected(std::move(why)));
    }
    case Connection::State::kWasClosed:
      drop(connection);
      queued_.splice(queued_.begin(), active_, exchange.position);
      exchange.state = ExchangeState::kQueued;
      return set_timer(exchange, exchange.request().deadline);
  }
}

void Loop::go_on_later() {
  for (Connection* const connection : std::exchange(later_, {})) go_on_with(*connection);
}

void Loop::end(Exchange& exchange, Result<Response> result) {
  if (exchange.connection != nullptr) drop(*exchange.connection);  // its bytes cannot be told apart any more
  set_timer(exchange, std::nullopt);
  if (!result || result->status / 100 != 2) exchange.count_sent(0);
  const Client::Done done = exchange.take_done();
  switch (exchange.state) {
    case ExchangeState::kDelayed:
      delayed_.erase(exchange.position);
      break;
    case ExchangeState::kQueued:
      queued_.erase(exchange.position);
      break;
    case ExchangeState::kActive:
      active_.erase(exchange.position);
      break;
  }
  load_.fetch_sub(1, std::memory_order_relaxed);
  done(std::move(result));
}

// With `why`, or as cancelled.
void Loop::end_all(const Error* why) {
  for (Exchanges* list : {&active_, &queued_, &delayed_}) {
    while (!list->empty()) {
      Exchange& exchange = *list->front();
      Error error = why != nullptr ? exchange.error(why->code(), why->message(), why->sys_errno())
                                   : exchange.error(ErrorCode::kCancelled, "the HTTP client was closed");
      end(exchange, tl::unexpected(std::move(error)));
    }
  }
}

int Loop::wait_ms() {
  std::optional<Clock::time_point> next = curl_timer_;
  if (!timers_.empty()) next = next ? std::min(*next, timers_.begin()->first) : timers_.begin()->first;
  if (!later_.empty()) return 0;
  if (!queued_.empty() && static_cast<int>(active_.size()) < settings_.options.max_connections) return 0;
  if (!next) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Loop::wait_for_events() {
  int timeout_ms = wait_ms();
  {
    MutexLock lock(mutex_);
    asleep_ = arrived_.empty() && !stops_pending_ && !stopping_;
    if (!asleep_) timeout_ms = 0;
  }
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
  {
    MutexLock lock(mutex_);
    asleep_ = false;
  }
  for (int i = 0; i < count; ++i) handle_event(events[i].data.fd, events[i].events);
}

void Loop::handle_event(int fd, uint32_t events) {
  if (fd == event_fd_) {
    uint64_t ignored = 0;
    static_cast<void>(!::read(event_fd_, &ignored, sizeof ignored));
    return;
  }
  if (Connection* const connection = watches_[static_cast<size_t>(fd)].connection) {
    if (connection->exchange() != nullptr) return go_on_with(*connection);
    if (!connection->is_usable()) drop(*connection);
    return;
  }
  // The read or write that libcurl waits for finds the error.
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) events |= watches_[static_cast<size_t>(fd)].registered;
  int what = 0;
  if ((events & EPOLLIN) != 0) what |= CURL_CSELECT_IN;
  if ((events & EPOLLOUT) != 0) what |= CURL_CSELECT_OUT;
  int running = 0;
  curl_->multi_socket_action(multi_, fd, what, &running);
}

void Loop::watch(int fd, uint32_t events, Connection* connection) {
  if (static_cast<size_t>(fd) >= watches_.size()) watches_.resize(static_cast<size_t>(fd) + 1);
  Watch& watched = watches_[static_cast<size_t>(fd)];
  watched.connection = connection;
  if (events == watched.registered) return;
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  const int operation = events == 0 ? EPOLL_CTL_DEL : watched.registered == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  ::epoll_ctl(epoll_fd_, operation, fd, &event);
  watched.registered = events;
}

int Loop::on_socket(CURL*, curl_socket_t fd, int what, void* self, void*) {
  uint32_t events = (what & CURL_POLL_IN) != 0 ? uint32_t{EPOLLIN} : 0;
  if ((what & CURL_POLL_OUT) != 0) events |= EPOLLOUT;
  if (what == CURL_POLL_REMOVE) events = 0;
  static_cast<Loop*>(self)->watch(fd, events, nullptr);
  return 0;
}

int Loop::on_timer(CURLM*, long timeout_ms, void* self) {
  auto& timer = static_cast<Loop*>(self)->curl_timer_;
  timer.reset();
  if (timeout_ms >= 0) timer = Clock::now() + milliseconds(timeout_ms);
  return 0;
}

curl_socket_t Loop::on_open_socket(void*, curlsocktype, curl_sockaddr* address) {
  const int fd = ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  return fd < 0 ? CURL_SOCKET_BAD : fd;
}

int Loop::on_close_socket(void* self, curl_socket_t fd) {
  // A forked child holds the socket too. Without these two calls epoll would still report it, and the server would not
  // see the connection end.
  static_cast<Loop*>(self)->watch(fd, 0, nullptr);
  ::shutdown(fd, SHUT_RDWR);
  return ::close(fd);
}

}  // namespace millrace::http
