# The Python package: python/kvblocks and the extension module kvblocks._core, in <build>/python/kvblocks, where
# PYTHONPATH=<build>/python finds them. pyproject.toml makes wheels of it with scikit-build-core.

# Neither the binding nor nanobind's own sources share files.
set(CMAKE_UNITY_BUILD OFF)

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
if(NOT nanobind_ROOT)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                  OUTPUT_VARIABLE nanobind_ROOT ERROR_VARIABLE kvblocks_nanobind_error)
endif()
find_package(nanobind CONFIG QUIET)
if(NOT nanobind_FOUND)
  message(FATAL_ERROR "KVBLOCKS_PYTHON needs nanobind for ${Python_EXECUTABLE}:\n  ${Python_EXECUTABLE} -m pip install nanobind\n"
                      "Another interpreter: -DPython_EXECUTABLE=...")
endif()

file(GLOB kvblocks_python_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/src/*.cc")
# Of the objects themselves, as kvsim: the module needs no library of ours.
foreach(component IN ITEMS checks kv_cache planning events c)
  list(APPEND kvblocks_python_sources $<TARGET_OBJECTS:kvblocks_${component}_objects>)
endforeach()
# STABLE_ABI acts from Python 3.12 on; before, each version of Python needs a module of its own.
nanobind_add_module(kvblocks_python STABLE_ABI NB_STATIC NOMINSIZE ${kvblocks_python_sources})
target_link_libraries(kvblocks_python PRIVATE kvblocks_kv_cache_objects kvblocks_planning_objects kvblocks_events_objects
                      kvblocks_c_objects Threads::Threads)
if(kvblocks_zmq)
  target_sources(kvblocks_python PRIVATE $<TARGET_OBJECTS:kvblocks_events_zmq_objects>)
  target_link_libraries(kvblocks_python PRIVATE kvblocks_events_zmq_objects)
  target_compile_definitions(kvblocks_python PRIVATE KVBLOCKS_WITH_ZMQ)
endif()
set_target_properties(kvblocks_python PROPERTIES OUTPUT_NAME _core
                      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/kvblocks")

# kvblocks.attention has a module of its own, so that "import kvblocks" does not load it. One compilation for all of
# its sources: half of the time that one takes is nanobind's headers. An archive, of which the module takes what it calls.
file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/src/attention/*.cc")
nanobind_add_module(kvblocks_python_attention STABLE_ABI NB_STATIC NOMINSIZE ${sources} python/src/errors.cc)
set_target_properties(kvblocks_python_attention PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0 LINKER_LANGUAGE CXX
                      OUTPUT_NAME _attention LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/kvblocks")
target_compile_features(kvblocks_python_attention PRIVATE cxx_std_20)
target_include_directories(kvblocks_python_attention PRIVATE ${kvblocks_include_directories})
add_library(kvblocks_python_operations STATIC EXCLUDE_FROM_ALL
            $<TARGET_OBJECTS:kvblocks_checks_objects> $<TARGET_OBJECTS:kvblocks_attention_objects>)
set_property(TARGET kvblocks_python_operations PROPERTY LINKER_LANGUAGE CXX)
# Not the object libraries: CMake would link all of their objects.
target_link_libraries(kvblocks_python_operations PUBLIC ${kvblocks_absl_targets} ${kvblocks_hwy_targets})
target_link_libraries(kvblocks_python_attention PRIVATE kvblocks_python_operations Threads::Threads)
if(kvblocks_cuda)
  target_sources(kvblocks_python_operations PRIVATE $<TARGET_OBJECTS:kvblocks_cuda_objects>)
  foreach(objects IN LISTS kernels)
    target_sources(kvblocks_python_operations PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  target_link_libraries(kvblocks_python_operations PUBLIC ${kvblocks_cudart_targets})
  target_compile_definitions(kvblocks_python_attention PRIVATE KVBLOCKS_WITH_CUDA)
endif()
# Who builds the package builds both.
add_dependencies(kvblocks_python kvblocks_python_attention)

# The Python files beside it, as links: edits act at once.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/python/kvblocks")
file(GLOB kvblocks_python_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/python/kvblocks"
     "${PROJECT_SOURCE_DIR}/python/kvblocks/*.py" "${PROJECT_SOURCE_DIR}/python/kvblocks/*.pyi"
     "${PROJECT_SOURCE_DIR}/python/kvblocks/py.typed")
foreach(name IN ITEMS vllm)
  if(EXISTS "${PROJECT_SOURCE_DIR}/python/kvblocks/${name}")
    list(APPEND kvblocks_python_files ${name})
  endif()
endforeach()
foreach(name IN LISTS kvblocks_python_files)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/python/kvblocks/${name}" "${PROJECT_BINARY_DIR}/python/kvblocks/${name}" SYMBOLIC)
endforeach()

if(TARGET kvsim)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/python/kvblocks/bin")
  foreach(file IN ITEMS kvsim kernel_tables.pb)
    file(CREATE_LINK "${PROJECT_BINARY_DIR}/${file}" "${PROJECT_BINARY_DIR}/python/kvblocks/bin/${file}" SYMBOLIC)
  endforeach()
endif()

# Into the folder that a wheel is made of.
install(TARGETS kvblocks_python kvblocks_python_attention LIBRARY DESTINATION kvblocks COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET kvsim)
  install(PROGRAMS $<TARGET_FILE:kvsim> DESTINATION kvblocks/bin COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES sim/cost/tables/kernel_tables.pb sim/cost/tables/README.md DESTINATION kvblocks/bin COMPONENT python
          EXCLUDE_FROM_ALL)
endif()
