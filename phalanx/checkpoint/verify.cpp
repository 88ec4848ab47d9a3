#include "phalanx/checkpoint/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/pieces.h"
#include "phalanx/checkpoint/safetensors.h"

namespace phalanx {
namespace {

using Listed = std::tuple<int64_t, std::string, Dtype, std::vector<int64_t>>;  // offset, name ...

// The header of a file beside what the manifest says about it: what other tools see is what we
// load.
void compare_header(const Reader& file, std::vector<Listed> listed,
                    std::vector<std::string>& defects) {
  std::vector<Listed> found;
  for (const auto& tensor : read_safetensors_header(file))
    found.emplace_back(tensor.offset, tensor.name, tensor.dtype, tensor.shape);
  std::sort(listed.begin(), listed.end());
  std::sort(found.begin(), found.end());
  if (found != listed)
    defects.push_back(file.path() + " is damaged: its header is not what the manifest says");
}

Hash hash_of_range(const Reader& file, int64_t offset, int64_t bytes) {
  Hasher hasher;
  for_each_piece(file, offset, bytes,
                 [&](const char* piece, int64_t count) { hasher.add(piece, count); });
  return hasher.result();
}

// The parts that `share` of `shares` reads: the large ones are dealt out first, each to the share
// that has least to read so far. Dealt out by number, one share could get all the large ones.
std::set<const ManifestEntry::Part*> parts_of_share(const Manifest& manifest, int share,
                                                    int shares) {
  std::vector<const ManifestEntry::Part*> parts;
  for (const auto& entry : manifest.entries)
    for (const auto& part : entry.parts) parts.push_back(&part);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  using Load = std::pair<int64_t, int>;  // bytes, share
  std::set<Load> loads;
  for (int each = 0; each < shares; ++each) loads.insert({0, each});
  std::set<const ManifestEntry::Part*> own;
  for (const auto* part : parts) {
    auto least = loads.extract(loads.begin());
    if (least.value().second == share) own.insert(part);
    least.value().first += part->bytes;
    loads.insert(std::move(least));
  }
  return own;
}

std::string first_few(const std::vector<std::string>& defects) {
  constexpr size_t most = 4;
  const size_t shown = std::min(defects.size(), most);
  return join(std::vector(defects.begin(), defects.begin() + shown), "; ") +
         (shown < defects.size() ? text("; and ", defects.size() - shown, " more") : "");
}

}  // namespace

std::string tensor_label(const std::string& name, const std::string& role) {
  return name + (role == "parameter" ? "" : ":" + role);
}

std::string part_name(const ManifestEntry& entry, const Box& box) {
  return tensor_label(entry.name, entry.role) +
         (box == whole_box(entry.shape) ? "" : to_string(box));
}

std::vector<std::string> size_defects(const Storage& storage, const std::string& folder,
                                      const Manifest& manifest) {
  std::map<std::string, Storage::Item> found;
  for (const auto& item : storage.list(folder))
    if (!item.is_folder) found[item.name] = item;
  std::vector<std::string> defects;
  for (const auto& [file, bytes] : manifest.files) {
    const std::string path = storage.path(in_folder(folder, file));
    const auto place = found.find(file);
    if (place == found.end())
      defects.push_back(path + " cannot be read: No such file");
    else if (place->second.is_link)
      defects.push_back(path + " is a symbolic link, which is not followed: copy the file here");
    else if (place->second.bytes != bytes)
      defects.push_back(
          text(path, " has ", place->second.bytes, " bytes, the manifest says ", bytes));
  }
  return defects;
}

void require_sizes(const Storage& storage, const std::string& folder, const Manifest& manifest) {
  const auto defects = size_defects(storage, folder, manifest);
  require(defects.empty(), ExitCode::checkpoint, join(defects, "; "));
}

std::vector<std::string> content_defects(const Storage& storage, const std::string& folder,
                                         const Manifest& manifest, int share, int shares) {
  struct Item {
    const ManifestEntry* entry;
    const ManifestEntry::Part* part;
  };
  std::map<std::string, std::vector<Item>> by_file;
  for (const auto& entry : manifest.entries)
    for (const auto& part : entry.parts) by_file[part.file].push_back({&entry, &part});
  const auto own = parts_of_share(manifest, share, shares);
  std::vector<std::string> defects;
  for (const auto& [name, items] : by_file) try {
      const bool reads = std::any_of(items.begin(), items.end(),
                                     [&](const Item& item) { return own.contains(item.part); });
      if (share != 0 && !reads) continue;
      const auto opened = storage.open(in_folder(folder, name));
      const Reader& file = *opened;
      if (share == 0) {
        std::vector<Listed> listed;
        for (const auto& [entry, part] : items)
          listed.emplace_back(part->offset, part_name(*entry, part->box), entry->dtype,
                              part->box.size);
        compare_header(file, std::move(listed), defects);
      }
      for (const auto& [entry, part] : items) {
        if (!own.contains(part)) continue;
        if (hash_of_range(file, part->offset, part->bytes) != part->hash)
          defects.push_back(text(file.path(), " is damaged: ", part_name(*entry, part->box),
                                 " (bytes ", part->offset, " to ", part->offset + part->bytes,
                                 ") does not have the manifest's hash"));
      }
    } catch (const Error& error) {
      defects.push_back(error.what());
    }
  return defects;
}

std::string content_defect(const Storage& storage, const std::string& folder,
                           const Manifest& manifest) {
  return first_few(content_defects(storage, folder, manifest));
}

std::string content_defect(Communicator& world, const Storage& storage, const std::string& folder,
                           const Manifest& manifest) {
  const auto read = [&] {
    return first_few(content_defects(storage, folder, manifest, world.rank(), world.size()));
  };
  auto told = agree(world, "verify", read, disk_deadline);
  std::erase(told, "");
  return first_few(told);
}

}  // namespace phalanx
