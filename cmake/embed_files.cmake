# SPDX-License-Identifier: Apache-2.0
# Run at build time by millrace_embed(): writes OUT from FILES, which are separated by '|'.
set(text "#include <string_view>\n\nnamespace ${NAMESPACE} {\n\n")
string(REPLACE "|" ";" files "${FILES}")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content)
  string(APPEND text "extern const std::string_view k_${name};\nconst std::string_view k_${name} = R\"file(${content})file\";\n\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
