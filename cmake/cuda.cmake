# CUDA: the toolkit, and .cu files as objects. SLUICE_CUDA_ENABLED says whether the engine is built.
#
# nvcc is called directly: CMake 3.25 knows no C++20 for the newest nvcc.
#
# SLUICE_CUDA = SIMULATED compiles the same engine, kernels and all, for a GPU that the host's processor
# plays (tests/gpu_simulator): for tests only. SLUICE_CUDA_SIMULATED says so; no nvcc is looked for.
set(SLUICE_CUDA_ENABLED OFF)
set(SLUICE_CUDA_SIMULATED OFF)
if(SLUICE_CUDA STREQUAL "SIMULATED")
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    message(FATAL_ERROR "SLUICE_CUDA is SIMULATED: expected an x86-64 processor, seen ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  set(SLUICE_CUDA_ENABLED ON)
  set(SLUICE_CUDA_SIMULATED ON)
  set(SLUICE_CUDA_INCLUDE_DIR ${PROJECT_SOURCE_DIR}/tests/gpu_simulator/include)
  set(SLUICE_CUDA_LIBRARIES Threads::Threads)
  # What nvcc lets pass: its pragmas, its conversions, and words that are looked at as other words.
  set(SLUICE_SIMULATED_KERNEL_OPTIONS -Wno-unknown-pragmas -Wno-conversion -Wno-sign-conversion -Wno-shadow
    -Wno-parentheses -Wno-unused-function $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed> -fno-strict-aliasing)
  message(STATUS "CUDA engine: for a simulated GPU")
  return()
endif()
find_program(SLUICE_NVCC nvcc PATHS /usr/local/cuda/bin)

# clang++ has warnings of its own about what nvcc generates.
set(SLUICE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  find_program(SLUICE_CUDA_GXX g++)
  if(SLUICE_CUDA_GXX)
    set(SLUICE_CUDA_HOST_COMPILER ${SLUICE_CUDA_GXX})
  endif()
endif()

# 2810: nvcc takes the reference that an assignment returns for a [[nodiscard]] value.
set(SLUICE_NVCC_FLAGS -std=c++20 -fmad=false --expt-relaxed-constexpr -Werror=all-warnings
  -diag-suppress=2810
  -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fPIC,-fvisibility=hidden
  -ccbin ${SLUICE_CUDA_HOST_COMPILER})
if(SLUICE_CUDA_FAST_COMPILE AND SLUICE_NVCC)
  execute_process(COMMAND ${SLUICE_NVCC} --help OUTPUT_VARIABLE said ERROR_QUIET)
  if(said MATCHES "--Ofast-compile")  # From CUDA 12.9 on.
    list(APPEND SLUICE_NVCC_FLAGS --Ofast-compile=max)
  else()
    message(STATUS "SLUICE_CUDA_FAST_COMPILE: ${SLUICE_NVCC} knows no --Ofast-compile")
  endif()
endif()
# As CMAKE_CUDA_ARCHITECTURES has them: "90a" is a GPU's own code, "100-virtual" what drivers compile for newer ones.
set(SLUICE_CUDA_CODES)
foreach(architecture ${SLUICE_CUDA_ARCHITECTURES})
  string(REGEX MATCH "^([0-9]+[af]?)(-virtual)?$" matches "${architecture}")
  if(NOT matches)
    message(FATAL_ERROR "SLUICE_CUDA_ARCHITECTURES: expected such as 90a or 100-virtual, seen ${architecture}")
  endif()
  set(virtual ${CMAKE_MATCH_1})
  string(REPLACE "-virtual" "" code "sm_${architecture}")
  if(NOT code STREQUAL "sm_${architecture}")
    set(code compute_${virtual})
  endif()
  list(APPEND SLUICE_CUDA_CODES ${code})
  list(APPEND SLUICE_NVCC_FLAGS -gencode=arch=compute_${virtual},code=${code})
endforeach()

# Sets `problem` to why the toolkit cannot be used, or to nothing.
function(sluice_find_cuda problem)
  if(NOT SLUICE_NVCC)
    set(${problem} "no nvcc found (looked in PATH and /usr/local/cuda/bin)" PARENT_SCOPE)
    return()
  endif()
  file(REAL_PATH ${SLUICE_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH root)
  cmake_path(GET root PARENT_PATH root)
  set(target ${root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
  set(server ${target})
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
    set(server ${root}/targets/sbsa-linux)  # Of servers; the other one is of boards.
  endif()
  find_path(SLUICE_CUDA_INCLUDE_DIR cuda_runtime_api.h
    PATHS ${target}/include ${server}/include ${root}/include NO_DEFAULT_PATH)
  find_file(SLUICE_CUDART_STATIC libcudart_static.a
    PATHS ${target}/lib ${server}/lib ${root}/lib64 ${root}/lib NO_DEFAULT_PATH)
  mark_as_advanced(SLUICE_CUDA_INCLUDE_DIR SLUICE_CUDART_STATIC)
  if(NOT SLUICE_CUDA_INCLUDE_DIR OR NOT SLUICE_CUDART_STATIC)
    set(${problem} "${nvcc} has no cuda_runtime_api.h and libcudart_static.a beside it" PARENT_SCOPE)
    return()
  endif()
  # An nvcc that is too old for C++20, for an architecture or for the host's compiler. Asked once.
  list(JOIN SLUICE_NVCC_FLAGS " " asked)
  string(PREPEND asked "${nvcc} ")
  if(NOT "${SLUICE_NVCC_ASKED}" STREQUAL "${asked}")
    set(source ${PROJECT_BINARY_DIR}/cuda/check.cu)
    file(CONFIGURE OUTPUT ${source} CONTENT [[#include <cuda_runtime_api.h>
#if CUDART_VERSION < 12050
#error expected CUDA 12.5 or later
#endif
__global__ void kernel() {}
]])
    execute_process(COMMAND ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS} -c ${source} -o ${source}.o
      RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      string(STRIP "${said}" said)
      set(answer "${nvcc} does not compile for ${SLUICE_CUDA_ARCHITECTURES}: ${said}")
    endif()
    set(SLUICE_NVCC_ASKED "${asked}" CACHE INTERNAL "")
    set(SLUICE_NVCC_ANSWER "${answer}" CACHE INTERNAL "")
  endif()
  set(${problem} "${SLUICE_NVCC_ANSWER}" PARENT_SCOPE)
endfunction()

# Compiles `source` to `object`; flags follow.
function(sluice_nvcc_object object source)
  list(JOIN SLUICE_CUDA_CODES ", " codes)
  cmake_path(GET source FILENAME name)
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${object}
    COMMAND ${SLUICE_NVCC} ${SLUICE_NVCC_FLAGS} ${ARGN} -I ${PROJECT_SOURCE_DIR}/include
            -I ${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d VERBATIM
    COMMENT "nvcc ${name} for ${codes}")
endfunction()

# sluice_cuda_objects(out_var source...): objects of the .cu files, which are relative to src/. They
# may be sources of several targets: each must depend on the target sluice_cuda_objects.
function(sluice_cuda_objects out_var)
  set(definitions -DSLUICE_HAS_CUDA=1)
  if(SLUICE_MUTANTS)
    list(APPEND definitions -DSLUICE_MUTANTS=1)
  endif()
  if(SLUICE_KERNEL_DELAYS)
    list(APPEND definitions -DSLUICE_KERNEL_DELAYS=1)
  endif()
  set(objects)
  foreach(source ${ARGN})
    set(object ${PROJECT_BINARY_DIR}/cuda/${source}.o)
    sluice_nvcc_object(${object} ${PROJECT_SOURCE_DIR}/src/${source} -O3 -lineinfo ${definitions})
    list(APPEND objects ${object})
  endforeach()
  add_custom_target(sluice_cuda_objects DEPENDS ${objects})
  set(${out_var} ${objects} PARENT_SCOPE)
endfunction()

if(SLUICE_CUDA STREQUAL "AUTO")
  if(SLUICE_SANITIZE OR SLUICE_MUTANTS OR SLUICE_FUZZ)
    message(STATUS "the CUDA engine is not built: sanitizers, mutants and fuzzers do without it")
    return()
  endif()
elseif(NOT SLUICE_CUDA)
  return()
endif()

sluice_find_cuda(SLUICE_CUDA_PROBLEM)
if(NOT SLUICE_CUDA_PROBLEM)
  set(SLUICE_CUDA_ENABLED ON)
  # The runtime finds the driver by itself when it is first used: no machine needs libcuda to load us.
  set(SLUICE_CUDA_LIBRARIES ${SLUICE_CUDART_STATIC} Threads::Threads dl rt)
  message(STATUS "CUDA engine: ${SLUICE_NVCC} for ${SLUICE_CUDA_ARCHITECTURES}")
elseif(SLUICE_CUDA STREQUAL "AUTO")
  message(STATUS "${SLUICE_CUDA_PROBLEM}: the CUDA engine is not built")
else()
  message(FATAL_ERROR "SLUICE_CUDA is ${SLUICE_CUDA}, but ${SLUICE_CUDA_PROBLEM}")
endif()
