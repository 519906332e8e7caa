# fmt, compiled once, into Sluice itself (src/base/fmt.cpp): as a header alone it costs every file that
# includes it three seconds of compiling, and Debian has it as a shared library only, which users would
# need, too. fmt.cpp knows version 9; with others it stays a header.
find_package(fmt REQUIRED)
add_library(sluice_fmt INTERFACE)
set(SLUICE_FMT_COMPILED OFF)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  set(SLUICE_FMT_COMPILED ON)
  get_target_property(directories fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(sluice_fmt SYSTEM INTERFACE ${directories})
else()
  message(STATUS "fmt ${fmt_VERSION} stays a header: files take longer to compile")
  target_link_libraries(sluice_fmt INTERFACE fmt::fmt-header-only)
endif()
