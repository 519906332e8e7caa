# Ranks on several nodes: libfabric's headers. The library itself is loaded when it is first used, so
# that what runs on one node needs none.
find_path(SLUICE_LIBFABRIC_INCLUDE_DIR rdma/fi_rma.h)
mark_as_advanced(SLUICE_LIBFABRIC_INCLUDE_DIR)
if(SLUICE_LIBFABRIC STREQUAL "OFF")
  set(SLUICE_LIBFABRIC_ENABLED OFF)
elseif(SLUICE_LIBFABRIC_INCLUDE_DIR)
  set(SLUICE_LIBFABRIC_ENABLED ON)
elseif(SLUICE_LIBFABRIC STREQUAL "ON")
  message(FATAL_ERROR "SLUICE_LIBFABRIC is ON, but rdma/fi_rma.h was not found (Debian: libfabric-dev)")
else()
  set(SLUICE_LIBFABRIC_ENABLED OFF)
  message(STATUS "libfabric: no headers (Debian: libfabric-dev): without a transport between nodes")
endif()
