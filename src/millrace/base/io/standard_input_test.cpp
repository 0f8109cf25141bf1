// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/standard_input.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "millrace/base/testing.h"
#include "millrace/base/thread/stop_descriptor.h"

namespace millrace {
namespace {

bool is_readable(const StopDescriptor& stop) {
  pollfd waiting{stop.get(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

TEST(StopDescriptor, IsReadableFromTheStopOn) {
  std::stop_source source;
  const auto before = StopDescriptor::open(source.get_token());
  ASSERT_TRUE(before);
  EXPECT_FALSE(is_readable(**before));
  EXPECT_FALSE((*before)->is_stopped());
  source.request_stop();
  EXPECT_TRUE(is_readable(**before));
  EXPECT_TRUE((*before)->is_stopped());
  const auto after = StopDescriptor::open(source.get_token());
  ASSERT_TRUE(after);
  EXPECT_TRUE(is_readable(**after));
  const auto never = StopDescriptor::open({});
  ASSERT_TRUE(never);
  EXPECT_FALSE(is_readable(**never));
}

// In a child: the standard input of the tests stays what it is.
TEST(StandardInput, IsReadToItsEnd) {
  EXPECT_TRUE(succeeds_in_child([] {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0 || ::dup2(ends[0], STDIN_FILENO) < 0) return false;
    if (::write(ends[1], "words", 5) != 5 || ::close(ends[1]) != 0) return false;
    const auto input = StandardInput::open({});
    std::array<std::byte, 3> piece{};
    std::string all;
    for (;;) {
      const auto size = input->read(piece);
      if (!size) return false;
      if (*size == 0) return all == "words";
      for (size_t i = 0; i < *size; ++i) all += static_cast<char>(piece[i]);
    }
  }));
}

TEST(StandardInput, WaitsUntilTheStop) {
  EXPECT_TRUE(succeeds_in_child([] {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0 || ::dup2(ends[0], STDIN_FILENO) < 0) return false;
    std::stop_source stop;
    const auto input = StandardInput::open(stop.get_token());
    std::jthread stopper([&] { stop.request_stop(); });
    std::array<std::byte, 3> piece{};
    const auto size = input->read(piece);
    return !size && size.error().code() == ErrorCode::kCancelled;
  }));
}

}  // namespace
}  // namespace millrace
