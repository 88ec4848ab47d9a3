#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::testing {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void expect_contains(const std::string& sentence,
                            const std::vector<std::string>& fragments) {
  for (const auto& fragment : fragments)
    EXPECT_TRUE(contains(sentence, fragment)) << "no '" << fragment << "' in: " << sentence;
}

}  // namespace phalanx::testing
