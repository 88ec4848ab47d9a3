#pragma once

#include <string>

namespace phalanx {

/// One broken rule: the config key, its value, what is wrong and how to mend it, as one sentence.
struct Violation {
  std::string key;
  std::string sentence;
};

}  // namespace phalanx
