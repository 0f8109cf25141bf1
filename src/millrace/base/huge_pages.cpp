// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace millrace {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;  // SAFETY: only their values are used
  const uintptr_t first = (begin + kHugePage - 1) & ~(kHugePage - 1), last = end & ~(kHugePage - 1);
  // That it is refused costs time only.
  if (first < last) static_cast<void>(madvise(static_cast<char*>(data) + (first - begin), last - first, MADV_HUGEPAGE));
}

PagesAhead::PagesAhead(void* data, size_t bytes) : data_(static_cast<char*>(data)), size_(bytes) {
  ready_ = -reinterpret_cast<uintptr_t>(data) % kPage;  // SAFETY: only its value is used
}

void PagesAhead::ask_until(size_t bytes) {
  constexpr size_t kStep = size_t{1} << 20;
  const size_t wanted =
      std::min((bytes - ready_ + kStep - 1) / kStep * kStep, (size_ - std::min(size_, ready_)) / kPage * kPage);
#ifdef MADV_POPULATE_WRITE  // Linux 5.14; that it is refused costs time only
  if (wanted > 0) static_cast<void>(madvise(data_ + ready_, wanted, MADV_POPULATE_WRITE));
#endif
  ready_ = wanted > 0 ? ready_ + wanted : SIZE_MAX;
}

}  // namespace millrace
