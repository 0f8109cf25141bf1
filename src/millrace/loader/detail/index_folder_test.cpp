// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/index_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "millrace/loader/user_folder.h"

namespace millrace::loader {
namespace {

class IndexFolders : public ::testing::Test {
 protected:
  IndexFolders() {
    ::mkdir(folder_.c_str(), 0700);
    ::setenv("MILLRACE_INDEX_FOLDER", folder_.c_str(), 1);
  }
  ~IndexFolders() override {
    ::unsetenv("MILLRACE_INDEX_FOLDER");
    std::filesystem::remove_all(folder_);
  }
  Result<formats::ShardIndex> get(const std::string& key, const std::stop_token& stop = {}) {
    return IndexFolder::of_user()->get(key, 77, stop, [this]() -> Result<formats::ShardIndex> {
      ++built_;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      formats::ShardIndex index;
      index.shard_size = 77;
      return index;
    });
  }

  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / fmt::format("mr-index-{}", ::getpid());
  std::atomic<int> built_{0};
};

TEST_F(IndexFolders, OneOfManyBuilds) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      if (const auto index = get("a.tar 77"); index && index->shard_size == 77) ++right;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 6);
  EXPECT_EQ(built_, 1);
  EXPECT_TRUE(get("b.tar 77"));
  EXPECT_EQ(built_, 2);
}

TEST_F(IndexFolders, WhatIsDamagedIsBuiltAgain) {
  ASSERT_TRUE(get("a.tar 77"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    std::ofstream(entry.path()) << "no index";
  }
  ASSERT_TRUE(get("a.tar 77"));
  EXPECT_EQ(built_, 2);
  ASSERT_TRUE(get("a.tar 77"));
  EXPECT_EQ(built_, 2);
}

TEST_F(IndexFolders, AFolderThatOthersMayWriteIsNotUsed) {
  ::chmod(folder_.c_str(), 0777);
  EXPECT_FALSE(IndexFolder::of_user());
  ::setenv("MILLRACE_INDEX_FOLDER", "", 1);
  EXPECT_FALSE(IndexFolder::of_user());
  ::setenv("MILLRACE_INDEX_FOLDER", "/proc/nowhere", 1);
  EXPECT_FALSE(IndexFolder::of_user());
  // It is made, with the folders that it is in.
  ::chmod(folder_.c_str(), 0700);
  const std::filesystem::path inner = folder_ / "a/b";
  ::setenv("MILLRACE_INDEX_FOLDER", inner.c_str(), 1);
  EXPECT_EQ(user_folder().value_or("").string(), inner.string());
  EXPECT_TRUE(std::filesystem::is_directory(inner));
}

}  // namespace
}  // namespace millrace::loader
