# SPDX-License-Identifier: Apache-2.0
# Data files become string views of the program: millrace_embed(<target> <namespace> <folder> <name>...) compiles
# <folder>/<name>.csv into `const std::string_view <namespace>::k_<name>`.

function(millrace_embed target namespace folder)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/embedded_${target}.cpp)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE files)
  list(TRANSFORM files APPEND .csv)
  string(REPLACE ";" "|" joined "${files}")
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DNAMESPACE=${namespace} "-DFILES=${joined}" -P ${CMAKE_SOURCE_DIR}/cmake/embed_files.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/embed_files.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${out})
  set_source_files_properties(${out} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS -Wno-overlength-strings)
endfunction()
