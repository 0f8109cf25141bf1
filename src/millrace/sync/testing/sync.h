// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of syncs share.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/sync/sync.h"
#include "millrace/sync/testing.h"

namespace millrace::sync {

// From a folder on disk, whose times a test can set, to memory.
class SyncTest : public ::testing::Test {
 protected:
  SyncReport run(SyncOptions options = {}, std::stop_token stop = {}) {
    events_.clear();
    options.on_event = [this](const SyncEvent& event) {
      events_.push_back(std::string(event_name(event.kind)) + " " + event.path + ": " + event.reason);
    };
    auto report = sync(source_, target_, options, stop);
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *std::move(report) : SyncReport();
  }
  // Changes bytes in place and puts the old times back.
  void edit_secretly(const std::string& name, const std::string& content) {
    const std::string path = dir_.path() + "/source/" + name;
    struct stat before{};
    ASSERT_EQ(::stat(path.c_str(), &before), 0);
    ASSERT_EQ(before.st_size, std::ssize(content));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the tick of change times
    std::fstream(path, std::ios::in | std::ios::out) << content;
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  TempDir dir_;
  Location source_ = *open_url(dir_.path() + "/source");
  Location target_ = memory_location("to");
  std::vector<std::string> events_;
};

}  // namespace millrace::sync
