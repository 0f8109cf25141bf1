// SPDX-License-Identifier: Apache-2.0
#pragma once

// The work of one rank in a storage test: writes, reads, creates and stats files until all is done or the time is up.
// Each thread has its own RankIo.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::bench {

// The work of a rank in one round.
struct RankOutcome {
  int64_t bytes = 0, operations = 0;
  std::vector<float> seconds;  // of single operations, or of a sample of many
  double cached_bytes = 0;     // read from the page cache; not counted with O_DIRECT
};

class RankIo {
 public:
  // `direct`: bypasses the page cache.
  RankIo(int64_t block_bytes, uint64_t seed, bool direct);

  struct Until {
    Clock::time_point deadline;  // work stops then, even if it is not done
    const std::stop_token& stop;
  };

  // Writes [begin, begin + bytes) in blocks, and makes it durable. `truncate`: first empties an existing file.
  [[nodiscard]] Status write(const std::string& path, int64_t begin, int64_t bytes, bool truncate, const Until& until);
  // Reads the file from beginning to end, in blocks.
  [[nodiscard]] Status read(const std::string& path, const Until& until);
  // Reads blocks at random places until the time is up.
  [[nodiscard]] Status read_random(const std::string& path, const Until& until);
  // Writes blocks at random places of an existing file until the time is up, and makes them durable.
  [[nodiscard]] Status write_random(const std::string& path, const Until& until);
  // Reads, in blocks, the existing part of [begin, begin + bytes) of the file.
  [[nodiscard]] Status read_range(const std::string& path, int64_t begin, int64_t bytes, const Until& until);
  // Write or read the files FOLDER/0, FOLDER/1 and so on, in blocks. Each has `bytes` bytes, a multiple of the block.
  // Written files are made durable. Files are read in random order.
  [[nodiscard]] Status write_whole(const std::string& folder, int64_t count, int64_t bytes, const Until& until);
  [[nodiscard]] Status read_whole(const std::string& folder, int64_t count, const Until& until);
  // Create, stat, read or unlink the `count` files FOLDER/0, FOLDER/1 and so on, until the time is up.
  [[nodiscard]] Status create_files(const std::string& folder, int64_t count, const Until& until);
  [[nodiscard]] Status stat_files(const std::string& folder, int64_t count, const Until& until);
  [[nodiscard]] Status read_files(const std::string& folder, int64_t count, const Until& until);
  [[nodiscard]] Status unlink_files(const std::string& folder, int64_t count, const Until& until);

  RankOutcome take_outcome() { return std::move(outcome_); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  void count(int64_t bytes, Clock::time_point begun);
  // Returns the numbers of the files that exist, in random order.
  std::vector<int64_t> shuffled_files(const std::string& folder, int64_t files);
  // Returns whether work must stop. The first operation is always done, so a rank that starts late leaves no empty
  // file and no rate of 0.
  bool is_over(const Until& until) const {
    return until.stop.stop_requested() || (outcome_.operations > 0 && Clock::now() >= until.deadline);
  }

  int64_t block_bytes_;
  bool direct_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::mt19937_64 random_;
  RankOutcome outcome_;
};

// Returns whether the file system of `folder` can read and write past the page cache.
bool can_bypass_cache(const std::string& folder);
// Drops a file's clean pages from the page cache. Returns the number of its bytes that stay there.
double drop_cache(const std::string& path);

}  // namespace millrace::bench
