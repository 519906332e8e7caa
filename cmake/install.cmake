# What a user gets: the shared library, headers, a CMake package, a pkg-config file and the licence;
# tools install themselves.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_link_options(sluice PRIVATE
  "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/sluice.map")
set_target_properties(sluice PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/sluice.map)
target_compile_features(sluice PUBLIC cxx_std_20)
if(SLUICE_SANITIZE)
  # The sanitizers' runtime is in the executable.
  target_link_options(sluice INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

install(TARGETS sluice EXPORT sluice-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(SLUICE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(EXPORT sluice-targets NAMESPACE sluice:: DESTINATION ${SLUICE_PACKAGE_DIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluice-config.cmake.in
  ${PROJECT_BINARY_DIR}/sluice-config.cmake INSTALL_DESTINATION ${SLUICE_PACKAGE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluice-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sluice-config.cmake
              ${PROJECT_BINARY_DIR}/sluice-config-version.cmake DESTINATION ${SLUICE_PACKAGE_DIR})

# Relative to the .pc file, so that the tree may be moved.
file(RELATIVE_PATH SLUICE_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_PACKAGE_VENDOR "The Sluice authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR TGZ)
set(CPACK_STRIP_FILES ON)
if(PROJECT_IS_TOP_LEVEL)
  include(CPack)
endif()

include(cmake/cuda_compile.cmake)
