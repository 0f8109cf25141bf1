// SPDX-License-Identifier: Apache-2.0
// Stripes of directories, through `lfs` of PATH. Without lfs, or when lfs says that a directory is not on Lustre, these
// functions do nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <sstream>
#include <vector>

#include "millrace/layout/detail/state.h"

extern char** environ;

namespace millrace::layout {

namespace {

struct Ran {
  int status = 127;
  std::string out;
};

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

// stderr joins stdout: lfs prints one line, result or error.
Ran run_lfs(std::vector<std::string> words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  std::vector<char*> argv;
  words.insert(words.begin(), "lfs");
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, "lfs", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Ran ran;
  ran.out = read_all(ends[0]);
  if (error != 0) return ran;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ran;
}

}  // namespace

std::string stripe_text(int64_t count, int64_t size_bytes) {
  std::string targets = count == -1 ? "all" : std::to_string(count);
  if (size_bytes == 0) return targets;
  const bool mib = size_bytes % (1 << 20) == 0;
  return fmt::format("{} x {} {}", targets, mib ? size_bytes >> 20 : size_bytes >> 10, mib ? "MiB" : "KiB");
}

std::optional<FoundStripe> read_stripe(const std::string& path) {
  // -d: the directory's own default; -c and -S alone print two numbers, a line each, with or without a name in front.
  const Ran ran = run_lfs({"getstripe", "-d", "-c", "-S", path});
  if (ran.status != 0) return std::nullopt;
  std::vector<int64_t> numbers;
  std::istringstream words(ran.out);
  for (std::string word; words >> word;) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) numbers.push_back(number);
  }
  if (numbers.size() < 2) return FoundStripe{.text = "another layout"};
  return FoundStripe{numbers[0], numbers[1], stripe_text(numbers[0], numbers[1])};
}

bool differs(const FoundStripe& found, const Stripe& wanted) {
  return found.count != wanted.count || (wanted.size_bytes != 0 && found.size_bytes != wanted.size_bytes);
}

Status write_stripe(const std::string& path, const Stripe& stripe) {
  std::vector<std::string> words = {"setstripe", "-c", std::to_string(stripe.count)};
  if (stripe.size_bytes != 0) words.insert(words.end(), {"-S", std::to_string(stripe.size_bytes)});
  words.push_back(path);
  const Ran ran = run_lfs(words);
  if (ran.status == 0) return {};
  const std::string line = ran.out.substr(0, ran.out.find('\n'));
  return fail(ErrorCode::kInternal, "lfs setstripe of {}: status {}{}{}", path, ran.status, line.empty() ? "" : ": ",
              line);
}

}  // namespace millrace::layout
