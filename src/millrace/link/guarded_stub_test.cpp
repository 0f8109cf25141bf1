// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/guarded_stub.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/link/detail/guard_wire.h"
#include "millrace/link/guardian.h"
#include "millrace/link/state.h"
#include "millrace/storage/local/local.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;

class GuardedStubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root sees the attribute";
  }

  Descriptor make(const std::string& name) const {
    Descriptor file(::open((folder_.path() + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    EXPECT_EQ(::ftruncate(file.get(), 1234), 0);
    return file;
  }

  TempDir folder_;
};

TEST_F(GuardedStubTest, TheAttributeTellsInodeSizeAndTime) {
  const Descriptor file = make("a");
  const std::string path = folder_.path() + "/a";
  EXPECT_FALSE(read_guarded_stub(file.get()));
  struct stat info{};
  ASSERT_EQ(::fstat(file.get(), &info), 0);
  ASSERT_TRUE(mark_guarded_stub(file.get(), info));
  auto stub = read_guarded_stub(path);
  ASSERT_TRUE(stub);
  EXPECT_EQ(stub->inode, info.st_ino);
  EXPECT_EQ(stub->size, 1234);
  EXPECT_EQ(stub->modified, FileTime(info.st_mtim));
  EXPECT_FALSE(stub->is_filling);
  stub->is_filling = true;
  ASSERT_TRUE(mark_guarded_stub(file.get(), *stub));
  EXPECT_TRUE(read_guarded_stub(file.get())->is_filling);
  // What is written meanwhile changes nothing of the version that the link knows.
  const std::string before = local_version(info);
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 5000), 1);
  ASSERT_EQ(::fstat(file.get(), &info), 0);
  EXPECT_NE(local_version(info), before);
  EXPECT_EQ(version_of(*stub, info), before);
}

TEST_F(GuardedStubTest, ACopyThatTookTheAttributeAlongIsNone) {
  const Descriptor file = make("a"), copy = make("b");
  struct stat info{};
  ASSERT_EQ(::fstat(file.get(), &info), 0);
  ASSERT_TRUE(mark_guarded_stub(file.get(), info));
  std::array<char, 256> value;
  const ssize_t size = ::fgetxattr(file.get(), kGuardedStubAttribute, value.data(), value.size());
  ASSERT_GT(size, 0);
  ASSERT_EQ(::fsetxattr(copy.get(), kGuardedStubAttribute, value.data(), static_cast<size_t>(size), 0), 0);
  EXPECT_FALSE(read_guarded_stub(copy.get()));
  EXPECT_TRUE(check_has_content(copy.get(), "b"));
  EXPECT_EQ(code_of(check_has_content(file.get(), "a")), ErrorCode::kUnavailable);
  std::filesystem::rename(folder_.path() + "/a", folder_.path() + "/c");
  EXPECT_TRUE(read_guarded_stub(folder_.path() + "/c"));
}

TEST_F(GuardedStubTest, ProgramsOfMillraceReadNoZeros) {
  const Descriptor file = make("a");
  struct stat info{};
  ASSERT_EQ(::fstat(file.get(), &info), 0);
  ASSERT_TRUE(mark_guarded_stub(file.get(), info));
  auto storage_or = open_local_storage(folder_.path());
  ASSERT_TRUE(storage_or) << storage_or.error().to_string();
  const auto storage = *std::move(storage_or);
  EXPECT_EQ(code_of(storage->open_read("a")), ErrorCode::kUnavailable);
}

TEST_F(GuardedStubTest, OneAtATimeHoldsAnInode) {
  const LinkHome home{folder_.path()};
  std::optional<InodeLock> first;
  auto made = InodeLock::take(home, ~uint64_t{0});
  ASSERT_TRUE(made) << made.error().to_string();
  first = *std::move(made);
  ASSERT_TRUE(InodeLock::take(home, 7));
  std::atomic<bool> has_second = false;
  std::jthread second([&] {
    EXPECT_TRUE(InodeLock::take(home, ~uint64_t{0}));
    has_second = true;
  });
  EXPECT_FALSE(has_second);
  first.reset();
}

TEST_F(GuardedStubTest, ANetworkFileSystemIsNotGuarded) {
  std::filesystem::create_directories(folder_.path() + "/hidden/data");
  std::filesystem::permissions(folder_.path() + "/hidden", std::filesystem::perms::owner_all);
  const LinkConfig config{.directory = folder_.path() + "/hidden/data", .lazy = true, .show_at = "/elsewhere"};
  set_file_system_for_test(0x6969);
  const Status refused = check_guard(config);
  set_file_system_for_test(std::nullopt);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("lies on NFS, where other nodes would read zeros"));
}

TEST(GuardWire, MessagesCarryDescriptors) {
  TempDir folder;
  const std::string path = folder.path() + "/socket";
  EXPECT_EQ(code_of(connect_to(path)), ErrorCode::kNotFound);
  auto listener_or = listen_at(path);
  ASSERT_TRUE(listener_or) << listener_or.error().to_string();
  const Descriptor listener = *std::move(listener_or);
  auto client_or = connect_to(path);
  ASSERT_TRUE(client_or) << client_or.error().to_string();
  Descriptor client = *std::move(client_or);
  Descriptor server(::accept(listener.get(), nullptr, nullptr));
  const Descriptor file(::open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(send_message(client.get(), {.kind = GuardMessage::kFill, .value = -3, .id = 1ULL << 40}, file.get()));
  ASSERT_TRUE(send_message(client.get(), {.kind = GuardMessage::kAsk}));
  auto first_or = receive_message(server.get());
  ASSERT_TRUE(first_or) << first_or.error().to_string();
  const ReceivedMessage first = *std::move(first_or);
  EXPECT_EQ(first.message.kind, GuardMessage::kFill);
  EXPECT_EQ(first.message.value, -3);
  EXPECT_EQ(first.message.id, 1ULL << 40);
  struct stat sent{}, got{};
  ASSERT_EQ(::fstat(file.get(), &sent), 0);
  ASSERT_EQ(::fstat(first.descriptor.get(), &got), 0);
  EXPECT_EQ(sent.st_ino, got.st_ino);
  auto second_or = receive_message(server.get());
  ASSERT_TRUE(second_or) << second_or.error().to_string();
  const ReceivedMessage second = *std::move(second_or);
  EXPECT_EQ(second.message.kind, GuardMessage::kAsk);
  EXPECT_EQ(second.descriptor.get(), -1);
  client = Descriptor();
  EXPECT_EQ(code_of(receive_message(server.get())), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(listen_at(std::string(200, 'x'))), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::link
