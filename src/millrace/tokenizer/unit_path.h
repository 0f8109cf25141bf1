// SPDX-License-Identifier: Apache-2.0
#pragma once

// The units way, for ids alone: raw text is cut into units whose ids, one unit after another, are those of the whole
// text, so that units that were met before cost one look-up. Which cuts are right follows from the steps of the file; a
// file of whose steps that is not proven has no UnitPath. The proofs are beside the rules in unit_path.cpp. Immutable,
// thread-safe.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/cached_words.h"
#include "millrace/tokenizer/model.h"
#include "millrace/tokenizer/plain_words.h"
#include "millrace/tokenizer/tokenizer_json.h"
#include "millrace/tokenizer/unit_bpe.h"

namespace millrace::tokenizer {

// Cuts between two characters, by what they are.
class UnitScanner {
 public:
  // A character is known by its kind: ASCII ones are their own, the others have one of these.
  static constexpr uint8_t kFirstKind = 128, kKinds = 160;

  // Between two characters a unit goes on, or ends and another begins, or what the unit has so far is dropped. kGlue:
  // it goes on behind the white space that begins here; only behind characters beyond ASCII.
  enum Cut : uint8_t { kNone = 0, kCut = 1, kDrop = 2, kGlue = 4 };
  void set_cut(uint32_t left_kind, uint32_t right_kind, Cut cut) { cuts_[left_kind * kRow + right_kind] = cut; }
  // The kind of a character beyond ASCII.
  uint8_t kind_of(uint32_t code_point) const {
    if (code_point < 0x10000) return kinds_[code_point];
    return code_point >= kIndicBegin && code_point < kIndicEnd ? indic_kind_ : astral_kind_;
  }
  // The kinds of the characters up to U+FFFF, of those from kIndicBegin to kIndicEnd (where alone beyond U+FFFF
  // some begin a cluster with what follows) and of all others above. `kinds` has 65536 entries and outlives this.
  void set_kinds(const uint8_t* kinds, uint8_t indic_kind, uint8_t astral_kind) {
    kinds_ = kinds;
    indic_kind_ = indic_kind;
    astral_kind_ = astral_kind;
  }
  static constexpr uint32_t kIndicBegin = 0x11000, kIndicEnd = 0x12000;

  // Fills `units` with those that follow `begin` and returns how many it wrote; 0 only at the end.
  // REQUIRES: `begin` is 0 or the end of a unit that was returned; `units` is not empty; `piece` is below 4 GiB.
  size_t next_units(std::string_view piece, size_t begin, std::span<CachedWords::Place> units) const;

 private:
  static constexpr size_t kRow = 256;  // wider than it need be: an index is two bytes side by side

  std::vector<uint8_t> cuts_ = std::vector<uint8_t>(kKinds * kRow);
  const uint8_t* kinds_ = nullptr;
  uint8_t indic_kind_ = kFirstKind, astral_kind_ = kFirstKind;
};

struct UnitPath {
  // What is special about the first unit of a piece.
  enum class Start {
    kNothing,
    kSpace,                  // a space is put before it
    kSpaceUnlessThere,       // the same, but not before a space or its replacement
    kSpaceUnlessThereFirst,  // the same, in the piece that begins the text only
    kGeneral,                // it takes the general way
  };
  // Nothing for a file of another shape. `model` must outlive the result.
  [[nodiscard]] static std::optional<UnitPath> build(const TokenizerSpec& spec, const Model& model);

  // True when one of the added tokens with normalized = true may be in `text`: it is normalized as a whole then.
  bool may_have_added_token(std::string_view text) const;

  UnitScanner scanner;
  Start start = Start::kNothing;
  std::optional<PlainWords> plain;     // finds the words of most units that take the general way
  std::unique_ptr<const UnitBpe> bpe;  // nothing: units take the general way
  std::vector<std::string> cores;      // text that an added token of the second pass has in it, raw and normalized
  std::vector<uint8_t> kinds;          // of the characters below U+10000, where they depend on the file
};

// A letter that is a grapheme cluster by itself, unless another character extends it, and no neighbour of which a
// normal form or a charsmap looks at. REQUIRES: 0x80 <= c < 0x10000.
bool is_lone_letter(uint32_t c);

// What stands for a space in such files, U+2581.
inline constexpr std::string_view kMetaSymbol = "\u2581";

}  // namespace millrace::tokenizer
