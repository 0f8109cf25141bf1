// SPDX-License-Identifier: Apache-2.0
#pragma once

// The record of a sync over its run: what the last one, or a killed one, has left is read, a new one is written beside
// it, in part now and then, and takes its place at the end. No failure here ends a sync: it is a warning, and
// the next sync compares more. Belongs to one thread.

#include <chrono>
#include <memory>
#include <string>

#include "millrace/base/thread/sync.h"
#include "millrace/sync/record.h"

namespace millrace::sync {

class RecordKeeper {
 public:
  struct Options {
    bool reads;
    bool writes;
    std::chrono::milliseconds save_every;
  };
  // The record is at `key` of `storage`, which outlives this; parts of it are at `key` + ".part".
  RecordKeeper(Storage& storage, std::string key, const Options& options);

  // Opens the last record; nullptr: no usable record.
  std::unique_ptr<RecordReader> open_last();

  // For the new record. REQUIRES: paths in byte order.
  void keep(const RecordEntry& entry);
  // The new record will say something else than the last one.
  void note_change() { has_changed_ = true; }
  bool has_changed() const { return has_changed_; }

  // Saves the entries kept so far, when it is time: seldom enough to cost little.
  void save_so_far();
  bool is_to_be_saved() const { return writes() && has_changed_; }
  // All of it. REQUIRES: is_to_be_saved() before the last keep(); the last record is not read any more.
  void save();

 private:
  bool writes() const { return writer_ != nullptr; }

  Storage& storage_;
  const std::string key_, partial_key_;
  const Options options_;
  Clock::time_point next_save_;
  std::unique_ptr<RecordWriter> writer_;
  bool has_changed_ = false;
  bool saved_so_far_ = false;
};

}  // namespace millrace::sync
