// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "millrace/base/io/io.h"
#include "millrace/base/text/strings.h"
#include "millrace/base/text/utf8.h"
#include "millrace/formats/byte_stream.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/npz.h"
#include "millrace/loader/detail/numbers.h"

namespace millrace::loader {

namespace {

constexpr std::pair<std::string_view, FieldKind> kKinds[] = {
    {"bytes", FieldKind::kBytes},   {"text", FieldKind::kText}, {"integer", FieldKind::kInteger},
    {"image", FieldKind::kImage},   {"npy", FieldKind::kNpy},   {"raw", FieldKind::kRaw},
    {"tokens", FieldKind::kTokens}, {"json", FieldKind::kJson}, {"npz", FieldKind::kNpz},
    {"number", FieldKind::kNumber},
};

constexpr std::pair<std::string_view, FieldKind> kExtensions[] = {
    {"txt", FieldKind::kText},    {"text", FieldKind::kText},    {"transcript", FieldKind::kText},
    {"cls", FieldKind::kInteger}, {"cls2", FieldKind::kInteger}, {"index", FieldKind::kInteger},
    {"inx", FieldKind::kInteger}, {"id", FieldKind::kInteger},   {"npy", FieldKind::kNpy},
    {"jpg", FieldKind::kImage},   {"jpeg", FieldKind::kImage},   {"png", FieldKind::kImage},
    {"webp", FieldKind::kImage},  {"json", FieldKind::kJson},    {"jsn", FieldKind::kJson},
    {"npz", FieldKind::kNpz},
};

Result<std::string_view> text_of(std::span<const std::byte> data, std::string_view where) {
  const std::string_view text = as_text(data);
  if (is_utf8(text)) return text;
  return fail(ErrorCode::kCorruption, "{}: no UTF-8", where);
}

template <class T>
Value owned_array(std::vector<T> values, std::string_view dtype, std::vector<int64_t> shape) {
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  return {.form = Value::Form::kArray,
          .dtype = std::string(dtype),
          .shape = std::move(shape),
          .data = std::as_bytes(std::span(*owner)),
          .memory = owner};
}

Result<Value> decode_integer(std::span<const std::byte> data, std::string_view where) {
  std::string_view text = trimmed(as_text(data));
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return fail(ErrorCode::kCorruption, "{}: no integer of 64 bits: '{}'", where, text.substr(0, 40));
  }
  return owned_array<int64_t>({value}, "<i8", {});
}

Result<Value> decode_image(const FieldSpec& spec, std::span<const std::byte> data, std::string_view where) {
  ASSIGN_OR_RETURN(images::Picture picture, images::decode(data, spec.image, where));
  const int64_t h = picture.height, w = picture.width, c = picture.channels;
  std::vector<int64_t> shape = spec.channels_first ? std::vector{c, h, w} : std::vector{h, w, c};
  if (c == 1 && !spec.channels_first) shape = {h, w};
  if (spec.channels_first && c > 1) {
    std::vector<uint8_t> planes(picture.pixels.size());
    for (int64_t channel = 0; channel < c; ++channel) {
      uint8_t* const plane = planes.data() + channel * h * w;
      for (int64_t i = 0; i < h * w; ++i) plane[i] = picture.pixels[static_cast<size_t>(i * c + channel)];
    }
    picture.pixels = std::move(planes);
  }
  if (!spec.as_float) return owned_array(std::move(picture.pixels), "|u1", std::move(shape));
  std::vector<float> values(picture.pixels.size());
  std::ranges::transform(picture.pixels, values.begin(), [](uint8_t v) { return static_cast<float>(v) / 255.0F; });
  return owned_array(std::move(values), "<f4", std::move(shape));
}

int64_t product(std::span<const int64_t> shape) {
  int64_t items = 1;
  for (const int64_t side : shape) {
    if (__builtin_mul_overflow(items, side, &items)) return INT64_MAX;
  }
  return items;
}

Result<Value> decode_npy(std::span<const std::byte> data, std::string_view where) {
  ASSIGN_OR_RETURN(const formats::NpyArray array, formats::parse_npy(data, where));
  const auto item = dtype_bytes(array.descr);
  if (!item) {
    return fail(ErrorCode::kUnsupported, "{}: an array of dtype {}; only numbers, times and fixed strings are read",
                where, array.descr.empty() ? "with fields" : array.descr);
  }
  std::vector<int64_t> shape(array.shape.begin(), array.shape.end());
  const int64_t items = product(shape);
  if (std::ranges::any_of(shape, [](int64_t side) { return side < 0; }) || *item == 0 ||
      items != static_cast<int64_t>(array.data.size()) / *item ||
      static_cast<int64_t>(array.data.size()) != items * *item) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes of data, its header says [{}] of {}", where, array.data.size(),
                fmt::join(array.shape, ", "), array.descr);
  }
  return Value{.form = Value::Form::kArray,
               .dtype = std::string(array.descr),
               .shape = std::move(shape),
               .fortran_order = array.fortran_order && array.shape.size() > 1,
               .data = array.data,
               .memory = nullptr};
}

Result<Value> decode_raw(const FieldSpec& spec, std::span<const std::byte> data, std::string_view where) {
  const int64_t item = dtype_bytes(spec.dtype).value();
  std::vector<int64_t> shape = spec.shape;
  const auto bytes = static_cast<int64_t>(data.size());
  const auto open = std::ranges::find(shape, -1);
  if (open != shape.end()) {
    *open = 1;
    const int64_t unit = product(shape) * item;
    *open = unit > 0 ? bytes / unit : 0;
  }
  if (product(shape) != bytes / item || bytes % item != 0) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes are not [{}] of {}", where, bytes, fmt::join(spec.shape, ", "),
                spec.dtype);
  }
  return Value{
      .form = Value::Form::kArray, .dtype = spec.dtype, .shape = std::move(shape), .data = data, .memory = nullptr};
}

Result<Value> decode_tokens(const FieldSpec& spec, std::span<const std::byte> data, std::string_view where) {
  ASSIGN_OR_RETURN(const std::string_view text, text_of(data, where));
  std::vector<uint32_t> ids;
  RETURN_IF_ERROR(with_context(spec.tokenize(text, ids), where));
  std::vector<int64_t> wide(ids.begin(), ids.end());
  const auto length = std::ssize(wide);
  return owned_array(std::move(wide), "<i8", {length});
}

// What Python would not parse. Python's own NaN and Infinity are left to it.
Status check_json(std::span<const std::byte> data, std::string_view where) {
  ASSIGN_OR_RETURN(const std::string_view text, text_of(data, where));
  if (nlohmann::json::accept(text) || text.find("NaN") != std::string_view::npos ||
      text.find("Infinity") != std::string_view::npos) {
    return {};
  }
  return fail(ErrorCode::kCorruption, "{}: no JSON", where);
}

Status check_npz(std::span<const std::byte> data, std::string_view where) {
  ASSIGN_OR_RETURN(const formats::NpzFile file, formats::parse_npz(data, where));
  for (const formats::NpzMember& member : file.members) {
    ASSIGN_OR_RETURN(const std::string array, formats::unpack_npz_member(member, where));
    RETURN_IF_ERROR(formats::parse_npy(as_bytes(array), where).map([](const formats::NpyArray&) {}));
  }
  return {};
}

}  // namespace

Result<FieldKind> parse_field_kind(std::string_view name) {
  for (const auto& [kind_name, kind] : kKinds) {
    if (kind_name == name) return kind;
  }
  return fail(ErrorCode::kInvalidArgument, "there is no kind of field '{}'", name);
}

Result<FieldBatch> parse_field_batch(std::string_view name) {
  if (name == "stack") return FieldBatch::kStack;
  if (name == "pad") return FieldBatch::kPad;
  if (name == "list") return FieldBatch::kList;
  return fail(ErrorCode::kInvalidArgument, "batch is 'stack', 'pad' or 'list', not '{}'", name);
}

std::optional<int64_t> dtype_bytes(std::string_view dtype) {
  if (dtype.size() < 3 || std::string_view("<>|=").find(dtype[0]) == std::string_view::npos) return std::nullopt;
  if (std::string_view("biufcSUVmM").find(dtype[1]) == std::string_view::npos) return std::nullopt;
  std::string_view digits = dtype.substr(2);
  if (dtype[1] == 'm' || dtype[1] == 'M') digits = digits.substr(0, digits.find('['));
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (error != std::errc() || end != digits.data() + digits.size() || bytes < 1 || bytes > (1 << 20)) {
    return std::nullopt;
  }
  return dtype[1] == 'U' ? bytes * 4 : bytes;
}

Status check_fields(const SampleFields& fields) {
  std::set<std::string> names;
  for (const FieldSpec& spec : fields.specs) {
    const auto refuse = [&](std::string_view what) {
      return fail(ErrorCode::kInvalidArgument, "field '{}': {}", spec.name, what);
    };
    if (!names.insert(spec.name).second) return refuse("it is named twice");
    if (spec.name.starts_with("__") || spec.sources.empty()) return refuse("no field of a sample has this name");
    if (spec.length < 0) return refuse("the length of a row is 0 (the longest) or more");
    if (spec.kind == FieldKind::kImage) {
      if ((spec.image.height > 0) != (spec.image.width > 0) || spec.image.height < 0 || spec.image.width < 0 ||
          spec.image.height > images::kMostPixels / std::max<int64_t>(spec.image.width, 1)) {
        return refuse("a size is two sides above 0, of a picture that fits into memory");
      }
      if (spec.batch == FieldBatch::kPad) return refuse("pictures are resized (fit='pad'), stacked or kept as a list");
    }
    if (spec.kind == FieldKind::kTokens && !spec.tokenize) return refuse("a tokenizer is missing");
    const bool is_converted = spec.kind == FieldKind::kNumber || spec.kind == FieldKind::kNpy;
    if (spec.kind != FieldKind::kRaw && !(is_converted && !spec.dtype.empty())) continue;
    if (!dtype_bytes(spec.dtype)) return refuse(fmt::format("'{}' is no dtype of a fixed size", spec.dtype));
    if (std::ranges::count(spec.shape, -1) > 1 ||
        std::ranges::any_of(spec.shape, [](int64_t side) { return side < -1 || side == 0; })) {
      return refuse("the sides of a shape are above 0; one may be -1");
    }
  }
  return {};
}

Result<std::shared_ptr<const std::vector<std::byte>>> unpack_field(std::span<const std::byte> data,
                                                                   std::string_view where) {
  constexpr size_t kMost = size_t{1} << 30, kStep = size_t{64} << 10;
  class FieldReader final : public RandomReader {
   public:
    FieldReader(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes, "field"), name_(name) {}
    std::string_view name() const override { return name_; }
    int64_t size() const override { return bytes_.size(); }
    std::string_view version() const override { return {}; }
    [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
      return bytes_.read_at(offset, out);
    }

   private:
    const MemoryReader bytes_;
    const std::string_view name_;
  };
  const FieldReader file(data, where);
  ASSIGN_OR_RETURN(const bool packed, formats::is_packed(file));
  if (!packed) return fail(ErrorCode::kCorruption, "{}: no gzip, as its name says", where);
  ASSIGN_OR_RETURN(const auto stream, formats::open_stream(file));
  auto unpacked = std::make_shared<std::vector<std::byte>>();
  for (size_t size = 0;;) {
    if (size > kMost) return fail(ErrorCode::kResourceExhausted, "{}: more than 1 GiB unpacked", where);
    unpacked->resize(size + kStep);
    ASSIGN_OR_RETURN(const size_t read, stream->read(std::span(*unpacked).subspan(size)));
    size += read;
    if (read == kStep) continue;
    unpacked->resize(size);
    return std::shared_ptr<const std::vector<std::byte>>(std::move(unpacked));
  }
}

FieldSpec spec_of_extension(std::string_view field, const SampleFields& fields) {
  FieldKind kind = FieldKind::kBytes;
  const std::string_view unpacked = is_gzip(field) ? field.substr(0, field.size() - 3) : field;
  const std::string_view extension = unpacked.substr(unpacked.rfind('.') + 1);
  for (const auto& [name, known] : kExtensions) {
    if (name == extension && fields.decodes) kind = known;
  }
  if (kind == FieldKind::kImage && !fields.decodes_pictures) kind = FieldKind::kBytes;
  FieldSpec spec = kind == FieldKind::kImage ? fields.picture : FieldSpec{.kind = kind};
  spec.name = field;
  spec.sources = {std::string(field)};
  // Arrays of a set whose shapes nobody has named are not taken for equal.
  if (kind == FieldKind::kNpy) spec.batch = FieldBatch::kList;
  return spec;
}

Result<Value> decode_field(const FieldSpec& spec, std::span<const std::byte> data, std::string_view where) {
  switch (spec.kind) {
    case FieldKind::kBytes:
      return Value{.data = data};
    case FieldKind::kText:
      RETURN_IF_ERROR(text_of(data, where).map([](std::string_view) {}));
      return Value{.form = Value::Form::kText, .data = data};
    case FieldKind::kInteger:
      return decode_integer(data, where);
    case FieldKind::kImage:
      return decode_image(spec, data, where);
    case FieldKind::kNumber:
      return to_number(spec, Value{.form = Value::Form::kText, .data = data}, where);
    case FieldKind::kNpy: {
      ASSIGN_OR_RETURN(Value value, decode_npy(data, where));
      return to_array(spec, std::move(value), where);
    }
    case FieldKind::kRaw:
      return decode_raw(spec, data, where);
    case FieldKind::kTokens:
      return decode_tokens(spec, data, where);
    case FieldKind::kJson:
      RETURN_IF_ERROR(check_json(data, where));
      return Value{.data = data};
    case FieldKind::kNpz:
      RETURN_IF_ERROR(check_npz(data, where));
      return Value{.data = data};
  }
  return fail(ErrorCode::kInternal, "{}: an unknown kind of field", where);
}

Result<Value> convert_value(const FieldSpec& spec, Value value, std::string_view where) {
  using Form = Value::Form;
  const bool has_nulls = !value.nulls.empty() || (value.form == Form::kNothing && !value.dtype.empty());
  if (spec.kind == FieldKind::kNumber && (spec.is_required || spec.fill || spec.with_mask)) {
    return to_number(spec, value, where);
  }
  if (value.form == Form::kNothing && !spec.is_required) return Value{.form = Form::kNothing};
  if (has_nulls && spec.kind != FieldKind::kNpy) {
    return unexpected_null(where, value.dtype, value.is_array());
  }
  if (value.form == Form::kNothing && has_nulls) return unexpected_null(where, value.dtype, true);
  if (value.form == Form::kNothing || spec.kind == FieldKind::kBytes) return value;
  const bool is_text = value.form == Form::kText || value.form == Form::kBytes;
  switch (spec.kind) {
    case FieldKind::kText:
    case FieldKind::kTokens:
      if (is_text) return decode_field(spec, value.data, where);
      break;
    case FieldKind::kInteger:
      if (is_text) return decode_field(spec, value.data, where);
      if (value.is_array() && value.shape.empty() &&
          std::string_view("iub").find(value.dtype[1]) != std::string_view::npos)
        return value;
      break;
    case FieldKind::kImage:
      if (value.form == Form::kBytes) return decode_field(spec, value.data, where);
      break;
    case FieldKind::kNumber:
      return to_number(spec, value, where);
    case FieldKind::kNpy:
      if (value.is_array() || value.form == Form::kJson) return to_array(spec, std::move(value), where);
      if (value.form == Form::kBytes) return decode_field(spec, value.data, where);
      break;
    case FieldKind::kRaw:
      if (value.is_array()) return value;
      if (value.form == Form::kBytes) return decode_field(spec, value.data, where);
      break;
    case FieldKind::kJson:
      return is_text ? decode_field(spec, value.data, where) : value;
    case FieldKind::kNpz:
      if (value.form == Form::kBytes) return decode_field(spec, value.data, where);
      break;
    case FieldKind::kBytes:
      break;
  }
  constexpr std::string_view kForms[] = {"bytes", "a text", "an object", "an array", "nothing"};
  return fail(ErrorCode::kInvalidArgument, "{}: it is {}, which does not become what the field was said to be", where,
              kForms[static_cast<size_t>(value.form)]);
}

}  // namespace millrace::loader
