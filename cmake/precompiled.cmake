# Headers that nearly every file includes, compiled once per target: half of what most files take. Only with
# SLUICE_PRECOMPILED_HEADERS, which the presets for tests have and the release preset has not, so that an
# #include that is missing fails there.
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
