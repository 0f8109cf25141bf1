// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/object_properties.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "millrace/sync/detail/attributes.h"

namespace millrace::sync {
namespace {

// All that the source has beside its bytes.
Status read_properties(const CopyJob& job, const CopyPlan& plan, WriteOptions& write) {
  Storage& storage = *job.from.storage;
  ASSIGN_OR_RETURN(ObjectInfo source, storage.stat(job.from.key));
  if (source.version != plan.source->version()) {
    return fail(ErrorCode::kCorruption, "{} changed while reading", job.from.url);
  }
  if (source.headers != nullptr) write.headers = *source.headers;
  write.metadata = std::move(source.metadata);
  write.posix = source.posix;
  if (job.options.object.tags) return {};
  ASSIGN_OR_RETURN(write.tags, read_source_tags(job));
  return {};
}

void apply(const TransferOptions& options, WriteOptions& write) {
  const ObjectChanges& changes = options.object;
  for (const ObjectHeaderField& field : kObjectHeaderFields) {
    const std::string& value = changes.headers.*field.value;
    if (!value.empty()) write.headers.*field.value = value;
  }
  if (changes.metadata) {
    write.metadata = *changes.metadata;
    if (!options.posix) write.posix.reset();  // it was a part of the source's
  }
  if (changes.tags) write.tags = *changes.tags;
}

}  // namespace

Result<ObjectTags> read_source_tags(const CopyJob& job) {
  auto tags = job.from.storage->tags(job.from.key);
  if (tags || tags.error().code() != ErrorCode::kPermissionDenied) return tags;
  return fail(ErrorCode::kPermissionDenied, "{}; --no-tags (in Python tags={{}}) copies without them",
              tags.error().to_string());
}

Status plan_properties(const CopyJob& job, CopyPlan& plan) {
  Storage& target = *job.to.storage;
  if (!target.capabilities().headers) return {};
  const ObjectChanges& changes = job.options.object;
  WriteOptions& write = plan.write;
  const bool from_store = job.from.storage->capabilities().headers;
  if (from_store) {
    const int64_t size = job.source.size;
    const bool one_request =
        plan.in_server && plan.compare == Compare::kNothing && size > 0 && size <= write.part_bytes;
    if (one_request && changes.are_none()) {
      write.keeps_source = true;
      return {};
    }
    RETURN_IF_ERROR(read_properties(job, plan, write));
  } else if (changes.guess_type) {
    write.headers.content_type = guess_content_type(job.from.key);
  }
  apply(job.options, write);
  if (!changes.are_none()) plan.etag.clear();  // of equal bytes
  if (plan.compare == Compare::kNothing || !(from_store || !changes.are_none())) return {};
  const auto there = target.stat(job.to.key);
  if (!there && gave_no_answer(there.error())) return tl::unexpected<Error>(there.error());
  plan.same_attributes = plan.same_attributes && there && there->version == plan.old.version &&
                         same_attributes(target, write.posix, there->posix) &&
                         has_properties(target, *there, write, true);
  return {};
}

bool has_properties(Storage& storage, const ObjectInfo& object, const WriteOptions& wanted, bool all_tags) {
  const ObjectHeaders none;
  const ObjectHeaders& headers = object.headers != nullptr ? *object.headers : none;
  const bool same_headers =
      std::all_of(std::begin(kObjectHeaderFields), std::end(kObjectHeaderFields), [&](const ObjectHeaderField& field) {
        const std::string& value = wanted.headers.*field.value;
        const std::string& found = headers.*field.value;
        // A server gives an object without a type one of its own.
        return value == found || (value.empty() && field.value == &ObjectHeaders::content_type);
      });
  if (!same_headers || object.metadata != wanted.metadata) return false;
  if (wanted.tags.empty() && !all_tags) return true;
  const auto tags = storage.tags(object.key);
  return tags && *tags == wanted.tags;
}

}  // namespace millrace::sync
