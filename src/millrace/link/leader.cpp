// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/leader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLeaderName = "link-leader.json";

bool is_gone(const Error& error) {
  return error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorruption;  // or changed just now
}

}  // namespace

Leader::Leader(const Location& root, std::string owner, std::string shown, std::chrono::duration<double> dead_after,
               std::function<Clock::time_point()> now)
    : object_(root.child(fmt::format("{}/{}", sync::kHiddenFolder, kLeaderName))),
      owner_(std::move(owner)),
      shown_(std::move(shown)),
      dead_after_(dead_after),
      now_(std::move(now)) {}

Result<std::optional<Leader::Record>> Leader::read() {
  holder_.clear();
  is_shared_ = false;
  const auto info = object_.storage->stat(object_.key);
  if (!info && is_gone(info.error())) return std::nullopt;
  if (!info) return tl::unexpected<Error>(info.error());
  const auto text = read_object(*object_.storage, object_.key);
  if (!text && is_gone(text.error())) return std::nullopt;
  if (!text) return tl::unexpected<Error>(text.error());
  Record record{.version = info->version};
  const Json json = Json::parse(*text, nullptr, false);
  // What is no record of ours counts as one of nobody.
  if (json.is_object()) {
    record.owner = json.value("owner", "");
    record.shown = json.value("runs_on", "");
    record.beats = json.value("beats", int64_t{0});
  }
  holder_ = record.owner.empty() ? "" : record.shown;
  is_shared_ = record.owner == kTasks;
  return record;
}

Result<bool> Leader::write(const std::string& owner, const std::string& version) {
  const Json json = {
      {"format", "millrace-link-leader"}, {"version", 1}, {"owner", owner}, {"runs_on", shown_}, {"beats", ++beats_}};
  WriteOptions options;
  options.condition = version.empty() ? WriteOptions::Condition::kIfAbsent : WriteOptions::Condition::kIfVersion;
  options.version = version;
  options.brief = true;
  auto written = write_object(*object_.storage, object_.key, json.dump() + "\n", options, Durability::kVisible);
  if (written) {
    holder_ = owner.empty() ? "" : shown_;
    is_shared_ = owner == kTasks;
    return true;
  }
  const ErrorCode code = written.error().code();
  if (code != ErrorCode::kAlreadyExists && !is_gone(written.error())) {
    return tl::unexpected<Error>(std::move(written).error());
  }
  // Another task of the same owner may have been faster.
  ASSIGN_OR_RETURN(const std::optional<Record> now, read());
  return !owner.empty() && now && now->owner == owner;
}

bool Leader::is_dead(const Record& record) {
  if (record.version != std::exchange(seen_, record.version)) seen_since_ = now_();
  return now_() - seen_since_ >= dead_after_;
}

Result<bool> Leader::take() {
  ASSIGN_OR_RETURN(const std::optional<Record> record, read());
  const bool is_free = !record || record->owner.empty() || record->owner == owner_;  // its answer was lost
  if (!is_free && !is_dead(*record)) return false;
  if (record) beats_ = std::max(beats_, record->beats);  // so that no content, and so no ETag, comes twice
  return write(owner_, record ? record->version : "");
}

Result<bool> Leader::renew() {
  // Some servers ignore the condition of the write.
  ASSIGN_OR_RETURN(const std::optional<Record> record, read());
  if (record && record->owner != owner_) return false;
  return write(owner_, record ? record->version : "");
}

Status Leader::give_up() {
  ASSIGN_OR_RETURN(const std::optional<Record> record, read());
  if (!record || record->owner != owner_) return {};
  ASSIGN_OR_RETURN(const bool written, write("", record->version));
  (void)written;
  return {};
}

Result<Leader> leader_of(const LinkConfig& config, std::string owner) {
  ASSIGN_OR_RETURN(const Location there, open_url(config.url));
  return Leader(there, std::move(owner), host_name(), std::chrono::duration<double>(config.take_over_s));
}

Result<bool> Leader::is_held() {
  ASSIGN_OR_RETURN(const std::optional<Record> record, read());
  return record && !record->owner.empty() && !is_dead(*record);
}

}  // namespace millrace::link
