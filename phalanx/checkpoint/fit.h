#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "phalanx/checkpoint/checkpoint.h"

namespace phalanx {

struct Signature {
  Dtype dtype;
  std::vector<int64_t> shape;
  bool operator==(const Signature&) const = default;
};
using Signatures = std::map<TensorKey, Signature>;

/// What the ranks together want, from every rank's describe_entries(). Error(checkpoint) if they
/// contradict each other.
Signatures wanted_by_all(const std::vector<std::string>& descriptions);

/// The tensors of a manifest. Of those in `buffers`, the names of wanted buffers, the key has the
/// role "buffer" even where the manifest says "parameter": what other programs saved does not tell
/// them apart.
std::map<TensorKey, const ManifestEntry*> saved_tensors(const Manifest& manifest,
                                                        std::set<std::string> buffers);

/// How the tensors of a checkpoint fit those that are wanted.
struct Fit {
  std::string misfit;              ///< all that keeps them from being loaded; empty if nothing
  std::set<TensorKey> kept;        ///< missing, as the options allow: they keep their values
  std::vector<std::string> notes;  ///< what is allowed and is worth a line: converted, passed over
};
Fit compare(const Signatures& saved, const Signatures& wanted, const LoadOptions& options);

}  // namespace phalanx
