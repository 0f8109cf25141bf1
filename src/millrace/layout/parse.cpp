// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/formats/yaml/yaml.h"
#include "millrace/layout/layout.h"
#include "millrace/storage/url.h"

namespace millrace::layout {

namespace {

using yaml::Node;

constexpr size_t kMostDirectories = 100'000;

class Parser {
 public:
  explicit Parser(std::string_view file) : file_(file) {}

  Result<Layout> parse(std::string_view text) {
    const yaml::Document document = yaml::parse(text);
    if (!document.problems.empty()) return refuse(document.problems.front().at, document.problems.front().message);
    const Node& root = document.root;
    RETURN_IF_ERROR(check_keys(root, {"owner", "group", "mode", "models", "mounts", "classes", "directories"}));
    if (const Node* node = root.find("mode")) {
      ASSIGN_OR_RETURN(mode_, read_mode(*node));
    }
    if (const Node* node = root.find("owner")) {
      ASSIGN_OR_RETURN(owner_, read_text(*node));
    }
    if (const Node* node = root.find("group")) {
      ASSIGN_OR_RETURN(group_, read_text(*node));
    }
    RETURN_IF_ERROR(read_models(root.find("models")));
    RETURN_IF_ERROR(each_item(root, "mounts", &Parser::read_mount));
    RETURN_IF_ERROR(read_classes(root.find("classes")));
    RETURN_IF_ERROR(each_item(root, "directories", &Parser::read_directory));
    std::sort(layout_.directories.begin(), layout_.directories.end(),
              [](const Directory& a, const Directory& b) { return a.path < b.path; });
    return std::move(layout_);
  }

 private:
  tl::unexpected<Error> refuse(const yaml::Place& at, std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", file_, at.line, at.column, what);
  }

  Status check_keys(const Node& node, const std::vector<std::string_view>& known) const {
    if (!node.is_mapping()) return refuse(node.at, "keys and values belong here");
    for (const yaml::Entry& entry : node.entries) {
      if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
      return refuse(entry.at, fmt::format("unknown key '{}'; there are {}", entry.key, fmt::join(known, ", ")));
    }
    return {};
  }

  using ReadItem = Status (Parser::*)(const Node&);
  Status each_item(const Node& root, std::string_view key, ReadItem read) {
    const Node* list = root.find(key);
    if (list == nullptr || !list->is_sequence() || list->items.empty()) {
      return refuse(list == nullptr ? yaml::Place{1, 1} : list->at,
                    fmt::format("'{}' is a list, and has an item at least", key));
    }
    for (const Node& item : list->items) RETURN_IF_ERROR((this->*read)(item));
    return {};
  }

  Result<std::string> read_text(const Node& node) const {
    if (!node.is_scalar() || node.text.empty()) return refuse(node.at, "a text belongs here");
    return node.text;
  }

  // Octal with or without quotes: "2775" and 0775.
  Result<uint32_t> read_mode(const Node& node) const {
    uint32_t mode = 0;
    const char* end = node.text.data() + node.text.size();
    const auto [stopped, error] = std::from_chars(node.text.data(), end, mode, 8);
    if (!node.is_scalar() || error != std::errc() || stopped != end || mode > 07777) {
      return refuse(node.at, "a mode such as \"2775\" belongs here");
    }
    return mode;
  }

  Result<std::chrono::seconds> read_duration(const Node& node) const {
    const auto duration = parse_duration(node.text);
    if (node.is_scalar() && duration) return std::chrono::floor<std::chrono::seconds>(*duration);
    return refuse(node.at, "a duration such as 90s, 30m, 12h, 3d or 2w belongs here");
  }

  // Absolute, without empty parts, "." and "..", and without a slash at its end.
  Status check_path(const Node& node, std::string_view path) const {
    bool good = path.size() > 1 && path[0] == '/';
    for (size_t at = 1; good && at <= path.size();) {
      const size_t end = std::min(path.find('/', at), path.size());
      const std::string_view part = path.substr(at, end - at);
      good = !part.empty() && part != "." && part != "..";
      at = end + 1;
    }
    if (!good) return refuse(node.at, fmt::format("'{}' is not an absolute path below /, without '..' and '//'", path));
    return {};
  }

  Status read_models(const Node* node) {
    if (node == nullptr) return {};
    if (node->is_sequence()) {
      for (const Node& item : node->items) {
        ASSIGN_OR_RETURN(std::string name, read_text(item));
        if (name.find_first_of("/{}") != std::string::npos || name == ".." || name == ".")
          return refuse(item.at, fmt::format("'{}' is not a name of a folder", name));
        models_.push_back(std::move(name));
      }
      return {};
    }
    const std::optional<int64_t> count = yaml::as_int(*node);
    if (!count || *count < 1 || *count > 10'000) return refuse(node->at, "a count or a list of names belongs here");
    for (int64_t i = 1; i <= *count; ++i) models_.push_back(fmt::format("model{}", i));
    return {};
  }

  Status read_mount(const Node& node) {
    RETURN_IF_ERROR(check_keys(node, {"path", "wait", "mountpoint"}));
    const Node* path = node.find("path");
    if (path == nullptr) return refuse(node.at, "'path' is missing");
    Mount mount;
    ASSIGN_OR_RETURN(mount.path, read_text(*path));
    RETURN_IF_ERROR(check_path(*path, mount.path));
    if (const Node* wait = node.find("wait")) {
      ASSIGN_OR_RETURN(mount.wait, read_duration(*wait));
    }
    if (const Node* plain = node.find("mountpoint")) {
      const std::optional<bool> yes = yaml::as_bool(*plain);
      if (!yes) return refuse(plain->at, "true or false belongs here");
      mount.mountpoint = *yes;
    }
    layout_.mounts.push_back(std::move(mount));
    return {};
  }

  Status read_classes(const Node* node) {
    if (node == nullptr) return {};
    if (!node->is_mapping()) return refuse(node->at, "names of classes belong here");
    for (const yaml::Entry& entry : node->entries) {
      Policy policy{.name = entry.key};
      RETURN_IF_ERROR(check_keys(entry.value, {"tier", "stripe", "max_age"}));
      if (const Node* tier = entry.value.find("tier")) {
        ASSIGN_OR_RETURN(policy.tier, read_text(*tier));
        if (policy.tier != "lustre" && policy.tier != "nfs" && policy.tier != "local")
          return refuse(tier->at, "a tier is lustre, nfs or local");
      }
      if (const Node* stripe = entry.value.find("stripe")) {
        ASSIGN_OR_RETURN(policy.stripe, read_stripe(*stripe));
      }
      if (const Node* age = entry.value.find("max_age")) {
        ASSIGN_OR_RETURN(const std::chrono::seconds seconds, read_duration(*age));
        if (seconds < std::chrono::minutes(1))
          return refuse(age->at, "files younger than a minute are still being written");
        policy.max_age = seconds;
      }
      layout_.policies.push_back(std::move(policy));
    }
    return {};
  }

  Result<Stripe> read_stripe(const Node& node) const {
    RETURN_IF_ERROR(check_keys(node, {"count", "size"}));
    Stripe stripe;
    if (const Node* count = node.find("count")) {
      const std::optional<int64_t> value = yaml::as_int(*count);
      // Lustre's own limit.
      if (!value || *value < -1 || *value == 0 || *value > 2000)
        return refuse(count->at, "1 to 2000 targets, or -1 for all");
      stripe.count = *value;
    }
    if (const Node* size = node.find("size")) {
      const Result<int64_t> bytes = parse_bytes(size->text);
      if (!bytes || *bytes < 65536 || *bytes % 65536 != 0 || *bytes >= (int64_t{4} << 30))
        return refuse(size->at, "a multiple of 64KiB below 4GiB belongs here");
      stripe.size_bytes = *bytes;
    }
    return stripe;
  }

  Status read_directory(const Node& node) {
    RETURN_IF_ERROR(check_keys(node, {"path", "class", "mode", "owner", "group"}));
    const Node* path = node.find("path");
    if (path == nullptr) return refuse(node.at, "'path' is missing");
    Directory directory{.mode = mode_, .owner = owner_, .group = group_};
    if (const Node* mode = node.find("mode")) {
      ASSIGN_OR_RETURN(directory.mode, read_mode(*mode));
    }
    if (const Node* owner = node.find("owner")) {
      ASSIGN_OR_RETURN(directory.owner, read_text(*owner));
    }
    if (const Node* group = node.find("group")) {
      ASSIGN_OR_RETURN(directory.group, read_text(*group));
    }
    if (const Node* name = node.find("class")) {
      const auto found = std::find_if(layout_.policies.begin(), layout_.policies.end(),
                                      [&](const Policy& p) { return p.name == name->text; });
      if (found == layout_.policies.end()) return refuse(name->at, fmt::format("there is no class '{}'", name->text));
      directory.policy = static_cast<size_t>(found - layout_.policies.begin());
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> paths, expand(*path));
    for (const std::string& each : paths) RETURN_IF_ERROR(add_directory(*path, each, directory));
    return {};
  }

  // Expands {model} to each model, and other braces as a shell does.
  Result<std::vector<std::string>> expand(const Node& node) const {
    constexpr std::string_view kModel = "{model}";
    ASSIGN_OR_RETURN(const std::string pattern, read_text(node));
    std::vector<std::string> patterns;
    if (pattern.find(kModel) == std::string::npos)
      patterns.push_back(pattern);
    else if (models_.empty())
      return refuse(node.at, "{model} and no 'models'");
    else {
      for (const std::string& model : models_) {
        std::string one = pattern;
        for (size_t at; (at = one.find(kModel)) != std::string::npos;) one.replace(at, kModel.size(), model);
        patterns.push_back(std::move(one));
      }
    }
    std::vector<std::string> paths;
    for (const std::string& one : patterns) {
      const auto expanded = expand_braces(one, kMostDirectories);
      if (!expanded) return refuse(node.at, expanded.error().message());
      paths.insert(paths.end(), expanded->begin(), expanded->end());
    }
    return paths;
  }

  Status add_directory(const Node& node, const std::string& path, Directory directory) {
    RETURN_IF_ERROR(check_path(node, path));
    if (layout_.directories.size() >= kMostDirectories)
      return refuse(node.at, fmt::format("more than {} directories", kMostDirectories));
    if (!seen_.insert(path).second) return refuse(node.at, fmt::format("{} a second time", path));
    // The innermost mount of the path.
    size_t longest = 0;
    for (size_t i = 0; i < layout_.mounts.size(); ++i) {
      const std::string& mount = layout_.mounts[i].path;
      const bool inside = path.starts_with(mount) && (path.size() == mount.size() || path[mount.size()] == '/');
      if (!inside || mount.size() <= longest) continue;
      longest = mount.size();
      directory.mount = i;
    }
    if (longest == 0) return refuse(node.at, fmt::format("{} lies in none of the mounts", path));
    directory.path = path;
    layout_.directories.push_back(std::move(directory));
    return {};
  }

  std::string_view file_;
  Layout layout_;
  std::vector<std::string> models_;
  std::set<std::string> seen_;
  uint32_t mode_ = 0775;
  std::string owner_, group_;
};

}  // namespace

Result<Layout> parse_layout(std::string_view text, std::string_view file) {
  return Parser(file).parse(text);
}

}  // namespace millrace::layout
