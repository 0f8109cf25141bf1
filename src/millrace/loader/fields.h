// SPDX-License-Identifier: Apache-2.0
#pragma once

// Describes how a loader reads samples of any kind: the fields to read, and how to decode each (docs/samples.md).
// Values; functions are thread-safe.

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
  kNumber,   // a number of a dtype, with a rule for nulls
  kImage,    // JPEG, PNG or WebP
  kNpy,      // an array with its dtype and shape
  kRaw,      // an array whose dtype and shape are known
  kTokens,   // UTF-8, to be tokenised
  kJson,     // bytes; checked to be JSON
  kNpz,      // bytes; checked to be a .npz with valid arrays
};
[[nodiscard]] Result<FieldKind> parse_field_kind(std::string_view name);

// How the arrays of a batch are combined.
enum class FieldBatch {
  kStack,  // [rows, ...]; all of one shape
  kPad,    // [rows, longest, ...]; shapes may differ in the first dimension
  kList,   // one array per row
};
[[nodiscard]] Result<FieldBatch> parse_field_batch(std::string_view name);

// Appends the ids of a text to `ids`. Called by several threads at once.
using Tokenize = std::function<Status(std::string_view text, std::vector<uint32_t>& ids)>;

struct FieldSpec {
  std::string name;                  // name in the batch
  std::vector<std::string> sources;  // fields of a sample ("seg.png"); the first that the sample has is used
  FieldKind kind = FieldKind::kBytes;
  bool is_required = true;  // a sample without it is damaged; false: the field is a list with gaps
  FieldBatch batch = FieldBatch::kStack;
  double pad_value = 0;
  std::optional<double> fill;   // value of a null number (kNumber, kNpy); nullopt: a null is an error
  bool with_mask = false;       // kNumber only: Batch::Column::mask says which rows have a number
  int64_t length = 0;           // length of padded rows; longer rows are cut; 0: the batch's longest row
  images::DecodeOptions image;  // kImage only
  bool channels_first = false;  // kImage only: [channels, height, width]
  bool as_float = false;        // kImage only: float32, 0 to 1
  // In NumPy's spelling: "<f4". kRaw: the dtype of the bytes. kNumber, kNpy: numbers are converted to it; empty: the
  // stored dtype is kept.
  std::string dtype;
  // kRaw: one side may be -1, computed from the size. kNpy: sides of -1 may have any size; empty: any shape.
  std::vector<int64_t> shape;
  Tokenize tokenize;  // kTokens only
};

// The fields to read from each sample. Without specs all fields are read, each decoded by its extension.
struct SampleFields {
  std::vector<FieldSpec> specs;
  // Used without specs:
  bool decodes = true;                                                       // false: all fields stay bytes
  bool decodes_pictures = true;                                              // false: pictures stay bytes
  FieldSpec picture{.kind = FieldKind::kImage, .batch = FieldBatch::kList};  // how pictures are decoded
  bool may_differ = false;    // samples of one batch may have different fields
  bool with_sources = false;  // each batch names the shard of each sample

  bool takes_all() const { return specs.empty(); }
};
// Checks the specs. Errors: invalid_argument (two fields of one name, a wrong shape or dtype).
[[nodiscard]] Status check_fields(const SampleFields& fields);

// Returns the spec of a field when there are no specs: chosen by the part of its name after the last dot.
FieldSpec spec_of_extension(std::string_view field, const SampleFields& fields);

// A value of a sample.
struct Value {
  enum class Form {
    kBytes,
    kText,     // UTF-8
    kJson,     // UTF-8
    kArray,    // `dtype` and `shape` describe it
    kNothing,  // the sample has no value here; with a dtype: a null in a column of numbers, or of arrays of them
  };
  Form form = Form::kBytes;
  std::string dtype;  // in NumPy's spelling: "|u1", "<f4"
  std::vector<int64_t> shape;
  bool fortran_order = false;
  std::span<const std::byte> nulls;  // kArray: 1 for each item that is a null, else 0; empty: no item is
  std::span<const std::byte> data;
  std::shared_ptr<const void> memory;  // keeps `data` alive; null: `data` points into the caller's bytes

  bool is_array() const { return form == Form::kArray; }
};

// Decodes the value of one field. `where` names shard and sample, for messages. Errors: corruption (the bytes are not
// of FieldSpec::kind), unsupported (a dtype of objects), those of images::decode and of FieldSpec::tokenize.
[[nodiscard]] Result<Value> decode_field(const FieldSpec& spec, std::span<const std::byte> data,
                                         std::string_view where);
// Returns whether a field's name says that it is gzip ("txt.gz", "npy.gz"). The part before ".gz" names its kind.
inline bool is_gzip(std::string_view field) {
  return field.ends_with(".gz");
}
// Returns the unpacked bytes of a gzip field. Errors: corruption; resource_exhausted (more than 1 GiB).
[[nodiscard]] Result<std::shared_ptr<const std::vector<std::byte>>> unpack_field(std::span<const std::byte> data,
                                                                                 std::string_view where);
// Converts a value that states its own form to the form of `spec`; kBytes leaves it as it is. A null of an optional
// field becomes kNothing without a dtype. Errors: invalid_argument (the value cannot be converted to FieldSpec::kind,
// or exactly to an integer dtype; a null without a rule for nulls).
[[nodiscard]] Result<Value> convert_value(const FieldSpec& spec, Value value, std::string_view where);

// Returns the bytes of one item of a dtype of fixed size: 4 for "<f4". nullopt: the dtype has no fixed size.
std::optional<int64_t> dtype_bytes(std::string_view dtype);

}  // namespace millrace::loader
