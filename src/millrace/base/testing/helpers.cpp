// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/testing/helpers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

namespace millrace {

TempDir::TempDir(Place place) {
  if (place == Place::kMemory) {
    path_ = "/dev/shm/millrace-test-XXXXXX";
    if (::mkdtemp(path_.data()) != nullptr) return;
  }
  path_ = (std::filesystem::temp_directory_path() / "millrace-test-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) path_ = "/nonexistent/no-temporary-directory";  // what uses it says so
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string test_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

bool succeeds_in_child(const std::function<bool()>& body) {
#ifdef __SANITIZE_ADDRESS__
  // Its allocator may be locked for ever in a child that is made while threads start: they have a moment for that.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body() ? 0 : 1);
  }
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace millrace
