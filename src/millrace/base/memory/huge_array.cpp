// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/memory/huge_array.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "millrace/base/memory/huge_pages.h"

namespace millrace {
namespace {

char* map_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

// Clearing a huge page costs as much as the page faults of small pages for a third of it.
constexpr bool gets_huge_pages(size_t bytes) {
  return bytes >= kHugePage / 3;
}
constexpr size_t whole_huge_pages(size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

std::unique_ptr<void, Unmap> map_memory(size_t bytes, Pages pages) {
  if (pages == Pages::kSmall || !gets_huge_pages(bytes)) return {map_pages(bytes), Unmap{bytes}};
  // From where a huge page begins; what lies around goes back.
  const size_t size = whole_huge_pages(bytes);
  char* const memory = map_pages(size + kHugePage);
  const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;  // SAFETY: only its value is used
  if (before > 0) munmap(memory, before);
  munmap(memory + before + size, kHugePage - before);
  prefer_huge_pages(memory + before, size);
  return {memory + before, Unmap{size}};
}

void Unmap::operator()(void* memory) const {
  munmap(memory, bytes);
}

void* allocate_pages(size_t bytes) {
  return gets_huge_pages(bytes) ? map_memory(bytes, Pages::kHuge).release() : ::operator new(bytes);
}

void free_pages(void* memory, size_t bytes) {
  if (!gets_huge_pages(bytes)) return ::operator delete(memory);
  Unmap{whole_huge_pages(bytes)}(memory);
}

}  // namespace millrace
