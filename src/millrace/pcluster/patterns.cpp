// SPDX-License-Identifier: Apache-2.0
// The forms of ids, ARNs, times and paths, as the schema's expressions have them.
#include <algorithm>
#include <array>
#include <cassert>
#include <string>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"
#include "millrace/pcluster/schema.h"

namespace millrace::pcluster {

namespace {

bool is_id_letter(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z');
}
bool is_hex_letter(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f');
}
bool is_bucket_letter(char c) {
  return is_id_letter(c) || c == '*' || c == '-' || c == '.';
}

// `prefix`, then between `least` and `most` letters.
bool is_id(std::string_view text, std::string_view prefix, bool (*letter)(char), size_t least, size_t most) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return text.size() >= least && text.size() <= most && std::all_of(text.begin(), text.end(), letter);
}
bool is_short_or_long_id(std::string_view text, std::string_view prefix) {
  return is_id(text, prefix, is_id_letter, 8, 8) || is_id(text, prefix, is_id_letter, 17, 17);
}

bool is_arn(std::string_view text, std::string_view part) {
  return text.starts_with("arn:") && text.find(part, 4) != std::string_view::npos;
}

// Whole words between `separator`, each of digits and at most `most`.
bool numbers_up_to(std::string_view text, char separator, size_t count, int most) {
  for (size_t i = 0; i < count; ++i) {
    const size_t end = i + 1 < count ? text.find(separator) : text.size();
    if (end == std::string_view::npos || end == 0 || end > 3) return false;
    const std::string_view part = text.substr(0, end);
    if (!std::all_of(part.begin(), part.end(), is_digit) || std::stoi(std::string(part)) > most) return false;
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return true;
}

bool is_cidr(std::string_view text) {
  if (text.starts_with("pl-")) return text.size() > 3;
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && numbers_up_to(text.substr(0, slash), '.', 4, 255) &&
         numbers_up_to(text.substr(slash + 1), '/', 1, 32);
}

bool is_time(std::string_view text) {
  return text.size() == 5 && text[2] == ':' && numbers_up_to(text.substr(0, 2), ':', 1, 23) &&
         numbers_up_to(text.substr(3), ':', 1, 59);
}

// Parts between slashes, none empty and none that starts with a point.
bool is_mount_path(std::string_view text) {
  if (text.starts_with('/')) text.remove_prefix(1);
  if (text.empty()) return false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('/'), text.size());
    if (end == 0 || text[0] == '.' || text[0] == '\\') return false;
    if (end + 1 == text.size()) return false;
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return true;
}

constexpr std::array<Pattern, 23> kPatterns = {{
    {"@ami", [](std::string_view t) { return is_short_or_long_id(t, "ami-"); }, "ami- and 8 or 17 letters or digits"},
    {"@subnet", [](std::string_view t) { return is_short_or_long_id(t, "subnet-"); },
     "subnet- and 8 or 17 letters or digits"},
    {"@sg", [](std::string_view t) { return is_short_or_long_id(t, "sg-"); }, "sg- and 8 or 17 letters or digits"},
    {"@snap", [](std::string_view t) { return is_short_or_long_id(t, "snap-"); },
     "snap- and 8 or 17 letters or digits"},
    {"@vol", [](std::string_view t) { return is_short_or_long_id(t, "vol-"); }, "vol- and 8 or 17 letters or digits"},
    {"@fs", [](std::string_view t) { return is_short_or_long_id(t, "fs-"); }, "fs- and 8 or 17 letters or digits"},
    {"@fs17", [](std::string_view t) { return is_id(t, "fs-", is_id_letter, 17, 17); }, "fs- and 17 letters or digits"},
    {"@fsap", [](std::string_view t) { return is_id(t, "fsap-", is_id_letter, 17, 17); },
     "fsap- and 17 letters or digits"},
    {"@fsvol", [](std::string_view t) { return is_id(t, "fsvol-", is_hex_letter, 17, 17); },
     "fsvol- and 17 hex digits"},
    {"@fc", [](std::string_view t) { return is_id(t, "fc-", is_hex_letter, 8, 18); }, "fc- and 8 to 18 hex digits"},
    {"@cr", [](std::string_view t) { return is_short_or_long_id(t, "cr-"); }, "cr- and 8 or 17 letters or digits"},
    {"@lt", [](std::string_view t) { return is_short_or_long_id(t, "lt-"); }, "lt- and 8 or 17 letters or digits"},
    {"@backup", [](std::string_view t) { return is_id(t, "backup-", is_hex_letter, 8, 64); },
     "backup- and 8 or more hex digits"},
    {"@role", [](std::string_view t) { return is_arn(t, ":role/"); }, "an ARN with :role/"},
    {"@profile", [](std::string_view t) { return is_arn(t, ":instance-profile/"); }, "an ARN with :instance-profile/"},
    {"@policy", [](std::string_view t) { return is_arn(t, ":policy/"); }, "an ARN with :policy/"},
    {"@secret", [](std::string_view t) { return is_arn(t, ":secret"); }, "the ARN of a secret"},
    {"@password", [](std::string_view t) { return is_arn(t, ":secretsmanager:") || is_arn(t, ":ssm:"); },
     "the ARN of a secret, or of a parameter of ssm"},
    {"@bucket", [](std::string_view t) { return !t.empty() && std::all_of(t.begin(), t.end(), is_bucket_letter); },
     "small letters, digits, '-', '.' and '*'"},
    {"@cidr", is_cidr, "a range such as 10.0.0.0/16, or a prefix list pl-..."},
    {"@path", is_mount_path, "a path such as /fsx/data, no part of which starts with a point"},
    {"@weekly",
     [](std::string_view t) {
       return t.size() == 7 && t[0] >= '1' && t[0] <= '7' && t[1] == ':' && is_time(t.substr(2));
     },
     "day and time as \"7:03:30\", in quotes"},
    {"@daily", is_time, "a time as \"03:30\", in quotes"},
}};

// "xxxxxxxxx" behind the last dash: one letter, again and again.
bool is_one_letter_repeated(std::string_view text) {
  const size_t dash = text.rfind('-');
  const std::string_view tail = dash == std::string_view::npos ? text : text.substr(dash + 1);
  return tail.size() >= 5 && tail.find_first_not_of(tail[0]) == std::string_view::npos && !is_digit(tail[0]);
}

}  // namespace

const Pattern& find_pattern(std::string_view name) {
  const auto found = std::find_if(kPatterns.begin(), kPatterns.end(), [&](const Pattern& p) { return p.name == name; });
  assert(found != kPatterns.end());  // the table names only these
  return *found;
}

bool is_placeholder(std::string_view text) {
  constexpr std::array<std::string_view, 8> kMarks = {"<",         "replace_", "replace-", "replaceme",
                                                      "change-me", "changeme", "${",       "placeholder"};
  const std::string small = lower_case(text);
  if (is_one_letter_repeated(small)) return true;
  // "your-bucket", also behind s3://, and not "store-your-data".
  for (size_t at = small.find("your"); at != std::string::npos; at = small.find("your", at + 1)) {
    const bool starts = at == 0 || std::string_view("/:=@").find(small[at - 1]) != std::string_view::npos;
    if (starts && at + 4 < small.size() && (small[at + 4] == '-' || small[at + 4] == '_')) return true;
  }
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](std::string_view m) { return small.find(m) != std::string::npos; });
}

}  // namespace millrace::pcluster
