#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>

#include "phalanx/checkpoint/manifest.h"
#include "phalanx/comm/communicator.h"

namespace phalanx {

// Every function here is a collective: all ranks of `world` call it, and all of them return or
// throw the same Error(checkpoint), which names the rank that failed.

/// Makes `folder`, checks that every rank can write there and sees what rank 0 writes (not if it is
/// no folder of all: `shared` = false), and removes what killed saves left. Before the first step.
void prepare_checkpoints(Communicator& world, const std::string& folder, bool shared = true);

/// Writes `entries` to folder/step-N (N = run.step) and returns that path. The checkpoint appears
/// whole or not at all; then folder/latest names it; then all but the newest `keep` checkpoints are
/// deleted (0: none are). An older step-N is replaced.
std::string save_checkpoint(Communicator& world, const std::string& folder, const RunState& run,
                            std::span<const StateEntry> entries, int keep);

struct LoadOptions {
  /// Only tensors of these roles are compared and loaded, for example {"parameter"}. Empty: all.
  /// Error(usage) if none of the entries has one of them.
  std::set<std::string> roles;
  bool verify_hashes = false;  ///< read everything once and compare before loading
  /// Tensors that the checkpoint may lack, which then keep their values, and tensors of it that may
  /// be passed over: patterns as a shell's (`*` matches anything, dots and colons too) on the names
  /// in files, which are "name" for parameters and "name:role" for others.
  std::vector<std::string> allow_missing, allow_unexpected;
};

/// Fills the entries' tensors from `path` (a step-N folder), whatever the layout was that wrote it.
/// Strict both ways: missing, unexpected, mis-shaped and mis-typed tensors are one error that lists
/// them all. Floating-point types are converted, with a line in the log; others must be equal.
/// Reads the bytes that are needed.
RunState load_checkpoint(Communicator& world, const std::string& path,
                         std::span<const StateEntry> entries, const LoadOptions& options = {});

/// The same from tensors that a manifest describes, known to all ranks, whatever their format.
void load_entries(Communicator& world, const Storage& storage, const std::string& folder,
                  const Manifest& manifest, std::span<const StateEntry> entries,
                  const LoadOptions& options = {});

/// The newest checkpoint of `folder` that is complete (hash of the manifest, sizes of its files,
/// and with options.verify_hashes all contents); none if there are no checkpoints. Broken ones are
/// skipped with a warning; if only broken ones are left that is an error that says what is wrong
/// with each.
std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder,
                                             const LoadOptions& options = {});

}  // namespace phalanx
