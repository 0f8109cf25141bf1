// SPDX-License-Identifier: Apache-2.0
// The file against the schema's table: keys, types, words, patterns, ranges and versions.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "millrace/base/text/edit_distance.h"
#include "millrace/pcluster/check.h"
#include "millrace/pcluster/releases.h"
#include "millrace/pcluster/schema.h"

namespace millrace::pcluster {

namespace {

using yaml::Entry;
using yaml::Node;

// --- hints for unknown keys -----------------------------------------------------------------------------------------

bool holds(const Key& key, const Version& version) {
  return key.since <= version && version < key.until;
}

// Every place where a key of this name may stand.
std::vector<std::string> places_of_key(std::string_view name, const Version& version) {
  std::vector<std::string> places;
  for (const Key& key : schema()) {
    if (key.name != name || !holds(key, version)) continue;
    places.push_back(key.section.empty() ? std::string(name) : fmt::format("{}.{}", key.section, name));
  }
  return places;
}

std::string_view nearest_key(std::string_view section, std::string_view name, const Version& version) {
  std::string_view best;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Key& key : schema()) {
    const bool here = key.section == section && holds(key, version);
    const size_t steps = here ? edit_distance(key.name, name) : least;
    if (steps < least) {
      least = steps;
      best = key.name;
    }
  }
  return best;
}

std::string section_name(std::string_view section) {
  return section.empty() ? "the file" : std::string(section);
}

std::string section_of(const Key& key) {
  return fmt::format("{}{}{}{}", key.section, key.section.empty() ? "" : ".", key.name,
                     key.value == Value::kSections ? "[]" : "");
}

bool is_word(const Key& key, std::string_view word) {
  std::string_view rest = key.detail;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, end) == word) return true;
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  return false;
}

// Where other versions take what `fits` asks of a key: the first and the one behind the last of them.
template <class Fits>
std::optional<std::pair<Version, Version>> other_versions(const Key& key, Fits&& fits) {
  std::optional<std::pair<Version, Version>> span;
  for (const Key& other : schema()) {
    if (other.section != key.section || other.name != key.name || !fits(other)) continue;
    if (!span) span = {other.since, other.until};
    span->second = other.until;
  }
  return span;
}

// --- the walk -------------------------------------------------------------------------------------------------------

class SchemaWalk {
 public:
  SchemaWalk(const Cluster& cluster, FindingReport& report)
      : cluster_(cluster), report_(report), version_(std::min(cluster.options.version, kKnownVersion)) {}

  void section(const std::string& name, const Node& node, const yaml::Place& at) {
    if (node.is_null()) return missing_keys(name, node, at);
    if (!node.is_mapping()) {
      report_.add("PC63", node.at, fmt::format("keys and values belong here, as in {}", section_name(name)));
      return;
    }
    for (const Entry& entry : node.entries) {
      const Key* key = find_nearest_key(name, entry.key, version_);
      if (key == nullptr) {
        unknown(name, entry);
      } else {
        known(*key, entry);
      }
    }
    missing_keys(name, node, at);
  }

 private:
  void missing_keys(std::string_view name, const Node& node, const yaml::Place& at) {
    for (const Key& key : schema()) {
      if (key.section != name || !key.required || !holds(key, version_)) continue;
      const Node* value = node.find(key.name);
      if (value == nullptr || value->is_null()) {
        report_.add("PC02", at, fmt::format("{} is missing in {}", key.name, section_name(name)));
      }
    }
  }

  void unknown(std::string_view section, const Entry& entry) {
    const std::vector<std::string> places = places_of_key(entry.key, version_);
    std::string message = fmt::format("'{}' is not a key of {}", entry.key, section_name(section));
    const std::string_view near = nearest_key(section, entry.key, version_);
    const bool newer = cluster_.options.version > kKnownVersion && places.empty();
    if (!places.empty()) message += fmt::format("; it belongs in {}", fmt::join(places, ", "));
    if (places.empty() && !near.empty()) message += fmt::format("; did you mean '{}'?", near);
    if (newer)
      message +=
          fmt::format(" (as of {}; {} may have it)", to_string(kKnownVersion), to_string(cluster_.options.version));
    report_.add("PC01", entry.at, std::move(message), {}, newer ? Severity::kWarning : Severity::kError);
    // Queues in the wrong place are looked at all the same, so that the next run brings no new surprises.
    if (section.empty() && entry.key == "SlurmQueues") {
      known(*find_nearest_key("Scheduling", "SlurmQueues", version_), entry);
    }
  }

  // For what versions from `since` until before `until` have.
  void other_version(std::string_view what, const Version& since, const Version& until, const yaml::Place& place) {
    report_.add("PC06", place,
                fmt::format("{} {}; this is for {}", what, came_or_went(since, until, version_), to_string(version_)),
                version_ >= until ? "Remove it, or check for the older version that you use (--pcluster)." : "");
  }

  void known(const Key& key, const Entry& entry) {
    if (!holds(key, version_)) {
      const auto span = other_versions(key, [](const Key&) { return true; });
      other_version(key.name, span->first, span->second, entry.at);
      // What lies in it came and went with it.
      if (key.value == Value::kSection || key.value == Value::kSections) return;
    }
    if (entry.value.is_null()) {
      // A required one is called missing already.
      if (!key.required)
        report_.add("PC63", entry.at, fmt::format("{} is empty", key.name), "Give it a value, or remove it.");
      return;
    }
    switch (key.value) {
      case Value::kSection:
        return section(section_of(key), entry.value, entry.at);
      case Value::kSections:
        return sections(key, entry.value);
      case Value::kTexts:
      case Value::kInts:
      case Value::kPairsList:
        return list(key, entry.value);
      case Value::kPairs:
        return pairs(key, entry.value);
      case Value::kAction:
        return action(key, entry);
      case Value::kAnything:
        return;
      default:
        return scalar(key, entry.value);
    }
  }

  void sections(const Key& key, const Node& node) {
    if (!node.is_sequence()) {
      report_.add("PC63", node.at, fmt::format("{} is a list: each item starts with '-'", key.name));
      return;
    }
    count_items(key, node);
    for (const Node& item : node.items) section(section_of(key), item, item.at);
  }

  void list(const Key& key, const Node& node) {
    if (!node.is_sequence()) {
      report_.add("PC63", node.at, fmt::format("{} is a list: each item starts with '-'", key.name));
      return;
    }
    if (node.items.empty() && key.required) report_.add("PC02", node.at, fmt::format("{} has no item", key.name));
    count_items(key, node);
    for (const Node& item : node.items) {
      if (key.value == Value::kPairsList) {
        pairs(key, item);
      } else {
        scalar(key, item);
      }
    }
  }

  void count_items(const Key& key, const Node& node) {
    const int64_t count = std::ssize(node.items);
    const auto fits = [&](const Key& k) { return count >= k.least_items && count <= k.most_items; };
    if (node.items.empty() || fits(key)) return;
    if (const auto span = other_versions(key, fits); span && holds(key, version_)) {
      return other_version(fmt::format("a list of {} in {}", count, key.name), span->first, span->second, node.at);
    }
    report_.add(key.rule, node.at,
                count < key.least_items ? fmt::format("{} has {} items; at least {}", key.name, count, key.least_items)
                                        : fmt::format("{} has {} items; at most {}", key.name, count, key.most_items),
                {}, Severity::kError);
  }

  void pairs(const Key& key, const Node& node) {
    if (!node.is_mapping()) report_.add("PC63", node.at, fmt::format("{} holds pairs 'Setting: value'", key.name));
  }

  // Script with Args, or a Sequence of them.
  void action(const Key& key, const Entry& entry) {
    const Node& node = entry.value;
    if (!node.is_mapping()) {
      report_.add("PC63", node.at, fmt::format("{} holds Script, or Sequence", key.name));
      return;
    }
    const bool script = node.find("Script") != nullptr, sequence = node.find("Sequence") != nullptr;
    if (script == sequence) {
      report_.add("PC46", entry.at,
                  fmt::format("{} needs Script or Sequence, and {}", key.name, script ? "has both" : "has neither"), {},
                  Severity::kError);
    }
    if (const Entry* steps = node.entry("Sequence"); steps != nullptr) {
      if (cluster_.options.version < Version{3, 6, 0}) {
        report_.add("PC06", steps->at,
                    fmt::format("Sequence came with 3.6; this is for {}", to_string(cluster_.options.version)));
      }
      for (const Node& item : steps->value.items) action_step(key, item);
    }
    script_keys(key, node);
  }

  void action_step(const Key& key, const Node& item) {
    if (text_at(&item, "Script").empty()) {
      report_.add("PC46", item.at, fmt::format("a step of {} has no Script", key.name), {}, Severity::kError);
    }
    script_keys(key, item);
  }

  void script_keys(const Key& key, const Node& node) {
    for (const Entry& part : node.entries) {
      if (part.key == "Script" && is_placeholder(part.value.text)) {
        report_.add("PC03", part.value.at, fmt::format("Script: '{}' is a placeholder", part.value.text));
      } else if (part.key != "Script" && part.key != "Args" && part.key != "Sequence") {
        report_.add("PC01", part.at,
                    fmt::format("'{}' is not a key of {}; there are Script and Args", part.key, key.name));
      }
    }
  }

  void wrong(const Key& key, const Node& node, std::string message) {
    // A value of a rule of another severity is an error all the same: the schema refuses it.
    report_.add(key.rule, node.at, std::move(message), {}, Severity::kError);
  }

  void scalar(const Key& key, const Node& node) {
    if (!node.is_scalar()) {
      report_.add("PC63", node.at, fmt::format("{} is one value", key.name));
      return;
    }
    if (key.value == Value::kBool) {
      if (!yaml::as_bool(node))
        report_.add("PC63", node.at, fmt::format("{} is true or false, not '{}'", key.name, node.text));
    } else if (key.value == Value::kText || key.value == Value::kTexts) {
      text(key, node);
    } else {
      number(key, node);
    }
  }

  void text(const Key& key, const Node& node) {
    const yaml::Type type = yaml::type_of(node);
    if (type != yaml::Type::kText) {
      report_.add("PC63", node.at,
                  fmt::format("{}: {} is {} for YAML, not a text", key.name, node.text, yaml::type_name(type)),
                  fmt::format("Quote it: \"{}\".", node.text));
      return;
    }
    if (is_placeholder(node.text)) {
      report_.add("PC03", node.at, fmt::format("{}: '{}' is a placeholder", key.name, node.text));
    } else if (key.detail.starts_with('@')) {
      const Pattern& pattern = find_pattern(key.detail);
      if (!pattern.fits(node.text))
        wrong(key, node, fmt::format("{}: '{}' is not {}", key.name, node.text, pattern.hint));
    } else if (!key.detail.empty() && !is_word(key, node.text)) {
      const auto span = other_versions(key, [&](const Key& k) { return is_word(k, node.text); });
      if (span && holds(key, version_)) {
        return other_version(fmt::format("{}: {}", key.name, node.text), span->first, span->second, node.at);
      }
      wrong(key, node, fmt::format("{} is {}, not '{}'", key.name, words(key), node.text));
    }
  }

  void number(const Key& key, const Node& node) {
    const std::optional<double> value = key.value == Value::kNumber ? yaml::as_number(node) : std::nullopt;
    const std::optional<int64_t> whole = yaml::as_int(node);
    if (!value && !whole) {
      const bool cut = yaml::as_number(node).has_value();
      report_.add("PC63", node.at,
                  fmt::format("{} is a {}number, not '{}'{}", key.name, key.value == Value::kNumber ? "" : "whole ",
                              node.text, cut ? "; it would be cut" : ""),
                  {}, cut ? Severity::kWarning : Severity::kError);
      return;
    }
    if (key.detail.find("..") == std::string_view::npos) {
      const bool fits = key.detail.empty() || (whole && is_word(key, std::to_string(*whole)));
      if (!fits) wrong(key, node, fmt::format("{} is {}, not {}", key.name, words(key), node.text));
    } else if (const double v = value.value_or(static_cast<double>(whole.value_or(0)));
               v < least(key) || v > most(key)) {
      wrong(key, node,
            fmt::format("{} is {} {}, not {}", key.name, most(key) < kNoLimit ? "from" : "at least", range(key),
                        node.text));
    }
  }

  static std::string words(const Key& key) {
    std::string out;
    for (const char c : key.detail) out += c == '|' ? ", " : std::string(1, c);
    const size_t last = out.rfind(", ");
    return last == std::string::npos ? out : out.replace(last, 2, " or ");
  }
  static constexpr double kNoLimit = std::numeric_limits<double>::max();
  static double least(const Key& key) { return std::stod(std::string(key.detail)); }
  static double most(const Key& key) {
    const std::string end(key.detail.substr(key.detail.find("..") + 2));
    return end.empty() ? kNoLimit : std::stod(end);
  }
  static std::string range(const Key& key) {
    const size_t dots = key.detail.find("..");
    const std::string_view end = key.detail.substr(dots + 2);
    return end.empty() ? std::string(key.detail.substr(0, dots))
                       : fmt::format("{} to {}", key.detail.substr(0, dots), end);
  }

  const Cluster& cluster_;
  FindingReport& report_;
  const Version version_;  // the nearest one whose schema is known
};

void check_kinds_of_queues(const Cluster& cluster, FindingReport& report) {
  if (cluster.scheduling == nullptr || !cluster.scheduling->is_mapping()) return;
  if (find_key("Scheduling", "AwsBatchQueues", cluster.options.version) == nullptr) return;  // one scheduler only
  const Node& scheduling = *cluster.scheduling;
  const yaml::Place place = place_of(cluster.root, "Scheduling");
  const bool batch = text_at(&scheduling, "Scheduler") == "awsbatch";
  const std::string_view own = batch ? "AwsBatchQueues" : "SlurmQueues",
                         other = batch ? "SlurmQueues" : "AwsBatchQueues";
  const Node* queues = scheduling.find(own);
  if (queues == nullptr || (queues->items.empty() && queues->entries.empty())) {
    report.add("PC02", place, fmt::format("{} must be specified in Scheduling", own));
  }
  for (const std::string_view key : {other, std::string_view(batch ? "SlurmSettings" : "AwsBatchSettings")}) {
    if (const Entry* entry = scheduling.entry(key); entry != nullptr) {
      report.add("PC02", entry->at,
                 fmt::format("{} is for the other scheduler, not {}", key, text_at(&scheduling, "Scheduler")));
    }
  }
}

}  // namespace

void check_schema(const Cluster& cluster, FindingReport& report) {
  SchemaWalk(cluster, report).section("", cluster.root, {1, 1});
  check_kinds_of_queues(cluster, report);
}

}  // namespace millrace::pcluster
