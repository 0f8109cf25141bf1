// SPDX-License-Identifier: Apache-2.0
// No Lustre was ever seen by these tests: the file system says that it is one, and `lfs` is a script on PATH.
#include "millrace/storage/local/lustre.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"

namespace millrace::local {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LustreSyscalls final : public Syscalls {
 public:
  int statfs(const char* /*path*/, struct statfs* out) override {
    out->f_type = 0x0BD00BD0;
    return 0;
  }
  uid_t geteuid() override { return 1234; }
};

class LustreTest : public ::testing::Test {
 protected:
  LustreTest() {
    std::filesystem::create_directory(bin_);
    ::setenv("PATH", (bin_ + ":" + old_path_).c_str(), 1);
  }
  ~LustreTest() override { ::setenv("PATH", old_path_.c_str(), 1); }

  // Writes its arguments down, then does `body`. A storage looks for it when it is made.
  void lfs(const std::string& body) {
    std::ofstream(bin_ + "/lfs") << "#!/bin/sh\necho \"$*\" >>" << log_ << "\n" << body << "\n";
    ::chmod((bin_ + "/lfs").c_str(), 0755);
    storage_ = *open_local_storage(root_.path(), {.syscalls = &sys_});
  }
  std::string asked() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  static constexpr const char* kSetStripe = R"(for file; do :; done; test "$1" != setstripe || : >"$file")";

  TempDir dir_;
  const std::string bin_ = dir_.path() + "/bin", log_ = dir_.path() + "/asked";
  const std::string old_path_ = std::getenv("PATH");
  LustreSyscalls sys_;
  TempDir root_;
  std::shared_ptr<Storage> storage_ = *open_local_storage(root_.path(), {.syscalls = &sys_});
};

TEST_F(LustreTest, AnObjectIsLaidOutByItsSize) {
  lfs(kSetStripe);
  const mode_t before = ::umask(027);
  const auto writer = storage_->open_write("large", {.size_hint_bytes = 200 << 20});
  ASSERT_TRUE(writer) << writer.error().to_string();
  ASSERT_TRUE((*writer)->append(as_bytes("content")));
  ASSERT_TRUE((*writer)->commit());
  ::umask(before);
  EXPECT_THAT(asked(), AllOf(HasSubstr("setstripe -c 4 -S 4194304 " + root_.path()), HasSubstr(".large")));
  EXPECT_EQ(*read_object(*storage_, "large"), "content");
  EXPECT_EQ(storage_->stat("large")->posix->mode & 0777, 0640u) << "lfs makes files with rights of its own";
}

TEST_F(LustreTest, SmallObjectsKeepTheDirectorysLayout) {
  lfs(kSetStripe);
  ASSERT_TRUE(write_object(*storage_, "small", "content", {.size_hint_bytes = 7}));
  EXPECT_THAT(asked(), ::testing::Not(HasSubstr("setstripe")));
  ASSERT_TRUE(write_object(*storage_, "asked", "content", {.stripe_count = -1}));
  EXPECT_THAT(asked(), HasSubstr("setstripe -c -1 -S 1048576 "));
}

TEST_F(LustreTest, WithoutLfsOrWhenItFailsFilesAreOrdinary) {
  for (const char* body : {"", "echo 'no such pool' >&2; exit 2"}) {
    if (*body != '\0') lfs(body);
    ASSERT_TRUE(write_object(*storage_, "object", "content", {.stripe_count = 2}));
    EXPECT_EQ(*read_object(*storage_, "object"), "content");
  }
}

TEST_F(LustreTest, QuotasAreAskedOfLfs) {
  lfs(R"(test "$1 $2 $3 $4" = "quota -q -u 1234" && echo "/fsx 90 0 100 - 1 0 0 -" || exit 1)");
  const auto free = storage_->free_space("");
  ASSERT_TRUE(free);
  EXPECT_EQ(free->bytes, 10 << 10);
  EXPECT_THAT(free->limit, HasSubstr("user 1234"));
}

TEST_F(LustreTest, ADirectorysLayoutIsSetAndShown) {
  lfs(R"(test "$1" != getstripe || echo "stripe_count: 8")");
  EXPECT_TRUE(*set_lustre_layout(root_.path(), LustreLayout::kProgressive, sys_));
  EXPECT_THAT(asked(), HasSubstr("setstripe -E 100M -c 1 -S 1M -E 10G -c 4 -S 4M -E -1 -c -1 -S 16M " + root_.path()));
  EXPECT_THAT(**show_lustre_layout(root_.path(), sys_), HasSubstr("stripe_count: 8"));
  lfs("echo 'cannot' >&2; exit 1");
  EXPECT_THAT(set_lustre_layout(root_.path(), LustreLayout::kAll, sys_).error().to_string(), HasSubstr("cannot"));
  EXPECT_EQ(set_lustre_layout(root_.path() + "/none", LustreLayout::kAll, sys_).error().code(), ErrorCode::kNotFound);
}

TEST_F(LustreTest, ElsewhereNothingIsDone) {
  lfs(kSetStripe);
  EXPECT_FALSE(*set_lustre_layout(root_.path(), LustreLayout::kSpread));
  EXPECT_FALSE(*show_lustre_layout(root_.path()));
  const auto ordinary = *open_local_storage(root_.path());
  ASSERT_TRUE(write_object(*ordinary, "object", "content", {.stripe_count = 4}));
  EXPECT_THAT(asked(), IsEmpty());
}

TEST(LustrePolicy, NamesAndSizes) {
  for (const auto layout :
       {LustreLayout::kSingle, LustreLayout::kSpread, LustreLayout::kProgressive, LustreLayout::kAll}) {
    EXPECT_EQ(parse_lustre_layout(lustre_layout_name(layout)), layout);
  }
  EXPECT_FALSE(parse_lustre_layout("other"));
  EXPECT_FALSE(stripes_for(0, 0));
  EXPECT_EQ(stripes_for(int64_t{5} << 30, 0), (Stripes{8, 4 << 20}));
  EXPECT_EQ(stripes_for(int64_t{500} << 30, 0), (Stripes{-1, 16 << 20}));
  EXPECT_EQ(stripes_for(int64_t{500} << 30, 2), (Stripes{2, 16 << 20}));
}

}  // namespace
}  // namespace millrace::local
