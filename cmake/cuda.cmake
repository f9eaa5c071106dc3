# CUDA: whether there is a compiler, and the component made of the host code and kernels of attention/cuda.

set(kvblocks_cuda FALSE)
if(NOT KVBLOCKS_CUDA STREQUAL "OFF")
  find_program(KVBLOCKS_NVCC nvcc HINTS "$ENV{CUDA_PATH}" "$ENV{CUDACXX}" PATHS /usr/local/cuda PATH_SUFFIXES bin
               DOC "NVIDIA's CUDA compiler")
  if(KVBLOCKS_NVCC)
    set(kvblocks_cuda TRUE)
  elseif(KVBLOCKS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVBLOCKS_CUDA=ON, but there is no nvcc on PATH, in CUDA_PATH/bin or in /usr/local/cuda/bin; "
            "set CUDA_PATH, or KVBLOCKS_CUDA=OFF to build without CUDA")
  else()
    message(STATUS "kvblocks: no CUDA compiler (nvcc), so without the CUDA backend")
  endif()
endif()

if(kvblocks_cuda)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${KVBLOCKS_NVCC}")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Machine code for A100 and its family and for Hopper with wgmma, and PTX from which a driver compiles for newer GPUs.
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
    message(FATAL_ERROR "kvblocks needs CUDA 12.4 or later, but ${CMAKE_CUDA_COMPILER} is "
            "${CMAKE_CUDA_COMPILER_VERSION}; KVBLOCKS_CUDA=OFF builds without it")
  endif()
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "kvblocks: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
endif()

# Object libraries of a folder's kernels. Those that use Hopper's own instructions (device/hopper.h) are compiled for
# Hopper alone: no other GPU can run them.
function(kvblocks_cuda_kernels out folder)
  file(GLOB kernels RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cu")
  set(general "")
  set(hopper "")
  foreach(kernel IN LISTS kernels)
    kvblocks_reachable_headers(headers ${kernel})
    if("attention/cuda/device/hopper.h" IN_LIST headers)
      list(APPEND hopper ${kernel})
    else()
      list(APPEND general ${kernel})
    endif()
  endforeach()
  foreach(group IN ITEMS general hopper)
    set(target kvblocks_cuda_${group}_objects)
    add_library(${target} OBJECT ${${group}})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY Static)
    # CMake 3.25 does not know yet that nvcc has C++20, so this is an option and no feature. Abseil's targets, of which kernels
    # need none, would append -std=c++14.
    target_compile_options(${target} PRIVATE -std=c++20 --expt-relaxed-constexpr -lineinfo)
    target_include_directories(${target} PRIVATE ${kvblocks_include_directories})
  endforeach()
  set(hopper_architectures ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER hopper_architectures INCLUDE REGEX "^90a")
  if(NOT hopper_architectures)
    set(hopper_architectures 90a-real)
  endif()
  set_property(TARGET kvblocks_cuda_hopper_objects PROPERTY CUDA_ARCHITECTURES ${hopper_architectures})
  set(${out} kvblocks_cuda_general_objects kvblocks_cuda_hopper_objects PARENT_SCOPE)
endfunction()
