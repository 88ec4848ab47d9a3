#include "phalanx/base/nearest.h"

#include <algorithm>
#include <vector>

#include "phalanx/base/text.h"

namespace phalanx {
namespace {

size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) rows[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1,
                             rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  return rows[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;  // farther away is another word
  for (const auto& candidate : candidates) {
    const bool begun = word.size() > 2 && candidate.starts_with(word);
    const size_t steps = begun ? 1 : distance(word, candidate);
    if (steps < least && steps < std::max(word.size(), candidate.size())) {
      least = steps;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : text("; did you mean '", best, "'?");
}

}  // namespace phalanx
