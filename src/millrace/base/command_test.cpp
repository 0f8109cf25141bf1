// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

using namespace std::chrono_literals;

// The right sides are what Python's shlex.split gives.
TEST(SplitCommand, AsShlexDoes) {
  const std::pair<const char*, std::vector<std::string>> kCases[] = {
      {"", {}},
      {"  \t\n ", {}},
      {"a b  c", {"a", "b", "c"}},
      {"'a b' c", {"a b", "c"}},
      {"\"a b\" c", {"a b", "c"}},
      {"a'b'\"c\"d", {"abcd"}},
      {"'' \"\" x", {"", "", "x"}},
      {"a\\ b \\\\ \\'", {"a b", "\\", "'"}},
      {"'a\\b'", {"a\\b"}},
      {R"("a\"b\\c\d\$e")", {R"(a"b\c\d\$e)"}},
      {"# no comment", {"#", "no", "comment"}},
      {"a#b $HOME `x` *", {"a#b", "$HOME", "`x`", "*"}},
      {"x\\\ny", {"x\ny"}},
      {"a;b|c&&d>e", {"a;b|c&&d>e"}},
  };
  for (const auto& [text, words] : kCases) {
    const auto split = split_command(text);
    ASSERT_TRUE(split) << text;
    EXPECT_THAT(*split, ElementsAreArray(words)) << text;
  }
  for (const char* text : {"'a", "\"a", "a\\", "\"a\\\"", "x 'y"}) EXPECT_FALSE(split_command(text)) << text;
}

TEST(RunCommand, GivesOutputAndStatus) {
  const auto ran = run_command({"sh", "-c", "echo out; echo err >&2; cat; exit 3"}, 10s, {});
  ASSERT_TRUE(ran) << ran.error().to_string();
  EXPECT_FALSE(ran->ok);
  EXPECT_EQ(ran->status, "exit status 3");
  EXPECT_EQ(ran->out, "out\n");
  EXPECT_EQ(ran->err, "err\n");
  EXPECT_TRUE(run_command({"true"}, 10s, {})->ok);
  EXPECT_EQ(run_command({"sh", "-c", "kill -9 $$"}, 10s, {})->status, "signal 9");
  EXPECT_EQ(run_command({"/no/such/program"}, 10s, {}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(run_command({"/tmp"}, 10s, {}).error().code(), ErrorCode::kPermissionDenied);
}

TEST(RunCommand, GivesVariablesInPlaceOfThoseOfTheSameNames) {
  ::setenv("MILLRACE_TEST_COMMAND", "ours", 1);
  const std::vector<std::string> print{"sh", "-c",
                                       "echo $MILLRACE_TEST_COMMAND,$MILLRACE_TEST_COMMAND_2,${PATH:+PATH}"};
  EXPECT_EQ(run_command(print, 10s, {})->out, "ours,,PATH\n");
  const std::vector<std::string> variables{"MILLRACE_TEST_COMMAND=its own", "MILLRACE_TEST_COMMAND_2=a=b"};
  EXPECT_EQ(run_command(print, 10s, {}, kMaxCommandOutput, variables)->out, "its own,a=b,PATH\n");
  EXPECT_EQ(
      run_command({"sh", "-c", "env | grep -c ^MILLRACE_TEST_COMMAND="}, 10s, {}, kMaxCommandOutput, variables)->out,
      "1\n");
  ::unsetenv("MILLRACE_TEST_COMMAND");
}

TEST(RunCommand, IsEndedWithItsChildrenWhenItTakesTooLong) {
  const auto begin = Clock::now();
  const auto ran = run_command({"sh", "-c", "sleep 30 & sleep 30"}, 200ms, {});
  EXPECT_EQ(ran.error().code(), ErrorCode::kTimeout);
  // Its output is closed, and it goes on.
  EXPECT_EQ(run_command({"sh", "-c", "exec >&- 2>&-; sleep 30"}, 200ms, {}).error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(run_command({"cat", "/dev/zero"}, 10s, {}).error().code(), ErrorCode::kResourceExhausted);
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(100ms);
    stop.request_stop();
  });
  EXPECT_EQ(run_command({"sleep", "30"}, 30s, stop.get_token()).error().code(), ErrorCode::kCancelled);
  EXPECT_LT(Clock::now() - begin, 18s);
}

TEST(RunCommand, IsStoppedAfterItHasClosedItsOutput) {
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(100ms);
    stop.request_stop();
  });
  const auto ran = run_command({"sh", "-c", "exec >&- 2>&-; sleep 30"}, 30s, stop.get_token());
  EXPECT_EQ(ran.error().code(), ErrorCode::kCancelled);
}

// As on a kernel before 5.3, for this thread and the programs that it starts.
bool forbid_process_descriptors() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         syscall(SYS_pidfd_open, getpid(), 0) < 0 && errno == ENOSYS;
}

TEST(RunCommand, WaitsAlsoWhereTheKernelHasNoProcessDescriptors) {
  Thread thread("test", [] {
    ASSERT_TRUE(forbid_process_descriptors());
    EXPECT_EQ(run_command({"sh", "-c", "exec >&- 2>&-; sleep 0.1; exit 3"}, 10s, {})->status, "exit status 3");
    EXPECT_EQ(run_command({"sh", "-c", "exec >&- 2>&-; sleep 30"}, 200ms, {}).error().code(), ErrorCode::kTimeout);
  });
  thread.join();
}

// Threads of ours block every signal; a program started from one must not.
TEST(RunCommand, StartsProgramsWithSignalsAsUsual) {
  Thread thread("test", [] {
    const auto ran = run_command({"sh", "-c", "grep SigBlk /proc/self/status"}, 10s, {});
    EXPECT_EQ(ran->out, "SigBlk:\t0000000000000000\n");
  });
  thread.join();
}

}  // namespace
}  // namespace millrace
