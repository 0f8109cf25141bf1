// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads and writes the record of a sync during its run. Reads the record that the last sync left, even if it was
// killed. Writes a new record next to it, saves it in part from time to time, and replaces the old record at the end.
// A failure here does not end the sync. It is a warning, and the next sync compares more. Belongs to one thread.

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
  // The record is at `key` of `storage`, a partial record at `key` + ".part". REQUIRES: `storage` outlives this
  // object.
  RecordKeeper(Storage& storage, std::string key, const Options& options);

  // Opens the last record; nullptr: no usable record.
  std::unique_ptr<RecordReader> open_last();

  // Adds an entry to the new record. REQUIRES: paths in byte order.
  void keep(const RecordEntry& entry);
  // Notes that the new record differs from the last one.
  void note_change() { has_changed_ = true; }
  bool has_changed() const { return has_changed_; }

  // Saves the entries so far, if `save_every` has passed since the last time.
  void save_so_far();
  bool is_to_be_saved() const { return writes() && has_changed_; }
  // Saves the whole record. REQUIRES: is_to_be_saved() before the last keep(); the last record is not read any more.
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
