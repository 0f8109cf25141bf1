// SPDX-License-Identifier: Apache-2.0
#pragma once

// The evidence for an answer of the planner: ranges instead of points, formulas, and every constant with its source.
// Plain values.

#include <algorithm>
#include <string>
#include <vector>

namespace millrace::plan {

// A range [low, high], or a point if both are equal. The unit is in the field's name.
struct Range {
  double low = 0;
  double high = 0;

  static Range point(double value) { return {value, value}; }
  Range operator+(const Range& other) const { return {low + other.low, high + other.high}; }
  // REQUIRES: factor >= 0.
  Range operator*(double factor) const { return {low * factor, high * factor}; }
  bool operator==(const Range&) const = default;
};

struct Term {
  std::string name;  // its name in the formulas
  Range value;
  std::string unit;
  std::string source;  // "given", "EC2 instance types, 2024-10", "8 x 1.2"
};

struct Why {
  std::vector<std::string> formulas;
  std::vector<Term> terms;
  std::vector<std::string> notes;  // disagreements, assumptions, advice

  void add(const Why& other) {
    formulas.insert(formulas.end(), other.formulas.begin(), other.formulas.end());
    terms.insert(terms.end(), other.terms.begin(), other.terms.end());
    notes.insert(notes.end(), other.notes.begin(), other.notes.end());
  }
};

inline const char* const kGiven = "given";

}  // namespace millrace::plan
