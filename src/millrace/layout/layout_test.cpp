// SPDX-License-Identifier: Apache-2.0
#include "millrace/layout/layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/layout/detail/tree.h"

namespace millrace::layout {
namespace {

namespace fs = std::filesystem;

Layout parsed(const std::string& text) {
  auto layout = parse_layout(text, "layout.yaml");
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : layout.error().to_string());
  return layout ? *std::move(layout) : Layout{};
}

std::string refused(const std::string& text) {
  const auto layout = parse_layout(text, "layout.yaml");
  EXPECT_FALSE(layout.has_value()) << text;
  return layout ? std::string() : layout.error().message();
}

uint32_t mode_of(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

std::string plain(const std::string& root, const std::string& rest) {
  return fmt::format("mounts: [{{path: {}, mountpoint: false}}]\n{}", root, rest);
}

TEST(Layout, TheGuidesTreesComeFromADozenLines) {
  const Layout layout = parsed(R"(owner: ec2-user
mode: "2775"
models: 7
mounts: [{path: /fsx1}, {path: /fsx2, wait: 10m}, {path: /fsx3}]
classes:
  dataset: {tier: lustre, stripe: {count: -1, size: 4MiB}}
  logs: {max_age: 30d}
directories:
  - {path: /fsx1/datasets, class: dataset}
  - {path: "/fsx2/{model}/{checkpoints,outputs}", mode: 0770}
  - {path: "/fsx3/{model}/{training_logs,tensorboard}", class: logs, group: users}
)");
  ASSERT_EQ(layout.directories.size(), 1u + 14 + 14);
  EXPECT_EQ(layout.directories[0].path, "/fsx1/datasets");
  EXPECT_EQ(layout.directories[0].mode, 02775u);
  EXPECT_EQ(layout.directories[1].path, "/fsx2/model1/checkpoints");
  EXPECT_EQ(layout.directories[1].mount, 1u);
  EXPECT_EQ(layout.directories[1].mode, 0770u);
  EXPECT_EQ(layout.directories.back().path, "/fsx3/model7/training_logs");
  EXPECT_EQ(layout.directories.back().group, "users");
  EXPECT_EQ(layout.policies[0].stripe->count, -1);
  EXPECT_EQ(layout.policies[0].stripe->size_bytes, 4 << 20);
  EXPECT_EQ(layout.policies[1].max_age, std::chrono::hours(30 * 24));
  EXPECT_EQ(layout.mounts[1].wait, std::chrono::minutes(10));
}

TEST(Layout, WhatCannotBeMeantIsRefusedWithItsPlace) {
  const auto with = [](const std::string& rest) { return "mounts: [{path: /m}]\n" + rest; };
  const std::string good = "directories: [{path: /m/a}]\n";
  EXPECT_THAT(refused("mounts: [{path: /}]\n" + good),
              testing::HasSubstr("layout.yaml:1:17: '/' is not an absolute path below /"));
  EXPECT_THAT(refused(with("directories: [{path: /m/../etc}]\n")), testing::HasSubstr("'/m/../etc'"));
  EXPECT_THAT(refused(with("directories: [{path: /mm/a}]\n")), testing::HasSubstr("/mm/a lies in none of the mounts"));
  EXPECT_THAT(refused(with("directories: [{path: m/a}]\n")), testing::HasSubstr("'m/a'"));
  EXPECT_THAT(refused(with("directories: [{path: /m/a}, {path: /m/a}]\n")), testing::HasSubstr("a second time"));
  EXPECT_THAT(refused(with("directories: [{path: \"/m/{model}\"}]\n")), testing::HasSubstr("no 'models'"));
  EXPECT_THAT(refused(with("models: [a/b]\n" + good)), testing::HasSubstr("'a/b' is not a name"));
  EXPECT_THAT(refused(with("models: [..]\n" + good)), testing::HasSubstr("'..' is not a name"));
  EXPECT_THAT(refused(with("directories: [{path: /m/a, class: x}]\n")), testing::HasSubstr("no class 'x'"));
  EXPECT_THAT(refused(with("mode: 9\n" + good)), testing::HasSubstr("a mode such as"));
  EXPECT_THAT(refused(with("classes: {x: {max_age: 5s}}\n" + good)), testing::HasSubstr("younger than a minute"));
  EXPECT_THAT(refused(with("classes: {x: {max_age: 5y}}\n" + good)), testing::HasSubstr("a duration such as"));
  EXPECT_THAT(refused(with("classes: {x: {stripe: {size: 5}}}\n" + good)), testing::HasSubstr("64KiB"));
  EXPECT_THAT(refused(with("classes: {x: {stripe: {count: 0}}}\n" + good)), testing::HasSubstr("-1 for all"));
  EXPECT_THAT(refused(with("classes: {x: {tier: tape}}\n" + good)), testing::HasSubstr("lustre, nfs or local"));
  EXPECT_THAT(refused(with("directory: []\n")), testing::HasSubstr("unknown key 'directory'"));
  EXPECT_THAT(refused(with("")), testing::HasSubstr("'directories' is a list"));
  EXPECT_THAT(refused("mounts: ["), testing::HasSubstr("layout.yaml:"));
}

TEST(Layout, ApplyMakesWhatIsMissingMendsWhatDiffersAndThenRests) {
  const TempDir dir;
  const std::string data = dir.path() + "/data";
  ASSERT_TRUE(fs::create_directory(data));
  ASSERT_EQ(chmod(data.c_str(), 0700), 0);
  std::ofstream(data + "/mine") << "x";
  ASSERT_EQ(chmod((data + "/mine").c_str(), 0600), 0);
  const Layout layout = parsed(
      plain(dir.path(),
            fmt::format(
                "models: [a, b]\nmode: \"2770\"\ndirectories: [{{path: {0}/data}}, {{path: \"{0}/{{model}}/ckpt\"}}]\n",
                dir.path())));

  const auto before = show_layout(layout);
  ASSERT_TRUE(before.has_value());
  EXPECT_THAT(before->directories[0].differences, testing::ElementsAre("missing"));  // a/ckpt
  EXPECT_THAT(before->directories[2].differences, testing::ElementsAre("mode 700, declared 2770"));

  const auto first = apply_layout(layout);
  ASSERT_TRUE(first.has_value()) << first.error().to_string();
  EXPECT_TRUE(first->directories[0].created);
  EXPECT_FALSE(first->directories[2].created);
  EXPECT_THAT(first->directories[2].mended, testing::ElementsAre("mode 700, declared 2770"));
  EXPECT_EQ(mode_of(data), 02770u);
  EXPECT_EQ(mode_of(dir.path() + "/a"), 02770u);  // made on the way
  EXPECT_EQ(mode_of(dir.path() + "/b/ckpt"), 02770u);
  EXPECT_EQ(mode_of(data + "/mine"), 0600u);  // what lies in it is not touched

  const auto again = apply_layout(layout);
  ASSERT_TRUE(again.has_value());
  for (const DirectoryState& state : again->directories) {
    EXPECT_FALSE(state.created) << state.path;
    EXPECT_TRUE(state.differences.empty() && state.mended.empty()) << state.path;
  }
}

TEST(Layout, OwnersAreNamesOrNumbers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may give directories away";
  const TempDir dir;
  const Layout layout =
      parsed(plain(dir.path(), fmt::format("owner: daemon\ngroup: 12\ndirectories: [{{path: {}/a}}]\n", dir.path())));
  const auto report = apply_layout(layout);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->directories[0].owner, "daemon");
  struct stat found = {};
  ASSERT_EQ(stat((dir.path() + "/a").c_str(), &found), 0);
  EXPECT_EQ(found.st_gid, 12u);
}

TEST(Layout, AnUnknownUserStopsBeforeAnythingIsMade) {
  const TempDir dir;
  const Layout layout = parsed(plain(
      dir.path(), fmt::format("directories: [{{path: {0}/a}}, {{path: {0}/b, owner: nobody-here}}]\n", dir.path())));
  const auto report = apply_layout(layout);
  ASSERT_FALSE(report.has_value());
  EXPECT_THAT(report.error().message(), testing::HasSubstr("no user 'nobody-here'"));
  EXPECT_FALSE(fs::exists(dir.path() + "/a"));
}

TEST(Layout, ALinkOrAFileInTheWayIsNotFollowed) {
  const TempDir dir, elsewhere;
  fs::create_directory_symlink(elsewhere.path(), dir.path() + "/link");
  std::ofstream(dir.path() + "/file") << "x";
  for (const char* name : {"link/a", "link", "file"}) {
    const Layout layout = parsed(plain(dir.path(), fmt::format("directories: [{{path: {}/{}}}]\n", dir.path(), name)));
    const auto report = apply_layout(layout);
    ASSERT_FALSE(report.has_value()) << name;
    EXPECT_EQ(report.error().code(), ErrorCode::kAlreadyExists);
  }
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

TEST(Layout, AMountThatDoesNotComeIsATimeout) {
  const TempDir dir;
  const Layout layout =
      parsed(fmt::format("mounts: [{{path: {0}, wait: 0}}]\ndirectories: [{{path: {0}/a}}]\n", dir.path()));
  const auto shown = show_layout(layout);
  ASSERT_TRUE(shown.has_value());
  EXPECT_THAT(shown->directories[0].differences, testing::ElementsAre("not mounted"));
  const auto report = apply_layout(layout);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), ErrorCode::kTimeout);
  EXPECT_FALSE(fs::exists(dir.path() + "/a"));
}

TEST(Layout, WaitingStopsWhenAsked) {
  const TempDir dir;
  const Layout layout =
      parsed(fmt::format("mounts: [{{path: {0}, wait: 1h}}]\ndirectories: [{{path: {0}/a}}]\n", dir.path()));
  std::stop_source stop;
  std::string waited;
  const auto report = apply_layout(layout, stop.get_token(), [&](const std::string& mount) {
    waited = mount;
    stop.request_stop();
  });
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(waited, dir.path());
}

// A child with its own mounts; false where this machine forbids them.
bool own_mounts() {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

TEST(Layout, AMountThatComesLateIsWaitedFor) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may mount";
  if (!succeeds_in_child(own_mounts)) GTEST_SKIP() << "no mounts of one's own here";
  EXPECT_TRUE(succeeds_in_child([] {
    if (!own_mounts()) return false;
    const TempDir dir;
    const Layout layout =
        parsed(fmt::format("mounts: [{{path: {0}, wait: 30}}]\ndirectories: [{{path: {0}/a}}]\n", dir.path()));
    const auto report = apply_layout(layout, {}, [](const std::string& path) {
      if (mount("none", path.c_str(), "tmpfs", 0, nullptr) != 0) std::abort();
    });
    const bool good = report.has_value() && report->mounts[0].type == "tmpfs" && report->directories[0].created;
    umount2(dir.path().c_str(), MNT_DETACH);
    return good && !fs::exists(dir.path() + "/a");  // it was made in what was mounted
  }));
}

TEST(Layout, TheTableOfMountsIsRead) {
  const auto table = parse_mount_table(
      "36 35 98:0 / / rw - ext4 /dev/sda rw\n"
      "40 36 0:30 /x /mnt/a\\040b rw,noatime master:1 shared:2 - lustre 10.0.0.1@tcp:/fs rw\n"
      "broken line\n");
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.at("/"), "ext4");
  EXPECT_EQ(table.at("/mnt/a b"), "lustre");
}

// A stand-in for lfs that stores its settings in a file beside each directory.
class WithLfs : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(bin_.path() + "/lfs") << R"sh(#!/bin/sh
echo "$@" >> ")sh" << bin_.path() << R"sh(/log"
for last; do :; done
case $1 in
  getstripe) test -e "$last/.lustre" || { echo "not a Lustre file system" >&2; exit 95; }; cat "$last/.lustre" ;;
  setstripe) printf '%s\n%s\n' "$3" "${5:-1048576}" > "$last/.lustre" ;;
esac
)sh";
    ASSERT_EQ(chmod((bin_.path() + "/lfs").c_str(), 0755), 0);
    setenv("PATH", (bin_.path() + ":" + path_).c_str(), 1);
  }
  void TearDown() override { setenv("PATH", path_.c_str(), 1); }

  int64_t calls(const std::string& verb) const {
    std::ifstream log(bin_.path() + "/log");
    int64_t count = 0;
    for (std::string line; std::getline(log, line);) count += line.starts_with(verb) ? 1 : 0;
    return count;
  }

  const TempDir bin_, dir_;
  const std::string path_ = std::getenv("PATH");
};

TEST_F(WithLfs, StripesAreSetOnceAndOnlyOnLustre) {
  fs::create_directory(dir_.path() + "/lustre");
  std::ofstream(dir_.path() + "/lustre/.lustre") << "stripe_count:  1\nstripe_size:   1048576\n";
  const Layout layout = parsed(
      plain(dir_.path(), fmt::format("classes: {{c: {{stripe: {{count: 8, size: 4MiB}}}}}}\n"
                                     "directories: [{{path: {0}/lustre, class: c}}, {{path: {0}/other, class: c}}]\n",
                                     dir_.path())));
  const auto first = apply_layout(layout);
  ASSERT_TRUE(first.has_value()) << first.error().to_string();
  EXPECT_EQ(first->directories[0].stripe, "8 x 4 MiB");
  EXPECT_THAT(first->directories[0].mended, testing::Contains("stripe 1 x 1 MiB, declared 8 x 4 MiB"));
  EXPECT_EQ(first->directories[1].stripe, "");
  EXPECT_EQ(calls("setstripe"), 1);
  ASSERT_TRUE(apply_layout(layout).has_value());
  EXPECT_EQ(calls("setstripe"), 1) << "what is right is not set again";
}

TEST(Layout, WithoutLfsThereIsNothingToStripe) {
  const TempDir dir;
  const std::string path = std::getenv("PATH");
  setenv("PATH", dir.path().c_str(), 1);
  const Layout layout = parsed(plain(
      dir.path(),
      fmt::format("classes: {{c: {{tier: lustre, stripe: {{count: 8}}}}}}\ndirectories: [{{path: {}/a, class: c}}]\n",
                  dir.path())));
  const auto report = apply_layout(layout);
  setenv("PATH", path.c_str(), 1);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->directories[0].stripe, "");
  EXPECT_THAT(report->directories[0].differences, testing::ElementsAre("tier local, declared lustre"));
}

}  // namespace
}  // namespace millrace::layout
