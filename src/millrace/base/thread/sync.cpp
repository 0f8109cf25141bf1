// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/sync.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace millrace {

Thread::Thread(const std::string& name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits the mask
  thread_ = std::thread([body = std::move(body), name] {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Thread::~Thread() {
  if (thread_.joinable()) thread_.join();
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (thread_.joinable()) thread_.join();
  thread_ = std::move(other.thread_);
  return *this;
}

bool sleep_until(Clock::time_point end, const std::stop_token& stop) {
  Mutex mutex;
  CondVar woken;
  const std::stop_callback wake(stop, [&] {
    const MutexLock lock(mutex);
    woken.notify_all();
  });
  const MutexLock lock(mutex);
  while (!stop.stop_requested() && woken.wait_until(mutex, end)) {
  }
  return !stop.stop_requested();
}

namespace {
std::atomic<uint64_t> generation{0};
}

uint64_t fork_generation() {
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    return true;
  }();
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

namespace {

// cgroup v2: "max 100000" or "200000 100000". nullopt when there is no limit or no such file.
std::optional<double> cgroup_cpu_limit() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  return std::strtod(quota.c_str(), nullptr) / period;
}

}  // namespace

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : static_cast<int>(std::thread::hardware_concurrency());
  if (const auto limit = cgroup_cpu_limit()) cpus = std::min(cpus, static_cast<int>(std::ceil(*limit)));
  return std::max(cpus, 1);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

int local_ranks() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    if (const int value = std::atoi(text); value > 0) return value;
  }
  return 1;
}

}  // namespace millrace
