// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "millrace/base/thread/sync.h"

namespace millrace::cli {

struct SignalStop::Impl {
  sigset_t watched{};
  sigset_t before{};
  int signals = -1;  // signalfd
  int end = -1;      // eventfd that ends the watcher
  std::atomic<int> first{0};
  std::stop_source stop;
  Thread watcher;

  void watch() {
    std::array<pollfd, 2> waiting{{{signals, POLLIN, 0}, {end, POLLIN, 0}}};
    for (;;) {
      if (poll(waiting.data(), waiting.size(), -1) < 0) continue;  // EINTR
      if (waiting[1].revents != 0) return;
      signalfd_siginfo info{};
      if (read(signals, &info, sizeof info) != sizeof info) continue;
      const int number = static_cast<int>(info.ssi_signo);
      if (first.exchange(number) != 0) _exit(128 + number);
      stop.request_stop();
    }
  }
};

SignalStop::SignalStop() : impl_(std::make_unique<Impl>()) {
  sigemptyset(&impl_->watched);
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&impl_->watched, number);
  }
  impl_->signals = signalfd(-1, &impl_->watched, SFD_CLOEXEC);
  impl_->end = eventfd(0, EFD_CLOEXEC);
  // Without descriptors the signals keep their default effect: an abrupt end, which every write of ours survives.
  if (impl_->signals < 0 || impl_->end < 0) return;
  pthread_sigmask(SIG_BLOCK, &impl_->watched, &impl_->before);
  impl_->watcher = Thread("signals", [this] { impl_->watch(); });
}

SignalStop::~SignalStop() {
  if (impl_->watcher.joinable()) {
    const uint64_t one = 1;
    // Cannot fail: the counter is far from its limit.
    [[maybe_unused]] const auto written = write(impl_->end, &one, sizeof one);
    impl_->watcher.join();
    pthread_sigmask(SIG_SETMASK, &impl_->before, nullptr);
  }
  if (impl_->signals >= 0) close(impl_->signals);
  if (impl_->end >= 0) close(impl_->end);
}

std::stop_token SignalStop::token() const {
  return impl_->stop.get_token();
}

std::optional<int> SignalStop::received() const {
  const int number = impl_->first;
  return number == 0 ? std::nullopt : std::optional<int>(number);
}

}  // namespace millrace::cli
