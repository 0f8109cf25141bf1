// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the page of --html. Passes the JSON output of the verb, and the files to plot, to a module of the Python
// package next to the binary (python/millrace/report.py), which needs plotly. For one thread.

#include <string>
#include <string_view>

#include "millrace/cli/command.h"

namespace millrace::cli {

// Returns MILLRACE_PYTHON, else the Python with which the binary was installed, else the Python on PATH.
std::string find_python();
// Returns the last line of a text, without its newline.
std::string last_line(std::string text);

// Adds --html FILE.
void add_html_flag(CLI::App& app, std::string& file);

class HtmlReport {
 public:
  // An empty `file` makes no report, and the calls below do nothing.
  HtmlReport(std::string file, std::string_view title);

  void add(const Json& object);
  // Adds a file or folder to plot. `kind`: "record" (a run's folder) or "samples".
  void add_input(std::string_view kind, std::string_view name, const std::string& path);
  // Errors: unsupported (no Python with plotly; the message says what to install), those of writing.
  [[nodiscard]] Status write(Context& context) const;

 private:
  std::string file_, lines_;
};

}  // namespace millrace::cli
