// SPDX-License-Identifier: Apache-2.0
// Where the paths of a script lie: behind the mounts of a container, in lists, and made by the script itself.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <span>

#include "millrace/base/text/strings.h"
#include "millrace/jobs/preflight_parts.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

bool is_below(std::string_view path, std::string_view folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.remove_suffix(1);
  return path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

// --- containers

constexpr std::string_view kMountsOption = "--container-mounts";

// "SRC:DST:FLAGS,SRC" of the step and of the job; a value that only the run knows is left out.
std::vector<std::string> mounts_of(const Preflight& check, const Command* command) {
  std::vector<std::string> lists{std::string(check.asked.value(kMountsOption.substr(2)))};
  if (command != nullptr) {
    const auto& words = command->statement->words;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string text = check.job.value(words[i]).value_or("");
      if (text.starts_with(std::string(kMountsOption) + "=")) lists.push_back(text.substr(kMountsOption.size() + 1));
      if (text == kMountsOption && i + 1 < words.size()) lists.push_back(check.job.value(words[i + 1]).value_or(""));
    }
  }
  std::vector<std::string> mounts;
  for (const std::string& list : lists) {
    for (const std::string_view one : split(list, ',')) {
      if (!one.empty()) mounts.emplace_back(one);
    }
  }
  return mounts;
}

// --- what the script makes

// Programs whose last operand is what they write.
bool copies(std::string_view program) {
  return is_one_of(program, {"cp", "mv", "ln", "rsync", "scp", "sbcast", "install", "dcp", "fpsync", "msrsync",
                             "millrace", "aws", "gsutil", "gcloud", "azcopy", "rclone", "s5cmd", "s3cmd", "git"});
}

// Nobody here knows what a script of the user does with the paths that it is given.
bool is_own_program(std::string_view program) {
  return program.starts_with("python") || program.ends_with(".sh") || program.ends_with(".py") ||
         is_one_of(program, {"bash", "sh"});
}

bool names_output(std::string_view option) {
  std::string name(option);
  std::replace(name.begin(), name.end(), '_', '-');
  return is_one_of(name, {"-o",
                          "-O",
                          "-C",
                          "-d",
                          "-P",
                          "-t",
                          "--out",
                          "--output",
                          "--out-dir",
                          "--outdir",
                          "--output-dir",
                          "--output-path",
                          "--output-prefix",
                          "--save-dir",
                          "--save-path",
                          "--local-dir",
                          "--dest",
                          "--dst",
                          "--target",
                          "--target-directory",
                          "--directory",
                          "--directory-prefix",
                          "--output-document",
                          "of"});
}

// One path that a command writes, or may write.
struct Made {
  std::string path;
  bool as_prefix = false;  // of names: Megatron's --output-prefix
};

std::vector<Made> written_by(const Preflight& check, const Command& command) {
  const auto& words = command.statement->words;
  std::vector<Made> made;
  for (const shell::Redirect& redirect : command.statement->redirects) {
    const auto target = check.job.value(redirect.target);
    if (contains(redirect.op, ">") && target) made.push_back({*target});
  }
  size_t at = skip_wrappers(words, 0);
  if (at < words.size() && base_name(words[at].source) == "srun")
    at = skip_wrappers(words, at + slurm::read_command_line(std::span(words).subspan(at)).command);
  if (at >= words.size()) return made;
  const std::string program(base_name(words[at].text()));
  std::string last;
  for (size_t i = at + 1; i < words.size(); ++i) {
    const auto value = check.job.value(words[i]);
    last = value && !value->starts_with('-') ? *value : "";
    if (!value) continue;
    const size_t equals = value->find('=');
    const std::string name = value->substr(0, equals);
    if (names_output(name)) {
      const auto next = i + 1 < words.size() ? check.job.value(words[i + 1]) : std::nullopt;
      const std::string path = equals != std::string::npos ? value->substr(equals + 1) : next.value_or("");
      made.push_back({path, name.ends_with("prefix")});
    } else if (is_own_program(program) && !value->starts_with('-')) {
      made.push_back({*value});
    }
  }
  if (copies(program)) made.push_back({last});
  return made;
}

bool makes(const Preflight& check, const Command& command, const std::string& path) {
  for (const Made& made : written_by(check, command)) {
    if (made.path.empty()) continue;
    const bool inside = check.asked.has("container-image") ||
                        std::any_of(command.statement->words.begin(), command.statement->words.end(),
                                    [](const shell::Word& word) { return contains(word.source, "--container-image"); });
    const auto there = host_path(check, {made.path, {}, &command, inside});
    if (!there || *there == "/") continue;
    if (is_below(path, *there) || is_below(*there, path) || (made.as_prefix && path.starts_with(*there))) return true;
  }
  return false;
}

bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Parts of "a,b{1,2}" outside braces.
std::vector<std::string> comma_parts(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_list(const Preflight& check, const std::string& text, const std::vector<std::string>& parts) {
  const auto is_url = [](const std::string& part) { return contains(part, "://"); };
  if (std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); })) return false;
  std::error_code error;
  if (!is_url(text)) return !fs::exists(below_work_dir(check, text), error);
  return std::all_of(parts.begin(), parts.end(), is_url);
}

}  // namespace

std::optional<std::string> host_path(const Preflight& check, const NamedValue& value) {
  if (contains(value.text, "://")) return value.text;
  if (!value.in_container) return below_work_dir(check, value.text);
  std::optional<std::string> found;
  size_t longest = 0;
  for (const std::string& mount : mounts_of(check, value.command)) {
    const std::vector<std::string_view> parts = split(mount, ':');
    const std::string source = below_work_dir(check, std::string(parts[0]));
    std::string_view shown = parts.size() > 1 && !parts[1].empty() ? parts[1] : std::string_view(source);
    while (shown.size() > 1 && shown.back() == '/') shown.remove_suffix(1);
    const bool whole = shown == "/" && value.text.starts_with('/');
    if (shown.size() <= longest || (!is_below(value.text, shown) && !whole)) continue;
    longest = shown.size();
    found = fs::path(source + "/" + value.text.substr(std::min(value.text.size(), shown.size())))
                .lexically_normal()
                .string();
    if (found->size() > 1 && found->back() == '/') found->pop_back();
  }
  return found;
}

std::string made_before(const Preflight& check, const NamedValue& value, const std::string& path) {
  const bool relative = !contains(value.text, "://") && !value.text.starts_with('/');
  for (const Command& command : check.job.commands()) {
    if (&command == value.command) break;
    if (command.statement->kind != shell::Statement::Kind::kCommand) continue;
    const bool moves = is_one_of(command.statement->name(), {"cd", "pushd"}) && !command.in_step;
    if (moves && relative && value.command != nullptr)
      return fmt::format("line {} of the script goes to another folder before", command.statement->place.line);
    if (makes(check, command, path))
      return fmt::format("line {} of the script may make it", command.statement->place.line);
  }
  return {};
}

std::vector<NamedValue> data_parts(const Preflight& check, const NamedValue& value) {
  std::vector<NamedValue> parts;
  std::vector<std::string> joined;  // by "::", as WebDataset takes it
  for (size_t at = 0; at <= value.text.size();) {
    const size_t end = std::min(value.text.find("::", at), value.text.size());
    joined.push_back(value.text.substr(at, end - at));
    at = end + 2;
  }
  for (const std::string& one : joined) {
    std::vector<std::string> listed = one.starts_with("pipe:") ? std::vector{one} : comma_parts(one);
    if (listed.size() > 1 && !is_list(check, one, listed)) listed = {one};
    for (std::string& text : listed) {
      if (text.starts_with("file:/") && !text.starts_with("file://")) text.erase(0, 5);
      std::error_code error;
      if (text.empty() || (is_number(text) && !fs::exists(below_work_dir(check, text), error))) continue;
      parts.push_back(value);
      parts.back().text = text;
    }
  }
  return parts;
}

}  // namespace millrace::jobs
