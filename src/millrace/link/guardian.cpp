// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/link/detail/guard_wire.h"
#include "millrace/link/guarded_stub.h"
#include "millrace/link/state.h"

namespace millrace::link {

namespace {

namespace fs = std::filesystem;

// Not in the headers of Linux before 6.13: the error that a denied open gives.
constexpr uint32_t deny_with(int error) {
  return FAN_DENY | (static_cast<uint32_t>(error) << 24);
}

Error system_error(const std::string& what) {
  return errno_error(errno, what);
}

Result<Descriptor> open_group() {
  Descriptor group(::fanotify_init(FAN_CLASS_PRE_CONTENT | FAN_CLOEXEC | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS,
                                   O_RDONLY | O_LARGEFILE | O_CLOEXEC));
  if (group.get() >= 0) return group;
  return fail(ErrorCode::kUnsupported, "the kernel asks no program before it opens a file ({})",
              system_error("fanotify_init").message());
}

// The whole file system: a mount of it elsewhere, or in a container, leads to the same files.
Status mark(const Descriptor& group, const std::string& directory) {
  if (::fanotify_mark(group.get(), FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN_PERM, AT_FDCWD, directory.c_str()) == 0)
    return {};
  return fail(ErrorCode::kUnsupported, "the kernel does not watch opens on the file system of {} ({})", directory,
              system_error("fanotify_mark").message());
}

// A folder above the directory that nobody but root may enter.
bool is_hidden_from_users(const std::string& directory) {
  for (fs::path folder = fs::path(directory).parent_path();; folder = folder.parent_path()) {
    struct stat info{};
    constexpr mode_t kOthers = 077;
    if (::lstat(folder.c_str(), &info) == 0 && info.st_uid == 0 && (info.st_mode & kOthers) == 0) return true;
    if (folder == folder.parent_path()) return false;
  }
}

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat one{}, other{};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

std::string socket_path(const LinkHome& home) {
  return home.folder + "/guardian.sock";
}

class Guardian {
 public:
  Guardian(const LinkConfig& config, const GuardianOptions& options) : config_(config), options_(options) {}

  // Opens everything first: behind the mark an open by this process would wait for this process.
  [[nodiscard]] Status begin(const LinkHome& home) {
    const std::string lock_path = home.folder + "/guardian.lock";
    lock_ = Descriptor(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock_.get() < 0) return tl::unexpected<Error>(system_error("open " + lock_path));
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return fail(ErrorCode::kUnavailable, "another guardian guards {}", config_.name);
    }
    ASSIGN_OR_RETURN(listener_, listen_at(socket_path(home)));
    // An umount of the file system would take the mark along.
    directory_ = Descriptor(::open(config_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory_.get() < 0) return tl::unexpected<Error>(system_error("open " + config_.directory));
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    // The kernel's killer of processes without memory takes others first.
    std::ofstream("/proc/self/oom_score_adj") << "-1000";
    raise_limit();
    if (options_.group >= 0) {
      group_ = Descriptor(options_.group);
      ::fcntl(group_.get(), F_SETFD, FD_CLOEXEC);
      // Events that the dead guardian had read come no second time, and answers go by the number of its descriptors.
      for (rlim_t number = 0; number < most_files_; ++number) answer(static_cast<int>(number), EIO);
    } else {
      ASSIGN_OR_RETURN(group_, open_group());
    }
    ::fcntl(group_.get(), F_SETFL, ::fcntl(group_.get(), F_GETFL) | O_NONBLOCK);
    RETURN_IF_ERROR(mark(group_, config_.directory));
    if (is_same_file(config_.directory, config_.show_at)) return {};  // a guardian that was killed left it mounted
    if (::mount(config_.directory.c_str(), config_.show_at.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      return tl::unexpected<Error>(system_error(fmt::format("mount {} at {}", config_.directory, config_.show_at)));
    }
    return {};
  }

  [[nodiscard]] Status run(const std::stop_token& stop) {
    const std::stop_callback wakes(stop, [this] {
      const uint64_t one = 1;
      static_cast<void>(!::write(wake_.get(), &one, sizeof one));
    });
    while (!stop.stop_requested() && !is_asked_to_end_) step();
    deny_all();
    if (stop.stop_requested() && ::umount2(config_.show_at.c_str(), MNT_DETACH) != 0 && errno != EINVAL) {
      return tl::unexpected<Error>(system_error("unmount " + config_.show_at));
    }
    return {};
  }

 private:
  struct Waiting {
    Descriptor file;
    int process = 0;
    bool is_sent = false;
  };
  struct Peer {
    Descriptor socket;
    int process = 0;
  };

  void note(const std::string& text) {
    if (options_.on_note) options_.on_note(text);
  }

  // Each program that waits costs a descriptor.
  void raise_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
    most_files_ = std::min<rlim_t>(limit.rlim_cur, 1 << 20);
  }

  void step() {
    constexpr size_t kOthers = 64;
    std::vector<pollfd> ready;
    ready.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
    ready.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    const bool has_room = waiting_.size() + kOthers < most_files_;
    ready.push_back({.fd = has_room ? group_.get() : -1, .events = POLLIN, .revents = 0});
    const bool has_unsent = server_ >= 0 && std::any_of(waiting_.begin(), waiting_.end(),
                                                        [](const auto& each) { return !each.second.is_sent; });
    std::vector<int> sockets;
    for (const auto& [socket, peer] : peers_) {
      sockets.push_back(socket);
      const bool is_full = socket == server_ && has_unsent;
      ready.push_back({.fd = socket, .events = static_cast<short>(is_full ? POLLIN | POLLOUT : POLLIN), .revents = 0});
    }
    if (::poll(ready.data(), ready.size(), wait_ms()) < 0) return;
    constexpr size_t kFirstPeer = 3;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const short events = ready[kFirstPeer + i].revents;
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) hear(sockets[i]);
      if ((events & POLLOUT) != 0) send_waiting();
    }
    if ((ready[1].revents & POLLIN) != 0) take_peer();
    if ((ready[2].revents & POLLIN) != 0) read_events();
    if (patient_until_ && Clock::now() >= *patient_until_) {
      note("no process fills files without content: opens of them fail until `millrace link run " + config_.name +
           "` does");
      is_left_ = true;
      patient_until_.reset();
      deny_all();
    }
  }

  int wait_ms() const {
    if (!patient_until_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*patient_until_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }

  void take_peer() {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ucred who{};
    socklen_t size = sizeof who;
    if (socket.get() < 0 || ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != 0)
      return;
    const int number = socket.get();
    peers_.emplace(number, Peer{std::move(socket), who.pid});
  }

  void hear(int socket) {
    auto received = receive_message(socket);
    if (!received) return lose(socket);
    const GuardMessage& message = received->message;
    switch (message.kind) {
      case GuardMessage::kServe:
        server_ = socket;
        is_left_ = false;
        patient_until_.reset();
        let_server_through();
        for (auto& [id, each] : waiting_) each.is_sent = false;
        if (!send_message(socket, {.kind = GuardMessage::kGroup}, group_.get())) return lose(socket);
        return send_waiting();
      case GuardMessage::kAnswer:
        if (const auto each = waiting_.find(message.id); each != waiting_.end()) {
          answer(each->second.file.get(), message.value);
          waiting_.erase(each);
        }
        return;
      case GuardMessage::kLeave:
        if (socket != server_) return;
        server_ = -1;
        is_left_ = true;
        return deny_all();
      case GuardMessage::kAsk:
        static_cast<void>(send_message(
            socket, {.kind = GuardMessage::kState, .value = static_cast<int32_t>(::getpid()), .id = waiting_.size()},
            -1, false));
        return;
      case GuardMessage::kEnd: {
        int error = EINPROGRESS;
        if (server_ < 0) {
          const bool unmounted = ::umount2(config_.show_at.c_str(), 0) == 0 || errno == EINVAL;
          error = unmounted ? 0 : errno;
        }
        is_asked_to_end_ = error == 0;
        static_cast<void>(send_message(socket, {.kind = GuardMessage::kEnded, .value = error}, -1, false));
        return;
      }
      default:
        return lose(socket);
    }
  }

  void lose(int socket) {
    peers_.erase(socket);
    if (socket != server_) return;
    server_ = -1;
    for (auto& [id, each] : waiting_) each.is_sent = false;
    patient_until_ = Clock::now() + options_.patience;
    note("the process that filled files without content is gone; opens of them wait for the next one");
  }

  void read_events() {
    alignas(fanotify_event_metadata) std::array<char, 4096> bytes;
    const ssize_t got = ::read(group_.get(), bytes.data(), bytes.size());
    if (got <= 0) return;
    auto left = static_cast<size_t>(got);
    // SAFETY: the kernel writes such records, aligned, one behind the other.
    const auto* event = reinterpret_cast<const fanotify_event_metadata*>(bytes.data());
    for (; FAN_EVENT_OK(event, left); event = FAN_EVENT_NEXT(event, left)) {
      Descriptor file(event->fd);
      if (file.get() >= 0 && (event->mask & FAN_OPEN_PERM) != 0) take_open(std::move(file), event->pid);
    }
    send_waiting();
  }

  bool is_of_server(int process) const { return server_ >= 0 && peers_.at(server_).process == process; }

  // Lets go on what the process that fills has open(2)ed while no guardian knew it, because the one before had died. A
  // fill that waits for itself would keep its file, and everybody who opens that, waiting for ever.
  void let_server_through() {
    for (auto each = waiting_.begin(); each != waiting_.end();) {
      if (!is_of_server(each->second.process)) {
        ++each;
        continue;
      }
      answer(each->second.file.get(), 0);
      each = waiting_.erase(each);
    }
  }

  void take_open(Descriptor file, int process) {
    // Who fills a file opens it, too.
    if (is_of_server(process) || process == ::getpid() || !read_guarded_stub(file.get())) return answer(file.get(), 0);
    if (is_left_) return answer(file.get(), EIO);
    if (server_ < 0 && !patient_until_) patient_until_ = Clock::now() + options_.patience;
    waiting_.emplace(++last_id_, Waiting{.file = std::move(file), .process = process});
  }

  void send_waiting() {
    if (server_ < 0) return;
    for (auto& [id, each] : waiting_) {
      if (each.is_sent) continue;
      const Status sent =
          send_message(server_, {.kind = GuardMessage::kFill, .id = id}, each.file.get(), /*may_wait=*/false);
      if (!sent && sent.error().code() == ErrorCode::kUnavailable) return lose(server_);
      if (!sent) return;
      each.is_sent = true;
    }
  }

  void deny_all() {
    for (const auto& [id, each] : waiting_) answer(each.file.get(), EIO);
    waiting_.clear();
  }

  // Lets the open go on (0), or fail.
  void answer(int file, int error) {
    fanotify_response response{.fd = file,
                               .response = error == 0 ? static_cast<uint32_t>(FAN_ALLOW) : deny_with(error)};
    if (::write(group_.get(), &response, sizeof response) == sizeof response || error == 0 || errno != EINVAL) return;
    response.response = FAN_DENY;  // EPERM: an older kernel knows no other error
    static_cast<void>(!::write(group_.get(), &response, sizeof response));
  }

  const LinkConfig& config_;
  const GuardianOptions& options_;
  Descriptor lock_, listener_, directory_, wake_, group_;
  rlim_t most_files_ = 1024;
  std::map<int, Peer> peers_;  // by their socket
  int server_ = -1;            // the socket of who fills
  bool is_left_ = false;       // nobody fills, and nobody is waited for
  std::optional<Clock::time_point> patient_until_;
  std::map<uint64_t, Waiting> waiting_;  // in the order of their opens
  uint64_t last_id_ = 0;
  bool is_asked_to_end_ = false;
};

}  // namespace

Status check_guard(const LinkConfig& config) {
  if (::geteuid() != 0) {
    return fail(ErrorCode::kPermissionDenied, "only root may let the opens of other programs wait (--show-at)");
  }
  if (!is_hidden_from_users(config.directory)) {
    return fail(ErrorCode::kPermissionDenied,
                "users could enter {} while nothing guards it, and read zeros: let it lie below a directory of root's "
                "that nobody else may enter (mode 0700)",
                config.directory);
  }
  if (is_below(config.show_at, config.directory) || is_below(config.directory, config.show_at)) {
    return fail(ErrorCode::kInvalidArgument, "{} and {} lie in each other", config.directory, config.show_at);
  }
  ASSIGN_OR_RETURN(const std::string_view network, network_file_system(config.directory));
  if (!network.empty()) {
    return fail(ErrorCode::kUnsupported, "{} lies on {}, where other nodes would read zeros", config.directory,
                network);
  }
  struct stat directory{}, system{};
  if (::stat(config.directory.c_str(), &directory) != 0 || ::stat("/", &system) != 0) {
    return tl::unexpected<Error>(system_error("look at " + config.directory));
  }
  if (directory.st_dev == system.st_dev) {
    return fail(ErrorCode::kUnsupported,
                "{} lies on the file system of the system, whose every open would ask the guardian: use a file system "
                "of its own",
                config.directory);
  }
  ASSIGN_OR_RETURN(const Descriptor group, open_group());
  return mark(group, config.directory);
}

Status run_guardian(const LinkConfig& config, const LinkHome& home, const GuardianOptions& options,
                    const std::stop_token& stop) {
  RETURN_IF_ERROR(check_guard(config));
  Guardian guardian(config, options);
  RETURN_IF_ERROR(guardian.begin(home));
  return guardian.run(stop);
}

std::optional<GuardianState> find_guardian(const LinkHome& home) {
  const auto socket = connect_to(socket_path(home));
  if (!socket || !send_message(socket->get(), {.kind = GuardMessage::kAsk})) return std::nullopt;
  const auto answer = receive_message(socket->get());
  if (!answer) return std::nullopt;
  return GuardianState{answer->message.value, static_cast<int64_t>(answer->message.id)};
}

Status end_guardian(const LinkConfig& config, const LinkHome& home) {
  ASSIGN_OR_RETURN(const Descriptor socket, connect_to(socket_path(home)));
  RETURN_IF_ERROR(send_message(socket.get(), {.kind = GuardMessage::kEnd}));
  ASSIGN_OR_RETURN(const ReceivedMessage answer, receive_message(socket.get()));
  if (answer.message.value == 0) return {};
  if (answer.message.value == EINPROGRESS) {
    return fail(ErrorCode::kUnavailable, "`millrace link run {}` would start another guardian: stop it first",
                config.name);
  }
  return fail(ErrorCode::kUnavailable, "a program uses {} ({})", config.show_at,
              errno_error(answer.message.value, "umount").message());
}

}  // namespace millrace::link
