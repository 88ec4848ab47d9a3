#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "phalanx/models/model.h"

namespace phalanx {

struct Sampling {
  int64_t new_tokens = 100;
  double temperature = 1;  ///< 0: always the likeliest token
  int64_t top_k = 0;       ///< only the k likeliest tokens; 0: all
  uint64_t seed = 0;       ///< with the position the key of each draw: same seed, same text
};

/// Continues `prompt` (at least one token id) and returns the new ids; `on_token` sees each as it
/// comes. Keys and values of earlier positions are kept. Beyond the model's context the oldest half
/// of it is forgotten. Parameters must have memory. Throws Error(usage) for an empty prompt or
/// impossible options, Error(data) for ids outside the vocabulary.
std::vector<int64_t> generate(Model& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling,
                              const std::function<void(int64_t)>& on_token = {});

}  // namespace phalanx
