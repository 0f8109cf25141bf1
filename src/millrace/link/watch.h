// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which paths of a directory tree may have changed: inotify(7), a watch a directory, without root. Events are hints and
// never believed; what was lost (too many events, too few watches) is said, and a sweep finds it. For one thread.

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/base/status.h"

struct inotify_event;

namespace millrace::link {

class TreeWatch {
 public:
  // Watches `root` and every directory below it, without following links. Errors: unsupported (no inotify here),
  // resource_exhausted (no more instances: fs.inotify.max_user_instances).
  [[nodiscard]] static Result<std::unique_ptr<TreeWatch>> open(const std::string& root);
  ~TreeWatch();

  struct Seen {
    std::vector<std::string> paths;    // below the root, in any order, each perhaps more than once
    std::vector<std::string> renamed;  // files that were given these names: whole, as far as their writer is concerned
    // New names, and those of a new folder. Whether a writer has just begun there or a whole file got its name by
    // link(2) no event tells (how_committed() of lease.h does).
    std::vector<std::string> created;
    bool removed = false;  // something is gone or has another name
    bool lost = false;     // changes that no path tells: look at everything
  };
  // Waits until something is seen, `most` has passed or `wake_fd` (an eventfd, not read here) is readable.
  [[nodiscard]] Seen wait(std::chrono::milliseconds most, int wake_fd);
  // Why not everything is watched; empty when it is.
  const std::string& problem() const { return problem_; }

 private:
  TreeWatch(std::string root, int fd) : root_(std::move(root)), fd_(fd) {}
  void add_tree(const std::string& folder, Seen* seen);
  void take(const inotify_event& event, Seen& seen);

  const std::string root_;
  const int fd_;
  std::unordered_map<int, std::string> folders_;  // watch -> folder below the root, "" or ending in '/'
  std::string problem_;
};

}  // namespace millrace::link
