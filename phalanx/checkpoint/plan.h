#pragma once

#include <span>
#include <string>
#include <vector>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// What one rank tells the others about its entries: all but the tensors, and without `boxes` not
/// which parts of them it has. CBOR. Error(checkpoint) if an entry and its tensors disagree.
std::string describe_entries(std::span<const StateEntry> entries, bool boxes = true);

/// A part of a saved tensor and the rank that writes it.
struct PlannedPart {
  size_t entry;      ///< in SavePlan::entries
  size_t part;       ///< in its parts
  int writer;        ///< the holder that had least to write so far
  size_t own_entry;  ///< where the writer has it: entries[own_entry].parts[own_part]
  size_t own_part;
};

struct SavePlan {
  std::vector<ManifestEntry> entries;  ///< by name, then role; offsets and hashes still open
  std::vector<PlannedPart> parts;      ///< a writer's parts in the order of its file
};

/// Who writes what, from every rank's description; the same on all ranks. Each box is written once.
/// Error(checkpoint) that names the tensor if ranks contradict each other, boxes overlap, or
/// elements are missing.
SavePlan plan_save(const std::vector<std::string>& descriptions);

/// Parts of wide elements first, so that all of a file is aligned; else in the order they are in.
void wide_first(SavePlan& plan);

/// "state-00001-of-00004.safetensors"
std::string state_file_name(int rank, int ranks);

}  // namespace phalanx
