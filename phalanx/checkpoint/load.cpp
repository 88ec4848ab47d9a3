#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/fit.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

std::unique_ptr<Storage> open_by_all(Communicator& world, const std::string& path) {
  std::unique_ptr<Storage> storage;
  agree(world, "open", [&] {
    storage = open_storage(path);
    return std::string();
  });
  return storage;
}

// The manifest as rank 0 reads it, on all ranks.
Manifest read_by_one(Communicator& world, const Storage& storage, const std::string& folder) {
  const std::string path = storage.path(in_folder(folder, "manifest.json"));
  const auto read = [&] {
    std::string json_text = read_manifest_text(storage, folder);
    require_sizes(storage, folder, parse_manifest(json_text, path));
    return json_text;
  };
  const std::string json_text = agree_with_first(world, "manifest", read, disk_deadline);
  return parse_manifest(json_text, path);
}

// One line per candidate: its name, and after a space what is wrong with it.
std::vector<Candidate> candidates_of_one(Communicator& world, const Storage& storage) {
  const auto list = [&] {
    std::string lines;
    for (const Candidate& candidate : candidates(storage)) {
      std::string defect = candidate.defect;
      std::replace(defect.begin(), defect.end(), '\n', ' ');
      lines += candidate.name + " " + defect + "\n";
    }
    return lines;
  };
  std::vector<Candidate> found;
  std::istringstream lines(agree_with_first(world, "candidates", list, disk_deadline));
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    found.push_back({line.substr(0, space), 0, line.substr(space + 1)});
  }
  return found;
}

// A role that nothing has would load nothing and look like success.
void require_roles(const std::set<std::string>& roles, const Signatures& wanted,
                   std::span<const StateEntry> entries) {
  std::set<std::string> found, there;
  for (const auto& [key, signature] : wanted) found.insert(key.second);
  for (const auto& entry : entries) there.insert(entry.role);
  for (const auto& role : roles)
    require(found.contains(role), ExitCode::usage, "no tensor to be loaded has the role ", role,
            " that LoadOptions::roles names; they have ",
            join(std::vector(there.begin(), there.end())));
}

// `misfit` is what this rank says; told to all, since each has its own options.
void require_fit(Communicator& world, const std::string& path,
                 const std::function<std::string()>& misfit) {
  const auto misfits = agree(world, "fit", misfit);
  const bool same = std::all_of(misfits.begin(), misfits.end(),
                                [&](const auto& other) { return other == misfits[0]; });
  for (size_t rank = 0; rank < misfits.size(); ++rank)
    require(misfits[rank].empty(), ExitCode::checkpoint, same ? "" : text("rank ", rank, ": "),
            "checkpoint ", path, " does not fit this run: ", misfits[rank],
            " (`phalanx ckpt inspect ", path,
            "` lists what it has; allow_missing and allow_unexpected of [checkpoint] let tensors "
            "differ)");
}

void expect_file_of_rank_zero(const Storage& storage, const std::string& name) {
  try {
    storage.open(name);
  } catch (const Error& error) {
    fail(ExitCode::checkpoint, storage.path(""), " does not show what rank 0 writes (",
         error.what(), "); all ranks need one folder that they share");
  }
}

}  // namespace

RunState load_checkpoint(Communicator& world, const std::string& path,
                         std::span<const StateEntry> entries, const LoadOptions& options) {
  const auto storage = open_by_all(world, path);
  const Manifest manifest = read_by_one(world, *storage, "");
  if (options.verify_hashes) {
    const std::string damaged = content_defect(world, *storage, "", manifest);
    require(damaged.empty(), ExitCode::checkpoint, damaged);
  }
  load_entries(world, *storage, "", manifest, entries, options);
  return manifest.run;
}

void load_entries(Communicator& world, const Storage& storage, const std::string& folder,
                  const Manifest& manifest, std::span<const StateEntry> entries,
                  const LoadOptions& options) {
  const auto chosen = [&](const std::string& role) {
    return options.roles.empty() || options.roles.contains(role);
  };
  std::vector<StateEntry> mine, told;  // buffers are told of even if they are not chosen
  for (const auto& entry : entries) {
    if (chosen(entry.role)) mine.push_back(entry);
    if (chosen(entry.role) || entry.role == "buffer") told.push_back(entry);
  }
  Signatures wanted =
      wanted_by_all(agree(world, "wanted", [&] { return describe_entries(told, false); }));
  std::set<std::string> buffers;
  for (const auto& [key, signature] : wanted)
    if (key.second == "buffer") buffers.insert(key.first);
  std::erase_if(
      wanted, [&](const auto& item) { return item.first.second == "buffer" && !chosen("buffer"); });
  const auto by_key = saved_tensors(manifest, buffers);
  Signatures saved;
  for (const auto& [key, entry] : by_key)
    if (chosen(key.second)) saved[key] = {entry->dtype, entry->shape};
  const Fit fit = compare(saved, wanted, options);
  const std::string path = storage.path(folder);
  require_fit(world, path, [&] {
    require_roles(options.roles, wanted, entries);
    return fit.misfit;
  });
  if (world.rank() == 0 && !fit.notes.empty())
    log_info(text("loading ", path, ": ", join(fit.notes, "; ")));

  const auto read = [&] {
    std::vector<ReadJob> jobs;
    for (const auto& entry : mine)
      if (!fit.kept.contains({entry.name, entry.role}))
        jobs.push_back({&entry, by_key.at({entry.name, entry.role})});
    read_parts(storage, folder, jobs);
    return std::string();
  };
  agree(world, "read", read, disk_deadline);
}

void prepare_checkpoints(Communicator& world, const std::string& folder, bool shared) {
  const auto storage = open_by_all(world, folder);
  const auto begin = [&] {
    remove_unfinished(*storage);
    const std::string name = text(".tmp-probe-", std::hex, std::random_device{}());
    storage->create(name)->finish();
    return name;
  };
  const std::string probe = agree_with_first(world, "folder", begin, disk_deadline);
  const std::string own = text(probe, "-", world.rank());
  const auto check = [&] {
    storage->create(own)->finish();
    storage->remove(own);
    if (shared) expect_file_of_rank_zero(*storage, probe);
    return std::string();
  };
  const auto remove = [&] {
    storage->remove(probe);
    return std::string();
  };
  try {
    agree(world, "folder", check, disk_deadline);
  } catch (...) {
    if (world.rank() == 0) try {
        remove();
      } catch (const std::exception&) {  // the next start removes it
      }
    throw;
  }
  agree_with_first(world, "folder", remove, disk_deadline);
}

std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder,
                                             const LoadOptions& options) {
  const auto storage = open_by_all(world, folder);
  auto found = candidates_of_one(world, *storage);
  for (Candidate& candidate : found) {
    if (!candidate.defect.empty()) continue;
    if (options.verify_hashes)
      candidate.defect = content_defect(world, *storage, candidate.name,
                                        read_by_one(world, *storage, candidate.name));
    if (candidate.defect.empty()) break;
  }
  const auto newest = choose(*storage, found, world.rank() == 0);
  if (!newest) return std::nullopt;
  return storage->path(*newest);
}

}  // namespace phalanx
