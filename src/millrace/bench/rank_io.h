// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one rank of a storage test does: it writes, reads, makes and looks at files until it is done, or its time is up.
// One object a thread.

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

// What a rank did in one round.
struct RankOutcome {
  int64_t bytes = 0, operations = 0;
  std::vector<float> seconds;  // of single operations; some of them when there are many
  double cached_bytes = 0;     // of what it read, that the page cache had before; with O_DIRECT none is counted
};

class RankIo {
 public:
  // `direct`: past the page cache. `deadline`: when it stops, done or not.
  RankIo(int64_t block_bytes, uint64_t seed, bool direct);

  struct Until {
    Clock::time_point deadline;
    const std::stop_token& stop;
  };

  // Writes [begin, begin + bytes) in blocks, and makes it durable. `truncate`: an old file is emptied first.
  [[nodiscard]] Status write(const std::string& path, int64_t begin, int64_t bytes, bool truncate, const Until& until);
  // Reads the file from its begin to its end, in blocks.
  [[nodiscard]] Status read(const std::string& path, const Until& until);
  // Reads blocks at random places, again and again until the time is up.
  [[nodiscard]] Status read_random(const std::string& path, const Until& until);
  // Writes blocks at random places of a file that is there, until the time is up, and makes them durable.
  [[nodiscard]] Status write_random(const std::string& path, const Until& until);
  // Reads [begin, begin + bytes), or what the file has of it, in blocks.
  [[nodiscard]] Status read_range(const std::string& path, int64_t begin, int64_t bytes, const Until& until);
  // Files FOLDER/0, FOLDER/1 and so on, of `bytes` each, which is a multiple of the block: each is written in blocks
  // and made durable, or read so, in random order.
  [[nodiscard]] Status write_whole(const std::string& folder, int64_t count, int64_t bytes, const Until& until);
  [[nodiscard]] Status read_whole(const std::string& folder, int64_t count, const Until& until);
  // Files FOLDER/0, FOLDER/1 and so on. Each of these acts on all `count` of them, or until the time is up.
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
  // Of those that are there.
  std::vector<int64_t> shuffled_files(const std::string& folder, int64_t files);
  // Something is done in any case, so that a late start leaves no empty file and no rate of 0.
  bool is_over(const Until& until) const {
    return until.stop.stop_requested() || (outcome_.operations > 0 && Clock::now() >= until.deadline);
  }

  int64_t block_bytes_;
  bool direct_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::mt19937_64 random_;
  RankOutcome outcome_;
};

// Whether the file system of `folder` reads and writes past the page cache.
bool can_bypass_cache(const std::string& folder);
// Drops a file's clean pages from the cache, and gives the bytes of it that are there all the same.
double drop_cache(const std::string& path);

}  // namespace millrace::bench
