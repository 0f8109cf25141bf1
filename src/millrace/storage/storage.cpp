// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/storage.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text/units.h"

namespace millrace {
namespace {

// Large, because some backends read a whole directory for each page. Backends with a smaller limit give smaller pages.
constexpr int64_t kWalkPageKeys = 100'000;
// S3 may give some, where it skips deleted objects; a hundred in a row would be 100,000 of them.
constexpr int kMostEmptyPages = 100;

Status refuse_key(std::string_view key, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, "key \"{}\": {}", key.substr(0, 300), why);
}

}  // namespace

Status check_object_key(std::string_view key) {
  if (key.empty()) return refuse_key(key, "is empty");
  if (key.find('\0') != key.npos) return refuse_key(key, "contains a NUL byte");
  return {};
}

Status check_key(std::string_view key) {
  RETURN_IF_ERROR(check_object_key(key));
  const auto refuse = [&](std::string_view why) { return refuse_key(key, why); };
  if (key.front() == '/') return refuse("begins with '/'");
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view component = key.substr(begin, end - begin);
    if (component.empty()) return refuse("has an empty component");
    if (component == "." || component == "..") return refuse("has a component \".\" or \"..\"");
    begin = end + 1;
  }
  return {};
}

Status Writer::append(std::span<const std::byte> data) {
  RETURN_IF_ERROR(write_at(appended_, data));
  appended_ += static_cast<int64_t>(data.size());
  return {};
}

Status Writer::suspend() {
  return fail(ErrorCode::kUnsupported, "this storage cannot resume a write of another process");
}

Status Writer::set_note(std::string_view /*note*/) {
  return fail(ErrorCode::kUnsupported, "this storage keeps no notes with a write");
}

Status Writer::read_back(int64_t /*offset*/, std::span<std::byte> /*out*/) {
  return fail(ErrorCode::kUnsupported, "this storage does not read what is being written");
}

Result<std::unique_ptr<Writer>> Storage::resume_write(const ObjectInfo& upload, const WriteOptions& /*options*/) {
  return fail(ErrorCode::kUnsupported, "{}: going on with the write of {} is not supported", name(), upload.key);
}

void CompletionQueue::push(Completion completion) {
  MutexLock lock(mutex_);
  done_.push_back(std::move(completion));
  // under the lock: the thread that takes the last completion may destroy the queue
  if (done_.size() >= wanted_) pushed_.notify_one();
}

Completion CompletionQueue::wait() {
  MutexLock lock(mutex_);
  while (done_.empty()) pushed_.wait(mutex_);
  Completion completion = std::move(done_.front());
  done_.pop_front();
  return completion;
}

void CompletionQueue::wait_for(size_t count, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  wanted_ = count;
  while (done_.size() < count && pushed_.wait_until(mutex_, deadline)) {
  }
  wanted_ = 1;
}

std::optional<Completion> CompletionQueue::try_pop() {
  MutexLock lock(mutex_);
  if (done_.empty()) return std::nullopt;
  std::optional<Completion> completion = std::move(done_.front());
  done_.pop_front();
  return completion;
}

Status check_space(Storage& storage, std::string_view prefix, int64_t needed_bytes, std::string_view what) {
  if (needed_bytes <= 0 || !storage.capabilities().free_space) return {};
  ASSIGN_OR_RETURN(const FreeSpace free, storage.free_space(prefix));
  if (needed_bytes <= free.bytes) return {};
  return fail(ErrorCode::kResourceExhausted,
              "{}: it needs {}, and {} are free ({}): make room, have the limit raised, or choose another place", what,
              format_bytes(needed_bytes), format_bytes(free.bytes), free.limit);
}

Result<std::string> read_object(Storage& storage, std::string_view key, int64_t limit_bytes) {
  ASSIGN_OR_RETURN(const auto reader, storage.open_read(key));
  return read_all(*reader, limit_bytes);
}

Result<ObjectInfo> write_object(Storage& storage, std::string_view key, std::string_view content,
                                const WriteOptions& options, Durability durability) {
  ASSIGN_OR_RETURN(const auto writer, storage.open_write(key, options));
  RETURN_IF_ERROR(writer->append(as_bytes(content)));
  return writer->commit(durability);
}

Status for_each_object(Storage& storage, std::string_view prefix, const std::function<Status(const ObjectInfo&)>& visit,
                       bool recursive) {
  ListPages pages(storage, std::string(prefix), {.recursive = recursive, .max_keys = kWalkPageKeys});
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(const ListPage page, pages.next());
    for (const ObjectInfo& object : page.objects) RETURN_IF_ERROR(visit(object));
  }
  return {};
}

Result<ListPage> ListPages::next() {
  is_at_end_ = true;
  ASSIGN_OR_RETURN(ListPage page, storage_.list(prefix_, options_));
  if (!page.next_page_token.empty()) RETURN_IF_ERROR(check_advance(page));
  options_.page_token = page.next_page_token;
  is_at_end_ = options_.page_token.empty();
  return page;
}

Status ListPages::check_advance(const ListPage& page) {
  const auto stands = [&](std::string_view what) {
    return fail(ErrorCode::kUnavailable, "list {}/{}: it does not advance: {}", storage_.name(), prefix_, what);
  };
  if (page.next_page_token == options_.page_token) return stands("a page leads to itself");
  if (page.objects.empty() && page.prefixes.empty()) {
    return ++empty_pages_ <= kMostEmptyPages ? Status() : stands("page after page is empty");
  }
  empty_pages_ = 0;
  // Keys and prefixes each rise over all pages.
  const bool repeats = (!page.objects.empty() && !last_key_.empty() && page.objects.front().key <= last_key_) ||
                       (!page.prefixes.empty() && !last_prefix_.empty() && page.prefixes.front() <= last_prefix_);
  if (repeats) return stands("what came before comes again");
  if (!page.objects.empty()) last_key_ = page.objects.back().key;
  if (!page.prefixes.empty()) last_prefix_ = page.prefixes.back();
  return {};
}

}  // namespace millrace
