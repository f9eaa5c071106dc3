// View: text as Abseil's functions take it. Where Abseil was built before C++17, its string_view is a type of its own.

#ifndef KVBLOCKS_SIM_TRACE_STRING_VIEW_H_
#define KVBLOCKS_SIM_TRACE_STRING_VIEW_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace kvblocks::sim {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_STRING_VIEW_H_
