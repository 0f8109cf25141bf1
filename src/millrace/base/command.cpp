// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/thread/stop_descriptor.h"
#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

// One word from the front of `text`, which starts with no blank.
Result<std::string> take_word(std::string_view& text) {
  std::string word;
  while (!text.empty()) {
    const char c = text.front();
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') break;
    text.remove_prefix(1);
    if (c == '\'') {
      const size_t end = text.find('\'');
      if (end == std::string_view::npos) return fail(ErrorCode::kInvalidArgument, "a quotation that does not end");
      word += text.substr(0, end);
      text.remove_prefix(end + 1);
    } else if (c == '"') {
      while (true) {
        if (text.empty()) return fail(ErrorCode::kInvalidArgument, "a quotation that does not end");
        char inside = text.front();
        text.remove_prefix(1);
        if (inside == '"') break;
        // Inside double quotes a backslash stands for itself before anything else.
        if (inside == '\\' && !text.empty() && (text.front() == '"' || text.front() == '\\')) {
          inside = text.front();
          text.remove_prefix(1);
        }
        word += inside;
      }
    } else if (c == '\\') {
      if (text.empty()) return fail(ErrorCode::kInvalidArgument, "a backslash at the end");
      word += text.front();
      text.remove_prefix(1);
    } else {
      word += c;
    }
  }
  return word;
}

class Pipe {
 public:
  Pipe() { failed_ = pipe2(ends_.data(), O_CLOEXEC) != 0; }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  bool failed() const { return failed_; }
  int end(size_t which) const { return ends_[which]; }
  void close_end(size_t which) {
    if (ends_[which] >= 0) close(ends_[which]);
    ends_[which] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  bool failed_ = false;
};

// As exec takes them. REQUIRES: `strings` outlives the result and does not change.
std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  return pointers;
}

// The environment of this process with `variables`, as exec takes it.
std::vector<char*> environment_with(const std::vector<std::string>& variables) {
  std::vector<char*> all = pointers_to(variables);
  const auto is_replaced = [&](std::string_view line) {
    const std::string_view name = line.substr(0, line.find('=') + 1);
    return std::ranges::any_of(variables, [&](const std::string& each) { return each.starts_with(name); });
  };
  for (char** each = environ; *each != nullptr; ++each) {
    if (variables.empty() || !is_replaced(*each)) all.push_back(*each);
  }
  all.push_back(nullptr);
  return all;
}

// A group of its own, so that all of it can be killed; signals as a program expects them, whatever this thread blocks.
Result<pid_t> start_command(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                            const Pipe& out, const Pipe& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.end(1), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.end(1), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (const int sign : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&usual, sign);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> arguments = pointers_to(words), environment = environment_with(variables);
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return tl::unexpected(errno_error(failed, fmt::format("run {}", words[0])));
  return pid;
}

// Appends what is there. False at the end of the pipe.
bool read_some(int descriptor, std::string& to) {
  std::array<char, 4096> buffer;
  const ssize_t count = read(descriptor, buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  to.append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

// What is left until `deadline`, as poll() takes it; 0 when it is over.
int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

// Until the program has closed both.
Status read_both(Pipe& out, Pipe& err, CommandOutput& output, Clock::time_point deadline, const StopDescriptor& stop,
                 size_t max_output_bytes) {
  while (out.end(0) >= 0 || err.end(0) >= 0) {
    if (stop.is_stopped()) return fail(ErrorCode::kCancelled, "cancelled");
    const int left_ms = milliseconds_until(deadline);
    if (left_ms == 0) return fail(ErrorCode::kTimeout, "no answer in time");
    std::array<pollfd, 3> waiting{pollfd{out.end(0), POLLIN, 0}, pollfd{err.end(0), POLLIN, 0},
                                  pollfd{stop.get(), POLLIN, 0}};
    if (poll(waiting.data(), waiting.size(), left_ms) < 0) continue;
    if (waiting[0].revents != 0 && !read_some(out.end(0), output.out)) out.close_end(0);
    if (waiting[1].revents != 0 && !read_some(err.end(0), output.err)) err.close_end(0);
    if (output.out.size() > max_output_bytes || output.err.size() > max_output_bytes) {
      return fail(ErrorCode::kResourceExhausted, "it printed more than {} bytes", max_output_bytes);
    }
  }
  return {};
}

// Readable when the program has ended. Without descriptors for processes (before Linux 5.3, in some sandboxes) it has
// none.
Descriptor open_process(pid_t pid) {
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// A program may close its output and go on.
Status await_end(pid_t pid, CommandOutput& output, Clock::time_point deadline, const StopDescriptor& stop) {
  constexpr int kAskAgain_ms = 2;  // where there is no descriptor of the program
  // Before waitpid: as long as that finds the program, its number is not another's.
  const Descriptor program = open_process(pid);
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    // With SIGCHLD ignored the exit status is lost; callers then judge by the output.
    if (ended < 0 && errno == ECHILD) {
      output.ok = true;
      return {};
    }
    if (ended == pid) {
      output.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      output.status = WIFEXITED(status) ? fmt::format("exit status {}", WEXITSTATUS(status))
                                        : fmt::format("signal {}", WTERMSIG(status));
      return {};
    }
    if (stop.is_stopped()) return fail(ErrorCode::kCancelled, "cancelled");
    const int left_ms = milliseconds_until(deadline);
    if (left_ms == 0) return fail(ErrorCode::kTimeout, "it does not end");
    std::array<pollfd, 2> waiting{pollfd{program.get(), POLLIN, 0}, pollfd{stop.get(), POLLIN, 0}};
    poll(waiting.data(), waiting.size(), program.get() >= 0 ? left_ms : std::min(left_ms, kAskAgain_ms));
  }
}

}  // namespace

Result<std::vector<std::string>> split_command(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return words;
    ASSIGN_OR_RETURN(std::string word, take_word(text));
    words.push_back(std::move(word));
  }
}

Result<CommandOutput> run_command(const std::vector<std::string>& words, std::chrono::milliseconds time_limit,
                                  const std::stop_token& stop, size_t max_output_bytes,
                                  const std::vector<std::string>& variables) {
  ASSIGN_OR_RETURN(const auto stopped, StopDescriptor::open(stop));
  Pipe out, err;
  if (out.failed() || err.failed()) return tl::unexpected(errno_error(errno, "make a pipe"));
  ASSIGN_OR_RETURN(const pid_t pid, start_command(words, variables, out, err));
  out.close_end(1);
  err.close_end(1);

  CommandOutput output;
  const Clock::time_point deadline = Clock::now() + time_limit;
  Status status = read_both(out, err, output, deadline, *stopped, max_output_bytes);
  if (status) status = await_end(pid, output, deadline, *stopped);
  if (!status) {
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return tl::unexpected(std::move(status).error());
  }
  return output;
}

}  // namespace millrace
