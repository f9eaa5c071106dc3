# Boost: whether its headers are there, for the HTTP of kvsim serve. Nothing else needs them, and nothing is linked.

set(kvblocks_boost FALSE)
if(KVBLOCKS_KVSIM AND NOT KVBLOCKS_BOOST STREQUAL "OFF")
  find_path(KVBLOCKS_BOOST_INCLUDE boost/beast/http.hpp DOC "Boost's headers, with Beast and Asio")
  if(KVBLOCKS_BOOST_INCLUDE)
    set(kvblocks_boost TRUE)
  elseif(KVBLOCKS_BOOST STREQUAL "ON")
    kvblocks_stop_if_missing(boost)
  else()
    message(STATUS "kvblocks: no Boost with its header boost/beast/http.hpp, so without kvsim serve")
  endif()
endif()
