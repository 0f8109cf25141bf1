// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/sample_fields.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "millrace/python/arrays.h"
#include "millrace/python/tokenizer.h"

namespace millrace::python {

namespace {

template <class T>
T entry(const nb::dict& spec, const char* name, T otherwise) {
  return spec.contains(name) ? nb::cast<T>(spec[name]) : std::move(otherwise);
}

loader::Tokenize tokenize_with(PyTokenizer* tokenizer, bool special_tokens) {
  return [tokenizer, special_tokens](std::string_view text, std::vector<uint32_t>& ids) {
    return tokenizer->with_encoder(
        [&](tokenizer::Encoder& encoder) { return encoder.encode(text, {.add_special_tokens = special_tokens}, ids); });
  };
}

loader::FieldSpec parse_spec(const nb::dict& spec) {
  loader::FieldSpec field;
  field.name = nb::cast<std::string>(spec["name"]);
  field.sources = nb::cast<std::vector<std::string>>(spec["sources"]);
  field.kind = unwrap(loader::parse_field_kind(nb::cast<std::string>(spec["kind"])));
  field.is_required = entry(spec, "required", true);
  field.batch = unwrap(loader::parse_field_batch(entry<std::string>(spec, "batch", "stack")));
  field.pad_value = entry(spec, "pad_value", 0.0);
  field.length = entry<int64_t>(spec, "length", 0);
  if (spec.contains("fill")) field.fill = nb::cast<double>(spec["fill"]);
  field.with_mask = entry(spec, "mask", false);
  field.image.colour = unwrap(images::parse_colour(entry<std::string>(spec, "colour", "rgb")));
  field.image.fit = unwrap(images::parse_fit(entry<std::string>(spec, "fit", "crop")));
  field.image.height = entry<int64_t>(spec, "height", 0);
  field.image.width = entry<int64_t>(spec, "width", 0);
  field.image.reduced = entry(spec, "reduced", false);
  field.channels_first = entry(spec, "channels_first", false);
  field.as_float = entry(spec, "as_float", false);
  field.dtype = entry<std::string>(spec, "dtype", "");
  field.shape = entry(spec, "shape", std::vector<int64_t>());
  if (spec.contains("tokenizer")) {
    field.tokenize = tokenize_with(nb::cast<PyTokenizer*>(spec["tokenizer"]), entry(spec, "special_tokens", true));
  }
  return field;
}

nb::object array_of(std::byte* data, int64_t bytes, const std::string& dtype, const std::vector<int64_t>& shape,
                    const nb::capsule& owner) {
  const size_t size[1] = {static_cast<size_t>(bytes)};
  // SAFETY: NumPy sees bytes first; the loader says what they are.
  const nb::object flat = nb::cast(nb::ndarray<nb::numpy, uint8_t>(reinterpret_cast<uint8_t*>(data), 1, size, owner));
  nb::list sides;
  for (const int64_t side : shape) sides.append(side);
  return flat.attr("view")(dtype).attr("reshape")(nb::tuple(sides));
}

nb::object list_of(const loader::Batch::Column& column, const nb::capsule& owner) {
  using Form = loader::Value::Form;
  const nb::object loads = nb::module_::import_("json").attr("loads");
  nb::list items;
  for (const auto& [form, dtype, shape, offset, size] : column.items) {
    std::byte* const data = column.data + offset;
    // SAFETY: chars are bytes.
    const auto text = [&, bytes = size] {
      return nb::str(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes));
    };
    switch (form) {
      case Form::kNothing:
        items.append(nb::none());
        break;
      case Form::kText:
        items.append(text());
        break;
      case Form::kJson:
        items.append(loads(text()));
        break;
      case Form::kBytes:
        items.append(nb::bytes(data, static_cast<size_t>(size)));
        break;
      case Form::kArray:
        items.append(array_of(data, size, dtype, shape, owner));
        break;
    }
  }
  return items;
}

// Names in a tar need not be UTF-8.
nb::list names_of(const std::vector<std::string>& names) {
  nb::list list;
  for (const std::string& name : names) {
    list.append(nb::bytes(name.data(), name.size()).attr("decode")("utf-8", "surrogateescape"));
  }
  return list;
}

}  // namespace

std::shared_ptr<const loader::SampleFields> parse_fields(const nb::list& specs) {
  auto fields = std::make_shared<loader::SampleFields>();
  for (const nb::handle given : specs) {
    const auto spec = nb::cast<nb::dict>(given);
    if (!spec.contains("all")) {
      fields->specs.push_back(parse_spec(spec));
      continue;
    }
    fields->decodes = entry(spec, "decodes", true);
    fields->may_differ = entry(spec, "may_differ", false);
    fields->with_sources = entry(spec, "with_sources", false);
    fields->decodes_pictures = spec.contains("picture");
    if (fields->decodes_pictures) fields->picture = parse_spec(nb::cast<nb::dict>(spec["picture"]));
  }
  return fields;
}

void add_columns(const loader::Batch& batch, nb::dict& out) {
  out["__key__"] = names_of(batch.keys);
  if (!batch.sample_sources.empty()) out["__url__"] = names_of(batch.sample_sources);
  for (const loader::Batch::Column& column : batch.columns) {
    const nb::capsule owner = keep_alive(column.memory);
    const nb::str name(column.name.data(), column.name.size());
    if (column.form != loader::Batch::Column::Form::kArray) {
      out[name] = list_of(column, owner);
      continue;
    }
    int64_t bytes = loader::dtype_bytes(column.dtype).value();
    for (const int64_t side : column.shape) bytes *= side;
    out[name] = array_of(column.data, bytes, column.dtype, column.shape, owner);
    if (!column.lengths.empty()) out[nb::str((column.name + "_lengths").c_str())] = to_array(column.lengths);
    if (!column.mask.empty()) {
      const nb::object mask = nb::cast(to_array(column.mask));
      out[nb::str((column.name + "_mask").c_str())] = mask.attr("view")("bool");
    }
  }
}

}  // namespace millrace::python
