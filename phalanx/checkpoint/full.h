#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "phalanx/checkpoint/state.h"
#include "phalanx/comm/communicator.h"

namespace phalanx {

// The whole state in files of one rank, or from them, without any rank ever holding it: pieces of a
// bounded size go from rank to rank. For a run's own checkpoints save_checkpoint() is the better
// one (every rank writes what it has); save it first, so that nothing is lost if this goes wrong.

struct FullOptions {
  std::optional<Dtype> dtype;  ///< of floating-point tensors in the file; none: as they are held
  int64_t max_file_bytes = 5'000'000'000;
  int64_t buffer_bytes = 32 << 20;  ///< each rank holds one or two of these, beside its entries
  std::string config;               ///< the text of a config.json to lie beside them; "": none
};

/// Rank 0 writes whole tensors into a new folder at `path`, as a Hugging Face folder
/// (huggingface_writer.h). A tensor is called by its name, and ":role" unless it is a parameter.
/// Collective: all return once the folder is there, or throw the same Error(checkpoint); nobody
/// waits longer for the others than the time of one piece.
void save_full(Communicator& world, std::span<const StateEntry> entries, const std::string& path,
               const FullOptions& options = {});

/// Fills the entries from anything that open_source() reads, which only rank 0 needs to see.
/// Missing, unexpected (of the entries' roles) and mis-shaped tensors are one error. Floating-point
/// types are converted. Collective.
void load_full(Communicator& world, const std::string& path, std::span<const StateEntry> entries,
               int64_t buffer_bytes = 32 << 20);

}  // namespace phalanx
