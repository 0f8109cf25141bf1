// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/workplace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <random>
#include <utility>

#include "millrace/base/thread/sync.h"

extern char** environ;

namespace millrace::bench {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".millrace-bench-";

}  // namespace

Result<Workplace> Workplace::make(const std::vector<std::string>& parents) {
  Workplace made;
  std::random_device random;
  const std::string name = fmt::format("{}{}-{}-{:08x}", kPrefix, host_name(), getpid(), random());
  for (const std::string& parent : parents) {
    std::error_code error;
    if (!fs::is_directory(parent, error)) return fail(ErrorCode::kNotFound, "{} is no folder", parent);
    const std::string folder = fs::absolute(fs::path(parent) / name).lexically_normal().string();
    if (!fs::create_directory(folder, error)) return tl::unexpected(errno_error(error.value(), "mkdir " + folder));
    made.folders_.push_back(folder);
    // Held until this process and its child have ended; a file system without locks shows no left folder.
    const int lock = open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0) return tl::unexpected(errno_error(errno, "open " + folder + "/lock"));
    flock(lock, LOCK_EX | LOCK_NB);
    made.locks_.push_back(lock);
  }
  RETURN_IF_ERROR(made.watch_over());
  return made;
}

// A shell that waits for the end of its input, which comes with a word, or with the death of this process.
Status Workplace::watch_over() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return tl::unexpected(errno_error(errno, "pipe"));
  pipe_ = ends[1];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
  for (const int output : {1, 2}) posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // Ctrl-C is not for it
  std::vector<std::string> words{"/bin/sh", "-c",
                                 "trap '' INT TERM HUP; read -r word; [ \"$word\" = done ] || rm -rf -- \"$@\"", "sh"};
  words.insert(words.end(), folders_.begin(), folders_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int code = posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[0]);
  if (code != 0) return tl::unexpected(errno_error(code, "start /bin/sh"));
  return {};
}

Workplace::Workplace(Workplace&& other) noexcept
    : folders_(std::exchange(other.folders_, {})),
      locks_(std::exchange(other.locks_, {})),
      pipe_(std::exchange(other.pipe_, -1)) {}

Workplace::~Workplace() {
  static_cast<void>(remove());
}

Status Workplace::remove() {
  Status status;
  for (const std::string& folder : std::exchange(folders_, {})) {
    std::error_code error;
    fs::remove_all(folder, error);
    if (error && status) status = tl::unexpected(errno_error(error.value(), "remove " + folder));
  }
  for (const int lock : std::exchange(locks_, {})) close(lock);
  if (pipe_ >= 0) {
    constexpr std::string_view kDone = "done\n";
    // Where something could not be removed, the child tries too.
    if (status && write(pipe_, kDone.data(), kDone.size()) < 0) status = tl::unexpected(errno_error(errno, "write"));
    close(std::exchange(pipe_, -1));
  }
  return status;
}

Result<int> remove_left_folders(const std::string& parent) {
  int removed = 0;
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(kPrefix)) found.push_back(at->path().string());
  }
  if (error) return tl::unexpected(errno_error(error.value(), "list " + parent));
  for (const std::string& folder : found) {
    const int lock = open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC);
    if (lock < 0 && errno != ENOENT) continue;  // another user's
    const bool in_use = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (!in_use && fs::remove_all(folder, error) > 0 && !error) ++removed;
    if (lock >= 0) close(lock);
  }
  return removed;
}

}  // namespace millrace::bench
