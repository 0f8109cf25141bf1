// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/lease.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

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
