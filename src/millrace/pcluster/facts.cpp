// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/facts.h"

#include <functional>

#include "millrace/formats/yaml/yaml.h"

namespace millrace::pcluster {

namespace {

using yaml::Entry;
using yaml::Node;

// Takes the value of one key; false where it has not the type that the key wants.
using Take = std::function<bool(const Node&)>;

tl::unexpected<Error> refuse(std::string_view file, const yaml::Place& at, std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", file, at.line, at.column, what);
}

bool take_text(const Node& node, std::string& out) {
  out = node.text;
  return node.is_scalar();
}

template <class Read, class Out>
bool take(const Node& node, Read read, Out& out) {
  const auto value = read(node);
  if (value) out = *value;
  return value.has_value();
}

// Passes every key of a mapping to its reader.
Status take_keys(const Node& node, std::string_view file, const std::map<std::string_view, Take>& takes) {
  if (node.is_null()) return {};
  if (!node.is_mapping()) return refuse(file, node.at, "keys and values belong here");
  for (const Entry& entry : node.entries) {
    const auto found = takes.find(entry.key);
    if (found == takes.end()) {
      std::string known;
      for (const auto& [name, ignored] : takes) known += (known.empty() ? "" : ", ") + std::string(name);
      return refuse(file, entry.at, fmt::format("unknown key '{}'; there are {}", entry.key, known));
    }
    if (!found->second(entry.value)) {
      return refuse(file, entry.value.at, fmt::format("'{}' has a value of the wrong kind", entry.key));
    }
  }
  return {};
}

// A mapping of ids to things.
template <class Thing, class ReadThing>
Status take_map(const Node* node, std::string_view file, std::map<std::string, Thing, std::less<>>& out,
                ReadThing read) {
  if (node == nullptr || node->is_null()) return {};
  if (!node->is_mapping()) return refuse(file, node->at, "ids with their facts belong here");
  for (const Entry& entry : node->entries) RETURN_IF_ERROR(read(entry.value, out[entry.key]));
  return {};
}

Status read_reservation(const Node& node, std::string_view file, ReservationFacts& out) {
  const auto kind = [&out](const Node& value) {
    out.capacity_block = value.text == "capacity-block";
    return out.capacity_block || value.text == "on-demand";
  };
  return take_keys(node, file,
                   {{"count", [&](const Node& v) { return take(v, yaml::as_int, out.count); }},
                    {"kind", kind},
                    {"zone", [&](const Node& v) { return take_text(v, out.zone); }},
                    {"instance_type", [&](const Node& v) { return take_text(v, out.instance_type); }},
                    {"hours", [&](const Node& v) { return take(v, yaml::as_number, out.hours); }},
                    {"available", [&](const Node& v) { return take(v, yaml::as_int, out.available); }},
                    {"interconnect", [&](const Node& v) { return take_text(v, out.interconnect); }},
                    {"platform", [&](const Node& v) { return take_text(v, out.platform); }}});
}

Status read_subnet(const Node& node, std::string_view file, SubnetFacts& out) {
  const auto prefix = [&out](const Node& value) {
    return take(value, yaml::as_int, out.prefix) && *out.prefix >= 0 && *out.prefix <= 32;
  };
  return take_keys(node, file,
                   {{"prefix", prefix},
                    {"zone", [&](const Node& v) { return take_text(v, out.zone); }},
                    {"public", [&](const Node& v) { return take(v, yaml::as_bool, out.is_public); }}});
}

Status read_group(const Node& node, std::string_view file, bool& out) {
  return take_keys(node, file, {{"self_all", [&](const Node& v) { return take(v, yaml::as_bool, out); }}});
}

Status read_bucket(const Node& node, std::string_view file, std::string& out) {
  return take_keys(node, file, {{"region", [&](const Node& v) { return take_text(v, out); }}});
}

Status read_template(const Node& node, std::string_view file, std::vector<std::string>& out) {
  if (!node.is_sequence()) return refuse(file, node.at, "a list of the properties that the template sets belongs here");
  for (const Node& item : node.items) out.push_back(item.text);
  return {};
}

const Take kLater = [](const Node&) { return true; };

}  // namespace

Result<Facts> parse_facts(std::string_view text, std::string_view file) {
  const yaml::Document document = yaml::parse(text);
  if (!document.problems.empty()) {
    return refuse(file, document.problems.front().at, document.problems.front().message);
  }
  Facts facts;
  const Node& root = document.root;
  RETURN_IF_ERROR(take_keys(
      root, file,
      {{"cluster_name", [&](const Node& v) { return take_text(v, facts.cluster_name); }},
       {"key_type", [&](const Node& v) { return take_text(v, facts.key_type); }},
       {"jobs_share_nodes", [&](const Node& v) { return take(v, yaml::as_bool, facts.jobs_share_nodes); }},
       {"longest_job_hours", [&](const Node& v) { return take(v, yaml::as_number, facts.longest_job_hours); }},
       {"reservations", kLater},
       {"subnets", kLater},
       {"security_groups", kLater},
       {"launch_templates", kLater},
       {"buckets", kLater}}));
  RETURN_IF_ERROR(take_map(root.find("reservations"), file, facts.reservations,
                           [&](const Node& n, ReservationFacts& out) { return read_reservation(n, file, out); }));
  RETURN_IF_ERROR(take_map(root.find("subnets"), file, facts.subnets,
                           [&](const Node& n, SubnetFacts& out) { return read_subnet(n, file, out); }));
  RETURN_IF_ERROR(take_map(root.find("security_groups"), file, facts.security_groups,
                           [&](const Node& n, bool& out) { return read_group(n, file, out); }));
  RETURN_IF_ERROR(take_map(root.find("launch_templates"), file, facts.launch_templates,
                           [&](const Node& n, std::vector<std::string>& out) { return read_template(n, file, out); }));
  RETURN_IF_ERROR(take_map(root.find("buckets"), file, facts.buckets,
                           [&](const Node& n, std::string& out) { return read_bucket(n, file, out); }));
  return facts;
}

}  // namespace millrace::pcluster
