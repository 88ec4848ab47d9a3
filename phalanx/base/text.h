#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace phalanx {

/// The parts written one after another, as operator<< writes them.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// "a, b, c" for any range whose elements can be written with operator<<.
template <class Range>
std::string join(const Range& range, std::string_view separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& element : range) {
    if (!first) out << separator;
    out << element;
    first = false;
  }
  return out.str();
}

}  // namespace phalanx
