// SPDX-License-Identifier: Apache-2.0
// The table is computed from ParallelCluster's own schema (tools/make_pcluster_schema.py). Here stands what it does not
// tell: which rule speaks of a value, and what only its validators or EC2 refuse.
#include "millrace/pcluster/schema.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <utility>
#include <vector>

#include "millrace/pcluster/releases.h"

namespace millrace::pcluster {

namespace data {
extern const std::string_view k_schema;
}

namespace {

constexpr std::array<std::pair<std::string_view, Value>, 12> kValues = {{
    {"text", Value::kText},
    {"int", Value::kInt},
    {"number", Value::kNumber},
    {"bool", Value::kBool},
    {"section", Value::kSection},
    {"sections", Value::kSections},
    {"texts", Value::kTexts},
    {"ints", Value::kInts},
    {"pairs", Value::kPairs},
    {"pairs_list", Value::kPairsList},
    {"action", Value::kAction},
    {"any", Value::kAnything},
}};

// The rule for a pattern, where no key says otherwise.
constexpr std::array<std::pair<std::string_view, std::string_view>, 21> kRuleOfPattern = {{
    {"@ami", "PC03"},    {"@subnet", "PC03"}, {"@sg", "PC03"},     {"@snap", "PC03"},     {"@vol", "PC03"},
    {"@fs", "PC03"},     {"@fs17", "PC03"},   {"@fsap", "PC03"},   {"@fsvol", "PC03"},    {"@fc", "PC03"},
    {"@cr", "PC03"},     {"@lt", "PC03"},     {"@backup", "PC03"}, {"@role", "PC45"},     {"@profile", "PC45"},
    {"@policy", "PC45"}, {"@secret", "PC45"}, {"@bucket", "PC45"}, {"@password", "PC45"}, {"@cidr", "PC63"},
    {"@path", "PC63"},
}};

constexpr std::string_view kAsComputed = "=";

struct Own {
  std::string_view section;  // the end of a section's path
  std::string_view name;
  std::string_view rule;
  std::string_view detail = kAsComputed;
  bool required = false;  // the schema takes a file without it, and the step behind it does not
};
// The first one that fits counts. VolumeType and Os are checked by rules of their own.
constexpr Own kOwnFacts[] = {
    {"", "Region", "PC04"},
    {"RootVolume", "VolumeType", "PC30", ""},
    {"RootVolume", "Iops", "PC30"},
    {"RootVolume", "Size", "PC30", "1.."},
    {"RootVolume", "Throughput", "PC30"},
    {"EbsSettings", "VolumeType", "PC30", ""},
    {"EbsSettings", "Iops", "PC30"},
    {"EbsSettings", "Size", "PC30", "1.."},
    {"EbsSettings", "Throughput", "PC30"},
    {"Dcv", "Port", "PC63", "1..65535"},
    {"ExternalSlurmdbd", "Port", "PC63", "1..65535"},
    {"SlurmSettings", "ScaledownIdletime", "PC47", "-1.."},
    {"Queues[]", "CapacityType", "PC11"},
    {"Queues[]", "ComputeResources", "PC63", kAsComputed, true},
    {"ComputeResources[]", "MaxCount", "PC10"},
    {"ComputeResources[]", "MinCount", "PC10"},
    {"ComputeResources[]", "SchedulableMemory", "PC49", "1.."},
    {"LaunchTemplateOverrides", "LaunchTemplateId", "PC03", "@lt"},
    {"CapacityReservationTarget", "CapacityReservationId", "PC03", "@cr"},
    {"FsxLustreSettings", "StorageCapacity", "PC35", "1.."},
    {"FsxLustreSettings", "DeploymentType", "PC33"},
    {"FsxLustreSettings", "PerUnitStorageThroughput", "PC34", "1.."},
    {"FsxLustreSettings", "ImportedFileChunkSize", "PC38"},
    {"FsxLustreSettings", "AutomaticBackupRetentionDays", "PC38"},
    {"FsxLustreSettings", "AutoImportPolicy", "PC38"},
    {"FsxLustreSettings", "DriveCacheType", "PC36"},
    {"FsxLustreSettings", "StorageType", "PC36"},
    {"DataRepositoryAssociations[]", "ImportedFileChunkSize", "PC38"},
    {"DataRepositoryAssociations[]", "AutoExportPolicy", "PC38"},
    {"DataRepositoryAssociations[]", "AutoImportPolicy", "PC38"},
    {"Logs.CloudWatch", "RetentionInDays", "PC44"},
    {"Tags[]", "Key", "PC54"},
    {"Tags[]", "Value", "PC54"},
    {"Iam.Roles", "LambdaFunctionsRole", "PC45", "@role"},
};

int64_t count_in(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

template <class Pairs>
auto* find_pair(Pairs& pairs, std::string_view name) {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == name; });
  return found == pairs.end() ? nullptr : &*found;
}

void apply_own(Key& key) {
  if (const auto* of_pattern = find_pair(kRuleOfPattern, key.detail); of_pattern != nullptr) {
    key.rule = of_pattern->second;
  }
  for (const Own& own : kOwnFacts) {
    const bool here = own.section.empty() ? key.section.empty() : key.section.ends_with(own.section);
    if (!here || own.name != key.name) continue;
    key.rule = own.rule;
    if (own.detail != kAsComputed) key.detail = own.detail;
    key.required = key.required || own.required;
    return;
  }
}

Key read_key(const std::vector<std::string_view>& row) {
  const auto* value = find_pair(kValues, row[2]);
  assert(value != nullptr);  // the tool writes only these
  Key key{.section = row[0], .name = row[1], .value = value->second, .detail = row[3]};
  if (const std::string_view items = row[4]; !items.empty()) {
    const size_t dots = items.find("..");
    key.least_items = count_in(items.substr(0, dots));
    if (dots + 2 < items.size()) key.most_items = count_in(items.substr(dots + 2));
  }
  key.required = !row[5].empty();
  key.since = known_version(row[6]);
  if (!row[7].empty()) key.until = known_version(row[7]);
  apply_own(key);
  return key;
}

std::vector<Key> read_schema() {
  std::vector<Key> keys;
  for (const auto& row : table_rows(data::k_schema)) keys.push_back(read_key(row));
  return keys;
}

}  // namespace

std::span<const Key> schema() {
  static const std::vector<Key> kKeys = read_schema();
  return kKeys;
}

const Key* find_key(std::string_view section, std::string_view name, const Version& version) {
  const Key* key = find_nearest_key(section, name, version);
  return key != nullptr && key->since <= version && version < key->until ? key : nullptr;
}

const Key* find_nearest_key(std::string_view section, std::string_view name, const Version& version) {
  const Key* nearest = nullptr;
  for (const Key& key : schema()) {
    if (key.section != section || key.name != name) continue;
    if (nearest == nullptr || key.since <= version) nearest = &key;
  }
  return nearest;
}

}  // namespace millrace::pcluster
