// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads one file of the Hub at one commit: in pieces, from the location that the Hub redirects to, with checks.
// Thread-safe.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/thread/per_process.h"
#include "millrace/storage/detail/service_reader.h"
#include "millrace/storage/hub/detail/api.h"

namespace millrace::hub {

// Returns the checksum that a version contains; nullopt if the version is no hash.
std::optional<ContentChecksum> checksum_of_version(std::string_view version);

// A file at a commit, and the location of its content. Thread-safe.
class File {
 public:
  File(RepoView view, std::string path, std::string commit, int64_t size, std::string version);

  const RepoView& view() const { return view_; }
  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  const std::string& version() const { return version_; }

  // Calls `then` with the URL to read from. Calls it at once if the location is known, or if the file is small,
  // because the Hub then redirects each read. Otherwise asks the Hub first, once for all waiting callers.
  using Then = std::function<void(Result<std::string>)>;
  void locate(Then then);
  // Notes that the Hub keeps the content at `url`.
  void set_location(const std::string& url);
  // Forgets `url`, whose signature has expired.
  void forget_location(const std::string& url);
  // Checks the Hub's answer about the file. Errors: corruption (another commit, another version).
  [[nodiscard]] Status check_hub(const Answer& answer) const;

 private:
  void take_location(const Result<Answer>& answer);

  const RepoView view_;
  const std::string path_, commit_, name_, url_;
  const int64_t size_;
  const std::string version_;
  struct State {
    Mutex mutex;
    std::string location GUARDED_BY(mutex);
    Clock::time_point located GUARDED_BY(mutex){};
    std::vector<Then> waiting GUARDED_BY(mutex);
  };
  const PerProcess<State> state_{[] { return std::make_unique<State>(); }};
};

class Reader final : public ServiceReader {
 public:
  explicit Reader(const std::shared_ptr<File>& file);
  std::string_view name() const override { return file_->name(); }
  std::string_view version() const override { return file_->version(); }

 private:
  const std::shared_ptr<File> file_;
};

}  // namespace millrace::hub
