#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/checkpoint/pieces.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/checkpoint/storage.h"
#include "phalanx/checkpoint/task.h"

namespace phalanx {

/// The file of one rank: parts in the order of the file, and where their bytes come from.
struct StateFile {
  std::string name;
  int64_t step = 0;
  std::vector<TensorInfo> parts;
  /// Passes the row-major bytes of part i on.
  std::function<void(size_t part, const UsePiece& use)> read;
  int64_t bytes() const;  ///< of the data
};

/// What a written file holds, for the manifest: written by one rank, read by rank 0.
struct FileReport {
  int64_t data_begin = 0;  ///< bytes before the first part; 0: there is no file
  std::vector<Hash> hashes;
  bool operator==(const FileReport&) const = default;
};
std::string to_bytes(const FileReport& report);
FileReport file_report(const std::string& bytes);

/// How files are written.
struct WriteOptions {
  bool verify = false;  ///< read back, from the disk where the system allows, and compare
  std::chrono::milliseconds retry_pause{200};
};

/// Writes folder/file.name and hashes its parts on the way; without parts there is no file. Errors
/// of the disk that may pass (not a full one) are tried four times more, with growing pauses.
FileReport write_state_file(Storage& storage, const std::string& folder, const StateFile& file,
                            const WriteOptions& options, TaskProgress& progress);

/// The same as `file`, but its bytes come from a written copy of it.
StateFile written_file(std::shared_ptr<const Storage> storage, const std::string& folder,
                       const StateFile& file, const FileReport& report);

/// The manifest of a checkpoint whose files were written as `reports` say, one for each rank.
Manifest finish_manifest(const SavePlan& plan, const std::vector<std::string>& reports,
                         const RunState& run);

/// folder/manifest.json, whose text is `json`, and its hash: the last files of a checkpoint.
void write_manifest(Storage& storage, const std::string& folder, const std::string& json,
                    const WriteOptions& options, TaskProgress& progress);

}  // namespace phalanx
