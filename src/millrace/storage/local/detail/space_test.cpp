// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/space.h"

#include <gmock/gmock.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"

namespace millrace::local {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A user other than root, with the quotas of a test.
class QuotaSyscalls final : public Syscalls {
 public:
  std::map<int, struct dqblk> quotas;  // by type
  uid_t user = 1234;
  uid_t geteuid() override { return user; }
  int get_quota(const char* /*path*/, int type, uint32_t id, struct dqblk* out) override {
    const auto found = quotas.find(type);
    const bool asks_right = id == (type == USRQUOTA ? user : ::getegid());
    if (found == quotas.end() || !asks_right) {
      errno = ESRCH;
      return -1;
    }
    *out = found->second;
    return 0;
  }
};

struct dqblk quota_block(uint64_t hard_kib, uint64_t used_bytes) {
  struct dqblk block{};
  block.dqb_bhardlimit = hard_kib;
  block.dqb_curspace = used_bytes;
  return block;
}

class SpaceTest : public ::testing::Test {
 protected:
  FreeSpace free() { return *storage_->free_space("not/yet"); }

  TempDir dir_;
  QuotaSyscalls sys_;
  std::shared_ptr<Storage> storage_ = *open_local_storage(dir_.path(), {.syscalls = &sys_});
};

TEST_F(SpaceTest, TheLeastOfDiskAndQuotasCounts) {
  const FreeSpace whole = free();
  EXPECT_EQ(whole.limit, "the file system");
  sys_.quotas[USRQUOTA] = quota_block(1 << 20, 1 << 20);
  EXPECT_EQ(free().bytes, std::min(whole.bytes, (int64_t{1} << 30) - (1 << 20)));
  sys_.quotas[GRPQUOTA] = quota_block(100, 60 << 10);
  EXPECT_EQ(free().bytes, 40 << 10);
  EXPECT_THAT(free().limit, AllOf(HasSubstr("the quota of group"), HasSubstr("102 kB")));
  sys_.quotas[USRQUOTA] = quota_block(10, 11 << 10);
  EXPECT_EQ(free().bytes, 0);
  EXPECT_THAT(free().limit, HasSubstr("the quota of user 1234"));
  sys_.user = 0;
  EXPECT_EQ(free().limit, "the file system") << "nothing holds root";
}

TEST_F(SpaceTest, ASoftLimitHoldsOnceItsGraceIsOver) {
  struct dqblk block{};
  block.dqb_bsoftlimit = 100;
  block.dqb_curspace = 200 << 10;
  block.dqb_btime = static_cast<uint64_t>(::time(nullptr)) + 1000;
  sys_.quotas[USRQUOTA] = block;
  EXPECT_EQ(free().limit, "the file system");
  sys_.quotas[USRQUOTA].dqb_btime = 1;
  EXPECT_EQ(free().bytes, 0);
}

TEST_F(SpaceTest, FilesHaveQuotasToo) {
  struct statvfs whole{};
  ASSERT_EQ(::statvfs(dir_.path().c_str(), &whole), 0);
  EXPECT_EQ(free().files.has_value(), whole.f_files > 0);
  struct dqblk block{};
  block.dqb_ihardlimit = 1000;
  block.dqb_curinodes = 993;
  sys_.quotas[USRQUOTA] = block;
  EXPECT_EQ(free().files, 7);
  EXPECT_EQ(free().files_limit, "the quota of user 1234 (1,000 files, of which 993 are used)");
  EXPECT_EQ(free().limit, "the file system");
  block = {};
  block.dqb_isoftlimit = 10;
  block.dqb_curinodes = 20;
  block.dqb_itime = 1;
  sys_.quotas[USRQUOTA] = block;
  EXPECT_EQ(free().files, 0) << "its grace is over";
}

TEST_F(SpaceTest, AWriteAndACheckSayWhatHolds) {
  sys_.quotas[USRQUOTA] = quota_block(100, 0);
  const auto refused = storage_->open_write("object", {.size_hint_bytes = 1 << 20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), AllOf(HasSubstr("1.05 MB"), HasSubstr("102 kB"), HasSubstr("user 1234")));
  const Status checked = check_space(*storage_, "a/", 1 << 20, "the data");
  EXPECT_THAT(checked.error().to_string(), AllOf(HasSubstr("the data: it needs 1.05 MB"), HasSubstr("make room")));
  EXPECT_TRUE(check_space(*storage_, "a/", 100 << 10, "the data"));
  EXPECT_TRUE(check_space(*storage_, "a/", 0, "nothing"));
}

TEST_F(SpaceTest, ALeftoverIsAsLargeAsWhatItReserved) {
  const auto writer = storage_->open_write("object", {.size_hint_bytes = 1 << 20});
  ASSERT_TRUE(writer && (*writer)->append(as_bytes("x")) && (*writer)->suspend());
  const auto uploads = storage_->list_uploads("");
  ASSERT_EQ(uploads->size(), 1u);
  EXPECT_GE(uploads->front().size, 1 << 20);
}

TEST(LfsQuota, ReadsWhatLfsPrints) {
  const auto plain = parse_lfs_quota("     /fsx   10240       0   20480       -       3       0       0       -\n");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->bytes.used, 10 << 20);
  EXPECT_EQ(plain->bytes.hard, 20 << 20);
  EXPECT_FALSE(plain->bytes.grace_is_over);
  EXPECT_EQ(plain->files.used, 3);
  EXPECT_EQ(plain->files.limit(), 0);
  const auto broken = parse_lfs_quota("/fsx/a/very/long/path\n   30*      20   40    none   1  0  0  -\n");
  ASSERT_TRUE(broken);
  EXPECT_EQ(broken->bytes.used, 30 << 10);
  EXPECT_EQ(broken->bytes.soft, 20 << 10);
  EXPECT_TRUE(broken->bytes.grace_is_over);
  const auto files = parse_lfs_quota("/fsx 1 0 0 - 120* 100 200 expired\n");
  ASSERT_TRUE(files);
  EXPECT_EQ(files->files.limit(), 100);
  EXPECT_EQ(files->files.left(), 0);
  for (const char* text : {"", "quota is off", "/fsx [12] 0 20 - 1 0 0 -", "/fsx -1 0 20 - 1"}) {
    EXPECT_FALSE(parse_lfs_quota(text)) << text;
  }
}

}  // namespace
}  // namespace millrace::local
