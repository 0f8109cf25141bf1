// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test helpers: a folder that looks like /proc or /sys, and the values of a sample by key.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "millrace/monitor/sample.h"

namespace millrace::monitor {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace_monitor_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  std::filesystem::path folder_;
};

inline std::map<std::string, double> by_key(const Sample& sample) {
  std::map<std::string, double> values;
  for (const Value& value : sample.values) values[series_key(value)] = value.value;
  return values;
}

}  // namespace millrace::monitor
