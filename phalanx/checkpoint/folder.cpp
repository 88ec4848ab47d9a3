#include "phalanx/checkpoint/folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/huggingface.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

Candidate candidate(const Storage& storage, const std::string& name) {
  try {
    const Manifest manifest = read_manifest(storage, name);
    const auto defects = size_defects(storage, name, manifest);
    return {name, defects.empty() ? manifest.created : 0, join(defects, "; ")};
  } catch (const std::exception& error) {
    return {name, 0, error.what()};
  }
}

// What to do with a folder that holds no checkpoint, as the end of a sentence.
std::string instead_of_none(const std::string& path, const std::vector<Storage::Item>& items) {
  const bool dcp = holds(items, ".metadata", false);
  if (!dcp && !holds_huggingface(items)) return ": train first, or name a folder that has one";
  return text(": it holds weights of ", dcp ? "PyTorch's distributed checkpoint" : "Hugging Face",
              ", which have no hashes; `phalanx ckpt import ", path,
              " PLACE` makes a checkpoint of them");
}

}  // namespace

std::vector<Candidate> candidates(const Storage& storage, KnownCheckpoints* known,
                                  TaskProgress* progress) {
  std::vector<Candidate> found;
  KnownCheckpoints none, now;
  KnownCheckpoints& before = known ? *known : none;
  for (const auto& name : storage.checkpoints()) {
    if (progress && progress->cancelled) break;
    const auto place = before.find(name);
    found.push_back(place == before.end() ? candidate(storage, name)
                                          : Candidate{name, place->second, ""});
    if (found.back().defect.empty()) now[name] = found.back().created;
    if (progress) ++progress->done;
  }
  before = std::move(now);
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.created > b.created; });
  return found;
}

std::vector<std::string> defects_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> defects;
  for (const auto& candidate : candidates)
    if (!candidate.defect.empty()) defects.push_back(text(candidate.name, ": ", candidate.defect));
  return defects;
}

std::optional<std::string> choose(const Storage& storage, const std::vector<Candidate>& candidates,
                                  bool warn) {
  const auto defects = defects_of(candidates);
  std::string best;
  for (const auto& candidate : candidates)
    if (candidate.defect.empty() && best.empty()) best = candidate.name;
  require(!best.empty() || defects.empty(), ExitCode::checkpoint, "no checkpoint in ",
          storage.path(""), " can be used (", join(defects, "; "),
          "); remove them, or start anew with train.resume = \"never\"");
  for (const auto& defect : defects)
    if (warn)
      log_warning(
          text(storage.path(best), " is used; a broken checkpoint is passed over, ", defect));
  if (best.empty()) return std::nullopt;
  return best;
}

std::optional<std::string> newest_candidate(const Storage& storage) {
  return choose(storage, candidates(storage), true);
}

int64_t creation_time(const Storage& storage, KnownCheckpoints* known, TaskProgress* progress) {
  int64_t newest = 0;
  for (const auto& candidate : candidates(storage, known, progress))
    newest = std::max(newest, candidate.created);
  return creation_time_after(newest);
}

int64_t creation_time_after(int64_t other) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto created = std::max<int64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), other + 1);
  require(created <= Manifest::latest_creation, ExitCode::checkpoint,
          "a checkpoint that is created now would be of ", created,
          " nanoseconds after 1970, beyond the year 2100, and no reader takes it; set the clock of "
          "this machine, or remove the checkpoint that has such a time");
  return created;
}

std::string local_place(const std::string& local, const std::string& folder) {
  if (local.empty()) return "";
  std::string whole = folder;
  if (!is_url(folder)) whole = std::filesystem::absolute(folder).lexically_normal().string();
  while (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
  const Hash hash = hash_of(whole.data(), static_cast<int64_t>(whole.size()));
  return in_folder(local, to_hex(hash).substr(0, 16));
}

void refuse_unfinished(const std::string& path, const std::vector<Storage::Item>& items) {
  const auto is_left = [](const Storage::Item& item) {
    const bool state = item.name.starts_with("state-") &&
                       item.name.find("-of-") != std::string::npos &&
                       item.name.ends_with(".safetensors");
    return !item.is_folder && (state || item.name == "manifest.json.xxh128");
  };
  const bool unfinished = path.substr(path.rfind('/') + 1).starts_with(".tmp-step-");
  require(!unfinished && std::none_of(items.begin(), items.end(), is_left), ExitCode::checkpoint,
          path,
          " is an unfinished or broken checkpoint: it has no manifest.json; name another one");
}

std::string resolve_checkpoint(const std::string& path) {
  auto storage = open_storage(path);
  const auto items = storage->list("");
  if (holds(items, "manifest.json", false)) return storage->path("");
  refuse_unfinished(storage->path(""), items);
  if (holds(items, "checkpoints", true)) storage = open_storage(storage->path("checkpoints"));
  const auto newest = newest_candidate(*storage);
  require(newest.has_value(), ExitCode::checkpoint, "there is no checkpoint in ", storage->path(""),
          instead_of_none(path, items));
  return storage->path(*newest);
}

// Some file systems refuse to replace a file while another process reads it.
void point_latest(Storage& storage, const std::string& name) {
  for (int attempt = 0; attempt < 3; ++attempt) try {
      storage.replace("latest", name + "\n");
      return;
    } catch (const Error& error) {
      if (attempt == 2)
        log_warning(text("the checkpoint is complete, but: ", error.what()));
      else
        usleep(50'000 << attempt);
    }
}

std::string publish(Storage& storage, const std::string& unfinished, int64_t step) {
  const std::string name = storage.publish(unfinished, step);
  point_latest(storage, name);
  return name;
}

std::vector<std::string> old_checkpoints(const Storage& storage, int keep, int64_t keep_every,
                                         KnownCheckpoints* known, TaskProgress* progress) {
  auto found = candidates(storage, known, progress);
  std::erase_if(found, [](const auto& candidate) { return !candidate.defect.empty(); });
  std::vector<std::string> old;
  for (size_t i = keep; i < found.size(); ++i)
    if (keep_every == 0 || step_of(found[i].name).value_or(0) % keep_every != 0)
      old.push_back(found[i].name);
  return old;
}

void delete_old(Storage& storage, int keep, int64_t keep_every, KnownCheckpoints* known,
                TaskProgress& progress) try {
  for (const auto& name : old_checkpoints(storage, keep, keep_every, known, &progress)) {
    if (progress.cancelled) return;
    storage.remove(name);
    if (known) known->erase(name);
    ++progress.done;
  }
} catch (const std::exception& error) {
  log_warning(text("an old checkpoint was not deleted: ", error.what()));
}

void remove_unfinished(Storage& storage) {
  for (const auto& name : storage.unfinished()) storage.remove(name);
}

}  // namespace phalanx
