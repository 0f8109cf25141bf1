// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>

#include "millrace/base/text/utf8.h"

namespace millrace::formats {

// The functions of this file that fill what SafetensorsHeader keeps to itself.
struct SafetensorsAccess {
  static std::vector<size_t>& by_name(SafetensorsHeader& header) { return header.by_name_; }
};

namespace {

constexpr int64_t kLengthWord = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference's limit, on reading and on writing
constexpr int64_t kMaxNumber = int64_t{1} << 48;  // the bound of the format's JSON schema; sums of two cannot overflow
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kQuotedBytes = 120;  // of a name in a message: names may be as long as the header

struct DtypeRow {
  std::string_view name;
  int64_t bits;
};
// Indexed by Dtype, which has the reference's order.
constexpr DtypeRow kDtypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};
static_assert(std::size(kDtypes) == static_cast<size_t>(Dtype::kU64) + 1);

// Only valid UTF-8 comes here: checked before writing, and by the JSON parser on reading.
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump();
}

std::string quoted_name(std::string_view name) {
  if (name.size() <= kQuotedBytes) return json_string(name);
  name = name.substr(0, kQuotedBytes);
  return json_string(name.substr(0, utf8_valid_prefix(name))) + "...";
}

// Orders tensors by their bytes (empty ones of one place by name) and builds the index by name.
// Returns a name that occurs twice, or nullptr.
const std::string* finish_header(SafetensorsHeader& header) {
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  auto& by_name = SafetensorsAccess::by_name(header);
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), size_t{0});
  std::sort(by_name.begin(), by_name.end(), [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  const auto twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [&](size_t a, size_t b) { return tensors[a].name == tensors[b].name; });
  return twice == by_name.end() ? nullptr : &tensors[*twice].name;
}

// Takes the header's JSON event by event, so that a header of 100 MB needs little more memory than its tensors.
// An event that does not fit stops the parse and leaves the reason in `error`.
class HeaderEvents {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}

  std::string error;

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  // nlohmann calls this only for numbers with a minus sign.
  bool number_integer(int64_t) { return scalar("a negative number"); }
  bool number_float(double, const std::string&) { return scalar("a number that is not a whole number below 2^64"); }
  bool binary(std::vector<uint8_t>&) { return scalar("binary"); }

  bool number_unsigned(uint64_t value) {
    if (at_ != At::kShape && at_ != At::kOffsets) return scalar("a number");
    if (value > static_cast<uint64_t>(kMaxNumber)) return refuse("number {} is over 2^48", value);
    const auto number = static_cast<int64_t>(value);
    if (at_ == At::kShape) {
      tensor_.shape.push_back(number);
      return true;
    }
    if (offsets_seen_ == 2) return refuse("data_offsets has more than two numbers");
    (offsets_seen_++ == 0 ? tensor_.begin : tensor_.end) = number;
    return true;
  }

  bool string(std::string& value) {
    if (at_ == At::kMetadata) {
      if (!header_.metadata.emplace(std::move(key_), std::move(value)).second)
        return refuse("a metadata key occurs twice");
      return true;
    }
    if (at_ != At::kTensor || field_ != Field::kDtype) return scalar("a string");
    const auto dtype = dtype_from_name(value);
    if (!dtype) return refuse("unknown dtype {}", quoted_name(value));
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) {
    switch (at_) {
      case At::kStart:
        at_ = At::kTop;
        return true;
      case At::kTop:
        if (key_ == kMetadataKey) {
          if (std::exchange(metadata_seen_, true)) return refuse("__metadata__ occurs twice");
          at_ = At::kMetadata;
          return true;
        }
        at_ = At::kTensor;
        tensor_ = {.name = std::move(key_)};
        fields_seen_ = 0;
        offsets_seen_ = 0;
        return true;
      default:
        return nest("an object");
    }
  }

  bool key(std::string& key) {
    if (at_ != At::kTensor) {
      key_ = std::move(key);
      return true;
    }
    field_ = key == "dtype"          ? Field::kDtype
             : key == "shape"        ? Field::kShape
             : key == "data_offsets" ? Field::kOffsets
                                     : Field::kOther;
    const unsigned bit = 1U << static_cast<unsigned>(field_);
    if (field_ != Field::kOther && (fields_seen_ & bit) != 0) return refuse("{} occurs twice", key);
    fields_seen_ |= bit;
    return true;
  }

  bool end_object() {
    if (at_ == At::kSkip) return leave();
    if (at_ == At::kTensor) {
      constexpr unsigned kAll = 0b111;  // dtype, shape, data_offsets
      if ((fields_seen_ & kAll) != kAll) return refuse("dtype, shape or data_offsets is missing");
      header_.tensors.push_back(std::move(tensor_));
    }
    at_ = At::kTop;
    return true;
  }

  bool start_array(size_t) {
    if (at_ != At::kTensor || field_ == Field::kDtype || field_ == Field::kOther) return nest("an array");
    at_ = field_ == Field::kShape ? At::kShape : At::kOffsets;
    return true;
  }

  bool end_array() {
    if (at_ == At::kSkip) return leave();
    if (at_ == At::kOffsets && offsets_seen_ != 2) return refuse("data_offsets has fewer than two numbers");
    at_ = At::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& reason) {
    error = fmt::format("not JSON at byte {} of the file: {}", position + static_cast<size_t>(kLengthWord) - 1,
                        reason.what());
    return false;
  }

 private:
  enum class At { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kSkip };
  enum class Field : unsigned { kDtype, kShape, kOffsets, kOther };

  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    error = fmt::vformat(format, fmt::make_format_args(args...));
    if (at_ == At::kTensor || at_ == At::kShape || at_ == At::kOffsets)
      error = fmt::format("tensor {}: {}", quoted_name(tensor_.name), error);
    return false;
  }

  // Skips the value of an unknown key of a tensor's entry, as the reference does; elsewhere such a key is an error.
  bool ignored() const { return at_ == At::kSkip || (at_ == At::kTensor && field_ == Field::kOther); }
  bool scalar(std::string_view what) { return ignored() || wrong(what); }
  bool nest(std::string_view what) {
    if (!ignored()) return wrong(what);
    at_ = At::kSkip;
    ++skip_depth_;
    return true;
  }
  bool leave() {
    if (--skip_depth_ == 0) at_ = At::kTensor;
    return true;
  }
  bool wrong(std::string_view what) {
    switch (at_) {
      case At::kTop:
        return refuse("{}: {} where an object should be", quoted_name(key_), what);
      case At::kMetadata:
        return refuse("__metadata__ key {}: {} where a string should be", quoted_name(key_), what);
      case At::kTensor:
        return refuse("{} has the wrong type ({})", kFieldNames[static_cast<size_t>(field_)], what);
      case At::kShape:
        return refuse("shape holds {}", what);
      case At::kOffsets:
        return refuse("data_offsets holds {}", what);
      default:
        return refuse("{} where an object should be", what);
    }
  }

  static constexpr std::string_view kFieldNames[] = {"dtype", "shape", "data_offsets"};

  SafetensorsHeader& header_;
  At at_ = At::kStart;
  std::string key_;
  bool metadata_seen_ = false;
  TensorInfo tensor_;
  Field field_ = Field::kOther;
  unsigned fields_seen_ = 0;
  int offsets_seen_ = 0;
  int64_t skip_depth_ = 0;
};

// The tensors, sorted by place, must fill [0, data_bytes) without holes and each be as long as its shape says.
Status check_places(const SafetensorsHeader& header, std::string_view file) {
  int64_t at = 0;
  for (const TensorInfo& tensor : header.tensors) {
    const auto bad = [&](std::string_view reason) {
      return fail(ErrorCode::kCorruption, "{}: tensor {}, data [{}, {}): {}", file, quoted_name(tensor.name),
                  tensor.begin, tensor.end, reason);
    };
    if (tensor.begin != at)
      return bad(fmt::format("{}; the tensors before it end at {}", tensor.begin < at ? "overlap" : "hole", at));
    if (tensor.end < tensor.begin) return bad("ends before it begins");
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bad(bytes.error().message());
    if (*bytes != tensor.end - tensor.begin) return bad(fmt::format("dtype and shape make {} bytes", *bytes));
    at = tensor.end;
  }
  if (at != header.data_bytes)
    return fail(ErrorCode::kCorruption, "{}: tensors end at byte {} of the file, which has {} bytes", file,
                header.data_offset + at, header.data_offset + header.data_bytes);
  return {};
}

Status check_header_bytes(size_t bytes) {
  if (bytes <= static_cast<size_t>(kMaxHeaderBytes)) return {};
  return fail(ErrorCode::kInvalidArgument, "the header takes {} bytes or more, the format's limit is {}", bytes,
              kMaxHeaderBytes);
}

// The header is at least as long as the texts in it.
size_t text_bytes(std::span<const TensorInfo> tensors, const std::map<std::string, std::string>& metadata) {
  size_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += tensor.name.size();
  for (const auto& [key, value] : metadata) bytes += key.size() + value.size();
  return bytes;
}

// Sorted as the reference writes them, with their places.
Status place_tensors(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  int64_t at = 0;
  for (TensorInfo& tensor : tensors) {
    if (!is_utf8(tensor.name)) return fail(ErrorCode::kInvalidArgument, "a tensor's name is not UTF-8");
    if (tensor.name == kMetadataKey) return fail(ErrorCode::kInvalidArgument, "the name __metadata__ is reserved");
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes)
      return fail(ErrorCode::kInvalidArgument, "tensor {}: {}", quoted_name(tensor.name), bytes.error().message());
    tensor.begin = at;
    if (*bytes > kMaxNumber - at)
      return fail(ErrorCode::kInvalidArgument, "tensor {}: the data would pass 2^48 bytes", quoted_name(tensor.name));
    tensor.end = at += *bytes;
  }
  return {};
}

// {"__metadata__":{...},"name":{...},...} without spaces, as the reference writes it.
Result<std::string> header_json(std::span<const TensorInfo> tensors,
                                const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += json_string(kMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value)) return fail(ErrorCode::kInvalidArgument, "metadata that is not UTF-8");
      json += json_string(key) + ":" + json_string(value) + ",";
    }
    json.back() = '}';
    json += ",";
  }
  for (const TensorInfo& tensor : tensors)
    json += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", json_string(tensor.name),
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  if (json.size() > 1) json.pop_back();
  return json + "}";
}

// The header's JSON text without its padding.
Result<std::string> read_header_text(const RandomReader& file) {
  const auto corrupt = [&](std::string_view reason) {
    return fail(ErrorCode::kCorruption, "{}: not a safetensors file: {}", file.name(), reason);
  };
  if (file.size() < kLengthWord) return corrupt(fmt::format("{} bytes, the length word alone is 8", file.size()));
  std::array<std::byte, kLengthWord> word{};
  RETURN_IF_ERROR(file.read_at(0, word));
  uint64_t length = 0;
  for (size_t i = word.size(); i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(word[i]);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes))
    return corrupt(fmt::format("a header of {} bytes, over the limit of {}", length, kMaxHeaderBytes));
  if (static_cast<int64_t>(length) > file.size() - kLengthWord)
    return corrupt(fmt::format("a header of {} bytes in a file of {} bytes", length, file.size()));
  std::string text(length, '\0');
  RETURN_IF_ERROR(file.read_at(kLengthWord, std::as_writable_bytes(std::span(text))));
  const size_t start = text.find_first_not_of(" \t\n\r");  // JSON's white space, as the reference reads it
  if (start == std::string::npos || text[start] != '{') return corrupt("the header does not start with '{'");
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size())
    return corrupt(fmt::format("invalid UTF-8 at byte {} of the file", valid + kLengthWord));
  // The JSON parser would take a NUL for the end of the text and not look behind it.
  if (const size_t nul = text.find('\0'); nul != std::string::npos)
    return corrupt(fmt::format("a NUL at byte {} of the file", nul + kLengthWord));
  return text;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& r) { return r.name == name; });
  if (row == std::end(kDtypes)) return std::nullopt;
  return static_cast<Dtype>(row - std::begin(kDtypes));
}

int64_t dtype_bits(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

Result<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  int64_t bits = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return fail(ErrorCode::kInvalidArgument, "negative dimension {}", dimension);
    if (dimension > kMaxNumber) return fail(ErrorCode::kInvalidArgument, "dimension {} is over 2^48", dimension);
    if (__builtin_mul_overflow(bits, dimension, &bits)) return fail(ErrorCode::kInvalidArgument, "the size overflows");
  }
  if (__builtin_mul_overflow(bits, dtype_bits(dtype), &bits))
    return fail(ErrorCode::kInvalidArgument, "the size overflows");
  if (bits % 8 != 0)
    return fail(ErrorCode::kInvalidArgument, "{} bits of {} are not whole bytes", bits, dtype_name(dtype));
  return bits / 8;
}

const TensorInfo* SafetensorsHeader::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](size_t i, std::string_view wanted) { return tensors[i].name < wanted; });
  return it == by_name_.end() || tensors[*it].name != name ? nullptr : &tensors[*it];
}

Result<SafetensorsLayout> layout_safetensors(std::vector<TensorInfo> tensors,
                                             std::map<std::string, std::string> metadata, int64_t alignment) {
  if (alignment < kLengthWord || !std::has_single_bit(static_cast<uint64_t>(alignment)))
    return fail(ErrorCode::kInvalidArgument, "alignment {} is not a power of two of at least 8", alignment);
  RETURN_IF_ERROR(check_header_bytes(text_bytes(tensors, metadata)));  // before any of it is copied
  RETURN_IF_ERROR(place_tensors(tensors));
  ASSIGN_OR_RETURN(std::string json, header_json(tensors, metadata));

  SafetensorsLayout layout;
  layout.header.data_bytes = tensors.empty() ? 0 : tensors.back().end;
  layout.header.tensors = std::move(tensors);
  layout.header.metadata = std::move(metadata);
  if (const std::string* twice = finish_header(layout.header))
    return fail(ErrorCode::kInvalidArgument, "two tensors named {}", quoted_name(*twice));

  const int64_t used = kLengthWord + static_cast<int64_t>(json.size());
  const int64_t data_offset = (used + alignment - 1) / alignment * alignment;
  const int64_t length = data_offset - kLengthWord;
  RETURN_IF_ERROR(check_header_bytes(static_cast<size_t>(length)));
  json.append(static_cast<size_t>(data_offset - used), ' ');
  for (int shift = 0; shift < 64; shift += 8) layout.header_bytes += static_cast<char>(length >> shift & 0xFF);
  layout.header_bytes += json;
  layout.header.data_offset = data_offset;
  return layout;
}

Result<SafetensorsHeader> parse_safetensors_header(const RandomReader& file) {
  ASSIGN_OR_RETURN(const std::string text, read_header_text(file));
  SafetensorsHeader header;
  header.data_offset = kLengthWord + static_cast<int64_t>(text.size());
  header.data_bytes = file.size() - header.data_offset;
  HeaderEvents events(header);
  if (!nlohmann::json::sax_parse(text, &events))
    return fail(ErrorCode::kCorruption, "{}: safetensors header: {}", file.name(), events.error);
  if (const std::string* twice = finish_header(header))
    return fail(ErrorCode::kCorruption, "{}: safetensors header: two tensors named {}", file.name(),
                quoted_name(*twice));
  RETURN_IF_ERROR(check_places(header, file.name()));
  return header;
}

}  // namespace millrace::formats
