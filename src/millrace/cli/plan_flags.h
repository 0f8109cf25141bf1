// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the verbs of `millrace plan`: parsers of user input, and the evidence printed with an answer.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/plan/prices.h"
#include "millrace/plan/why.h"

namespace millrace::cli {

struct PlanFlags {
  bool explain = false;
  std::string prices;  // a file; empty: the built-in book
};

// Adds --explain.
void add_explain_flag(CLI::App& app, PlanFlags& flags);
// Adds --prices.
void add_prices_flag(CLI::App& app, PlanFlags& flags);
// Returns the user's price book or the built-in one. Errors: those of reading the file, invalid_argument with its
// name.
[[nodiscard]] Result<plan::PriceBook> price_book(const PlanFlags& flags);
// Reads a small file. Errors: not_found, invalid_argument (larger than 16 MiB).
[[nodiscard]] Result<std::string> read_plan_file(const std::string& path);

// Prints the formulas, the constants with their sources, and the notes of an answer. --explain adds the given values.
void print_why(Context& context, const plan::Why& why, const PlanFlags& flags);

// Formats a range as "12", "9.5" or "9.5 to 12", with significant digits only.
std::string range_text(const plan::Range& range);
// Formats a number with three significant digits, as a whole number when large.
std::string number_text(double value);
// Formats a range of seconds as "3.2 to 4.1 h", in a suitable unit.
std::string duration_range_text(const plan::Range& seconds);
Json range_json(const plan::Range& range);

// Parses "3000000000", "70B", "3.5M", "12k". Throws CLI::ValidationError for `flag`.
double parse_amount(const std::string& flag, const std::string& text);
// Parses "120:144" or "128", whole numbers of at least 0.
std::pair<int64_t, int64_t> parse_whole_range(const std::string& flag, const std::string& text);
// Parses "4,6,8-10".
std::vector<int64_t> parse_whole_list(const std::string& flag, const std::string& text);
// Parses "0.3:0.5" or "0.4".
plan::Range parse_range(const std::string& flag, const std::string& text);
// Parses the number of parameters of a model as an amount. It must be 100,000 or more, because "7" lacks its "B".
double parse_parameters(const std::string& flag, const std::string& text);
// Parses a time: "140ms", "2s", "5m", "3h", "2d". Times, rates and sizes need a unit: a bare number other than 0 is
// refused, because no one means 21.3 bytes.
double parse_seconds(const std::string& flag, const std::string& text);
// Parses bytes per second: "7.03GB/s", "500MB", "3200Gbps".
double parse_rate(const std::string& flag, const std::string& text);
// Parses a size such as "5GB" as a double.
double parse_size(const std::string& flag, const std::string& text);
// Parse a rate and a time, which must be above 0.
double parse_positive_rate(const std::string& flag, const std::string& text);
double parse_positive_seconds(const std::string& flag, const std::string& text);
// Parses a size, which must be above 0.
double parse_positive_size(const std::string& flag, const std::string& text);
// Parses a whole number of at least `low`.
int64_t parse_count(const std::string& flag, const std::string& text, int64_t low = 0);
// "NAME:key=value,key=value" or "key=value,...": the name (may be empty) and the pairs in order.
struct Spec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;
};
Spec parse_spec(const std::string& flag, const std::string& text);
// Passes each value to the function of its key. Throws for a key without a function.
using SpecKeys = std::map<std::string, std::function<void(const std::string&)>, std::less<>>;
void apply_spec(const std::string& flag, const Spec& spec, const SpecKeys& keys);

// Adds a flag whose value is parsed by one of the functions above.
template <class T, class Parse>
CLI::Option* add_parsed_flag(CLI::App& app, const std::string& flag, T& value, const std::string& word,
                             const std::string& description, Parse parse) {
  return app
      .add_option_function<std::string>(
          flag, [flag, &value, parse](const std::string& text) { value = parse(flag, text); }, description)
      ->option_text(word);
}

// Each verb is in its own file, cmd_plan_<verb>.cpp.
void add_plan_gpus(Verbs& verbs, CLI::App& plan);
void add_plan_batch(Verbs& verbs, CLI::App& plan);
void add_plan_effective_batch(Verbs& verbs, CLI::App& plan);
void add_plan_eta(Verbs& verbs, CLI::App& plan);
void add_plan_nodes(Verbs& verbs, CLI::App& plan);
void add_plan_pack(Verbs& verbs, CLI::App& plan);
void add_plan_checkpoint(Verbs& verbs, CLI::App& plan);
void add_plan_advise(Verbs& verbs, CLI::App& plan);

}  // namespace millrace::cli
