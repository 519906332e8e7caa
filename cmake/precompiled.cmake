# Headers that nearly every file includes, compiled once per target: half of what most files take. Only with
# SLUICE_PRECOMPILED_HEADERS, which presets for tests with clang++ have. Release has them for tests and tools alone: g++ 12
# warns of array bounds that are none where a file that is optimised has headers of this kind, and compiling files together
# (CMAKE_UNITY_BUILD) saves more there. Either hides an #include that is missing: see HACKING.md.
#
# Flags have to be those of the headers: sources with flags of their own have SKIP_PRECOMPILE_HEADERS.
set(SLUICE_COMMON_HEADERS
  <algorithm> <array> <atomic> <cerrno> <chrono> <cstddef> <cstdint> <cstring> <functional> <limits> <map> <memory>
  <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>)

# sluice_precompile(target [TEST] [headers besides...]). TEST: not of the library
function(sluice_precompile target)
  cmake_parse_arguments(PARSE_ARGV 1 of "TEST" "" "")
  if(NOT SLUICE_PRECOMPILED_HEADERS OR (SLUICE_PRECOMPILED_HEADERS STREQUAL "TESTS" AND NOT of_TEST))
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${SLUICE_COMMON_HEADERS} ${of_UNPARSED_ARGUMENTS})
endfunction()
