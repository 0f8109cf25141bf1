// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rewrites the metadata key "huggingface" of a table: the features by which the package `datasets` reads the table.
// Pure function.

#include <nlohmann/json.hpp>
#include <string>

namespace millrace::formats {

// Returns the features in a form that every version of `datasets` reads. Versions before 4 do not know the type List,
// and later versions still read Sequence, so List becomes Sequence. A list of structs keeps its type, because a
// Sequence of structs is a struct of lists. Text that is not JSON stays unchanged.
inline std::string features_for_all_versions(const std::string& text) {
  using Json = nlohmann::ordered_json;
  const auto type_of = [](const Json& node) {
    const auto type = node.is_object() ? node.find("_type") : node.end();
    return type != node.end() && type->is_string() ? type->get<std::string>() : std::string();
  };
  const auto mend = [&](const auto& self, Json& node) -> void {
    if (type_of(node) == "List" && node.contains("feature") && !type_of(node["feature"]).empty()) {
      node["_type"] = "Sequence";
    }
    if (!node.is_structured()) return;
    for (Json& child : node) self(self, child);
  };
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return text;
  mend(mend, root);
  return root.dump();
}

}  // namespace millrace::formats
