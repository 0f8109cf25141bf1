// SPDX-License-Identifier: Apache-2.0
// Release and restore by a stand-in for lfs: a script that keeps the bits and the content of each file in a folder, and
// leaves a hole. It was never held against a Lustre.
#include "millrace/link/hsm.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "millrace/link/release.h"
#include "millrace/link/testing.h"
#include "millrace/link/wait.h"

namespace millrace::link {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HsmText, IsParsed) {
  EXPECT_EQ(parse_hsm_state("(0x0000000d) released exists archived, archive_id:1"),
            (HsmState{.exists = true, .released = true, .archived = true}));
  EXPECT_EQ(parse_hsm_state("(0x00000000)"), HsmState());
  EXPECT_EQ(parse_hsm_state("(0x0000007b) exists dirty archived never_release never_archive lost_from_hsm"),
            (HsmState{.exists = true,
                      .dirty = true,
                      .archived = true,
                      .never_release = true,
                      .never_archive = true,
                      .lost = true}));
  for (const char* text : {"", "released", "(0x0000000d", "0x0000000d released"}) EXPECT_FALSE(parse_hsm_state(text));

  EXPECT_EQ(parse_hsm_action("NOOP"), HsmAction());
  EXPECT_EQ(parse_hsm_action("RESTORE WAITING "), (HsmAction{.name = "RESTORE", .progress = "WAITING"}));
  EXPECT_EQ(parse_hsm_action("RESTORE RUNNING (4096 bytes moved)"),
            (HsmAction{.name = "RESTORE", .progress = "RUNNING", .moved_bytes = 4096}));
  for (const char* text : {"", "RESTORE"}) EXPECT_FALSE(parse_hsm_action(text));
}

// Files of state by inode: ID.bits, ID.action ("RESTORE 2": it ends with the second look), ID.content while it is
// released. `mode`, or NAME.mode of one file: "hang" (an action never begins), "fail" (it ends without an effect).
constexpr const char* kScript = R"sh(#!/bin/sh
home=$(dirname "$0")
verb=$1
shift
[ -e "$home/no-lustre" ] && { echo "can't get hsm state for $1: Inappropriate ioctl for device" >&2; exit 25; }
refuse() { echo "lfs: $1" >&2; exit 1; }
has() { grep -qw "$1" "$bits"; }
for path; do
  name=${path##*/}
  echo "$verb $name" >>"$home/calls"
  id=$home/$(stat -c %i "$path") || refuse "cannot stat $path"
  bits=$id.bits
  touch "$bits"
  mode=$(cat "$home/$name.mode" 2>/dev/null || cat "$home/mode" 2>/dev/null)
  case $verb in
  hsm_state)
    if [ -e "$id.action" ] && [ "$mode" != hang ]; then
      read -r action looks <"$id.action"
      echo "$action $((looks - 1))" >"$id.action"
      if [ "$looks" -le 1 ]; then
        rm "$id.action"
        echo "end $name" >>"$home/calls"
        case $mode$action in
        ARCHIVE) echo exists archived >"$bits"; [ -e "$home/archive-changes-ctime" ] && chmod 600 "$path" ;;
        RESTORE)
          dd if="$id.content" of="$path" conv=notrunc status=none
          touch -r "$id.content" "$path"
          rm "$id.content"
          echo exists archived >"$bits" ;;
        esac
      fi
    fi
    echo "$path: (0x00000001) $(cat "$bits"), archive_id:1" ;;
  hsm_action)
    if [ ! -e "$id.action" ]; then
      echo "$path: NOOP"
    elif [ "$mode" = hang ]; then
      echo "$path: $(cut -d' ' -f1 "$id.action") WAITING"
    else
      echo "$path: $(cut -d' ' -f1 "$id.action") RUNNING (1 bytes moved)"
    fi ;;
  hsm_archive) echo ARCHIVE 2 >"$id.action" ;;
  hsm_restore) echo RESTORE 2 >"$id.action" ;;
  hsm_release)
    has archived && ! has dirty || refuse "Cannot send HSM request: Operation not permitted"
    cp -p "$path" "$id.content"
    size=$(stat -c %s "$path")
    truncate -s 0 "$path"
    truncate -s "$size" "$path"
    touch -r "$id.content" "$path"
    echo released exists archived >"$bits" ;;
  esac
done
)sh";

class HsmTest : public ::testing::Test {
 protected:
  HsmTest() {
    tell("lfs", kScript);
    ::chmod((lfs_.path() + "/lfs").c_str(), 0755);
    ::setenv("PATH", (lfs_.path() + ":" + path_).c_str(), 1);
    LinkConfig config = everything();
    config.hsm = true;
    link_ = std::make_unique<LinkBench>(config);
    for (const char* name : {"a", "b", "c"}) link_->write(name, content_of(name));
    link_->swept();
    calls();
  }
  ~HsmTest() override { ::setenv("PATH", path_.c_str(), 1); }

  static std::string content_of(std::string_view name) {
    std::string content;
    while (content.size() < 20'000) content += name;
    return content;
  }
  std::string whole(const std::string& name) const { return (link_->directory() / name).string(); }
  // What the stand-in finds.
  void tell(const std::string& file, std::string_view text) { std::ofstream(lfs_.path() + "/" + file) << text; }
  void forget(const std::string& file) { std::filesystem::remove(lfs_.path() + "/" + file); }
  void set_bits(const std::string& name, std::string_view bits) {
    struct stat info{};
    ASSERT_EQ(::lstat(whole(name).c_str(), &info), 0);
    tell(std::to_string(info.st_ino) + ".bits", bits);
  }
  // What it was called with since the last time.
  std::vector<std::string> calls() {
    std::vector<std::string> lines;
    std::ifstream in(lfs_.path() + "/calls");
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    forget("calls");
    return lines;
  }
  std::vector<std::string> calls_of(std::string_view verb) {
    std::vector<std::string> all = calls();
    std::erase_if(all, [&](const std::string& call) { return !call.starts_with(verb); });
    return all;
  }
  void lfs(const std::string& verb, const std::string& name) {
    ASSERT_EQ(std::system(fmt::format("lfs {} '{}' >{}/out", verb, whole(name), lfs_.path()).c_str()), 0);
  }

  ReleaseReport released(ReleaseOptions options = {}) {
    left_.clear();
    options.on_file = [&](const std::string& path, int64_t, const std::string& left) {
      if (!left.empty()) left_[path] = left;
    };
    const auto report = release(link_->config(), link_->here(), link_->state(), options, {});
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *report : ReleaseReport();
  }
  Result<RestoreReport> restored(RestoreOptions options = {}, const std::stop_token& stop = {}) {
    left_.clear();
    options.on_file = [&](const std::string& path, int64_t, const std::string& error) {
      if (!error.empty()) left_[path] = error;
    };
    return restore(link_->config(), link_->here(), link_->there(), link_->state(), link_->engine(), options, stop,
                   nullptr);
  }
  // Says nothing of the contents, which are long.
  void expect_equal_sides() { EXPECT_TRUE(link_->files() == link_->objects()); }
  void expect_quiet_sweep() {
    calls();
    const LinkCounts counts = link_->swept();
    EXPECT_THAT(link_->events(), IsEmpty());
    EXPECT_EQ(counts.failed + counts.postponed + counts.conflicts, 0);
    EXPECT_THAT(calls(), IsEmpty()) << "an ordinary sweep runs no command";
  }

  const std::string path_ = std::getenv("PATH");
  TempDir lfs_;
  std::unique_ptr<LinkBench> link_;
  Files left_;
};

TEST_F(HsmTest, ReleasedFilesComeBack) {
  const auto time = std::filesystem::last_write_time(whole("a"));
  EXPECT_EQ(released().files, 3);
  EXPECT_THAT(left_, IsEmpty());
  EXPECT_THAT(calls_of("hsm_archive"), ElementsAre("hsm_archive a", "hsm_archive b", "hsm_archive c"));
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(has_no_blocks(whole(name)));
    struct stat info{};
    ASSERT_EQ(::lstat(whole(name).c_str(), &info), 0);
    EXPECT_NE(info.st_mode & 0777, 0) << "any program may open it";
  }
  EXPECT_EQ(std::filesystem::last_write_time(whole("a")), time);
  EXPECT_EQ(link_->state().counts()->released, 0) << "to the state both sides are equal";
  expect_quiet_sweep();
  EXPECT_EQ(released().files, 0) << "they are released already";

  const auto report = restored();
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->files, 3);
  EXPECT_EQ(report->bytes, 60'000);
  expect_equal_sides();
  EXPECT_EQ(std::filesystem::last_write_time(whole("a")), time);
  expect_quiet_sweep();
  EXPECT_EQ(restored()->files, 0);
}

TEST_F(HsmTest, ContentComesInTheOrderAskedForAndNotAllAtOnce) {
  for (const char* name : {"d", "e"}) link_->write(name, content_of(name));
  link_->swept();
  ASSERT_EQ(released().files, 5);
  calls();
  ASSERT_TRUE(restored({.order = {"d", "b"}, .hsm = {.at_once = 2}}));
  std::vector<std::string> asked;
  int under_way = 0, most = 0;
  for (const std::string& call : calls()) {
    if (call.starts_with("hsm_restore")) {
      asked.push_back(call.substr(call.find(' ') + 1));
      most = std::max(most, ++under_way);
    }
    if (call.starts_with("end")) --under_way;
  }
  EXPECT_THAT(asked, ElementsAre("d", "b", "a", "c", "e"));
  EXPECT_EQ(most, 2);
  expect_equal_sides();
}

TEST_F(HsmTest, WhatMayNotGoStays) {
  set_bits("a", "exists dirty archived");
  set_bits("b", "exists archived never_release");
  set_bits("c", "exists archived lost_from_hsm");
  link_->write("d", content_of("d"));
  link_->write("e", content_of("e"));
  link_->write("f", content_of("f"));
  link_->swept();
  set_bits("d", "never_archive");
  link_->write("e", "another version, of which the bucket knows nothing");
  const std::ifstream open(whole("f"));
  EXPECT_EQ(released().files, 0);
  EXPECT_THAT(left_["a"], HasSubstr("dirty"));
  EXPECT_THAT(left_["b"], HasSubstr("never_release"));
  EXPECT_THAT(left_["c"], HasSubstr("lost_from_hsm"));
  EXPECT_THAT(left_["d"], HasSubstr("never_archive"));
  EXPECT_THAT(left_["e"], HasSubstr("not proven to be in the bucket"));
  EXPECT_THAT(left_["f"], HasSubstr("open in another program"));
  EXPECT_THAT(calls_of("hsm_release"), IsEmpty());
}

TEST_F(HsmTest, ArchivingThatNeverEndsIsSaidOnce) {
  tell("mode", "hang");
  EXPECT_EQ(released({.hsm = {.stall_s = 0.3}}).files, 0);
  EXPECT_THAT(left_["a"], HasSubstr("stalled"));
  EXPECT_THAT(left_["b"], HasSubstr("had no end"));
  EXPECT_THAT(left_["c"], HasSubstr("had no end"));
  EXPECT_THAT(calls_of("hsm_archive"), ElementsAre("hsm_archive a"));

  forget("mode");
  tell("a.mode", "fail");
  EXPECT_EQ(released().files, 2);
  EXPECT_THAT(left_["a"], HasSubstr("not archived in the HSM"));
}

TEST_F(HsmTest, ArchivingThatChangesTheChangeTimeIsNoChangeAndAnEditIs) {
  tell("archive-changes-ctime", "");
  EXPECT_EQ(released({.below = "a"}).files, 1);
  EXPECT_THAT(left_, IsEmpty());
  expect_quiet_sweep();

  // As if it had been edited while it was archived, and its time put back.
  const auto time = std::filesystem::last_write_time(whole("b"));
  const int64_t size = static_cast<int64_t>(content_of("b").size());
  std::fstream(whole("b"), std::ios::in | std::ios::out) << "edited";
  ASSERT_EQ(std::filesystem::file_size(whole("b")), size);
  std::filesystem::last_write_time(whole("b"), time);
  EXPECT_EQ(released({.below = "b"}).files, 0);
  EXPECT_FALSE(has_no_blocks(whole("b")));
  link_->swept();
  EXPECT_THAT(link_->events(), ElementsAre("export b"));
}

TEST_F(HsmTest, AStallIsSaidByNameAndTheRestComes) {
  ASSERT_EQ(released().files, 3);
  tell("b.mode", "hang");
  const auto report = restored({.hsm = {.stall_s = 3}});
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->files, 2);
  EXPECT_EQ(report->failed, 1);
  EXPECT_THAT(left_["b"], HasSubstr("stalled: lfs hsm_restore made no progress"));
  EXPECT_THAT(left_["b"], HasSubstr("RESTORE WAITING"));
}

TEST_F(HsmTest, NothingIsAskedForAfterEverythingStalled) {
  ASSERT_EQ(released().files, 3);
  calls();
  tell("mode", "hang");
  const auto report = restored({.hsm = {.stall_s = 0.3, .at_once = 1}});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kTimeout);
  EXPECT_THAT(report.error().to_string(), HasSubstr(whole("b")));
  EXPECT_THAT(left_["a"], HasSubstr("stalled"));
  EXPECT_THAT(calls_of("hsm_restore"), ElementsAre("hsm_restore a"));
}

TEST_F(HsmTest, ARestoreThatFailsIsSaid) {
  ASSERT_EQ(released().files, 3);
  tell("a.mode", "fail");
  set_bits("b", "released exists archived lost_from_hsm");
  const auto report = restored();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->files, 1);
  EXPECT_EQ(report->failed, 2);
  EXPECT_THAT(left_["a"], HasSubstr("ended without an effect"));
  EXPECT_THAT(left_["b"], HasSubstr("lost_from_hsm"));
  EXPECT_THAT(left_["b"], HasSubstr("millrace cp mem://"));
}

TEST_F(HsmTest, AStopEndsTheWait) {
  ASSERT_EQ(released().files, 3);
  tell("mode", "hang");
  calls();
  std::stop_source stop;
  Thread stops("stops", [&] {
    // While it is waited for: the second command of a look has been called.
    std::string told;
    while (told.find("hsm_action") == told.npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ifstream in(lfs_.path() + "/calls");
      told.assign(std::istreambuf_iterator<char>(in), {});
    }
    stop.request_stop();
  });
  const auto report = restored({}, stop.get_token());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  stops.join();

  forget("mode");
  ASSERT_TRUE(restored());
  expect_equal_sides();
}

// As an administrator's policies do.
TEST_F(HsmTest, WhatOthersReleaseAndRestoreIsNoChange) {
  lfs("hsm_archive", "a");
  lfs("hsm_state", "a");
  lfs("hsm_state", "a");
  lfs("hsm_release", "a");
  ASSERT_TRUE(has_no_blocks(whole("a")));
  calls();
  link_->swept();
  EXPECT_THAT(link_->events(), IsEmpty());
  EXPECT_THAT(calls(), ElementsAre("hsm_state a"));
  expect_quiet_sweep();

  lfs("hsm_restore", "a");
  lfs("hsm_state", "a");
  lfs("hsm_state", "a");
  ASSERT_FALSE(has_no_blocks(whole("a")));
  calls();
  link_->swept();
  EXPECT_THAT(link_->events(), IsEmpty()) << "it was compared, and is equal";
  expect_quiet_sweep();
  expect_equal_sides();
}

TEST_F(HsmTest, ARenamedReleasedFileMovesWithoutItsContent) {
  ASSERT_EQ(released().files, 3);
  std::filesystem::rename(whole("a"), whole("z"));
  link_->swept();
  EXPECT_THAT(link_->events(), ::testing::UnorderedElementsAre("move z", "delete_there a"));
  ASSERT_TRUE(restored());
  EXPECT_TRUE(link_->files()["z"] == content_of("a"));
  expect_equal_sides();
}

// A large object is copied without the blocks that the file has. Finding them would read the file, which is released.
TEST_F(HsmTest, AnObjectThatChangedReplacesAReleasedFile) {
  constexpr size_t kSize = sync::kBlockBytes + 1;
  link_->write("a", std::string(kSize, 'n'));
  link_->swept();
  ASSERT_EQ(released({.below = "a"}).files, 1);
  struct stat before{}, after{};
  ASSERT_EQ(::lstat(whole("a").c_str(), &before), 0);
  // What a read of the hole gives: held against the file, it would be there already.
  std::ofstream(lfs_.path() + "/zeros") << std::string(kSize, '\0');
  const Location zeros = *open_url(lfs_.path() + "/zeros");
  const ObjectInfo info = *zeros.storage->stat(zeros.key);
  ASSERT_TRUE(link_->engine().copy(zeros, info, link_->there().child("a"), {.posix = true}, {}));
  link_->swept();
  EXPECT_THAT(link_->events(), ElementsAre("import a"));
  ASSERT_EQ(::lstat(whole("a").c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  EXPECT_FALSE(*is_hsm_released(whole("a"), {}));
  expect_equal_sides();
}

TEST_F(HsmTest, ContentThatIsAwayIsNotReadToCompareIt) {
  ASSERT_EQ(released().files, 3);
  const Files objects = link_->objects();
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(link_->state().forget(name));
  ASSERT_TRUE(link_->state().commit());
  const LinkCounts counts = link_->swept();
  EXPECT_EQ(counts.failed, 3);
  EXPECT_TRUE(link_->objects() == objects);
  const auto problems = *link_->state().problems(10);
  ASSERT_EQ(problems.size(), 3);
  EXPECT_THAT(problems.front().error, HasSubstr("its content is in the HSM"));
  // It is mended by what the text says.
  for (const char* name : {"a", "b", "c"}) {
    lfs("hsm_restore", name);
    lfs("hsm_state", name);
    lfs("hsm_state", name);
  }
  link_->swept();
  EXPECT_THAT(*link_->state().problems(10), IsEmpty());
  expect_equal_sides();
}

TEST_F(HsmTest, AProofDoesNotReadWhatIsAway) {
  ASSERT_EQ(released().files, 3);
  EXPECT_TRUE(wait_for(link_->config(), link_->home(), "a", std::nullopt, {}, nullptr)) << "the proof is remembered";
  LinkFile file = **link_->state().find("a");
  file.proof.clear();
  ASSERT_TRUE(link_->state().put(file));
  ASSERT_TRUE(link_->state().commit());
  const auto waited = wait_for(link_->config(), link_->home(), "a", std::nullopt, {}, nullptr);
  ASSERT_FALSE(waited);
  EXPECT_THAT(waited.error().to_string(), HasSubstr("link restore"));
}

TEST_F(HsmTest, ALinkNeedsLfsAndALustre) {
  TempDir folder;
  std::filesystem::create_directories(folder.path() + "/directory");
  LinkConfig config;
  config.name = "other";
  config.directory = folder.path() + "/directory";
  config.url = "mem://hsm/other";
  config.hsm = true;
  const auto add = [&] { return add_link(folder.path() + "/links", config); };
  tell("no-lustre", "");
  EXPECT_EQ(add().error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(add().error().to_string(), HasSubstr("no Lustre with HSM"));
  EXPECT_EQ(restored().error().code(), ErrorCode::kUnsupported);
  forget("lfs");
  EXPECT_EQ(add().error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(add().error().to_string(), HasSubstr("no lfs on PATH"));
  EXPECT_FALSE(std::filesystem::exists(config.directory + "/.millrace/link.json")) << "nothing is left behind";
  config.lazy = true;
  EXPECT_EQ(add().error().code(), ErrorCode::kInvalidArgument);
  config.hsm = config.lazy = false;
  EXPECT_TRUE(add());
}

}  // namespace
}  // namespace millrace::link
