// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test helpers of this room: a link between a temporary directory and a bucket in memory.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/link/run.h"
#include "millrace/link/wall_clock.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::link {

inline constexpr double kDay = 86'400;  // in seconds

using Files = std::map<std::string, std::string>;  // path -> content

// Returns the files, without those that Millrace keeps there.
inline Files files_below(const std::filesystem::path& directory) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string path = entry.path().lexically_relative(directory).string();
    if (!entry.is_regular_file() || path.starts_with(".millrace")) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[path] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}
inline Files objects_below(const Location& root) {
  Files files;
  EXPECT_TRUE(for_each_object(*root.storage, root.key + "/", [&](const ObjectInfo& object) -> Status {
    const std::string path = object.key.substr(root.key.size() + 1);
    if (path.find(".millrace") != path.npos) return {};
    ASSIGN_OR_RETURN(files[path], read_object(*root.storage, object.key));
    return {};
  }));
  return files;
}

// Pretends that the machine's clock was set, while it is in scope.
class OtherTime {
 public:
  explicit OtherTime(double ahead_s) { set_clock_ahead_for_test(ahead_s); }
  ~OtherTime() { set_clock_ahead_for_test(0); }
  OtherTime(const OtherTime&) = delete;
  OtherTime& operator=(const OtherTime&) = delete;
};

// A temporary directory, and a location for the bucket's side.
class TwoSides {
 public:
  std::filesystem::path directory() const { return std::filesystem::path(folder_.path()) / "directory"; }
  void write(const std::string& path, std::string_view content) {
    std::filesystem::create_directories((directory() / path).parent_path());
    std::ofstream(directory() / path, std::ios::binary) << content;
  }
  void put(const std::string& path, std::string_view content) {
    ASSERT_TRUE(write_object(*there_.storage, there_.child(path).key, content, {}, Durability::kVisible));
  }
  void remove(const std::string& path) { std::filesystem::remove(directory() / path); }
  void remove_object(const std::string& path) {
    const std::string key = there_.child(path).key;
    ASSERT_TRUE(there_.storage->remove({&key, 1}));
  }
  Files files() const { return files_below(directory()); }
  Files objects() const { return objects_below(there_); }

 protected:
  TempDir folder_;
  Location there_;
};

// Returns the rules of a link that carries all changes both ways.
inline LinkConfig everything() {
  return {.imports = {true, true, true}, .exports = {true, true, true}};
}

class LinkBench : public TwoSides {
 public:
  // `config`: the rules; name, directory and url are set here.
  explicit LinkBench(LinkConfig config = {}) {
    static std::atomic<int> number = 0;
    std::filesystem::create_directories(directory());
    config.name = "test";
    config.directory = directory().string();
    config.url = fmt::format("mem://link{}/data", ++number);
    config.quiet_s = 0;
    config.poll_least_s = 0.05;
    config.poll_most_s = 0.2;
    const Status added = add_link(links(), config);
    EXPECT_TRUE(added) << added.error().to_string();
    config_ = *read_link(links(), "test");
    here_ = *open_url(config_.directory);
    there_ = *open_url(config_.url);
    there_.storage = make_fault_storage(there_.storage, faults_);
    engine_ = *sync::TransferEngine::create();
    reopen();
  }

  std::string links() const { return folder_.path() + "/links"; }
  LinkConfig& config() { return config_; }
  const Location& here() const { return here_; }
  const Location& there() const { return there_; }
  LinkState& state() { return *state_; }
  // The faults that the requests of this bench's sweeps to the bucket meet.
  FaultPlan& faults() { return *faults_; }
  sync::TransferEngine& engine() { return *engine_; }
  LinkHome home() const { return home_of(links(), "test"); }
  const std::vector<std::string>& events() const { return events_; }

  // Opens the state again, as a new process would.
  void reopen() {
    state_.reset();
    auto state = LinkState::open(home().state_path());
    ASSERT_TRUE(state) << state.error().to_string();
    state_ = *std::move(state);
  }

  [[nodiscard]] Result<SweepReport> sweep() { return sweep_after_look_at(""); }
  // `path`: a path that a watch named before the sweep; "": none.
  [[nodiscard]] Result<SweepReport> sweep_after_look_at(const std::string& path) {
    Mutex mutex;
    Carrier carrier(config_, here_, there_, *state_, *engine_,
                    [&](const LinkEvent& event) {
                      const MutexLock lock(mutex);
                      events_.push_back(fmt::format("{} {}", event.kind, event.path));
                    },
                    {});
    if (!path.empty()) {
      RETURN_IF_ERROR(carrier.look_at(path));
      RETURN_IF_ERROR(carrier.finish());
    }
    return link::sweep(config_, here_, there_, *state_, carrier, {});
  }
  [[nodiscard]] Status empty_trash() {
    return Carrier(config_, here_, there_, *state_, *engine_, {}, {}).empty_trash();
  }
  LinkCounts swept() {
    events_.clear();
    const auto report = sweep();
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? report->counts : LinkCounts();
  }

  // Returns the files in the trash of the directory, or of the bucket, by their old path. `dated`: the path begins
  // with the time, so that two versions of one path both show.
  Files trash_here(bool dated = false) const {
    Files files;
    const auto trash = directory() / ".millrace/trash";
    if (!std::filesystem::exists(trash)) return files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(trash)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string path = entry.path().lexically_relative(trash).string();
      files[dated ? path : path.substr(path.find('/') + 1)] = std::string(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  }
  Files trash_there(bool dated = false) const {
    Files files;
    const std::string prefix = there_.key + "/.millrace/trash/";
    EXPECT_TRUE(for_each_object(*there_.storage, prefix, [&](const ObjectInfo& object) -> Status {
      const std::string path = object.key.substr(prefix.size());
      ASSIGN_OR_RETURN(files[dated ? path : path.substr(path.find('/') + 1)], read_object(*there_.storage, object.key));
      return {};
    }));
    return files;
  }

 private:
  LinkConfig config_;
  Location here_;
  const std::shared_ptr<FaultPlan> faults_ = std::make_shared<FaultPlan>();
  std::unique_ptr<sync::TransferEngine> engine_;
  std::unique_ptr<LinkState> state_;
  std::vector<std::string> events_;
};

}  // namespace millrace::link
