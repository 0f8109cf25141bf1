// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: writes one file. writer.cpp writes the unfinished file; writer_commit.cpp makes it the object;
// writer_resume.cpp resumes the file of another process.

#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/storage/local/detail/objects.h"

namespace millrace::local {

inline constexpr mode_t kNewFileMode = 0666;  // minus the umask, as for any new file
// The least mode while the file is written, because another process may have to resume it.
inline constexpr mode_t kOwnerMode = 0600;

class LocalWriter final : public Writer {
 public:
  LocalWriter(std::shared_ptr<const Context> context, std::string key, std::string path, const WriteOptions& options)
      : context_(std::move(context)), key_(std::move(key)), path_(std::move(path)), options_(options) {}
  ~LocalWriter() override { discard(); }

  [[nodiscard]] Status begin();
  [[nodiscard]] Status begin_resumed(const ObjectInfo& upload);
  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override;
  void start_writes(std::vector<std::unique_ptr<PendingOperation>>& writes) override;
  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override;
  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override;
  [[nodiscard]] Status suspend() override;
  [[nodiscard]] Status set_note(std::string_view note) override;
  std::string_view note() const override { return resumed_note_; }
  [[nodiscard]] Status read_back(int64_t offset, std::span<std::byte> out) override;

 private:
  Syscalls& sys() const { return *context_->sys; }
  [[nodiscard]] Status check_target() const;
  mode_t new_file_mode() const { return options_.mode != 0 ? options_.mode | kOwnerMode : kNewFileMode; }
  [[nodiscard]] Result<bool> open_unnamed();
  [[nodiscard]] Status create_temp();
  [[nodiscard]] Result<Fd> open_temp(const std::string& temp);
  [[nodiscard]] Status open_abandoned_temp(const std::string& path);
  [[nodiscard]] Status read_note();
  void remove_note();
  [[nodiscard]] Status set_attributes();
  [[nodiscard]] Status preallocate(int64_t allocated);
  void open_stream();
  std::optional<Transfer> transfer(const PendingOperation& pending) const;
  [[nodiscard]] Status write_piece(int64_t offset, std::span<const std::byte> data);
  [[nodiscard]] Status write_sparse(int64_t offset, std::span<const std::byte> data);
  void leave();
  [[nodiscard]] Status check_open(std::string_view what) const;
  [[nodiscard]] Status check_not_brief(std::string_view what) const;
  [[nodiscard]] Status copy_in_kernel(const RandomReader& source, int64_t source_offset, int64_t size, int64_t offset,
                                      int64_t& done);
  [[nodiscard]] Result<struct stat> finish_file(Durability durability);
  int64_t hand_over();
  [[nodiscard]] Status publish();
  [[nodiscard]] Result<bool> publish_unnamed();
  [[nodiscard]] Status lock_temp(const std::string& name);
  [[nodiscard]] Status publish_if_absent();
  void raise_end(int64_t end);
  void discard();

  const std::shared_ptr<const Context> context_;
  const std::string key_;
  const std::string path_;
  const WriteOptions options_;
  const uint64_t generation_ = fork_generation();
  std::string temp_path_;  // empty: there is no unfinished file with a name
  Fd fd_;                  // open until the commit
  bool is_locked_ = false;
  std::optional<Stream> stream_;  // set for a large object
  std::atomic<int64_t> end_{0};   // offset after the last byte written
  std::string resumed_note_;
  Mutex note_mutex_;
  bool has_note_ GUARDED_BY(note_mutex_) = false;
  Fd note_fd_ GUARDED_BY(note_mutex_);             // file of the note that this writer has set
  size_t note_bytes_ GUARDED_BY(note_mutex_) = 0;  // size of that note, if it may be overwritten
};

// Returns a new name for an unfinished file of `target_name`, in the same directory.
std::string temp_name(std::string_view target_name);
// Returns the umask of this process from /proc, because umask(2) can only read it by changing it.
mode_t current_umask();

}  // namespace millrace::local
