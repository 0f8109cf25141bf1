// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/layout/layout.h"

namespace millrace::layout {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

Layout scratch(const std::string& root, const std::string& more = "", bool mountpoint = false) {
  auto layout = parse_layout(
      fmt::format("mounts: [{{path: {0}, mountpoint: {1}}}]\nclasses: {{scratch: {{max_age: 3d}}, kept: {{}}}}\n"
                  "directories:\n  - {{path: {0}/tmp, class: scratch}}\n{2}",
                  root, mountpoint, more),
      "layout.yaml");
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().to_string());
  return layout ? *std::move(layout) : Layout{};
}

void write(const std::string& path) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << std::string(10000, 'x');
}

// Runs as if the time were `later` from now.
CleanOptions later(std::chrono::system_clock::duration time, std::set<std::string>* removed = nullptr) {
  CleanOptions options{.now = std::chrono::system_clock::now() + time};
  if (removed != nullptr) options.on_removed = [removed](const Removal& removal) { removed->insert(removal.path); };
  return options;
}

TEST(Clean, WhatIsOldGoesAndWhatIsYoungStays) {
  const TempDir dir;
  const std::string tmp = dir.path() + "/tmp";
  write(tmp + "/a/b/old.bin");
  write(tmp + "/old.bin");
  write(dir.path() + "/other/old.bin");
  const Layout layout = scratch(dir.path());

  const auto young = clean_layout(layout, later(2 * 24h));
  ASSERT_TRUE(young.has_value());
  EXPECT_EQ(young->files, 0);
  EXPECT_EQ(young->kept, 2);

  std::set<std::string> told;
  CleanOptions dry = later(4 * 24h, &told);
  dry.dry_run = true;
  const auto tried = clean_layout(layout, dry);
  ASSERT_TRUE(tried.has_value());
  EXPECT_EQ(told, (std::set<std::string>{tmp + "/a", tmp + "/a/b", tmp + "/a/b/old.bin", tmp + "/old.bin"}));
  EXPECT_TRUE(fs::exists(tmp + "/a/b/old.bin"));

  std::set<std::string> gone;
  const auto done = clean_layout(layout, later(4 * 24h, &gone));
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(gone, told) << "the dry run said what would happen";
  EXPECT_EQ(done->files, 2);
  EXPECT_EQ(done->directories, 2);
  EXPECT_GE(done->bytes, 20000);
  EXPECT_TRUE(fs::is_empty(tmp)) << "the directory itself stays";
  EXPECT_TRUE(fs::exists(dir.path() + "/other/old.bin"));
}

TEST(Clean, AFileThatWasUnpackedWithItsOldDateIsYoung) {
  const TempDir dir;
  write(dir.path() + "/tmp/a");
  fs::last_write_time(dir.path() + "/tmp/a", fs::file_time_type::clock::now() - 24h * 3650);
  const auto report = clean_layout(scratch(dir.path()), later(0s));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->kept, 1);
}

TEST(Clean, LinksAreRemovedAndNeverFollowed) {
  const TempDir dir, elsewhere;
  const std::string tmp = dir.path() + "/tmp";
  write(elsewhere.path() + "/precious");
  write(tmp + "/x");
  fs::create_directory_symlink(elsewhere.path(), tmp + "/folder");
  fs::create_symlink(elsewhere.path() + "/precious", tmp + "/file");
  const auto report = clean_layout(scratch(dir.path()), later(4 * 24h));
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(fs::is_empty(tmp));
  EXPECT_TRUE(fs::exists(elsewhere.path() + "/precious"));

  // Neither when the declared directory is itself a link.
  fs::remove(tmp);
  fs::create_directory_symlink(elsewhere.path(), tmp);
  const auto refused = clean_layout(scratch(dir.path()), later(4 * 24h));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(fs::exists(elsewhere.path() + "/precious"));
}

TEST(Clean, DeclaredDirectoriesInsideKeepTheirOwnClass) {
  const TempDir dir;
  write(dir.path() + "/tmp/keep/a");
  write(dir.path() + "/tmp/b");
  const auto report = clean_layout(
      scratch(dir.path(), fmt::format("  - {{path: {}/tmp/keep, class: kept}}\n", dir.path())), later(4 * 24h));
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(fs::exists(dir.path() + "/tmp/keep/a"));
  EXPECT_FALSE(fs::exists(dir.path() + "/tmp/b"));
}

TEST(Clean, WithoutAgesAndWithoutMountsNothingIsDone) {
  const TempDir dir;
  write(dir.path() + "/tmp/a");
  Layout layout = scratch(dir.path());
  layout.policies[0].max_age.reset();
  EXPECT_EQ(clean_layout(layout, later(4 * 24h)).error().code(), ErrorCode::kInvalidArgument);
  const auto unmounted = clean_layout(scratch(dir.path(), "", true), later(4 * 24h));
  ASSERT_FALSE(unmounted.has_value());
  EXPECT_EQ(unmounted.error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(fs::exists(dir.path() + "/tmp/a"));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(clean_layout(scratch(dir.path()), later(4 * 24h), stop.get_token()).error().code(), ErrorCode::kCancelled);
}

TEST(Clean, ADirectoryThatIsNotThereIsClean) {
  const TempDir dir;
  const auto report = clean_layout(scratch(dir.path()), later(4 * 24h));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->files + report->failed, 0);
}

bool with_own_mounts() {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

TEST(Clean, OtherMountsAreNotEntered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may mount";
  if (!succeeds_in_child(with_own_mounts)) GTEST_SKIP() << "no mounts of one's own here";
  EXPECT_TRUE(succeeds_in_child([] {
    if (!with_own_mounts()) return false;
    const TempDir dir, elsewhere;
    const std::string tmp = dir.path() + "/tmp";
    write(elsewhere.path() + "/precious");
    for (const char* name : {"/bind", "/memory"}) fs::create_directories(tmp + name);
    // The same file system in a second place, and another one.
    if (mount(elsewhere.path().c_str(), (tmp + "/bind").c_str(), nullptr, MS_BIND, nullptr) != 0) return false;
    if (mount("none", (tmp + "/memory").c_str(), "tmpfs", 0, nullptr) != 0) return false;
    write(tmp + "/memory/precious");
    write(tmp + "/old");
    const auto report = clean_layout(scratch(dir.path()), later(4 * 24h));
    const bool good = report.has_value() && report->other_mounts == 2 && report->files == 1 &&
                      fs::exists(elsewhere.path() + "/precious") && fs::exists(tmp + "/memory/precious");
    for (const char* name : {"/bind", "/memory"}) umount2((tmp + name).c_str(), MNT_DETACH);
    return good;
  }));
}

TEST(Clean, AFolderThatBecomesALinkInMidWalkLeadsNowhere) {
  const TempDir dir, elsewhere;
  const std::string tmp = dir.path() + "/tmp";
  const Layout layout = scratch(dir.path());
  for (int i = 0; i < 50; ++i) write(fmt::format("{}/precious{}", elsewhere.path(), i));
  fs::create_directories(tmp);
  std::atomic<bool> done = false;
  // One folder, that is a link to elsewhere half of the time.
  std::thread swapper([&] {
    fs::create_directories(tmp + "/swap");
    for (int i = 0; !done; ++i) {
      std::error_code ignored;
      fs::create_directories(tmp + "/real", ignored);
      write(tmp + "/real/x");
      fs::remove_all(tmp + "/swap", ignored);
      if (i % 2 == 0)
        fs::create_directory_symlink(elsewhere.path(), tmp + "/swap", ignored);
      else
        fs::rename(tmp + "/real", tmp + "/swap", ignored);
    }
  });
  for (int round = 0; round < 300; ++round) static_cast<void>(clean_layout(layout, later(4 * 24h)));
  done = true;
  swapper.join();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(fs::exists(fmt::format("{}/precious{}", elsewhere.path(), i)));
}

}  // namespace
}  // namespace millrace::layout
