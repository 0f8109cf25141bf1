// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/thread_policy.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

namespace millrace::video {
namespace {

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/task", error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    threads.push_back(thread);
  }
  std::ranges::sort(threads);
  return threads;
}

bool is_real_time(int policy) {
  return policy == SCHED_FIFO || policy == SCHED_RR;
}

}  // namespace

ThreadPolicy::ThreadPolicy() : threads_(threads_of_process()) {
  pthread_getschedparam(pthread_self(), &policy_, &param_);
}

void ThreadPolicy::restore() const {
  if (is_real_time(policy_)) return;  // the user's choice
  pthread_setschedparam(pthread_self(), policy_, &param_);
  for (const pid_t thread : threads_of_process()) {
    const bool is_new = !std::ranges::binary_search(threads_, thread);
    if (is_new && is_real_time(sched_getscheduler(thread))) sched_setscheduler(thread, policy_, &param_);
  }
}

}  // namespace millrace::video
