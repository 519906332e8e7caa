# The headers that host and device share, through nvcc, for every architecture that matters. It
# needs the compiler only, no GPU; without nvcc it says so and the build goes on.
if(NOT SLUICE_CUDA_COMPILE)
  return()
endif()

find_program(SLUICE_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT SLUICE_NVCC)
  message(STATUS "cuda-compile: no nvcc found (looked in PATH and /usr/local/cuda/bin): "
                 "the host and device headers are NOT checked")
  add_custom_target(sluice_cuda_compile
    COMMAND ${CMAKE_COMMAND} -E echo "cuda-compile: skipped, no nvcc found")
  return()
endif()
message(STATUS "cuda-compile: ${SLUICE_NVCC}")

# nvcc is called directly: CMake 3.25 knows no C++20 for the newest nvcc. One source per header, so
# that each also compiles alone.
set(flags -std=c++20 -O1 -fmad=false --expt-relaxed-constexpr -Werror=all-warnings
  -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off
  -gencode=arch=compute_80,code=sm_80
  -gencode=arch=compute_90a,code=sm_90a
  -gencode=arch=compute_100,code=sm_100)
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
set(objects)
foreach(source ${sources})
  get_filename_component(name ${source} NAME)
  set(object ${PROJECT_BINARY_DIR}/cuda-compile/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${SLUICE_NVCC} ${flags} -ccbin ${CMAKE_CXX_COMPILER} -I ${PROJECT_SOURCE_DIR}/include
            -I ${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d VERBATIM
    COMMENT "nvcc ${name} for sm_80, sm_90a, sm_100")
  list(APPEND objects ${object})
endforeach()
add_custom_target(sluice_cuda_compile DEPENDS ${objects})
