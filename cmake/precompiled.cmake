# Headers that nearly every file includes, compiled once per target: half of what most files take. Only with
# SLUICE_PRECOMPILED_HEADERS, which presets for tests with clang++ have. Release has not, so that an #include
# that is missing fails there; nor has anything with g++ 12, which then warns of array bounds that are none.
#
# Flags have to be those of the headers: sources with flags of their own have SKIP_PRECOMPILE_HEADERS.
set(SLUICE_COMMON_HEADERS
  <algorithm> <array> <atomic> <cerrno> <chrono> <cstddef> <cstdint> <cstring> <functional> <limits> <map> <memory>
  <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>)

# sluice_precompile(target [headers besides...])
function(sluice_precompile target)
  if(NOT SLUICE_PRECOMPILED_HEADERS)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${SLUICE_COMMON_HEADERS} ${ARGN})
endfunction()
