// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/object_flags.h"

#include <fmt/chrono.h>

#include <ctime>
#include <map>

#include "millrace/base/text/strings.h"

namespace millrace::cli {
namespace {

using Pairs = std::map<std::string, std::string>;

// NAME=VALUE, once or more.
void add_pairs_flag(CLI::App& app, const std::string& flag, std::optional<Pairs>& pairs, bool lower,
                    const std::string& description) {
  app.add_option_function<std::vector<std::string>>(
         flag,
         [flag, &pairs, lower](const std::vector<std::string>& texts) {
           if (!pairs) pairs.emplace();
           for (const std::string& text : texts) {
             const size_t mark = text.find('=');
             if (mark == text.npos || mark == 0) {
               throw CLI::ValidationError(flag, "\"" + text + "\" is not NAME=VALUE");
             }
             const std::string name = text.substr(0, mark);
             (*pairs)[lower ? lower_case(name) : name] = text.substr(mark + 1);
           }
         },
         description)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("NAME=VALUE");
}

// An HTTP date as it is, or "2030-01-01", "2030-01-01T12:00:00Z".
std::string http_date(const std::string& text) {
  std::tm parts{};
  for (const char* form : {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"}) {
    parts = {};
    const char* const rest = ::strptime(text.c_str(), form, &parts);
    if (rest == nullptr || *rest != '\0') continue;
    return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(::timegm(&parts)));
  }
  const char* const rest = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (rest != nullptr && *rest == '\0') return text;
  throw CLI::ValidationError("--expires", "\"" + text + "\" is no time: \"2030-01-01T12:00:00Z\"");
}

}  // namespace

void add_object_flags(CLI::App& app, sync::ObjectChanges& changes) {
  struct Flag {
    const char* name;
    std::string ObjectHeaders::* value;
    const char* text;
    const char* description;
  };
  constexpr Flag kFlags[] = {
      {"--content-type", &ObjectHeaders::content_type, "TYPE",
       "Content-Type of objects in s3:// (default: the source's, or by the file's name)"},
      {"--content-encoding", &ObjectHeaders::content_encoding, "NAME",
       "Content-Encoding of objects in s3:// (\"gzip\")"},
      {"--content-language", &ObjectHeaders::content_language, "NAME", "Content-Language of objects in s3://"},
      {"--content-disposition", &ObjectHeaders::content_disposition, "TEXT", "Content-Disposition of objects in s3://"},
      {"--cache-control", &ObjectHeaders::cache_control, "TEXT",
       "Cache-Control of objects in s3:// (\"max-age=3600\")"},
  };
  for (const Flag& flag : kFlags) {
    app.add_option(flag.name, changes.headers.*flag.value, flag.description)->option_text(flag.text);
  }
  app.add_option_function<std::string>(
         "--expires", [&changes](const std::string& text) { changes.headers.expires = http_date(text); },
         "Expires of objects in s3:// (\"2030-01-01T12:00:00Z\")")
      ->option_text("TIME");
  add_pairs_flag(app, "--metadata", changes.metadata, true,
                 "User metadata of objects in s3://, instead of the source's; may be repeated");
  add_pairs_flag(app, "--tag", changes.tags, false,
                 "A tag of objects in s3://, instead of the source's; may be repeated");
  app.add_flag_callback(
      "--no-tags",
      [&changes] {
        if (!changes.tags) changes.tags.emplace();
      },
      "Between s3:// and s3://, do not copy the source's tags, which may not be readable");
  app.add_flag_callback(
      "--no-guess-mime-type", [&changes] { changes.guess_type = false; },
      "Give uploaded files no Content-Type by their names");
}

}  // namespace millrace::cli
