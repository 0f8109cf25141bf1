// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes the content of guarded stubs (guarded_stub.h) from the bucket into the file itself, because a program that
// waits in open(2) holds this inode. A fixed number of threads, each with one buffer, take parts of all files under
// way, the oldest file first. Thread-safe.

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/link/carry.h"
#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

class Filler {
 public:
  struct Options {
    int threads = 16;
    size_t part_bytes = size_t{4} << 20;
  };
  // Called once, with 0 or the error that the program's open should return (EIO, ENOSPC).
  using Done = std::function<void(int error)>;

  // `config` must outlive the Filler. Errors: those of the state.
  [[nodiscard]] static Result<std::unique_ptr<Filler>> open(const LinkConfig& config, const LinkHome& home,
                                                            std::function<void(const LinkEvent&)> on_event,
                                                            const std::stop_token& stop, const Options& options);
  // Stops fills that are under way: their files stay stubs, and the programs that wait get EIO.
  ~Filler();

  // Fills a file. `file`: any descriptor of it. A file that already has its content is not fetched again.
  void fill(Descriptor file, Done done);

 private:
  struct File;
  using FilePtr = std::shared_ptr<File>;
  Filler(const LinkConfig& config, LinkHome home, std::unique_ptr<LinkState> state,
         std::function<void(const LinkEvent&)> on_event, const std::stop_token& stop, const Options& options);

  void work();
  void run_part(const FilePtr& file, int64_t part, std::vector<std::byte>& buffer);
  [[nodiscard]] Status begin(File& file);
  [[nodiscard]] Status find_object(File& file);
  bool begin_parts(const FilePtr& file);
  [[nodiscard]] Status begin_content(File& file, std::unique_ptr<RandomReader> content);
  static bool may_take_newer(const File& file);
  [[nodiscard]] Status take_newer(File& file);
  [[nodiscard]] Status copy_part(const File& file, int64_t part, std::vector<std::byte>& buffer) const;
  [[nodiscard]] Status finish(File& file, std::vector<std::byte>& buffer);
  [[nodiscard]] Status check_content(File& file, std::vector<std::byte>& buffer) const;
  [[nodiscard]] Status remember(const File& file);
  void ended(const FilePtr& file, const Status& status);
  std::string path_below(int fd) const;

  const LinkConfig& config_;
  const LinkHome home_;
  const std::unique_ptr<LinkState> state_;
  const std::function<void(const LinkEvent&)> on_event_;
  const Options options_;
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> stops_;

  Mutex mutex_;
  CondVar changed_;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::deque<FilePtr> queue_ GUARDED_BY(mutex_);                               // with parts that no thread has taken
  std::map<std::pair<uint64_t, uint64_t>, FilePtr> files_ GUARDED_BY(mutex_);  // by device and inode
  std::vector<Thread> threads_;                                                // last: use the members above
};

// Turns files into stubs again if their fill had begun when a process was killed. Errors: those of the state and of
// the files.
[[nodiscard]] Status settle_fills(const LinkConfig& config, const LinkHome& home, LinkState& state);

}  // namespace millrace::link
