// SPDX-License-Identifier: Apache-2.0
#pragma once

// The page behind --html: what the verb prints with --json, and files to plot, go to a module of the Python package
// beside the binary (python/millrace/report.py), which needs plotly. For one thread.

#include <string>
#include <string_view>

#include "millrace/cli/command.h"

namespace millrace::cli {

// MILLRACE_PYTHON, else the Python that the binary was installed with, else that of PATH.
std::string find_python();
// Without its newline.
std::string last_line(std::string text);

// --html FILE
void add_html_flag(CLI::App& app, std::string& file);

class HtmlReport {
 public:
  // `file`: "" makes no report, and the calls below do nothing.
  HtmlReport(std::string file, std::string_view title);

  void add(const Json& object);
  // A file or folder that is plotted: "record" (a run's folder) or "samples".
  void add_input(std::string_view kind, std::string_view name, const std::string& path);
  // Errors: unsupported (no Python with plotly; it says what to install), those of writing.
  [[nodiscard]] Status write(Context& context) const;

 private:
  std::string file_, lines_;
};

}  // namespace millrace::cli
