#pragma once

#include <span>
#include <string>
#include <string_view>

namespace phalanx {

/// The candidate that `word` was probably meant to be: the fewest insertions, deletions,
/// replacements and swaps of neighbours (Damerau 1964), or one that begins with it. Empty if none
/// is near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// "; did you mean 'X'?" or nothing, to end the sentence of an error.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace phalanx
