# Data that become part of the libraries, as C++ sources that are written when CMake configures.

# A source file that holds the text of the catalogue.
function(kvblocks_embed_catalogue out)
  set(text_file "${PROJECT_SOURCE_DIR}/specs/catalogue/catalogue.textproto")
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${text_file}")
  file(READ "${text_file}" text)
  set(source "${PROJECT_BINARY_DIR}/generated/specs/catalogue/catalogue_data.cc")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT [[
namespace kvblocks {
extern const char kCatalogueText[];
const char kCatalogueText[] = R"catalogue(
@text@
)catalogue";
}
]])
  set(${out} "${source}" PARENT_SCOPE)
endfunction()

# A source file that holds what every HTML page of kvsim carries, each file as a string.
function(kvblocks_embed_page_assets out)
  set(text "#include \"sim/report/report_json.h\"\nnamespace kvblocks::sim {\n")
  foreach(asset IN ITEMS kPageScript=js kPageStyle=css)
    string(REPLACE "=" ";" parts "${asset}")
    list(GET parts 0 name)
    list(GET parts 1 suffix)
    file(GLOB paths CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/sim/report/page/*.${suffix}")
    list(SORT paths)
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${paths})
    set(all "")
    foreach(path IN LISTS paths)
      # As bytes: CMake would read brackets and semicolons of a text as lists.
      file(READ "${path}" bytes HEX)
      string(APPEND all "${bytes}")
    endforeach()
    string(REGEX REPLACE "(..)" "'\\\\x\\1'," all "${all}")
    string(APPEND text "const char ${name}[] = {${all}0};\n")
  endforeach()
  set(source "${PROJECT_BINARY_DIR}/generated/sim/report/page_assets.cc")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT "${text}}\n")
  set(${out} "${source}" PARENT_SCOPE)
endfunction()

# A source file that holds the bytes of the workload that comes with kvsim.
function(kvblocks_embed_example_trace out)
  set(trace "${PROJECT_SOURCE_DIR}/sim/example/mixed.jsonl.gz")
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${trace}")
  file(READ "${trace}" bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    set(source "${PROJECT_BINARY_DIR}/generated/sim/commands/example_trace.cc")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT [[
#include "sim/commands/example_trace.h"
namespace kvblocks::sim {
std::string ExampleTrace() {
  static const unsigned char bytes[] = {
@bytes@
  };
  return std::string(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}
}
]])
  set(${out} "${source}" PARENT_SCOPE)
endfunction()
