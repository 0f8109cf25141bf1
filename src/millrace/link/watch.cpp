// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/watch.h"

#include <dirent.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |
                             IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK;

}  // namespace

Result<std::unique_ptr<TreeWatch>> TreeWatch::open(const std::string& root) {
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) {
    const ErrorCode code = errno == EMFILE ? ErrorCode::kResourceExhausted : ErrorCode::kUnsupported;
    return fail(code, "watch {}: {}", root, errno_error(errno, "inotify_init1").message());
  }
  std::unique_ptr<TreeWatch> watch(new TreeWatch(root, fd));
  watch->add_tree("", nullptr);  // the sweep at the start looks at everything
  return watch;
}

TreeWatch::~TreeWatch() {
  ::close(fd_);
}

// A new directory may have filled before its watch was there, so what it holds counts as seen.
void TreeWatch::add_tree(const std::string& folder, Seen* seen) {
  const std::string whole = root_ + "/" + folder;
  const int watch = ::inotify_add_watch(fd_, whole.c_str(), kEvents);
  if (watch < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return;
    problem_ = errno == ENOSPC ? "more directories than fs.inotify.max_user_watches allows to watch"
                               : errno_error(errno, "watch " + whole).message();
    if (seen != nullptr) seen->lost = true;
    return;
  }
  folders_[watch] = folder;
  DIR* const open = ::opendir(whole.c_str());
  if (open == nullptr) return;
  std::vector<std::string> below;
  while (const dirent* const entry = ::readdir(open)) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == ".." || name == sync::kHiddenFolder) continue;
    bool is_folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat info{};
      is_folder = ::lstat(fmt::format("{}/{}", whole, name).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    }
    if (is_folder) {
      below.push_back(fmt::format("{}{}/", folder, name));
    } else if (seen != nullptr) {
      seen->created.push_back(fmt::format("{}{}", folder, name));
    }
  }
  ::closedir(open);
  for (const std::string& each : below) add_tree(each, seen);
}

void TreeWatch::take(const inotify_event& event, Seen& seen) {
  if ((event.mask & IN_Q_OVERFLOW) != 0) {
    seen.lost = true;
    return;
  }
  if ((event.mask & IN_IGNORED) != 0) {
    folders_.erase(event.wd);
    return;
  }
  const auto found = folders_.find(event.wd);
  if (found == folders_.end() || event.len == 0) return;
  const std::string_view name = event.name;
  if (name == sync::kHiddenFolder || name.starts_with(".millrace-tmp.")) return;
  const std::string path = found->second + std::string(name);
  const bool gone = (event.mask & (IN_DELETE | IN_MOVED_FROM)) != 0;
  seen.removed |= gone;
  if ((event.mask & IN_ISDIR) == 0) {
    if (gone) return;
    const bool is_new = (event.mask & IN_CREATE) != 0;
    ((event.mask & IN_MOVED_TO) != 0 ? seen.renamed : is_new ? seen.created : seen.paths).push_back(path);
    return;
  }
  if ((event.mask & IN_MOVED_FROM) != 0) {
    // Its watches go on under the old name: they end, and the new name gets its own.
    const std::string prefix = path + "/";
    for (auto each = folders_.begin(); each != folders_.end();) {
      if (!each->second.starts_with(prefix)) {
        ++each;
        continue;
      }
      ::inotify_rm_watch(fd_, each->first);
      each = folders_.erase(each);
    }
  }
  if ((event.mask & (IN_CREATE | IN_MOVED_TO)) != 0) add_tree(path + "/", &seen);
}

TreeWatch::Seen TreeWatch::wait(std::chrono::milliseconds most, int wake_fd) {
  Seen seen;
  std::array<pollfd, 2> fds{
      {{.fd = fd_, .events = POLLIN, .revents = 0}, {.fd = wake_fd, .events = POLLIN, .revents = 0}}};
  if (::poll(fds.data(), fds.size(), static_cast<int>(most.count())) <= 0) return seen;
  alignas(inotify_event) std::array<char, 64 << 10> buffer;
  while (true) {
    const ssize_t size = ::read(fd_, buffer.data(), buffer.size());
    if (size <= 0) return seen;
    for (ssize_t at = 0; at < size;) {
      // SAFETY: inotify(7): the buffer holds whole events, each aligned for the structure.
      const auto* const event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      take(*event, seen);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
}

}  // namespace millrace::link
