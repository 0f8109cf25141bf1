// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/lease.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include "millrace/base/testing/helpers.h"

namespace millrace::link {
namespace {

class FileLeaseTest : public ::testing::Test {
 protected:
  FileLeaseTest() : path_(folder_.path() + "/file"), fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}
  ~FileLeaseTest() override { ::close(fd_); }

  TempDir folder_;
  const std::string path_;
  const int fd_;
};

TEST_F(FileLeaseTest, IsRefusedWhileTheFileIsOpen) {
  const int reader = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_TRUE(FileLease(fd_, FileLease::Kind::kNobody).is_in_use());
  EXPECT_FALSE(FileLease(reader, FileLease::Kind::kNoWriter).is_held()) << "fd_ may write";
  ::close(reader);
  EXPECT_TRUE(FileLease(fd_, FileLease::Kind::kNobody).is_held());
  const FileLease closed(-1, FileLease::Kind::kNobody);
  EXPECT_EQ(closed.error(), EBADF);
  EXPECT_FALSE(closed.is_in_use());
}

TEST_F(FileLeaseTest, TellsAFileThatIsCommittedFromOneThatIsWritten) {
  ASSERT_EQ(::write(fd_, "half", 4), 4);
  EXPECT_EQ(how_committed(path_), Committed::kNo) << "a file that is written";
  const std::string linked = folder_.path() + "/linked";
  // Times tick every few milliseconds; the name must be younger than the content.
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_EQ(::link(path_.c_str(), linked.c_str()), 0);
  EXPECT_EQ(how_committed(linked), Committed::kInUse) << "fd_ may write";
  ASSERT_EQ(::write(fd_, "more", 4), 4);
  EXPECT_EQ(how_committed(linked), Committed::kNo) << "the last change is a write";
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 1'600'000'000, .tv_nsec = 1}};
  ASSERT_EQ(::futimens(fd_, times), 0);
  EXPECT_EQ(how_committed(linked), Committed::kInUse);
  EXPECT_TRUE(succeeds_in_child([&] {
    ::close(fd_);
    return how_committed(linked) == Committed::kInUse;
  })) << "the parent has it open still";
  EXPECT_EQ(how_committed(folder_.path()), Committed::kNo);
  EXPECT_EQ(how_committed(folder_.path() + "/missing"), Committed::kNo);
}

TEST(Committed, AFileWithoutAWriterIsWhole) {
  const TempDir folder;
  const std::string temp = folder.path() + "/temp", path = folder.path() + "/file";
  std::ofstream(temp) << "whole";
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_EQ(::link(temp.c_str(), path.c_str()), 0);
  ASSERT_EQ(::unlink(temp.c_str()), 0);
  EXPECT_EQ(how_committed(path), Committed::kYes);
  std::ofstream(path, std::ios::app) << " and more";
  EXPECT_EQ(how_committed(path), Committed::kNo);
}

// Another process opens the file while it is leased: it waits, and the holder lives.
TEST_F(FileLeaseTest, SomebodyWhoWaitsDoesNotEndTheHolder) {
  EXPECT_TRUE(succeeds_in_child([&] {
    int ready[2];
    if (::pipe(ready) != 0) return false;
    pid_t opener = -1;
    {
      const FileLease lease(fd_, FileLease::Kind::kNobody);
      opener = ::fork();
      if (opener == 0) {
        // O_NONBLOCK: it asks for the lease to end, and does not wait.
        const bool asked = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK) < 0 && errno == EWOULDBLOCK;
        static_cast<void>(!::write(ready[1], "x", 1));
        ::_exit(asked ? 0 : 1);
      }
      char byte = 0;
      if (::read(ready[0], &byte, 1) != 1) return false;
    }
    int status = 0;
    return ::waitpid(opener, &status, 0) == opener && WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
           ::open(path_.c_str(), O_RDONLY | O_NONBLOCK) >= 0;
  }));
}

}  // namespace
}  // namespace millrace::link
