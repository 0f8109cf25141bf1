// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/http/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace millrace::http {
namespace {

using std::chrono::milliseconds;

// A stall is noticed after stall_timeout and at most one part of it more.
constexpr int kLooksPerStall = 5;

milliseconds look_interval(const Request& request) {
  return std::max(request.stall_timeout / kLooksPerStall, milliseconds(1));
}

}  // namespace

Loop::Loop(EasySettings settings) : settings_(std::move(settings)) {
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
  thread_ = Thread("mr-http", [this] { run(); });  // one that gave up before has let the lock go for good
}

void Loop::wake() {
  if (!asleep_) return;
  asleep_ = false;
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_fd_, &one, sizeof one));  // fails only when it is readable already
}

void Loop::run() {
  const KeptBuffers buffers;
  if (const Status ready = open(); !ready) {
    close();
    for (;;) {
      {
        MutexLock lock(mutex_);
        running_ = !arrived_.empty();
        if (!running_) return;  // the next request tries again with a thread of its own
      }
      static_cast<void>(take_arrivals());
      end_all(&ready.error());
    }
  }
  while (take_arrivals()) {
    fire_timers();
    begin_queued();
    run_curl_timer();
    end_finished();
    wait_for_events();
    end_finished();
  }
  end_all(nullptr);
  // What a `done` started in the meantime.
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
  idle_.clear();
  easies_.clear();
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
  exchange.place = request.not_before > Clock::now() ? Exchange::Place::kDelayed : Exchange::Place::kQueued;
  Exchanges& list = exchange.place == Exchange::Place::kDelayed ? delayed_ : queued_;
  exchange.position = list.insert(list.end(), std::move(owned));
  if (request.stop.stop_requested())
    return end(exchange, tl::unexpected(exchange.error(ErrorCode::kCancelled, "stopped")));
  if (const Status fine = check_request(request); !fine) return end(exchange, tl::unexpected(fine.error()));
  const Clock::time_point look =
      exchange.place == Exchange::Place::kDelayed ? std::min(request.not_before, request.deadline) : request.deadline;
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
    const std::string_view when = exchange.place == Exchange::Place::kActive ? "" : " before it began";
    return end(exchange,
               tl::unexpected(exchange.error(ErrorCode::kTimeout, fmt::format("the deadline passed{}", when))));
  }
  if (exchange.place == Exchange::Place::kDelayed) {
    queued_.splice(queued_.end(), delayed_, exchange.position);
    exchange.place = Exchange::Place::kQueued;
    return set_timer(exchange, request.deadline);
  }
  if (exchange.place == Exchange::Place::kQueued) return set_timer(exchange, std::nullopt);
  const int64_t moved = static_cast<Easy*>(exchange.easy)->moved_bytes();
  if (moved != exchange.moved_bytes) {
    exchange.moved_bytes = moved;
    exchange.moved = now;
  } else if (now - exchange.moved >= request.stall_timeout) {
    return end(exchange, tl::unexpected(exchange.error(
                             ErrorCode::kTimeout, fmt::format("no byte moved for {} ms (after {} answered)",
                                                              request.stall_timeout.count(), exchange.progress()))));
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
  exchange.place = Exchange::Place::kActive;
  if (const Status ready = prepare(exchange); !ready) return end(exchange, tl::unexpected(ready.error()));
  exchange.moved = Clock::now();
  const Request& request = exchange.request();
  if (request.stall_timeout.count() > 0) {
    set_timer(exchange, std::min(exchange.moved + look_interval(request), request.deadline));
  }
}

Status Loop::prepare(Exchange& exchange) {
  if (idle_.empty()) {
    ASSIGN_OR_RETURN(auto easy, Easy::open(*curl_, settings_));
    idle_.push_back(easy.get());
    easies_.push_back(std::move(easy));
  }
  Easy& easy = *idle_.back();
  idle_.pop_back();
  easy.prepare(exchange);
  const CURLMcode code = curl_->multi_add_handle(multi_, easy.handle());
  if (code == CURLM_OK) return {};
  return tl::unexpected(exchange.error(ErrorCode::kInternal, fmt::format("curl_multi_add_handle: {}", int{code})));
}

void Loop::run_curl_timer() {
  // A handle that was just added waits for this call with a timer of 0 ms.
  while (curl_timer_ && *curl_timer_ <= Clock::now()) {
    curl_timer_.reset();
    int running = 0;
    curl_->multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
  }
}

void Loop::end_finished() {
  int left = 0;
  while (CURLMsg* message = curl_->multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    Easy& easy = Easy::of(*curl_, message->easy_handle);
    Exchange& exchange = *easy.exchange();
    const CURLcode code = message->data.result;
    if (code == CURLE_OK && !exchange.failure()) {
      end(exchange, exchange.take_response());
    } else {
      end(exchange, tl::unexpected(easy.error(code)));
    }
  }
}

void Loop::end(Exchange& exchange, Result<Response> result) {
  if (exchange.easy != nullptr) {
    auto* const easy = static_cast<Easy*>(exchange.easy);
    curl_->multi_remove_handle(multi_, easy->handle());  // of an unfinished transfer: closes the connection
    easy->release();
    idle_.push_back(easy);
  }
  set_timer(exchange, std::nullopt);
  const Client::Done done = exchange.take_done();
  switch (exchange.place) {
    case Exchange::Place::kDelayed:
      delayed_.erase(exchange.position);
      break;
    case Exchange::Place::kQueued:
      queued_.erase(exchange.position);
      break;
    case Exchange::Place::kActive:
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
  Watch& watched = watches_[static_cast<size_t>(fd)];
  if (watched.wanted == 0) {
    // A kept connection that the server closed: libcurl sees it when it wants to use it.
    if (watched.registered != 0) update_epoll(fd, watched, 0);
    return;
  }
  // An error is found by the read or write that is waited for; told as such it would hide an answer still unread.
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) events |= watched.wanted;
  int what = 0;
  if ((events & EPOLLIN) != 0) what |= CURL_CSELECT_IN;
  if ((events & EPOLLOUT) != 0) what |= CURL_CSELECT_OUT;
  int running = 0;
  curl_->multi_socket_action(multi_, fd, what, &running);
}

void Loop::watch(int fd, int what) {
  if (static_cast<size_t>(fd) >= watches_.size()) watches_.resize(static_cast<size_t>(fd) + 1);
  Watch& watched = watches_[static_cast<size_t>(fd)];
  watched.wanted = (what & CURL_POLL_IN) != 0 ? uint32_t{EPOLLIN} : 0;
  if ((what & CURL_POLL_OUT) != 0) watched.wanted |= EPOLLOUT;
  if (what == CURL_POLL_REMOVE) watched.wanted = 0;
  // Left with too much: only what would wake the loop again and again matters, and that is being writable.
  const bool enough = watched.ours && (watched.wanted | EPOLLIN) == (watched.registered | EPOLLIN) &&
                      (watched.registered & EPOLLIN) != 0;
  if (!enough) update_epoll(fd, watched, watched.wanted);
}

void Loop::update_epoll(int fd, Watch& watched, uint32_t events) {
  if (events == watched.registered) return;
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  const int operation = events == 0 ? EPOLL_CTL_DEL : watched.registered == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  ::epoll_ctl(epoll_fd_, operation, fd, &event);
  watched.registered = events;
}

int Loop::on_socket(CURL*, curl_socket_t fd, int what, void* self, void*) {
  static_cast<Loop*>(self)->watch(fd, what);
  return 0;
}

int Loop::on_timer(CURLM*, long timeout_ms, void* self) {
  auto& timer = static_cast<Loop*>(self)->curl_timer_;
  timer.reset();
  if (timeout_ms >= 0) timer = Clock::now() + milliseconds(timeout_ms);
  return 0;
}

curl_socket_t Loop::on_open_socket(void* self, curlsocktype, curl_sockaddr* address) {
  const int fd = ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  if (fd < 0) return CURL_SOCKET_BAD;
  auto& watches = static_cast<Loop*>(self)->watches_;
  if (static_cast<size_t>(fd) >= watches.size()) watches.resize(static_cast<size_t>(fd) + 1);
  watches[static_cast<size_t>(fd)] = Watch{.ours = true};
  return fd;
}

int Loop::on_close_socket(void* self, curl_socket_t fd) {
  auto& loop = *static_cast<Loop*>(self);
  // A child of fork holds the socket too: without these two epoll would go on telling of it, and the server would not
  // see the end of the connection.
  Watch& watched = loop.watches_[static_cast<size_t>(fd)];
  loop.update_epoll(fd, watched, 0);
  watched = Watch{};
  ::shutdown(fd, SHUT_RDWR);
  return ::close(fd);
}

}  // namespace millrace::http
