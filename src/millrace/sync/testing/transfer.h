// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of transfers share: storages of each kind, content, and copies that do not end. Not thread-safe.

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/testing/parts_storage.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

struct Side {
  std::shared_ptr<Storage> storage;
  std::shared_ptr<TempDir> dir;           // of a local one
  std::shared_ptr<PartsService> service;  // of one with S3's shape

  Location at(const std::string& key) const { return {storage, key, std::string(storage->name()) + "/" + key}; }
  int64_t read_bytes() const { return service ? service->read_bytes.load() : 0; }
};

Side memory_side();
Side local_side();
Side parts_side();

std::string content_of(int64_t size, uint64_t seed);
void put(const Location& at, const std::string& content);
std::string get(const Location& at);
// As `put`, and where the storage keeps block hashes, with them.
void put_with_hashes(TransferEngine& engine, const Side& side, const std::string& key, const std::string& content);

// Copies `parts` parts, and then nothing more can be written.
void leave_unfinished(TransferEngine& engine, const Location& from, const Location& to, int64_t parts);
// Damages the only leftover below a local side. `how`: 0 changes a byte of its second block, 1 changes a byte of its
// note, 2 removes the note.
void damage_leftover(const Side& side, int how);
// Changes the first byte of a file, and so its time.
void overwrite_in_place(const std::string& path);

// Copies in a child process and kills it with -9, `after` it has reported `bytes` as copied. Returns how many bytes it
// had reported.
int64_t copy_until_killed(const Location& from, const Location& to, int64_t bytes, std::chrono::microseconds after);

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() { std::cout << "MILLRACE_TEST_SEED=" << seed_ << "\n"; }

  [[nodiscard]] Result<TransferReport> copy(const Location& from, const Location& to,
                                            const TransferOptions& options = {}, std::stop_token stop = {}) {
    const auto info = from.storage->stat(from.key);
    if (!info) return tl::unexpected<Error>(info.error());
    return engine_->copy(from, *info, to, options, std::move(stop));
  }
  TransferReport copied(const Location& from, const Location& to, const TransferOptions& options = {}) {
    auto report = copy(from, to, options);
    EXPECT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(engine_->memory_in_use_bytes(), 0);
    return report ? *report : TransferReport();
  }

  const uint64_t seed_ = test_seed();
  std::unique_ptr<TransferEngine> engine_ = *TransferEngine::create();
  Side memory_ = memory_side(), local_ = local_side(), parts_ = parts_side();
  Side other_memory_ = memory_side(), other_local_ = local_side(), other_parts_ = parts_side();
};

}  // namespace millrace::sync
