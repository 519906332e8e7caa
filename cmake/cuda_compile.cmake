# The headers that host and device share, and the engine's device code, through nvcc for every
# architecture. It needs the compiler only, no GPU; without nvcc it says so and the build goes on.
if(NOT SLUICE_CUDA_COMPILE)
  return()
endif()

if(NOT SLUICE_NVCC)
  message(STATUS "cuda-compile: no nvcc found (looked in PATH and /usr/local/cuda/bin): "
                 "the host and device headers are NOT checked")
  add_custom_target(sluice_cuda_compile
    COMMAND ${CMAKE_COMMAND} -E echo "cuda-compile: skipped, no nvcc found")
  return()
endif()
message(STATUS "cuda-compile: ${SLUICE_NVCC}")

# One source per header, so that each also compiles alone.
file(GLOB SLUICE_DEVICE_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/src/numeric/*.hpp
  ${PROJECT_SOURCE_DIR}/src/window/*.hpp
  ${PROJECT_SOURCE_DIR}/src/protocol/*.hpp)
# What only the host has: its access to memory, its waits, its control registers.
list(FILTER SLUICE_DEVICE_HEADERS EXCLUDE REGEX "/(host_|float_environment)")
set(sources)
foreach(header ${SLUICE_DEVICE_HEADERS})
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${PROJECT_BINARY_DIR}/cuda-compile/${name}.cu)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
  list(APPEND sources ${source})
endforeach()
list(APPEND sources ${CMAKE_CURRENT_LIST_DIR}/cuda_compile.cu)
# The delays of test builds, which the objects below do without.
set(source ${PROJECT_BINARY_DIR}/cuda-compile/kernel_delays.cu)
file(CONFIGURE OUTPUT ${source} CONTENT
  "#define SLUICE_KERNEL_DELAYS 1\n#include \"engine/cuda/ptx.cuh\"\n\
__global__ void touch(uint4* at) {\n  sluice::engine::cuda::store_packet(at, sluice::engine::cuda::load_packet(at + 1));\n}\n")
list(APPEND sources ${source})
set(objects)
foreach(source ${sources})
  get_filename_component(name ${source} NAME)
  set(object ${PROJECT_BINARY_DIR}/cuda-compile/${name}.o)
  sluice_nvcc_object(${object} ${source} -O1)
  list(APPEND objects ${object})
endforeach()
add_custom_target(sluice_cuda_compile DEPENDS ${objects})
if(TARGET sluice_cuda_objects)
  add_dependencies(sluice_cuda_compile sluice_cuda_objects)
endif()
