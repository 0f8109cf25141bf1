// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_flags.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "millrace/base/text/units.h"

namespace millrace::cli {

namespace {

// The number at the front of `text`, and the rest.
std::optional<std::pair<double, std::string_view>> leading_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  return std::pair{value, text.substr(static_cast<size_t>(end - text.data()))};
}

using Unit = std::pair<std::string_view, double>;

// Refuses a bare number, which would silently count as the smallest unit.
void check_unit(const std::string& flag, const std::string& text, std::string_view example) {
  const auto number = leading_number(text);
  if (number && number->second.empty() && number->first > 0)
    throw CLI::ValidationError(flag, fmt::format("'{}' has no unit; write for example {}", text, example));
}

template <size_t N>
double parse_with_units(const std::string& flag, const std::string& text, const std::array<Unit, N>& units,
                        std::string_view example) {
  if (const auto number = leading_number(text)) {
    for (const auto& [name, factor] : units) {
      if (number->second == name && std::isfinite(number->first * factor)) return number->first * factor;
    }
  }
  throw CLI::ValidationError(flag, fmt::format("'{}' is not understood; write for example {}", text, example));
}

int64_t whole_number(const std::string& flag, std::string_view text) {
  const auto value = parse_whole(text);
  if (!value || *value > kMaxCount) throw CLI::ValidationError(flag, fmt::format("'{}' is not a whole number", text));
  return *value;
}

}  // namespace

void add_explain_flag(CLI::App& app, PlanFlags& flags) {
  app.add_flag("--explain", flags.explain, "Show every term with its value and source");
}

void add_prices_flag(CLI::App& app, PlanFlags& flags) {
  app.add_option("--prices", flags.prices,
                 "Take prices from this dated book (default: the built-in one, which is small and old)")
      ->option_text("FILE");
}

Result<std::string> read_plan_file(const std::string& path) {
  constexpr size_t kMaxBytes = 16 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kNotFound, "cannot read {}", path);
  std::string text;
  std::array<char, 65536> part;
  while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxBytes) return fail(ErrorCode::kInvalidArgument, "{} is larger than 16 MiB", path);
  }
  return text;
}

Result<plan::PriceBook> price_book(const PlanFlags& flags) {
  if (flags.prices.empty()) return plan::builtin_prices();
  ASSIGN_OR_RETURN(const std::string text, read_plan_file(flags.prices));
  return with_context(plan::parse_prices(text), flags.prices);
}

std::string number_text(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 100 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  std::string text = fmt::format("{:.{}f}", value, size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 6);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string range_text(const plan::Range& range) {
  const std::string low = number_text(range.low), high = number_text(range.high);
  return low == high ? low : low + " to " + high;
}

std::string duration_range_text(const plan::Range& seconds) {
  static constexpr std::array<Unit, 5> kUnits{{{"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"days", 86400}}};
  const Unit* unit = &kUnits[0];
  for (const Unit& each : kUnits) {
    if (seconds.high >= 2 * each.second || (each.second <= 1 && seconds.high >= each.second)) unit = &each;
  }
  return range_text(seconds * (1 / unit->second)) + " " + std::string(unit->first);
}

Json range_json(const plan::Range& range) {
  return {{"low", range.low}, {"high", range.high}};
}

void print_why(Context& context, const plan::Why& why, const PlanFlags& flags) {
  Json terms = Json::array();
  TextTable table({{"term"}, {"value", true}, {"unit"}, {"source"}});
  for (const plan::Term& term : why.terms) {
    terms.push_back({{"name", term.name},
                     {"low", term.value.low},
                     {"high", term.value.high},
                     {"unit", term.unit},
                     {"source", term.source}});
    if (flags.explain || term.source != plan::kGiven)
      table.add({term.name, range_text(term.value), term.unit, term.source});
  }
  context.out.print_json(
      {{"type", "plan_why"}, {"formulas", why.formulas}, {"terms", std::move(terms)}, {"notes", why.notes}});
  std::string text = "\n";
  for (const std::string& formula : why.formulas) text += "formula: " + formula + "\n";
  if (!table.empty()) text += (why.formulas.empty() ? "" : "\n") + table.to_string();
  if (!why.notes.empty()) text += "\n";
  for (const std::string& note : why.notes) text += "note: " + printable(note) + "\n";
  context.out.print_text(text);
}

double parse_amount(const std::string& flag, const std::string& text) {
  static constexpr std::array<Unit, 8> kUnits{
      {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}, {"b", 1e9}}};
  return parse_with_units(flag, text, kUnits, "70B, 3.5M or 1200");
}

double parse_parameters(const std::string& flag, const std::string& text) {
  constexpr double kLeast = 1e5;
  const double parameters = parse_amount(flag, text);
  if (parameters < kLeast)
    throw CLI::ValidationError(flag, fmt::format("'{}': no model is so small; write for example 7B or 350M", text));
  return parameters;
}

double parse_seconds(const std::string& flag, const std::string& text) {
  check_unit(flag, text, "140ms, 2s, 5m, 3h or 2d");
  return usage_value(flag, parse_duration(text)).count();
}

std::pair<int64_t, int64_t> parse_whole_range(const std::string& flag, const std::string& text) {
  const size_t colon = text.find(':');
  const int64_t low = whole_number(flag, std::string_view(text).substr(0, colon));
  const int64_t high = colon == std::string::npos ? low : whole_number(flag, std::string_view(text).substr(colon + 1));
  if (high < low) throw CLI::ValidationError(flag, fmt::format("'{}': the end lies before the beginning", text));
  return {low, high};
}

std::vector<int64_t> parse_whole_list(const std::string& flag, const std::string& text) {
  constexpr size_t kMost = 10'000;
  std::vector<int64_t> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const auto [low, high] = parse_whole_range(flag, dash == std::string::npos ? part : part.replace(dash, 1, ":"));
    if (static_cast<size_t>(high - low) + values.size() >= kMost)
      throw CLI::ValidationError(flag, "more than 10,000 values");
    for (int64_t value = low; value <= high; ++value) values.push_back(value);
  }
  return values;
}

plan::Range parse_range(const std::string& flag, const std::string& text) {
  const size_t colon = text.find(':');
  const plan::Range range{parse_amount(flag, text.substr(0, colon)),
                          parse_amount(flag, colon == std::string::npos ? text : text.substr(colon + 1))};
  if (range.high < range.low)
    throw CLI::ValidationError(flag, fmt::format("'{}': the end lies before the beginning", text));
  return range;
}

double parse_rate(const std::string& flag, const std::string& text) {
  static constexpr std::array<Unit, 3> kBits{{{"Mbps", 1e6 / 8}, {"Gbps", 1e9 / 8}, {"Tbps", 1e12 / 8}}};
  check_unit(flag, text, "7.03GB/s or 3200Gbps");
  if (text.ends_with("bps")) return parse_with_units(flag, text, kBits, "7.03GB/s or 3200Gbps");
  return parse_size(flag, text.ends_with("/s") ? text.substr(0, text.size() - 2) : text);
}

double parse_size(const std::string& flag, const std::string& text) {
  check_unit(flag, text, "21.3GiB or 500MB");
  return static_cast<double>(usage_value(flag, parse_bytes(text)));
}

double parse_positive_rate(const std::string& flag, const std::string& text) {
  const double rate = parse_rate(flag, text);
  if (!(rate > 0)) throw CLI::ValidationError(flag, fmt::format("'{}' is not a rate above 0", text));
  return rate;
}

double parse_positive_seconds(const std::string& flag, const std::string& text) {
  const double seconds = parse_seconds(flag, text);
  if (!(seconds > 0)) throw CLI::ValidationError(flag, fmt::format("'{}' is not a time above 0", text));
  return seconds;
}

double parse_positive_size(const std::string& flag, const std::string& text) {
  const double bytes = parse_size(flag, text);
  if (!(bytes > 0)) throw CLI::ValidationError(flag, fmt::format("'{}' is not a size above 0", text));
  return bytes;
}

int64_t parse_count(const std::string& flag, const std::string& text, int64_t low) {
  const int64_t value = whole_number(flag, text);
  if (value < low) throw CLI::ValidationError(flag, fmt::format("'{}' is less than {}", text, low));
  return value;
}

void apply_spec(const std::string& flag, const Spec& spec, const SpecKeys& keys) {
  for (const auto& [key, value] : spec.values) {
    const auto found = keys.find(key);
    if (found != keys.end()) {
      found->second(value);
      continue;
    }
    std::string names;
    for (const auto& each : keys) names += (names.empty() ? "" : ", ") + each.first;
    throw CLI::ValidationError(flag, fmt::format("there is no '{}'; there are {}", key, names));
  }
}

Spec parse_spec(const std::string& flag, const std::string& text) {
  Spec spec;
  std::string rest = text;
  const size_t equals = text.find('='), colon = text.find(':');
  if (equals == std::string::npos || colon < equals) {
    spec.name = text.substr(0, colon);
    rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  }
  std::istringstream parts(rest);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t at = part.find('=');
    if (at == std::string::npos || at == 0)
      throw CLI::ValidationError(flag, fmt::format("'{}': '{}' is not key=value", text, part));
    spec.values.emplace_back(part.substr(0, at), part.substr(at + 1));
  }
  return spec;
}

}  // namespace millrace::cli
