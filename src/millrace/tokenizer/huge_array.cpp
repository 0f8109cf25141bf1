// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/huge_array.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "millrace/base/huge_pages.h"

namespace millrace::tokenizer {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

char* map_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

}  // namespace

void* map_memory(size_t bytes, Pages pages) {
  if (pages == Pages::kSmall || bytes < kHugePage) return map_pages(bytes);
  // From where a huge page begins, so that the array has one more of them; what lies around goes back.
  constexpr size_t kPage = 4096;
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  char* const memory = map_pages(size + kHugePage);
  const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;  // SAFETY: only its value is used
  if (before > 0) munmap(memory, before);
  munmap(memory + before + size, kHugePage - before);
  prefer_huge_pages(memory + before, size);
  return memory + before;
}

void Unmap::operator()(void* memory) const {
  munmap(memory, bytes);
}

void* allocate_pages(size_t bytes) {
  return bytes < kHugePage ? ::operator new(bytes) : map_memory(bytes, Pages::kHuge);
}

void free_pages(void* memory, size_t bytes) {
  if (bytes < kHugePage) return ::operator delete(memory);
  Unmap{bytes}(memory);
}

}  // namespace millrace::tokenizer
