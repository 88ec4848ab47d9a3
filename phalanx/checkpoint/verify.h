#pragma once

#include <string>
#include <vector>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

class Communicator;

/// Files that are missing or have another size than the manifest says; one sentence each.
std::vector<std::string> size_defects(const Storage& storage, const std::string& folder,
                                      const Manifest& manifest);

/// Error(checkpoint) with all of them, if there are any.
void require_sizes(const Storage& storage, const std::string& folder, const Manifest& manifest);

/// Reads `share` of `shares`, which are about equal in bytes, and compares hashes; for share 0 also
/// the files' own headers with the manifest. One sentence per defect.
std::vector<std::string> content_defects(const Storage& storage, const std::string& folder,
                                         const Manifest& manifest, int share = 0, int shares = 1);

/// All of content_defects() as a sentence that names the first few; "" if the checkpoint is whole.
std::string content_defect(const Storage& storage, const std::string& folder,
                           const Manifest& manifest);
/// The same, but each rank reads a share. A collective.
std::string content_defect(Communicator& world, const Storage& storage, const std::string& folder,
                           const Manifest& manifest);

/// The name of a tensor in files and patterns: its name, and ":role" unless it is a parameter.
std::string tensor_label(const std::string& name, const std::string& role);

/// The name of a part in its safetensors file: the label, and the box unless it is the whole
/// tensor.
std::string part_name(const ManifestEntry& entry, const Box& box);

}  // namespace phalanx
