// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prices, always from a dated book: the small one in data/prices.csv, or the user's own. Pure functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::plan {

struct Price {
  std::string item;      // an instance type, or a partition's name
  std::string region;    // may be empty
  std::string purchase;  // "on-demand", "capacity-block", "reserved", "spot", "own"
  double usd_per_hour = 0;
  int64_t gpus = 0;  // number in one item
  std::string source;

  double usd_per_gpu_hour() const { return usd_per_hour / static_cast<double>(gpus); }
};

struct PriceBook {
  std::string date;  // "2024-12-01": the day on which the prices held
  std::string source;
  std::vector<Price> prices;

  std::string name() const { return source + ", " + date; }
};

// Returns the built-in book: two prices of one instance type, both old. Callers must say so wherever they use it.
const PriceBook& builtin_prices();

// Parses {"date": "2026-01-31", "source": "...", "prices": [{"item": "p5e.48xlarge", "gpus": 8, "usd_per_hour": 34.6,
// "region": "us-east-2", "purchase": "capacity-block", "source": "..."}]}. Optional: region, purchase, source, and
// gpus for an instance of the catalogue. Error: invalid_argument, with the entry.
[[nodiscard]] Result<PriceBook> parse_prices(std::string_view json);

// Returns the cheapest price of `item` that fits `region` and `purchase` (empty: any); nullopt if there is none.
std::optional<Price> find_price(const PriceBook& book, std::string_view item, std::string_view region = {},
                                std::string_view purchase = {});

}  // namespace millrace::plan
