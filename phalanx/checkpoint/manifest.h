#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "phalanx/checkpoint/state.h"
#include "phalanx/checkpoint/storage.h"

namespace phalanx {

using Value = std::variant<int64_t, double, std::string>;

/// What a run needs to go on, besides tensors. Rank 0's is saved; every rank gets it back.
struct RunState {
  int64_t step = 0;                             ///< finished optimizer steps
  int64_t consumed_samples = 0;                 ///< absolute: the position in the data
  std::string config;                           ///< the resolved config.toml
  std::map<std::string, std::string> versions;  ///< "phalanx", "libtorch" ...
  std::map<std::string, Value> values;          ///< "tokens", "updates" ...
};

using Hash = std::array<uint64_t, 2>;  ///< XXH3-128: high, low

/// A tensor of a checkpoint and the boxes of it that files hold. The boxes cover it exactly once.
struct ManifestEntry {
  struct Part {
    Box box;
    std::string file;          ///< a plain name in the checkpoint's folder
    int64_t offset, bytes;     ///< in the file: from the box's first element to its last
    std::optional<Hash> hash;  ///< absent in files of other programs
    /// Of the box's elements in the file, in elements; empty: row-major. Only files of other
    /// programs have others.
    std::vector<int64_t> strides;
  };
  std::string name, role;
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  std::vector<Part> parts;
};

using TensorKey = std::pair<std::string, std::string>;  ///< name, role

inline TensorKey key(const ManifestEntry& entry) { return {entry.name, entry.role}; }

/// `manifest.json`, format version 1 (docs/checkpoint.md).
struct Manifest {
  static constexpr int format_version = 1;
  /// 2100-01-01: a later `created` is none, and would make every later checkpoint the older.
  static constexpr int64_t latest_creation = 4'102'444'800'000'000'000;
  RunState run;
  int64_t created = 0;  ///< nanoseconds since 1970; of two checkpoints the larger is the newer
  std::map<std::string, int64_t> files;  ///< name to bytes
  std::vector<ManifestEntry> entries;    ///< by name, then role
};

/// The entries by their keys.
std::map<TensorKey, const ManifestEntry*> by_key(const Manifest& manifest);

/// Sorts the entries by key. Error(checkpoint) if `path`, where they were found, has one twice.
void sort_entries(Manifest& manifest, const std::string& path);

std::string to_json(const Manifest& manifest);

/// Parses and checks: version, names of files, boxes inside of shapes, none overlapping, all
/// covered, parts inside of files. Error(checkpoint) that names `path` and what is wrong.
Manifest parse_manifest(const std::string& json, const std::string& path);

/// The text of folder/manifest.json, compared with its hash in folder/manifest.json.xxh128 (a line
/// as `xxhsum -H2` writes it, so that `xxhsum -c` can check it).
std::string read_manifest_text(const Storage& storage, const std::string& folder);
std::string manifest_hash_line(const std::string& text);

Manifest read_manifest(const Storage& storage, const std::string& folder);
Manifest read_manifest(const std::string& path);  ///< of the checkpoint that lies at `path`

}  // namespace phalanx
