# What is installed beside the libraries, and the Debian packages.

foreach(kind IN LISTS kvblocks_kinds)
  install(EXPORT kvblocks-${kind} NAMESPACE kvblocks:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/kvblocks"
          COMPONENT development)
endforeach()
configure_package_config_file(cmake/kvblocksConfig.cmake.in "${PROJECT_BINARY_DIR}/kvblocksConfig.cmake"
                              INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/kvblocks")
# As for the shared libraries' names: before 1.0.0 another minor version is another interface.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvblocksConfigVersion.cmake" COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/kvblocksConfig.cmake" "${PROJECT_BINARY_DIR}/kvblocksConfigVersion.cmake"
              cmake/kvblocksDependencies.cmake
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/kvblocks" COMPONENT development)
kvblocks_install_headers(kvblocks/version.h)
if(TARGET kvsim)
  install(TARGETS kvsim RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
  # kvsim looks for the tables in ../share/kvblocks; their origin travels with them.
  install(FILES sim/cost/tables/kernel_tables.pb sim/cost/tables/README.md DESTINATION "${CMAKE_INSTALL_DATADIR}/kvblocks"
          COMPONENT runtime)
endif()
install(FILES LICENSE CHANGELOG.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

# Two packages: kvblocks has the shared libraries and kvsim, kvblocks-dev what compiling against them takes.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "kvblocks")
set(CPACK_PACKAGE_CONTACT "kvblocks developers <kvblocks@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME kvblocks)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
# dpkg-shlibdeps finds out what the programs and libraries load, and ldconfig runs at installation.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME kvblocks-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(packages "kvblocks (= ${PROJECT_VERSION})")
set(zmq_if_used "")
if(kvblocks_zmq)
  set(zmq_if_used zmq)
endif()
foreach(name IN LISTS kvblocks_library_dependencies zmq_if_used)
  if(DEFINED kvblocks_packages_${name})
    list(GET kvblocks_packages_${name} 1 package)
    string(REPLACE " " ";" package "${package}")
    list(APPEND packages ${package})
  endif()
endforeach()
# Headers come with what protoc made, and include none of cppzmq's.
list(REMOVE_ITEM packages protobuf-compiler cppzmq-dev)
list(JOIN packages ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${PROJECT_DESCRIPTION}\n The shared libraries and the simulator kvsim.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "${PROJECT_DESCRIPTION}\n Headers, static libraries, and files for CMake and pkg-config.")
include(CPack)
