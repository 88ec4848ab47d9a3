#pragma once

#include <span>
#include <string>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/checkpoint/state.h"
#include "phalanx/comm/communicator.h"
#include "phalanx/spec/model.h"

namespace phalanx {

/// Where weights came from.
struct LoadedWeights {
  std::string path;                ///< of the checkpoint, folder or file
  std::string format;              ///< Source::format
  int64_t step = 0;                ///< of the checkpoint; 0 if the format has none
  std::string huggingface_config;  ///< the text of its config.json, if it has one
  std::string describe() const;    ///< for people
};

/// Fills `entries`, the parameters of `model`, from anything that open_source() reads; each rank
/// reads its part. Strict as load_checkpoint() is with `options` (whose roles do not matter). A
/// tied lm_head.weight may be there or not; if its values are not those of the embedding, that is
/// an error too. Collective.
LoadedWeights load_weights(Communicator& world, const std::string& path, const ModelSpec& model,
                           std::span<const StateEntry> entries, LoadOptions options = {});

/// Whether a model's folder holds weights beside its config.json. Error(checkpoint) if it holds
/// some in a form that open_source() does not read. Collective.
bool has_weights(Communicator& world, const std::string& folder);

/// Error(checkpoint) if what lies at `path` holds weights only, so that a run cannot go on from it:
/// says what is there and what is missing of `wanted`, and what to do instead. Collective.
void refuse_weights_only(Communicator& world, const std::string& path,
                         std::span<const StateEntry> wanted);

}  // namespace phalanx
