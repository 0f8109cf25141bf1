// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/html_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "millrace/base/command.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/thread/sync.h"
#include "millrace/jobs/secrets.h"
#include "millrace/storage/url_options.h"

namespace millrace::cli {

namespace {

// As it was typed, without secrets.
std::string own_command() {
  const std::string text = read_text("/proc/self/cmdline").value_or("");
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::string command;
  for (const std::string& word : jobs::without_secrets(words)) command += (command.empty() ? "" : " ") + word;
  return command;
}

std::string line_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string find_python() {
  if (const char* const chosen = std::getenv("MILLRACE_PYTHON"); chosen != nullptr && *chosen != 0) return chosen;
  std::error_code unknown;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path() / "python3";
  return std::filesystem::exists(beside, unknown) ? beside.string() : "python3";
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

void add_html_flag(CLI::App& app, std::string& file) {
  app.add_option("--html", file,
                 "Also write a page with plots, which needs no network (pip install 'millrace-io[report]')")
      ->option_text("FILE");
}

HtmlReport::HtmlReport(std::string file, std::string_view title) : file_(std::move(file)) {
  if (file_.empty()) return;
  lines_ = line_of({{"type", "report"},
                    {"title", title},
                    {"command", own_command()},
                    {"host", host_name()},
                    {"time", utc_text(std::chrono::system_clock::now())},
                    {"version", MILLRACE_VERSION}});
}

void HtmlReport::add(const Json& object) {
  if (!file_.empty()) lines_ += line_of(object);
}

void HtmlReport::add_input(std::string_view kind, std::string_view name, const std::string& path) {
  add({{"type", "report_input"}, {"kind", kind}, {"name", name}, {"path", path}});
}

Status HtmlReport::write(Context& context) const {
  if (file_.empty()) return {};
  const std::string input = fmt::format("{}.{}.jsonl", file_, getpid());
  {
    std::ofstream file(input, std::ios::binary | std::ios::trunc);
    file << lines_;
    file.close();
    if (!file) return fail(ErrorCode::kPermissionDenied, "cannot write {}", input);
  }
  // A verb that was stopped, as a monitor is, still gets its report.
  constexpr std::chrono::minutes kLimit{5};
  const auto ran = run_command({find_python(), "-m", "millrace.report", input, file_}, kLimit, {}, kMaxCommandOutput,
                               process_url_options().variables());
  unlink(input.c_str());
  if (!ran) return tl::unexpected(ran.error());
  if (!ran->ok) {
    const std::string reason = last_line(ran->err);
    const bool is_missing = reason.find("No module named") != std::string::npos;
    return fail(is_missing ? ErrorCode::kUnsupported : ErrorCode::kInternal, "--html {}: {}{}", file_,
                reason.empty() ? ran->status : reason,
                is_missing && reason.find("pip install") == std::string::npos
                    ? "; pip install 'millrace-io[report]', or name a Python that has it in MILLRACE_PYTHON"
                    : "");
  }
  context.out.note("report: " + file_);
  return {};
}

}  // namespace millrace::cli
