// SPDX-License-Identifier: Apache-2.0
#pragma once

// Watches a directory tree for paths that may have changed, by inotify(7) with one watch per directory, without root.
// Events are only hints. Lost events (too many events, too few watches) are reported, and a sweep finds those changes.
// For one thread.

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
    std::vector<std::string> paths;    // below the root, in any order, possibly repeated
    std::vector<std::string> renamed;  // files renamed to these names: their writer considers them complete
    // New names, including those in a new folder. Events do not tell whether a writer has just begun there or a
    // complete file got its name by link(2); how_committed() of lease.h does.
    std::vector<std::string> created;
    bool removed = false;  // something was removed or renamed
    bool lost = false;     // there are changes without a path: look at everything
  };
  // Waits until something is seen, `most` has passed or `wake_fd` (an eventfd, not read here) is readable.
  [[nodiscard]] Seen wait(std::chrono::milliseconds most, int wake_fd);
  // Returns why some directories are not watched; empty if all are.
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
