// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/guarded_fills.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/link/detail/guard_wire.h"
#include "millrace/link/filler.h"
#include "millrace/link/guardian.h"

namespace millrace::link {

namespace {

constexpr int kGroupInChild = 3;

std::string log_path(const LinkHome& home) {
  return home.folder + "/guardian.log";
}

std::string last_line_of_log(const LinkHome& home) {
  std::ifstream in(log_path(home));
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it says nothing" : last;
}

// This program as `link guard NAME`, in a session of its own: Ctrl-C and the end of this process are not its own.
Result<pid_t> spawn_guardian(const LinkConfig& config, const LinkHome& home, int group) {
  std::string program = "millrace", link = "link", guard = "guard", name = config.name;
  std::string flag = "--group-fd", number = std::to_string(kGroupInChild);
  std::array<char*, 8> words{program.data(), link.data(), guard.data(), name.data(), nullptr};
  if (group >= 0) {
    words[4] = flag.data();
    words[5] = number.data();
  }
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, log_path(home).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  if (group >= 0) ::posix_spawn_file_actions_adddup2(&files, group, kGroupInChild);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, usual;
  ::sigemptyset(&none);
  ::sigemptyset(&usual);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::sigaddset(&usual, signal);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t process = 0;
  const int error = ::posix_spawn(&process, "/proc/self/exe", &files, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) return tl::unexpected<Error>(errno_error(error, "start the guardian"));
  return process;
}

}  // namespace

struct GuardedFills::Impl {
  const LinkConfig& config;
  const LinkHome home;
  const std::function<void(const std::string&)> on_note;
  std::unique_ptr<Filler> filler;
  std::stop_source ending;
  Descriptor group;  // a copy of fanotify's
  pid_t child = 0;   // the guardian that this process started
  Mutex mutex;
  std::shared_ptr<Descriptor> socket GUARDED_BY(mutex);
  Thread thread;

  void note(const std::string& text) const {
    if (on_note) on_note(text);
  }

  bool is_child_gone() {
    if (child == 0 || ::waitpid(child, nullptr, WNOHANG) == 0) return false;
    child = 0;
    return true;
  }

  // To the guardian that is there, or to a new one.
  Status connect() {
    constexpr std::chrono::seconds kLongest(30);
    constexpr std::chrono::milliseconds kPause(20);
    const Clock::time_point until = Clock::now() + kLongest;
    bool is_started = false;
    while (true) {
      auto found = connect_to(home.folder + "/guardian.sock");
      if (found && send_message(found->get(), {.kind = GuardMessage::kServe})) {
        // A guardian that is about to end closes the socket.
        if (auto answer = receive_message(found->get()); answer && answer->descriptor.get() >= 0) {
          group = std::move(answer->descriptor);
          const MutexLock lock(mutex);
          socket = std::make_shared<Descriptor>(*std::move(found));
          return {};
        }
      } else if (!found && found.error().code() != ErrorCode::kNotFound) {
        return tl::unexpected<Error>(found.error());
      } else if (!is_started || is_child_gone()) {
        if (is_started) return fail(ErrorCode::kUnavailable, "the guardian ended at once: {}", last_line_of_log(home));
        ASSIGN_OR_RETURN(child, spawn_guardian(config, home, group.get()));
        is_started = true;
      }
      if (Clock::now() > until) {
        return fail(ErrorCode::kUnavailable, "the guardian does not answer: {}", last_line_of_log(home));
      }
      if (!sleep_until(Clock::now() + kPause, ending.get_token())) return fail(ErrorCode::kCancelled, "stopped");
    }
  }

  std::shared_ptr<Descriptor> current() {
    const MutexLock lock(mutex);
    return socket;
  }

  // Until the guardian is gone.
  void serve() {
    const std::shared_ptr<Descriptor> to = current();
    while (true) {
      auto received = receive_message(to->get());
      if (!received) return;
      if (received->message.kind != GuardMessage::kFill) continue;
      filler->fill(std::move(received->descriptor), [to, id = received->message.id](int error) {
        // Where the guardian is gone its successor has denied the open.
        static_cast<void>(send_message(to->get(), {.kind = GuardMessage::kAnswer, .value = error, .id = id}));
      });
    }
  }

  void run() {
    while (!ending.stop_requested()) {
      serve();
      if (ending.stop_requested()) return;
      note("the guardian is gone; another one takes over");
      while (!ending.stop_requested()) {
        is_child_gone();
        const Status connected = connect();
        if (connected || ending.stop_requested()) break;
        note(connected.error().to_string() + "; it is tried again");
        constexpr std::chrono::seconds kPause(1);
        sleep_until(Clock::now() + kPause, ending.get_token());
      }
    }
  }
};

Result<std::unique_ptr<GuardedFills>> GuardedFills::start(const LinkConfig& config, const LinkHome& home,
                                                          std::function<void(const LinkEvent&)> on_event,
                                                          std::function<void(const std::string&)> on_note,
                                                          const std::stop_token& stop) {
  ASSIGN_OR_RETURN(auto filler, Filler::open(config, home, std::move(on_event), stop, {}));
  std::unique_ptr<Impl> impl(new Impl{.config = config,
                                      .home = home,
                                      .on_note = std::move(on_note),
                                      .filler = std::move(filler),
                                      .ending = {},
                                      .group = Descriptor(),
                                      .mutex = {},
                                      .socket = nullptr,
                                      .thread = {}});
  RETURN_IF_ERROR(impl->connect());
  impl->thread = Thread("mr-guard", [impl = impl.get()] { impl->run(); });
  return std::unique_ptr<GuardedFills>(new GuardedFills(std::move(impl)));
}

GuardedFills::GuardedFills(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GuardedFills::~GuardedFills() {
  impl_->ending.request_stop();
  const std::shared_ptr<Descriptor> socket = impl_->current();
  static_cast<void>(send_message(socket->get(), {.kind = GuardMessage::kLeave}));
  ::shutdown(socket->get(), SHUT_RDWR);
  impl_->thread.join();
  impl_->filler.reset();
  if (impl_->child != 0) {
    impl_->note("the guardian (process " + std::to_string(impl_->child) +
                ") stays: files without content cannot be opened until the link runs again; `millrace link guard " +
                impl_->config.name + " --end` ends it");
  }
}

}  // namespace millrace::link
