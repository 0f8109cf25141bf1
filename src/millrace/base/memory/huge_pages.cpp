// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace millrace {
namespace {

constexpr size_t kPage = 4096;

// SAFETY (both): only the value of the address is used.
size_t to_next(const void* data, size_t page) {
  return -reinterpret_cast<uintptr_t>(data) % page;
}
size_t since_last(const void* data, size_t page) {
  return reinterpret_cast<uintptr_t>(data) % page;
}

std::chrono::nanoseconds thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// That the system refuses advice costs time only.
void advise(char* data, size_t bytes, int advice) {
  static_cast<void>(madvise(data, bytes, advice));
}

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
  auto* const begin = static_cast<char*>(data);
  char* const first = begin + to_next(begin, kHugePage);
  char* const last = begin + bytes - since_last(begin + bytes, kHugePage);
  if (first < last) advise(first, static_cast<size_t>(last - first), MADV_HUGEPAGE);
}

PagesAhead::PagesAhead(void* data, size_t bytes) : data_(static_cast<char*>(data)) {
  // Less may be part of a heap.
  constexpr size_t kLarge = size_t{32} << 20;
  ready_ = std::min(to_next(data_, kPage), bytes);
  size_ = bytes - std::min(since_last(data_ + bytes, kPage), bytes - ready_);
  huge_ = bytes >= kLarge;
  if (huge_) prefer_huge_pages(data, bytes);
}

void PagesAhead::ask_until(size_t bytes) {
#ifdef MADV_POPULATE_WRITE                          // Linux 5.14
  constexpr std::chrono::milliseconds kTooLong{1};  // small pages for as much memory take less
  while (ready_ < std::min(bytes, size_)) {
    const size_t step = std::min(kHugePage - since_last(data_ + ready_, kHugePage), size_ - ready_);
    const auto start = thread_time();
    advise(data_ + ready_, step, MADV_POPULATE_WRITE);
    ready_ += step;
    if (huge_ && step == kHugePage && thread_time() - start > kTooLong) {
      huge_ = false;
      advise(data_ + ready_, size_ - ready_, MADV_NOHUGEPAGE);
    }
  }
#endif
  if (bytes > size_) ready_ = SIZE_MAX;
}

}  // namespace millrace
