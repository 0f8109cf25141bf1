// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists of episodes as users write them: "0-9,12". Pure functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::lerobot {

// The episodes from `first` to `last`, both included.
struct EpisodeRange {
  int64_t first = 0, last = 0;
};

// Parses "12", "0-9" or several of these between commas. Errors: invalid_argument.
[[nodiscard]] Result<std::vector<EpisodeRange>> parse_episode_list(std::string_view text);

// Returns the episodes of the ranges in ascending order. Errors: invalid_argument (an episode occurs twice, or is not
// below `count`: the message names it).
[[nodiscard]] Result<std::vector<size_t>> episodes_in(const std::vector<EpisodeRange>& ranges, size_t count);

// A name and a list, or a name and a fraction: "train=0-79", "train=0.8".
using NamedText = std::pair<std::string, std::string>;
// Whether `name` can name a folder below the target: it is not empty, has no '/', and does not begin with a dot.
bool is_part_name(std::string_view name);
// Parses a NamedText. Errors: invalid_argument (no '=', or no name for a folder).
[[nodiscard]] Result<NamedText> parse_named(std::string_view text);

// Cuts `count` episodes by fractions, in their order: part i is [ends[i - 1], ends[i]). Rounds the ends rather than
// the sizes of the parts, so that no episode is lost. Errors: invalid_argument (a fraction not above 0, a sum above 1,
// a part without episodes).
[[nodiscard]] Result<std::vector<size_t>> ends_of_fractions(const std::vector<double>& fractions, size_t count);

}  // namespace millrace::lerobot
