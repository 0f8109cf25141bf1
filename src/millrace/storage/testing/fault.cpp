// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/fault.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "millrace/base/thread/per_process.h"
#include "millrace/storage/submit.h"

namespace millrace {

void FaultPlan::add(FaultRule rule) {
  MutexLock lock(mutex_);
  rules_.push_back({std::move(rule)});
}

void FaultPlan::clear() {
  MutexLock lock(mutex_);
  rules_.clear();
}

int64_t FaultPlan::hits() const {
  MutexLock lock(mutex_);
  return hits_;
}

int64_t FaultPlan::most_at_once() const {
  MutexLock lock(mutex_);
  return most_delayed_;
}

int64_t FaultPlan::round_trips() const {
  MutexLock lock(mutex_);
  return round_trips_;
}

FaultPlan::Verdict FaultPlan::judge(FaultCall call, std::string_view key) {
  Verdict verdict;
  std::chrono::milliseconds delay{0};
  std::vector<std::function<void()>> before;
  bool hit = false;
  int64_t chain = 0;
  {
    MutexLock lock(mutex_);
    for (auto& [rule, matches] : rules_) {
      if (rule.call != FaultCall::kAny && rule.call != call) continue;
      if (key.find(rule.key_part) == key.npos) continue;
      const int64_t match = matches++;
      if (match < rule.skip || match - rule.skip >= rule.count) continue;
      hit = true;
      delay += rule.delay;
      if (rule.before) before.push_back(rule.before);
      verdict.flip_bit |= rule.flip_bit;
      if (rule.error && verdict.status) verdict.status = tl::unexpected<Error>(*rule.error);
    }
    if (hit) ++hits_;
    chain = round_trips_ + 1;
    if (delay.count() > 0) most_delayed_ = std::max(most_delayed_, ++delayed_);
  }
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  for (const auto& held : before) held();
  if (hit) {
    MutexLock lock(mutex_);
    if (delay.count() > 0) --delayed_;
    round_trips_ = std::max(round_trips_, chain);
  }
  return verdict;
}

namespace {

class FaultReader final : public RandomReader {
 public:
  FaultReader(std::unique_ptr<RandomReader> inner, std::shared_ptr<FaultPlan> plan, std::string_view key)
      : inner_(std::move(inner)), plan_(std::move(plan)), key_(key) {}

  std::string_view name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }
  std::string_view version() const override { return inner_->version(); }
  const RandomReader& copy_source() const override { return inner_->copy_source(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    const auto verdict = plan_->judge(FaultCall::kRead, key_);
    RETURN_IF_ERROR(verdict.status);
    RETURN_IF_ERROR(inner_->read_at(offset, out));
    if (verdict.flip_bit && !out.empty()) out[out.size() / 2] ^= std::byte{1};
    return {};
  }

 private:
  const std::unique_ptr<RandomReader> inner_;
  const std::shared_ptr<FaultPlan> plan_;
  const std::string key_;
};

class FaultWriter final : public Writer {
 public:
  FaultWriter(std::unique_ptr<Writer> inner, std::shared_ptr<FaultPlan> plan, std::string_view key)
      : inner_(std::move(inner)), plan_(std::move(plan)), key_(key) {}

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kWrite, key_).status);
    return inner_->write_at(offset, data);
  }
  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kCopyRange, key_).status);
    return inner_->copy_range(source, source_offset, size, offset);
  }
  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kCommit, key_).status);
    return inner_->commit(durability);
  }
  int64_t part_bytes() const override { return inner_->part_bytes(); }
  [[nodiscard]] Status suspend() override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kNote, key_).status);
    return inner_->suspend();
  }
  [[nodiscard]] Status set_note(std::string_view note) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kNote, key_).status);
    return inner_->set_note(note);
  }
  std::string_view note() const override { return inner_->note(); }
  [[nodiscard]] Status read_back(int64_t offset, std::span<std::byte> out) override {
    const auto verdict = plan_->judge(FaultCall::kReadBack, key_);
    RETURN_IF_ERROR(verdict.status);
    RETURN_IF_ERROR(inner_->read_back(offset, out));
    if (verdict.flip_bit && !out.empty()) out[out.size() / 2] ^= std::byte{1};
    return {};
  }
  std::span<const WrittenPart> parts() const override { return inner_->parts(); }

 private:
  const std::unique_ptr<Writer> inner_;
  const std::shared_ptr<FaultPlan> plan_;
  const std::string key_;
};

class FaultStorage final : public Storage {
 public:
  FaultStorage(std::shared_ptr<Storage> inner, std::shared_ptr<FaultPlan> plan, int operations_at_once)
      : inner_(std::move(inner)),
        plan_(std::move(plan)),
        executor_([operations_at_once] { return std::make_unique<Executor>(operations_at_once, "mr-fault"); }) {}

  std::string_view name() const override { return inner_->name(); }
  Capabilities capabilities() const override { return inner_->capabilities(); }
  const void* copier() const override { return inner_->copier(); }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kOpenRead, key).status);
    ASSIGN_OR_RETURN(auto reader, inner_->open_read(key, options));
    return std::make_unique<FaultReader>(std::move(reader), plan_, key);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kOpenWrite, key).status);
    ASSIGN_OR_RETURN(auto writer, inner_->open_write(key, options));
    return std::make_unique<FaultWriter>(std::move(writer), plan_, key);
  }
  // The operations name readers and writers of this storage, so their own calls inject the faults.
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_operations(executor_.get(), operations, queue);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kStat, key).status);
    return inner_->stat(key);
  }
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    return inner_->checksum(object);
  }
  [[nodiscard]] Result<ObjectTags> tags(std::string_view key) override { return inner_->tags(key); }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kList, prefix).status);
    return inner_->list(prefix, options);
  }
  [[nodiscard]] Status remove_empty_folder(std::string_view key) override { return inner_->remove_empty_folder(key); }
  [[nodiscard]] Status make_folder(std::string_view key) override { return inner_->make_folder(key); }
  [[nodiscard]] Status remove_folder(std::string_view key) override { return inner_->remove_folder(key); }
  [[nodiscard]] Result<std::optional<PosixAttributes>> folder_attributes(std::string_view key) override {
    return inner_->folder_attributes(key);
  }
  [[nodiscard]] Status set_folder_attributes(std::string_view key, const PosixAttributes& attributes) override {
    return inner_->set_folder_attributes(key, attributes);
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override {
    return each(FaultCall::kRemove, keys, [&](std::span<const std::string> good) { return inner_->remove(good); });
  }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kListUploads, prefix).status);
    return inner_->list_uploads(prefix);
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    return inner_->abort_uploads(uploads);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    RETURN_IF_ERROR(plan_->judge(FaultCall::kOpenWrite, upload.key).status);
    ASSIGN_OR_RETURN(auto writer, inner_->resume_write(upload, options));
    return std::make_unique<FaultWriter>(std::move(writer), plan_, upload.key);
  }
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override {
    return each(FaultCall::kMakeDurable, keys,
                [&](std::span<const std::string> good) { return inner_->make_durable(good); });
  }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override { return inner_->free_space(prefix); }

 private:
  // Does the keys that no rule fails; answers the first error.
  template <class Do>
  Status each(FaultCall call, std::span<const std::string> keys, Do&& act) {
    Status first;
    std::vector<std::string> good;
    for (const std::string& key : keys) {
      auto status = plan_->judge(call, key).status;
      if (status) good.push_back(key);
      if (first && !status) first = std::move(status);
    }
    Status done = act(good);
    return first ? std::move(done) : std::move(first);
  }

  const std::shared_ptr<Storage> inner_;
  const std::shared_ptr<FaultPlan> plan_;
  const PerProcess<Executor> executor_;
};

}  // namespace

std::shared_ptr<Storage> make_fault_storage(std::shared_ptr<Storage> inner, std::shared_ptr<FaultPlan> plan,
                                            int operations_at_once) {
  return std::make_shared<FaultStorage>(std::move(inner), std::move(plan), operations_at_once);
}

}  // namespace millrace
