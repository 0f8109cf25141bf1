// SPDX-License-Identifier: Apache-2.0
#pragma once

// Samples of any kind: which fields of them are read, and what becomes of each (docs/samples.md). Values; functions are
// thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/images/images.h"

namespace millrace::loader {

// The kinds of content that a field can have.
enum class FieldKind {
  kBytes,    // anything
  kText,     // UTF-8
  kInteger,  // decimal digits, such as a class
  kImage,    // JPEG, PNG or WebP
  kNpy,      // an array with its dtype and shape
  kRaw,      // an array whose dtype and shape are known
  kTokens,   // UTF-8, to be tokenised
  kJson,     // bytes that are JSON, which is checked
  kNpz,      // bytes that are a .npz, whose arrays are checked
};
[[nodiscard]] Result<FieldKind> parse_field_kind(std::string_view name);

// How the arrays of a batch are laid together.
enum class FieldBatch {
  kStack,  // [rows, ...]; all of one shape
  kPad,    // [rows, longest, ...]; shapes may differ in the first dimension
  kList,   // one by one
};
[[nodiscard]] Result<FieldBatch> parse_field_batch(std::string_view name);

// Appends the ids of a text. Called on several threads at once.
using Tokenize = std::function<Status(std::string_view text, std::vector<uint32_t>& ids)>;

struct FieldSpec {
  std::string name;                  // in the batch
  std::vector<std::string> sources;  // fields of a sample ("seg.png"); the first of them that a sample has is taken
  FieldKind kind = FieldKind::kBytes;
  bool is_required = true;  // a sample without it is damaged; else the field is always a list, with gaps
  FieldBatch batch = FieldBatch::kStack;
  double pad_value = 0;
  int64_t length = 0;           // length of padded rows: longer ones are cut; 0: the longest of the batch
  images::DecodeOptions image;  // kImage only
  bool channels_first = false;  // kImage only: [channels, height, width]
  bool as_float = false;        // kImage only: float32, 0 to 1
  std::string dtype;            // kRaw only, in NumPy's spelling: "<f4"
  std::vector<int64_t> shape;   // kRaw only; one -1 takes what is left
  Tokenize tokenize;            // kTokens only
};

// The fields that are read of a sample. No specs: all of its fields, each by its extension.
struct SampleFields {
  std::vector<FieldSpec> specs;
  // Used when all fields are taken:
  bool decodes = true;                                                       // false: each is bytes
  bool decodes_pictures = true;                                              // false: pictures are bytes
  FieldSpec picture{.kind = FieldKind::kImage, .batch = FieldBatch::kList};  // how they are decoded
  bool may_differ = false;    // samples of one batch may lack fields of others
  bool with_sources = false;  // each batch says which shard each sample comes from

  bool takes_all() const { return specs.empty(); }
};
// Errors: invalid_argument (two fields of one name, a wrong shape or dtype).
[[nodiscard]] Status check_fields(const SampleFields& fields);

// The spec of a field by the part of its name after the last dot, where all fields are taken.
FieldSpec spec_of_extension(std::string_view field, const SampleFields& fields);

// A value of a sample.
struct Value {
  enum class Form {
    kBytes,
    kText,     // UTF-8
    kJson,     // UTF-8
    kArray,    // `dtype` and `shape` describe it
    kNothing,  // the sample has no value here
  };
  Form form = Form::kBytes;
  std::string dtype;  // in NumPy's spelling: "|u1", "<f4"
  std::vector<int64_t> shape;
  bool fortran_order = false;
  std::span<const std::byte> data;
  std::shared_ptr<const void> memory;  // keeps `data` alive; null: the giver of the bytes does

  bool is_array() const { return form == Form::kArray; }
};

// The value of one field. `where` names shard and sample, for messages. Errors: corruption (the bytes are not what
// `kind` says), unsupported (a dtype of objects), those of images::decode and of FieldSpec::tokenize.
[[nodiscard]] Result<Value> decode_field(const FieldSpec& spec, std::span<const std::byte> data,
                                         std::string_view where);
// Whether a field is gzip by its name ("txt.gz", "npy.gz"). The part before ".gz" names its kind.
inline bool is_gzip(std::string_view field) {
  return field.ends_with(".gz");
}
// Its unpacked bytes. Errors: corruption; resource_exhausted (more than 1 GiB).
[[nodiscard]] Result<std::shared_ptr<const std::vector<std::byte>>> unpack_field(std::span<const std::byte> data,
                                                                                 std::string_view where);
// Converts a value that states its own form to that of `spec`; kBytes leaves it as it is. Errors: invalid_argument (it
// cannot become what `kind` says).
[[nodiscard]] Result<Value> convert_value(const FieldSpec& spec, Value value, std::string_view where);

// The bytes of an item of a dtype that has a fixed size: "<f4" has 4. nullopt: another dtype.
std::optional<int64_t> dtype_bytes(std::string_view dtype);

}  // namespace millrace::loader
