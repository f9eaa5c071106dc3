# The libraries that kvblocks is built from: how each is found, what it is linked as, what it is called elsewhere.
#
# Used by the build and, installed, by kvblocksConfig.cmake, so a program that links kvblocks finds the same targets.
# Each has a short name and three variables:
#   kvblocks_<name>_targets   what a CMake target links
#   kvblocks_<name>_modules   the same for pkg-config
#   kvblocks_<name>_includes  a regular expression of the headers that it brings

# Abseil has a target for each folder or class. One list serves all of kvblocks: a linker takes what is used.
set(kvblocks_absl_modules
    absl_cleanup absl_cord absl_core_headers absl_flat_hash_map absl_flat_hash_set absl_function_ref absl_hash
    absl_inlined_vector absl_int128 absl_span absl_status absl_statusor absl_str_format absl_strings absl_time)
list(TRANSFORM kvblocks_absl_modules REPLACE "^absl_" "absl::" OUTPUT_VARIABLE kvblocks_absl_targets)
set(kvblocks_absl_includes "absl/")

set(kvblocks_protobuf_targets protobuf::libprotobuf)
set(kvblocks_protobuf_modules protobuf)
set(kvblocks_protobuf_includes "google/protobuf/|.*\\.pb\\.h")

set(kvblocks_crypto_targets OpenSSL::Crypto)
set(kvblocks_crypto_modules libcrypto)
set(kvblocks_crypto_includes "openssl/")

set(kvblocks_zlib_targets ZLIB::ZLIB)
set(kvblocks_zlib_modules zlib)
set(kvblocks_zlib_includes "zlib\\.h")

# These are found with pkg-config: not every system installs CMake files for them.
set(kvblocks_xxhash_targets PkgConfig::kvblocks_xxhash)
set(kvblocks_xxhash_modules libxxhash)
set(kvblocks_xxhash_includes "xxhash\\.h")
set(kvblocks_simdjson_targets PkgConfig::kvblocks_simdjson)
set(kvblocks_simdjson_modules simdjson)
set(kvblocks_simdjson_includes "simdjson\\.h")
set(kvblocks_hwy_targets PkgConfig::kvblocks_hwy)
set(kvblocks_hwy_modules libhwy)
set(kvblocks_hwy_includes "hwy/")
set(kvblocks_zstd_targets PkgConfig::kvblocks_zstd)
set(kvblocks_zstd_modules libzstd)
set(kvblocks_zstd_includes "zstd\\.h")
set(kvblocks_cli11_targets PkgConfig::kvblocks_cli11)
set(kvblocks_cli11_modules CLI11)
set(kvblocks_cli11_includes "CLI/")

# Only with the sockets of KV events.
set(kvblocks_zmq_targets PkgConfig::kvblocks_zmq)
set(kvblocks_zmq_modules libzmq)
set(kvblocks_zmq_includes "zmq\\.h")

# Only with the CUDA backend.
set(kvblocks_cudart_targets CUDA::cudart_static)
set(kvblocks_cudart_modules "")
set(kvblocks_cudart_includes "cuda_runtime")

# Looks for the named libraries; puts those that are missing into the variable kvblocks_missing.
#
# A macro, because find_package sets variables that the caller's own find_package calls look at.
macro(kvblocks_find_dependencies)
  set(kvblocks_missing "")
  foreach(kvblocks_name IN ITEMS ${ARGN})
    if("${kvblocks_name}" STREQUAL "absl")
      find_package(absl CONFIG QUIET)
    elseif("${kvblocks_name}" STREQUAL "protobuf")
      # From release 22 on protobuf needs Abseil, which its own CMake files know; older ones often come without such files.
      find_package(protobuf CONFIG QUIET)
      if(NOT TARGET protobuf::libprotobuf)
        find_package(Protobuf MODULE QUIET)
      endif()
    elseif("${kvblocks_name}" STREQUAL "crypto")
      find_package(OpenSSL QUIET COMPONENTS Crypto)
    elseif("${kvblocks_name}" STREQUAL "zlib")
      find_package(ZLIB QUIET)
    elseif("${kvblocks_name}" STREQUAL "cudart")
      find_package(CUDAToolkit QUIET)
    elseif(NOT TARGET PkgConfig::kvblocks_${kvblocks_name})
      find_package(PkgConfig QUIET)
      if(PkgConfig_FOUND)
        pkg_check_modules(kvblocks_${kvblocks_name} QUIET IMPORTED_TARGET GLOBAL ${kvblocks_${kvblocks_name}_modules})
        if("${kvblocks_name}" STREQUAL "zmq" AND TARGET PkgConfig::kvblocks_zmq)
          # libzmq.pc names folders of what it needs itself, and the second run of CMake passes them on in another way than
          # the first one: all would be compiled again.
          set_target_properties(PkgConfig::kvblocks_zmq PROPERTIES
                                INTERFACE_INCLUDE_DIRECTORIES "${kvblocks_zmq_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")
        endif()
      endif()
    endif()
    foreach(kvblocks_target IN LISTS kvblocks_${kvblocks_name}_targets)
      if(NOT TARGET ${kvblocks_target})
        list(APPEND kvblocks_missing ${kvblocks_name})
        break()
      endif()
    endforeach()
  endforeach()
endmacro()
