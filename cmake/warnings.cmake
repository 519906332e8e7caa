# Warnings are errors for our own targets. Results do not depend on the compiler's contraction.
add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Werror -ffp-contract=off -fno-fast-math)
# A class of a file that has members of the file's own types looks as if it were in a header.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(sluice_warnings INTERFACE -Wno-subobject-linkage)
endif()
