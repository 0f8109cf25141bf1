# Warnings and sanitizers as one INTERFACE target; no global flags are edited.
add_library(millrace_flags INTERFACE)
target_compile_options(millrace_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wunused
                                                -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 reports std::string operator+ (GCC bug 105651)
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
option(MILLRACE_WERROR "Warnings are errors" OFF)
if(MILLRACE_WERROR)
  target_compile_options(millrace_flags INTERFACE -Werror)
endif()
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -Wno-maybe-uninitialized)  # wrong beside the code they add; the plain build has it
  # These checks take half of such a build, and address finds most of what they would when the pointer is used.
  set(MILLRACE_SANITIZE_NOT null,vptr,object-size,alignment,pointer-overflow CACHE STRING "Checks of -fsanitize=undefined to leave out")
  if(MILLRACE_SANITIZE_NOT)
    target_compile_options(millrace_flags INTERFACE -fno-sanitize=${MILLRACE_SANITIZE_NOT})
  endif()
  target_link_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
target_include_directories(millrace_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)

find_program(MILLRACE_CCACHE ccache)
if(MILLRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MILLRACE_CCACHE})
endif()

# What goes to other machines: no path of this one, no function of a linked archive that could take another's place, and
# none that is not used (sections let the linker tell).
if(MILLRACE_BUNDLE)
  target_compile_options(millrace_flags INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}=. -ffunction-sections -fdata-sections)
  target_link_options(millrace_flags INTERFACE -Wl,--exclude-libs,ALL -Wl,--gc-sections)
endif()
